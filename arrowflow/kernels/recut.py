"""Pieces: what a user function sees is a pure function of plan and data.

Borders between chunks are free inside a plan: they depend on how a file was decoded and on what a rule moved. A
user function sees them, so in front of one the rows of each split are counted and cut every `max_chunk_rows` anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from arrowflow.kernels.held import Held, join
from arrowflow.kernels.items import Item, Origin
from arrowflow.kernels.kinds import SerialKernel
from arrowflow.kernels.operator import KernelSpec
from arrowflow.options import ResolvedOptions
from arrowflow.plan.position import Position


def pieces_spec(operator: str, options: ResolvedOptions) -> KernelSpec:
    """Returns the kernel that an operator with a user function puts in front of it."""
    size = options.max_chunk_rows
    return KernelSpec(
        operator=operator,
        kind="serial",
        make=lambda context: PiecesKernel(size),
        facts=lambda: (f"cut splits every {size:,} rows",),
    )


class PiecesKernel(SerialKernel):
    """Cuts each split's rows every `size` rows; the position holds the split and the number of the next piece."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held = Held()
        self._split = -1
        self._piece = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Restores which split is being cut, and how many pieces of it were made."""
        if position is None:
            return None
        before, offset, self._split, self._piece = position
        self._held = Held(before, offset)
        return cast(Position, before)

    def push(self, item: Item) -> Iterator[Item]:
        """Yields full pieces, and the short one at the end of a split."""
        if item.origin.split != self._split:
            yield from self.finish()
            self._split, self._piece = item.origin.split, 0
        self._held.add(item)
        while self._held.rows >= self._size:
            yield self._cut(self._size, last=item.origin.last)
        if item.origin.last:
            yield from self.finish()

    def finish(self) -> Iterator[Item]:
        """Yields what is left of the split."""
        if self._held.rows:
            yield self._cut(self._held.rows, last=True)

    def _cut(self, rows: int, *, last: bool) -> Item:
        chunks, tickets = self._held.pop(rows)
        origin = Origin(self._split, self._piece, last=last and not self._held.rows)
        self._piece += 1
        position = (*self._held.mark(), self._split, self._piece)
        return Item(join(chunks), position, tickets if len(chunks) == 1 else None, origin)
