"""`RecutKernel`: what a user function sees is a pure function of plan and data.

Borders between chunks are free inside a plan: they depend on how a file was decoded and on what a rule moved. A
user function sees them, so in front of one the rows of each split are counted and cut every `max_chunk_rows` anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

from arrowflow.kernels.cutting import CuttingKernel
from arrowflow.kernels.held import join
from arrowflow.kernels.items import Item, Origin
from arrowflow.kernels.operator import KernelSpec
from arrowflow.options import ResolvedOptions
from arrowflow.plan.position import Position
from arrowflow.plan.shape import MAX_SPLIT, Shape


def recut_spec(operator: str, options: ResolvedOptions) -> KernelSpec:
    """Returns the kernel that an operator with a user function puts in front of it."""
    size = options.max_chunk_rows
    return KernelSpec(
        operator=operator,
        kind="serial",
        make=lambda context: RecutKernel(size),
        position=Shape(RecutPosition),
        sees_borders=True,
        facts=lambda: (f"cut splits every {size:,} rows",),
    )


class RecutPosition(NamedTuple):
    """Position of a `RecutKernel`.

    Attributes:
        before: Position of the input before the oldest held row.
        offset: Rows from there on that are gone.
        split: The split that is being cut; -1 before the first one.
        piece: Number of its next piece.
    """

    before: Position
    offset: int
    split: Annotated[int, -1, MAX_SPLIT]
    piece: int


class RecutKernel(CuttingKernel):
    """Cuts each split's rows every `size` rows."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._split = -1
        self._ends = False  # whether no row of the split is still to come

    def open(self, position: Position, epoch: int) -> Position:
        """Restores which split is being cut, and how many pieces of it were made."""
        if position is None:
            return None
        before, offset, self._split, piece = RecutPosition._make(position)
        return super().open((before, offset, piece), epoch)

    def push(self, item: Item) -> Iterator[Item]:
        """Yields full pieces, and the short one at the end of a split."""
        if item.origin.split != self._split:
            if self._held.rows:
                yield from self.finish()
            if not item.chunk.num_rows:
                # A resumed run may pass on the end of an earlier split, whose rows it left out.
                self._held.add(item)
                if self._split < 0:
                    yield item._replace(position=RecutPosition(*self._held.mark(), self._split, self._number))
                return
            self._split, self._number = item.origin.split, 0
        self._held.add(item)
        self._ends = item.origin.last
        while self._held.rows >= self._size:
            yield self._cut(self._size)
        if self._ends and self._held.rows:
            yield self._cut(self._held.rows)

    def finish(self) -> Iterator[Item]:
        """Yields what is left of the split."""
        self._ends = True
        return super().finish()

    def _cut(self, rows: int) -> Item:
        chunks, tickets = self._held.pop(rows)
        origin = Origin(self._split, self._number, last=self._ends and not self._held.rows)
        self._number += 1
        position = RecutPosition(*self._held.mark(), self._split, self._number)
        return Item(join(chunks), position, tickets if len(chunks) == 1 else None, origin)
