"""`Chain` and `StagePlan`: the physical plan, immutable, its text and its positions. The executor makes running stages of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from arrowflow.kernels.context import SubPlan
from arrowflow.kernels.kept import Kept
from arrowflow.kernels.operator import Cost, KernelSpec
from arrowflow.plan.position import Arrived, Position
from arrowflow.plan.shape import Shape, altered


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """Kernels that run as one stage.

    Attributes:
        kind: `parallel` (many calls at once, delivered in order), `serial` (one call at a time) or `boundary`
            (serial, over streams of its own).
        head: The source or reader that a parallel stage starts with, if any.
        kernels: The stateless kernels fused behind the head; or the one serial or boundary kernel.
        buffer_items: Chunks it may hold ready, where an operator says so.
        prefetches: Whether that operator is `prefetch`.
        streams: How many streams run it, each on a part of the rows, beside each other. What it may have is for all of them.
    """

    kind: Literal["parallel", "serial", "boundary"]
    head: KernelSpec | None = None
    kernels: tuple[KernelSpec, ...] = ()
    buffer_items: int | None = None
    prefetches: bool = False
    streams: int = 1

    @cached_property
    def specs(self) -> tuple[KernelSpec, ...]:
        """All its kernels, upstream first."""
        return ((self.head,) if self.head else ()) + self.kernels

    @cached_property
    def operators(self) -> tuple[str, ...]:
        """Names of its operators, upstream first, each once."""
        return tuple(dict.fromkeys(spec.operator for spec in self.specs))

    @cached_property
    def keeps(self) -> Kept | None:
        """Where what its calls make is kept for later epochs, if it is."""
        return next((spec.keeps for spec in self.specs if spec.keeps is not None), None)

    @cached_property
    def titles(self) -> tuple[str, ...]:
        """Names by which a person can tell the operators apart."""
        return tuple(dict.fromkeys(spec.title or spec.operator for spec in self.specs))

    @cached_property
    def engine(self) -> str:
        return "+".join(dict.fromkeys(part for spec in self.specs for part in spec.engine.split("+")))

    @cached_property
    def max_calls(self) -> int | None:
        given = [spec.max_calls for spec in self.specs if spec.max_calls is not None]
        return min(given) if given else None

    @property
    def shares_calls(self) -> bool:
        """Whether the number of its calls that a user asked for holds for all of its streams: sources have nothing in common."""
        return self.max_calls is not None and (self.head is None or self.head.kind != "source")

    @cached_property
    def connections(self) -> int | None:
        """The most connections that the client opens by which its calls wait, or None."""
        return self.specs[0].connections

    @cached_property
    def random(self) -> bool:
        """Whether one of its operators draws from a seed."""
        return any(spec.random for spec in self.specs)

    @cached_property
    def process(self) -> bool:
        """Whether its calls run in worker processes."""
        return any(spec.process for spec in self.specs)

    @cached_property
    def holds_lock(self) -> bool:
        """Whether its calls hold the interpreter lock nearly all of their time."""
        return all(spec.holds_lock for spec in self.specs)

    @cached_property
    def phase(self) -> str:
        """Name of the calls of its first kernel in a timeline."""
        return self.specs[0].phase or self.specs[0].operator

    @cached_property
    def cost(self) -> Cost:
        """The cost of its calls, as its first kernel declares it."""
        return self.specs[0].cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain(SubPlan):
    """The stages between a source or boundary and the next boundary or the consumer, upstream first.

    Attributes:
        stages: At least one; the first is a source or a boundary.
        children: The chains that the boundary opens, one per input.
    """

    stages: tuple[StagePlan, ...]
    children: tuple[Chain, ...] = ()

    def shape(self, last: Sequence[str] = ()) -> list[object]:
        """Returns the operators that have a say in positions, as JSON: states fit only the same shape.

        Args:
            last: Operators after it that the boundary runs.
        """
        names = [
            spec.operator
            for stage in self.stages
            for spec in stage.specs
            if spec.kind in ("source", "serial", "boundary") and spec.has_position
        ]
        runs_last = self.stages[0].specs[0].runs_last
        if not self.children:
            names = [*runs_last, *names]
        return [*names, *last, *(child.shape(runs_last) for child in self.different_children)]

    def takes_any_order(self, index: int) -> bool:
        """Whether a stage's chunks may come in any order, with `deterministic=False`."""
        later = self.stages[index + 1 :]
        return self.stages[index].kind == "parallel" and not any(
            stage.kind == "serial" and stage.specs[0].pins_order for stage in later
        )

    def stages_of_any_order(self) -> list[list[str]]:
        """Returns the operators of these stages: with `deterministic=False` a state fits only the same ones."""
        return [
            list(stage.operators) for index, stage in enumerate(self.stages) if self.takes_any_order(index)
        ]

    @property
    def mixes_any_order(self) -> str | None:
        """The operator whose inputs come in any order with `deterministic=False`, if there is one."""
        first = self.stages[0].specs[0]
        return first.operator if self.children and not first.pins_order else None

    @property
    def alike(self) -> bool:
        """Whether its children are one plan on parts of the rows."""
        return any(spec.alike for spec in self.stages[0].specs)

    @property
    def different_children(self) -> tuple[Chain, ...]:
        """The children, those that are alike once."""
        return self.children[:1] if self.alike else self.children


ELEMENT = 1 << 20
"""Number of the input of a boundary whose chains are only known while it runs: they all count as one."""


def stage_key(chain: Chain, index: int, path: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the key of a stage: the way from the consumer to it, in numbers, and its operators.

    Sorted, keys name the most downstream stage first.
    """
    return (*path, len(chain.stages) - 1 - index, "+".join(chain.stages[index].operators))


def child_path(chain: Chain, path: tuple[Any, ...], child: int) -> tuple[Any, ...]:
    """Returns what the keys of a boundary's input begin with."""
    # The text is for sorting, where elements of one `interleave` have chains of different length: a number is
    # never compared with a name.
    return (*path, len(chain.stages), "", child)


_WHAT = {"parallel": "parallel, in order", "serial": "one at a time", "boundary": "opens streams"}


def render_chain(chain: Chain, number: int = 1) -> list[str]:
    """Returns the text of a physical plan: a line per stage, the source's first, and one per fact about its kernels."""
    lines = [line for child in chain.different_children for line in render_chain(child, number)]
    first = number + sum(len(child.stages) for child in chain.different_children)
    for index, stage in enumerate(chain.stages, first):
        fused = "fused, " if len(stage.specs) > 1 else ""
        calls = f", at most {stage.max_calls} calls" if stage.max_calls is not None else ""
        buffer = f", {stage.buffer_items} chunks ahead" if stage.buffer_items is not None else ""
        how = f"{fused}{_WHAT[stage.kind]}{calls}{buffer}; runs in {stage.engine}"
        lines.append(f"{index}. {' + '.join(stage.titles)} [{how}]")
        for spec in stage.specs:
            facts = (spec.facts,) if isinstance(spec.facts, str) else spec.facts()
            lines += [f"   {spec.operator}: {fact}" for fact in facts]
    return lines


_ARRIVED = Shape(Arrived)


def check_position(chain: Chain, position: Position, *, ordered: bool) -> None:
    """Checks a position from the last operator up to the sources, as `open` of the kernels unwraps it.

    The datasets that functions return are not known yet: their positions are checked when they are opened.

    Args:
        chain: The physical plan that goes on from there.
        position: The position.
        ordered: Whether all stages deliver in order.

    Raises:
        StateError: A part has another shape than its operator's; the message names both.
    """
    below: Position = None
    for index, stage in reversed(list(enumerate(chain.stages))):
        if not ordered and chain.takes_any_order(index):
            place = below if position is None else position
            if place is not None:
                _ARRIVED.inputs_of(place, stage.operators[-1])
                assert isinstance(place, Arrived)
                position, below = place.before, None if place.below is None else place.below.position()
        for spec in reversed(stage.specs):
            if position is None or spec.position is None:
                continue
            inputs = spec.position.inputs_of(position, spec.operator)
            if stage.kind == "boundary":
                for number, its in inputs:
                    check_position(chain.children[number], its, ordered=ordered or spec.pins_order)
                return
            position = inputs[0][1] if inputs else None
    if position is not None and chain.stages[0].specs[0].position is not None:
        raise altered(f"the position has {str(position)[:80]} for more operators than there are")
