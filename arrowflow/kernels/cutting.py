"""`CuttingKernel`: cuts its input's rows anew, every so many of them: the base of batches, windows and recuts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from arrowflow.kernels.held import Held
from arrowflow.kernels.items import Item, Origin
from arrowflow.kernels.kinds import SerialKernel
from arrowflow.plan.position import Gone, Position
from arrowflow.plan.shape import Shape, at_most


@dataclass(slots=True)
class Parts:
    """Rows that belong together as they lie in chunks, in input order; they stand on the tickets of their chunks."""

    chunks: list[pa.RecordBatch]
    num_rows: int


class CutPosition(NamedTuple):
    """Position of a `CuttingKernel`.

    Attributes:
        before: Position of the input before the oldest held row.
        offset: Rows from there on that are gone.
        number: Number of the next cut.
    """

    before: Position
    offset: Gone
    number: int


def cut_shape(size: int) -> Shape:
    """Returns the shape of the position of a kernel that cuts every `size` rows: no more rows are gone than were cut."""
    return Shape(CutPosition, lambda at: at_most("offset", at.offset, at.number * size))


class CuttingKernel(SerialKernel):
    """Yields every `size` rows of its input, whatever its borders, as `Parts`; the last ones may be fewer, or are dropped.

    Chunks without rows in front of all rows pass: one may tell the position at which its input begins.
    """

    def __init__(self, size: int, drop_remainder: bool = False) -> None:
        self._size = size
        self._drop_remainder = drop_remainder
        self._held = Held()
        self._number = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Restores the number of cuts and the rows to drop."""
        if position is None:
            return None
        at = CutPosition._make(position)
        self._held, self._number = Held(at.before, at.offset), at.number
        return at.before

    def push(self, item: Item) -> Iterator[Item]:
        """Yields the cuts that are full."""
        self._held.add(item)
        if not item.chunk.num_rows and not self._held.rows and not self._number:
            yield item._replace(position=CutPosition(*self._held.mark(), 0))
        while self._held.rows >= self._size:
            yield self._cut(self._size)
        self._held.compact()  # the next chunk may come only while this one is still there

    def finish(self) -> Iterator[Item]:
        """Yields what is left, unless it is dropped."""
        if self._held.rows and not self._drop_remainder:
            yield self._cut(self._held.rows)

    def _cut(self, rows: int) -> Item:
        chunks, tickets = self._held.pop(rows)
        self._number += 1
        position = CutPosition(*self._held.mark(), self._number)
        return Item(Parts(chunks, rows), position, tickets, Origin(self._number - 1))
