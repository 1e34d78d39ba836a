"""Elements: the datasets that a function returns for the rows of an input, made ready to be opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from arrowflow.kernels.context import StreamHandle, SubPlan
from arrowflow.kernels.cutting import CutPosition, CuttingKernel
from arrowflow.kernels.held import Held
from arrowflow.kernels.items import Item
from arrowflow.plan.position import Gone, Position

ElementFunction = Callable[[dict[str, Any]], Any]
"""A function that gets a row as a dict of Python values and returns a dataset."""

ELEMENT_BITS = 40
"""Bits of an element's number, in the places of the element's operators."""
PLACE_BITS = 16
"""Bits of an operator's number in its element, in the operator's place."""


def operator_key(place: int) -> tuple[int, ...]:
    """Returns a key that differs between operators, but not between the elements of one `interleave`.

    Examples:
        >>> operator_key(3), operator_key(((3 + 1) << ELEMENT_BITS | 71) << PLACE_BITS | 2)
        ((3,), (3, 2))
    """
    outer, own = place >> ELEMENT_BITS + PLACE_BITS, place & (1 << PLACE_BITS) - 1
    return (*operator_key(outer - 1), own) if outer else (place,)


class Row(NamedTuple):
    """One row of the input.

    Attributes:
        chunk: The row.
        number: Its number in the input.
        before: Position of the cutter before the row.
    """

    chunk: pa.RecordBatch
    number: int
    before: CutPosition
    num_rows: int = 1


@dataclass(slots=True, kw_only=True, eq=False)
class Element:
    """A dataset that `fn` returned.

    Attributes:
        number: Number of its row in the input.
        before: Position of the cutter before that row.
        plan: Its plan, ready to be opened.
        start: Position at which it is opened.
        held: Its rows that were taken over and wait for its turn.
        stream: Its stream, once the element was opened.
        num_rows: Always 1: the element travels as a chunk of one row.
    """

    number: int
    before: CutPosition
    plan: SubPlan | None
    start: Position = None
    held: Held = field(default_factory=Held)
    stream: StreamHandle | None = None
    num_rows: int = 1

    @property
    def ready(self) -> bool:
        """Whether the element has rows, or has ended."""
        return self.held.rows > 0 or (self.stream is not None and self.stream.ready)


class RowsWanted(NamedTuple):
    """The position at which a `RowKernel` is opened.

    Attributes:
        start: The kernel's own position.
        numbers: Numbers of the rows that are still wanted.
        all_from: Number of the first row from which on all rows are wanted.
    """

    start: CutPosition | None
    numbers: tuple[int, ...]
    all_from: int


class OpenElement(NamedTuple):
    """An open element in a position of `interleave`.

    Attributes:
        place: Its place in the rotation.
        number: Number of its row in the input.
        before: The element's position before the oldest row that it holds.
        offset: Rows from there on that are gone.
    """

    place: int
    number: int
    before: Position
    offset: Gone


class InterleavePosition(NamedTuple):
    """Position of an `interleave`.

    Attributes:
        start: Position of the cutter of rows before the oldest open element.
        open: The open elements.
        place: The place whose turn it is.
        left: Rows that are left of the turn, or None for one chunk.
        turn: Number of the turn.
        next: Number of the next element.
    """

    start: CutPosition | None
    open: tuple[OpenElement, ...]
    place: int
    left: int | None
    turn: int
    next: int


class RowKernel(CuttingKernel):
    """Makes one item from each row. The kernel is opened at `RowsWanted`."""

    def __init__(self) -> None:
        super().__init__(1)
        self._wanted: frozenset[int] = frozenset()
        self._all_from = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Restores the number of the next row, and which rows are wanted."""
        if position is None:
            return None
        start, numbers, self._all_from = RowsWanted._make(position)
        self._wanted = frozenset(numbers)
        return super().open(start, epoch)

    def push(self, item: Item) -> Iterator[Item]:
        held = self._held
        held.add(item)
        while held.rows:
            number, before = self._number, CutPosition(*held.mark(), self._number)
            (row,), (ticket,) = held.pop(1)
            self._number += 1
            if number >= self._all_from or number in self._wanted:
                after = CutPosition(*held.mark(), self._number)
                yield Item(Row(row, number, before), after, ticket, item.origin)
