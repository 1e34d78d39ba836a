"""What orders the source below a `shuffle`: permutations of files, of their splits, and of blocks of rows in memory.

A source in memory has no row groups: it is cut into blocks, which are permuted. Their borders go by the number of the
row, not by the record batches that it comes in. The smaller a block, the more of them meet in a window and the better
the rows are mixed; each takes a few microseconds on its way. With 8 of them in a window two neighbours of the output
come from different blocks seven times out of eight.
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
    """How rows in memory are ordered.

    Attributes:
        order: What the order follows from.
        size: Rows of a block; the last one of all may be short.
    """

    order: SourceOrder
    size: int

    @classmethod
    def of(cls, order: SourceOrder) -> Blocks:
        """Returns the blocks that mix well in the windows of the shuffle above."""
        return cls(order, min(max(order.window // BLOCKS_IN_WINDOW, MIN_BLOCK_ROWS), MAX_CHUNK_ROWS))

    def numbers(self, num_rows: int, epoch: int) -> Sequence[int]:
        """Returns the numbers of the blocks in their order."""
        return permuted(-(-num_rows // self.size), self.order, BLOCK_ORDER, epoch)
