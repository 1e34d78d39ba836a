"""`assert_cardinality`: declares how many rows there are, and checks it while they pass."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import pyarrow as pa

from arrowflow.errors import DataError, PlanError
from arrowflow.kernels.items import Item
from arrowflow.kernels.kinds import StateKernel
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.ops.cache.cache import adds_up, dealt_caches
from arrowflow.ops.sources.files.row_counts import RowCounts, known_as
from arrowflow.options import ResolvedOptions, check_size
from arrowflow.plan.access import RowAccess, SourceOrder, position_behind, with_source_order
from arrowflow.plan.lane import InLanes, Lane, Obstacle, in_lane, obstacle_of, too_few
from arrowflow.plan.node import BindContext, Count, Node
from arrowflow.plan.position import Counted
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Traits
from arrowflow.plan.walk import post_order, rows_in_lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class AssertCardinality(RowOperator, InLanes, RowAccess):
    """All rows of its input, of which there are `count`; an error otherwise. `kept` tells which rows of files they are.

    Row order: as its input. Memory: nothing held. Deterministic. Resume: (input's position, rows passed).
    """

    name: ClassVar[str] = "assert_cardinality"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, needs_rows=True)

    count: int
    kept: RowCounts | None = field(default=None, compare=False, repr=False)
    lane: Lane | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, below: Node, count: object) -> Self:
        if isinstance(count, str | os.PathLike):
            count = RowCounts.load(count)
        if isinstance(count, RowCounts):
            return cls(inputs=(below,), count=count.num_rows, kept=count)
        return cls(inputs=(below,), count=check_size(cls.name, "count", count, least=0))

    def arguments(self) -> Mapping[str, Any]:
        """Returns the number of rows, and of which pipeline they were counted."""
        return {"count": self.count} | ({} if self.kept is None else {"of": self.kept.of})

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Checks that the counts are those of its input."""
        if self.kept is not None and not self.bound and self.kept.of != known_as(inputs[0]):
            raise PlanError(
                f"assert_cardinality: the counts are of {_other(self.kept, inputs[0])}; count again with "
                "af.count_rows(dataset, save=path), where `dataset` is all that comes before"
            )
        return self.on(*inputs)

    def obstacle(self, lanes: int, times: Count) -> Obstacle | None:
        """A number alone does not tell which rows are left, so that a lane cannot check its part of them."""
        (child,) = self.inputs
        if self.kept is not None:
            dealt = adds_up(self.count, lanes, times) if dealt_caches(child) else None
            return dealt or too_few(self.name, self.count, lanes, times) or obstacle_of(child, lanes, times)
        if rows_in_lanes(child) != self.count:
            return Obstacle(
                self.name,
                "counts the rows of the whole stream",
                "declare assert_cardinality(af.count_rows(dataset)), where `dataset` is all that comes before",
            )
        return obstacle_of(child, lanes, times)

    def in_lane(self, lane: Lane) -> Node:
        """Deals the rows that are left, where counts tell which these are; a number that is known anyway needs no check."""
        (child,) = self.inputs
        if self.kept is None:
            return in_lane(child, lane)
        return dataclasses.replace(self, lane=lane).on(in_lane(_dealt_by(self.kept, child), lane))

    def dealt_rows(self) -> int:
        return self.count

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        return self.count

    def position_behind(self, rows: int, epoch: int | None = None) -> tuple[Any, int] | None:
        """Returns the position of a row, if it is known which rows are left and nothing before it recuts them."""
        if self.kept is None:
            return None
        plan = _dealt_by(self.kept, self.inputs[0])
        while plan.inputs and _hands_on_positions(plan.traits):
            (plan,) = plan.inputs
        found = None if plan.inputs else position_behind(plan, rows, epoch)
        return None if found is None else (Counted(found[0], rows), rows)

    def with_source_order(self, order: SourceOrder) -> Node:
        """Orders the source: the number of rows stays."""
        return dataclasses.replace(self, inputs=(with_source_order(self.inputs[0], order),))

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        return KernelSpec(
            "serial",
            lambda context: AssertCardinalityKernel(self._count_in(context.epoch)),
            position=Shape(Counted),
        )

    def _count_in(self, epoch: int) -> int:
        """Returns the rows of an epoch, or those of the lane."""
        if self.lane is None:
            return self.count
        first, before = self.lane.rows(self.count, epoch)
        return before - first


def _other(kept: RowCounts, plan: Node) -> str:
    """Returns in words of what else than a plan the counts are."""
    if kept.operators is None:  # of an earlier release
        return "another pipeline or of other files"
    if kept.operators == known_as(plan, with_files=False):
        return (
            "other files: since they were counted a file was added, removed or renamed, or has another size"
        )
    operators = ", ".join(node.describe() for node in post_order(plan))
    return f"another pipeline than the one before it, which is {operators}"


def _dealt_by(kept: RowCounts, plan: Node) -> Node:
    """Returns a plan of one source whose lanes are dealt by the rows that are left of it."""
    if not plan.inputs:
        return dataclasses.replace(plan, kept=kept)  # type: ignore[call-arg]  # `count_rows` takes a source of files alone
    (child,) = plan.inputs
    return plan.on(_dealt_by(kept, child))


def _hands_on_positions(traits: Traits) -> bool:
    return (traits.one_to_one or traits.drops_rows) and not (traits.opaque or traits.cuts_input)


class AssertCardinalityKernel(StateKernel):
    """Passes chunks on and counts their rows."""

    def __init__(self, count: int) -> None:
        self._count = count

    def step(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        self.state += chunk.num_rows
        return chunk

    def push(self, item: Item) -> Iterator[Item]:
        """Passes the chunk on, without rows that are too many."""
        left = max(0, self._count - self.state)
        if item.chunk.num_rows > left:
            if left:
                yield from StateKernel.push(self, item._replace(chunk=item.chunk.slice(0, left)))
            raise DataError(f"expected {self._count:,} rows, found more; declare another number")
        yield from StateKernel.push(self, item)

    def finish(self) -> Iterator[Item]:
        if self.state < self._count:
            raise DataError(f"expected {self._count:,} rows, found {self.state:,}; declare another number")
        yield from ()
