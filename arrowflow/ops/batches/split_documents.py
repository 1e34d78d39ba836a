"""Windows of documents that are cut: full rows reach over borders between windows.

Only two numbers cross windows, no data: the document in which the next row begins, and how many tokens of this document
are in rows already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from arrowflow.kernels.cutting import Parts
from arrowflow.kernels.held import Held
from arrowflow.kernels.items import Item, Origin
from arrowflow.kernels.kinds import SerialKernel
from arrowflow.ops.batches.packing import Integers
from arrowflow.plan.position import Gone, Position


@dataclass(slots=True)
class DocumentRows(Parts):
    """Documents to cut: like a window, but earlier or later rows may hold some of the tokens.

    Attributes:
        skip: Tokens of the first document that are in earlier rows.
        packed_rows: Rows to make.
        seen: Documents that earlier windows had, too.
    """

    skip: int
    packed_rows: int
    seen: int


class SplitPosition(NamedTuple):
    """Position of a `SplitKernel`.

    Attributes:
        before: Position of the input before the document that is being cut, or before rows that precede this document.
        offset: Rows from there on that are gone.
        used: Tokens of the document that are in earlier rows.
        left: Documents from there on that earlier windows were counted with.
        number: Number of the next window.
    """

    before: Position
    offset: Gone
    used: int
    left: int
    number: int


class SplitKernel(SerialKernel):
    """Collects windows, and counts how many full rows each window ends.

    Args:
        window_rows: Documents of a window.
        length: Tokens of a row.
        sizes_of: Returns the tokens of each document in some chunks, and which ones are bad.
    """

    def __init__(
        self,
        window_rows: int,
        length: int,
        sizes_of: Callable[[Sequence[pa.RecordBatch]], tuple[Integers, Any]],
    ) -> None:
        self._window_rows = window_rows
        self._length = length
        self._sizes_of = sizes_of
        self._held = Held()
        self._used = 0  # tokens of the oldest document that are in earlier rows
        self._left = 0  # oldest documents that earlier windows were counted with
        self._number = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Restores the used tokens of the document that is being cut, and how far the last window reached."""
        if position is None:
            return None
        before, offset, self._used, self._left, self._number = SplitPosition._make(position)
        self._held = Held(before, offset)
        return before

    def push(self, item: Item) -> Iterator[Item]:
        self._held.add(item)
        while self._held.rows >= self._left + self._window_rows:
            yield self._cut(self._left + self._window_rows, last=False)

    def finish(self) -> Iterator[Item]:
        """Yields the last window, whose last row may be short."""
        if self._held.rows:
            yield self._cut(self._held.rows, last=True)

    def _cut(self, rows: int, *, last: bool) -> Item:
        chunks, tickets = self._held.peek(rows)
        ends = np.cumsum(self._sizes_of(chunks)[0])
        num_tokens, length = int(ends[-1]) - self._used, self._length
        packed_rows = -(-num_tokens // length) if last else num_tokens // length
        documents = DocumentRows(chunks, rows, self._used, packed_rows, self._left)
        stop = min(self._used + packed_rows * length, int(ends[-1]))
        done = rows if last else int(np.searchsorted(ends, stop, side="right"))
        self._held.drop(done)
        self._used = 0 if last else stop - (int(ends[done - 1]) if done else 0)
        self._left = rows - done
        self._number += 1
        position = SplitPosition(*self._held.mark(), self._used, self._left, self._number)
        return Item(documents, position, tickets, Origin(self._number - 1))
