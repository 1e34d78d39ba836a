"""Sources whose rows have numbers: `DealtSource`, which deals lanes parts of them, and the kernel that makes rows by number."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pyarrow as pa

from arrowflow.kernels.items import Made, Origin, Task
from arrowflow.kernels.kinds import SourceKernel
from arrowflow.kernels.operator import Operator
from arrowflow.ops.order.random_access import Rows
from arrowflow.ops.order.source_order import Block, Blocks
from arrowflow.options import MAX_CHUNK_ROWS
from arrowflow.plan.access import RowAccess, SourceOrder
from arrowflow.plan.lane import InLanes, Lane, Obstacle, too_few
from arrowflow.plan.node import Count, Node
from arrowflow.plan.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class DealtSource(Operator, InLanes, RowAccess):
    """A source that knows its rows by their numbers in the order of an epoch.

    Attributes:
        lane: The lane that reads its part of the rows, or None for all of them.
    """

    lane: Lane | None = None

    @property
    def in_memory(self) -> bool:
        """Its rows are there, or are counted."""
        return True

    def in_lane(self, lane: Lane) -> Self:
        return dataclasses.replace(self, lane=lane)

    def obstacle(self, lanes: int, times: Count) -> Obstacle | None:
        """A lane without a single row would end before the others."""
        return too_few(self.name, self.count_rows(()), lanes, times)

    def of_epoch(self, epoch: int) -> Self:
        """Returns the source of those rows that its lane reads in an epoch."""
        if self.lane is None:
            return self
        rows = self.count_rows(())
        assert isinstance(rows, int)
        return dataclasses.replace(self.part(*self.lane.rows(rows, epoch)), lane=None)

    @abstractmethod
    def part(self, first: int, before: int) -> Self:
        """Returns the source of some of its rows, by their numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSource(DealtSource):
    """A source of rows that can be read anywhere, which a `shuffle` of a size reads in blocks.

    Attributes:
        blocks: How a `shuffle` after it orders the rows, or None.
        in_place: Whether a global `shuffle` after it takes rows by their numbers, so that no row travels.
        split_rows: The most rows of a split or a block.
    """

    blocks: Blocks | None = None
    in_place: bool = False
    split_rows: int = field(default=MAX_CHUNK_ROWS, compare=False, repr=False)

    def with_source_order(self, order: SourceOrder) -> Node:
        return dataclasses.replace(self, blocks=Blocks.of(order, self.split_rows))

    def in_lane(self, lane: Lane) -> Self:
        if self.blocks is not None:
            return dataclasses.replace(self, blocks=self.blocks.in_lane(lane))
        return DealtSource.in_lane(self, lane)

    def random_access(self) -> Node:
        return dataclasses.replace(self, in_place=True)


class NumberedRows(Rows):
    """Rows that are made, read or gathered when a reader asks for them, by their numbers."""

    __slots__ = ()

    buffers: tuple[pa.Buffer, ...] = ()
    check: None = None

    def everything(self) -> pa.RecordBatch:
        """Returns all of them, in order, as new memory."""
        return self.gather(np.arange(self.num_rows, dtype=np.int64))


class NumberedKernel(SourceKernel):
    """One task per split, or one task at all if rows stay in place; the position is (splits done,) or (rows done,).

    Args:
        rows: The rows.
        splits: Yields the splits of these rows, in their order.
        in_place: Whether rows stay in place.
        by_rows: Whether the position counts rows, of splits that follow each other.
        copies: How often a call holds the rows of its split.
    """

    def __init__(
        self,
        rows: NumberedRows,
        splits: Callable[[], Iterator[Block]],
        *,
        in_place: bool = False,
        by_rows: bool = False,
        copies: int = 1,
    ) -> None:
        self._rows = rows
        self._splits = splits
        self._in_place = in_place
        self._by_rows = by_rows
        self._copies = copies

    def tasks(self, position: Position) -> Iterator[Task]:
        if self._in_place:
            yield Task(None, Origin(0))
            return
        first = 0 if position is None else position[0]
        for block in self._splits():
            if (block.start if self._by_rows else block.turn) >= first:
                yield Task(block, Origin(block.number), self._copies * self._part(block).num_bytes)

    def _part(self, block: Block) -> NumberedRows:
        return self._rows.slice(block.start, block.stop - block.start)

    def read(self, task: Task) -> Iterator[Made]:
        if self._in_place:
            yield Made(self._rows, (self._rows.num_rows if self._by_rows else 1,))
            return
        block: Block = task.payload
        yield Made(self._part(block).everything(), (block.stop if self._by_rows else block.turn + 1,))


def equal_splits(num_rows: int, size: int) -> Iterator[Block]:
    """Yields the splits of so many rows; the last one may be short."""
    for turn, start in enumerate(range(0, num_rows, size)):
        yield Block(turn, turn, start, min(start + size, num_rows))
