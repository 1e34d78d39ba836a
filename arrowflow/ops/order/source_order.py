"""The order of the source before a `shuffle`: permutations of files, of their splits, and of blocks of rows in memory.

A source in memory has no row groups: it is cut into blocks, which are permuted. The number of the row decides the
borders of blocks, not the record batches of the source. Smaller blocks mix the rows better, since more blocks meet in a
window; each block takes a few microseconds on its way. With 8 blocks in a window two neighbours of the output come from
different blocks seven times out of eight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from arrowflow.options import MAX_CHUNK_ROWS
from arrowflow.plan.access import SourceOrder
from arrowflow.plan.lane import Lane
from arrowflow.plan.node import BindContext
from arrowflow.random import BLOCK_ORDER, permutation, philox

BLOCKS_IN_WINDOW: Final = 8
MIN_BLOCK_ROWS: Final = 512


def bound_seed(given: int | None, context: BindContext) -> int:
    """Returns the seed of an operator that orders rows: the given one, or one for its place in the plan."""
    return int(philox((context.options.seed, context.place)).random_raw()) if given is None else given


def permuted(count: int, order: SourceOrder, purpose: int, epoch: int, *more: int) -> Sequence[int]:
    """Returns a permutation of `range(count)` for one purpose of a source order."""
    key = (order.seed, purpose, epoch if order.reshuffle else 0, *more)
    return [*permutation(count, key).tolist()]


class Block(NamedTuple):
    """Rows of a source in memory that are read together.

    Attributes:
        turn: Its place in the order.
        number: Its number in the source.
        start: Number of its first row.
        stop: Number of the row to stop before.
    """

    turn: int
    number: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """The order of rows in memory.

    Attributes:
        order: The source order that the permutation follows from.
        size: Rows of a block; the last block may be short.
        lane: The lane that reads its part of the order, or None for all of it.
        most: The most rows of a block.
    """

    order: SourceOrder
    size: int
    lane: Lane | None = None
    most: int = MAX_CHUNK_ROWS

    @classmethod
    def of(cls, order: SourceOrder, most: int = MAX_CHUNK_ROWS) -> Blocks:
        """Returns the blocks that mix well in the windows of the shuffle that follows."""
        size = min(max(order.window // BLOCKS_IN_WINDOW, MIN_BLOCK_ROWS), most)
        return cls(order, size, most=most)

    def in_lane(self, lane: Lane) -> Blocks:
        """Returns the part of a lane, of blocks that mix well in its smaller windows."""
        order = replace(self.order, window=lane.size(self.order.window))
        return replace(Blocks.of(order, self.most), lane=lane)

    def behind(self, row: int, num_rows: int, epoch: int) -> tuple[int, int]:
        """Returns the turn of the block with a row of its part, by the row's number there, and the rows before the block."""
        counted = turn = 0
        for block in self.of_epoch(num_rows, epoch):
            rows = block.stop - block.start
            if counted + rows > row:
                return block.turn, counted
            counted, turn = counted + rows, block.turn + 1
        return turn, counted

    def of_epoch(self, num_rows: int, epoch: int) -> Iterator[Block]:
        """Yields the blocks of so many rows in their order. A lane's first and last block may be cut."""
        first, before = (0, num_rows) if self.lane is None else self.lane.rows(num_rows, epoch)
        seen = 0
        for turn, number in enumerate(permuted(-(-num_rows // self.size), self.order, BLOCK_ORDER, epoch)):
            if seen >= before:
                break
            start = number * self.size
            rows = min(self.size, num_rows - start)
            if seen + rows > first:
                yield Block(turn, number, start + max(0, first - seen), start + min(rows, before - seen))
            seen += rows
