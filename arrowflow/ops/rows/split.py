"""`split`: disjoint parts of a dataset, the same in every epoch, by a random number for each row.

In lanes, right after a source, the rows of a part are dealt: the draws alone tell their numbers.

A row belongs to a part by a draw that depends on the seed and on the row's number in the input. So the parts are stable
only if the input comes in the same order in each epoch. Operators that break this are refused before `split`. A
`shuffle` after it permutes the rows of a part, and not the files before it: a row's number would depend on the epoch.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.errors import PlanError, shown
from arrowflow.kernels.gather import GatherKernel, chosen
from arrowflow.kernels.items import Noted, Origin
from arrowflow.kernels.kinds import StateKernel
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.options import MAX_CHUNK_ROWS, ResolvedOptions, check_seed
from arrowflow.plan.lane import InLanes, Lane, Obstacle, in_lane, obstacle_of, too_few
from arrowflow.plan.node import Count, Node
from arrowflow.plan.position import Counted
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, SharedByEpochs, Traits
from arrowflow.plan.walk import rows_in_lanes
from arrowflow.random import PART_DRAWS, uniforms

MAX_COUNTED_ROWS = 1 << 26
"""Rows up to which a part is counted before it runs, by drawing for each row: 0.3 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(RowOperator, InLanes):
    """The rows of its input whose draw lies in one part of the unit interval.

    Row order: as its input. Memory: the kept rows, one chunk a call. Deterministic. Resume: (input's position, rows
    counted).

    Attributes:
        seed: The seed of the draws.
        low: The start of the part.
        high: The end of the part, which is no longer in it.
        lane: The lane whose rows it numbers, or None for all rows.
    """

    name: ClassVar[str] = "split"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, needs_rows=True)

    seed: int
    low: float
    high: float
    lane: Lane | None = None

    @classmethod
    def of(cls, below: Node, fractions: object, seed: object) -> tuple[Self, ...]:
        """Returns a node for each part, with arguments as users write them."""
        shares = _shares(fractions)
        number = check_seed(cls.name, seed) or 0
        _check_order(below)
        ends = [math.fsum(shares[:count]) for count in range(len(shares))] + [1.0]
        return tuple(
            cls(inputs=(below,), seed=number, low=low, high=high) for low, high in itertools.pairwise(ends)
        )

    def arguments(self) -> Mapping[str, Any]:
        return {"seed": self.seed, "low": self.low, "high": self.high}

    def shared_by_epochs(self, share: SharedByEpochs) -> SharedByEpochs:
        """Returns what its input has: each epoch draws the same places."""
        return share

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        """Returns how many of its input's rows are drawn; None of more rows than are worth it."""
        rows = inputs[0]
        if not isinstance(rows, int) or rows > MAX_COUNTED_ROWS:
            return rows if rows == math.inf else None
        return sum(self.kept_by_block(rows))

    def kept_by_block(self, num_rows: int) -> list[int]:
        """Returns how many of the first rows are kept, block after block."""
        firsts = range(0, num_rows, MAX_CHUNK_ROWS)
        return [len(self.kept(first, min(MAX_CHUNK_ROWS, num_rows - first))) for first in firsts]

    def kept(self, first: int, num_rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Returns which of some rows are kept, by their places; `first` is the number of the first one."""
        drawn = uniforms((self.seed, PART_DRAWS), first, first + num_rows)
        return np.flatnonzero((drawn >= self.low) & (drawn < self.high)).astype(np.int64, copy=False)

    def obstacle(self, lanes: int, times: Count) -> Obstacle | None:
        """A lane has to know the numbers of its rows, which it does where its rows are those of the source."""
        rows, of_rows = rows_in_lanes(self), rows_in_lanes(self.inputs[0])
        if rows is None and isinstance(of_rows, int) and of_rows > MAX_COUNTED_ROWS:
            return Obstacle(
                self.name,
                f"draws for {of_rows:,} rows, more than {MAX_COUNTED_ROWS:,} that are counted ahead",
            )
        if rows is None or _source(self.inputs[0]) is None:
            return Obstacle(self.name, "numbers the rows of the whole stream", "split right after the source")
        return too_few(self.name, rows, lanes, times) or obstacle_of(self.inputs[0], lanes, times)

    def in_lane(self, lane: Lane) -> Node:
        rows = rows_in_lanes(self.inputs[0])
        assert isinstance(rows, int)
        part = dataclasses.replace(self, inputs=())  # without the rows of a source in memory
        own = dataclasses.replace(lane, kept=KeptByDraws(part, rows))
        return dataclasses.replace(self, lane=own).on(in_lane(self.inputs[0], own))

    def dealt_rows(self) -> int:
        rows = rows_in_lanes(self)
        return rows if isinstance(rows, int) else 0

    def _first(self, epoch: int) -> int:
        """Returns the number of the first row that it gets in an epoch."""
        if self.lane is None:
            return 0
        assert isinstance(self.lane.kept, KeptByDraws)
        return self.lane.rows(self.lane.kept.of_rows, epoch)[0]

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        if not options.deterministic:
            raise PlanError(
                "split needs rows in one order, since their numbers decide; leave deterministic=False out"
            )
        return (
            KernelSpec(
                "serial",
                lambda context: NumberKernel(self._first(context.epoch)),
                position=Shape(Counted),
                facts="count rows",
            ),
            KernelSpec(
                "stateless",
                lambda context: SplitKernel(self),
                engine="numpy+arrow",
                facts=f"gather rows drawn in [{self.low:.3g}, {self.high:.3g})",
            ),
        )


def _source(plan: Node) -> Node | None:
    """Returns the source whose rows, in its order, are those of a plan."""
    while plan.inputs and plan.traits.one_to_one and not plan.traits.opaque:
        (plan,) = plan.inputs
    return None if plan.inputs else plan


@dataclass(frozen=True, slots=True)
class KeptByDraws:
    """The rows of a part of `of_rows` rows; see `KeptRows`. Sums of blocks are kept, blocks are drawn again."""

    split: Split
    of_rows: int

    @property
    def num_rows(self) -> int:
        """How many they are."""
        return int(_kept_before(self)[-1])

    def number(self, index: int) -> int:
        """Returns the number in the source of one of them."""
        before = _kept_before(self)
        block = int(np.searchsorted(before, index, side="right")) - 1
        first = block * MAX_CHUNK_ROWS
        kept = self.split.kept(first, min(MAX_CHUNK_ROWS, self.of_rows - first))
        return first + int(kept[index - before[block]])


@functools.lru_cache(maxsize=8)
def _kept_before(rows: KeptByDraws) -> npt.NDArray[np.int64]:
    """Returns how many rows are kept before each block, and in all."""
    return np.cumsum([0, *rows.split.kept_by_block(rows.of_rows)])


def _shares(fractions: object) -> list[float]:
    found: list[Any] = list(fractions) if isinstance(fractions, list | tuple | np.ndarray) else [None]
    if not all(
        isinstance(share, int | float | np.number) and not isinstance(share, bool) and 0 < share <= 1
        for share in found
    ):
        raise PlanError(f"split: fractions are numbers above 0, as in [0.9, 0.1], got {shown(fractions)}")
    if abs(math.fsum(found) - 1) > 1e-9:
        raise PlanError(f"split: fractions sum to 1, got {shown(fractions)}, which sum to {math.fsum(found)}")
    return [float(share) for share in found]


def _check_order(node: Node, *, cached: bool = False) -> None:
    """Raises `PlanError` if an operator before gives rows other numbers in another epoch, or gives a row several.

    A cache keeps the order of its rows, and also their copies.
    """
    if node.name == "repeat":
        raise PlanError(
            "split: repeat comes before it, so copies of a row would fall into several parts; split first"
        )
    if node.name in ("flat_map", "interleave") and not cached:
        raise PlanError(
            f"split: {node.name} comes before it, and its datasets may order rows anew in each epoch, so a row would "
            "change its part; split first, or put a cache between"
        )
    facts = node.arguments()
    fixed = facts.get("reshuffle_each_iteration") is False
    draws_anew = node.name in ("sample_from_datasets", "rejection_resample", "sample")
    seeded = node.traits.opaque and facts.get("seed") is not None and not node.traits.one_to_one
    if not cached and ((node.name == "shuffle" and not fixed) or draws_anew or seeded):
        raise PlanError(
            f"split: {node.name} comes before it and differs by epoch, so a row would change its part; split first, or "
            "put a cache between"
        )
    for child in node.inputs:
        _check_order(child, cached=cached or node.name == "cache")


@dataclass(slots=True)
class Numbered(Noted):
    """A chunk and the number of its first row."""

    first: int


class NumberKernel(StateKernel):
    """Numbers the rows, from `first` on, or counts them modulo a number."""

    def __init__(self, first: int = 0, modulo: int | None = None) -> None:
        self._first = first
        self._modulo = modulo

    def step(self, chunk: Any) -> Numbered:
        numbered = Numbered(chunk, self._first + self.state)
        self.state += chunk.num_rows
        if self._modulo is not None:
            self.state %= self._modulo
        return numbered


class SplitKernel(GatherKernel):
    """Gathers the rows of a part."""

    def __init__(self, node: Split) -> None:
        self._node = node

    def gather(self, chunk: Numbered, origin: Origin) -> pa.RecordBatch:
        return chosen(chunk.chunk, self._node.kept(chunk.first, chunk.num_rows))
