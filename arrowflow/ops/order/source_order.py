"""The order of the source before a `shuffle`: permutations of files, of their splits, and of blocks of rows in memory.

A source in memory has no row groups: it is cut into blocks, which are permuted. The number of the row decides the
borders of blocks, not the record batches of the source. Smaller blocks mix the rows better, since more blocks meet in a
window; each block takes a few microseconds on its way. With 8 blocks in a window two neighbours of the output come from
different blocks seven times out of eight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from arrowflow.options import MAX_CHUNK_ROWS
from arrowflow.plan.node import SourceOrder
from arrowflow.random import BLOCK_ORDER, permutation

BLOCKS_IN_WINDOW: Final = 8
MIN_BLOCK_ROWS: Final = 512


def permuted(count: int, order: SourceOrder, purpose: int, epoch: int, *more: int) -> Sequence[int]:
    """Returns a permutation of `range(count)` for one purpose of a source order."""
    places: list[int] = permutation(
        count, (order.seed, purpose, epoch if order.reshuffle else 0, *more)
    ).tolist()
    return places


@dataclass(frozen=True, slots=True)
class Blocks:
    """The order of rows in memory.

    Attributes:
        order: The source order that the permutation follows from.
        size: Rows of a block; the last block may be short.
    """

    order: SourceOrder
    size: int

    @classmethod
    def of(cls, order: SourceOrder) -> Blocks:
        """Returns the blocks that mix well in the windows of the shuffle that follows."""
        return cls(order, min(max(order.window // BLOCKS_IN_WINDOW, MIN_BLOCK_ROWS), MAX_CHUNK_ROWS))

    def numbers(self, num_rows: int, epoch: int) -> Sequence[int]:
        """Returns the numbers of the blocks in their order."""
        return permuted(-(-num_rows // self.size), self.order, BLOCK_ORDER, epoch)
