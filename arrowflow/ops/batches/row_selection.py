"""Rows selected for one batch: the chunks that are kept for these rows, and the kernel that gathers the rows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.kernels.gather import GatherKernel, gathered, joined_batch
from arrowflow.kernels.items import Item, Origin, Ticket
from arrowflow.plan.node import Node
from arrowflow.plan.position import Position
from arrowflow.plan.walk import count
from arrowflow.plan.widths import row_bytes

RowNumbers = npt.NDArray[np.int64]


@dataclass(slots=True)
class RowSelection:
    """The rows of one batch: chunks, the number of the first row of each, and numbers of rows, ascending."""

    chunks: list[pa.RecordBatch]
    starts: list[int]
    rows: RowNumbers

    @property
    def num_rows(self) -> int:
        """Rows of the batch."""
        return len(self.rows)


class HeldChunks:
    """The chunks with held rows, in order; rows are named by their numbers.

    Args:
        after: Position at which the input was opened.
        rows: Number of the first row that comes.

    Attributes:
        rows: Number of the next row.
    """

    def __init__(self, after: Position = None, rows: int = 0) -> None:
        self.rows = rows
        self._after = after
        self._held: list[tuple[pa.RecordBatch, Ticket, Position, Any]] = []  # with what was noted before it
        self._starts: list[int] = []  # the first row of each

    def add(self, item: Item, earlier: Any = None) -> None:
        """Keeps a chunk, and a value that the operator noted about the rows before it."""
        if item.chunk.num_rows:
            self._held.append((item.chunk, item.ticket, self._after, earlier))
            self._starts.append(self.rows)
            self.rows += item.chunk.num_rows
        self._after = item.position

    def select(self, rows: RowNumbers) -> tuple[RowSelection, list[Ticket]]:
        """Returns rows, ascending, with the tickets of their chunks."""
        first = bisect_right(self._starts, int(rows[0])) - 1
        stop = bisect_right(self._starts, int(rows[-1]))
        used = self._held[first:stop]
        selection = RowSelection([chunk for chunk, *_ in used], self._starts[first:stop], rows)
        return selection, [ticket for _, ticket, *_ in used]

    def release(self, oldest: int) -> None:
        """Releases the chunks before the chunk with row `oldest`, which may still have to come."""
        gone = bisect_right(self._starts, oldest) - (oldest < self.rows)
        if gone:
            del self._held[:gone], self._starts[:gone]

    def first(self, earlier: Any = None) -> tuple[Position, int, Any]:
        """Returns the position before the first chunk, its first row, and the noted value; or those of the next chunk."""
        if not self._held:
            return self._after, self.rows, earlier
        *_, before, noted = self._held[0]
        return before, self._starts[0], noted


def rows_by_code(codes: npt.NDArray[Any], num_codes: int, first: int) -> Iterator[tuple[int, RowNumbers]]:
    """Yields each code that comes, with the numbers of its rows; the first row has the number `first`."""
    # NumPy sorts 8 and 16 bits by radix: 0.5 ms instead of 4 ms for 65,536 rows.
    order = np.argsort(codes.astype(np.min_scalar_type(num_codes)), kind="stable")
    counts = np.bincount(codes, minlength=num_codes)
    order += first
    stop = 0
    for code in np.flatnonzero(counts).tolist():
        start, stop = stop, stop + int(counts[code])
        yield code, order[start:stop]


def held_bytes(below: Node, max_lag_rows: int) -> int:
    """Returns the bytes of the most rows that are kept, if the plan tells: one held row keeps all rows after it."""
    rows, _ = count(below)
    return row_bytes(below.schema) * int(max_lag_rows if rows is None else min(rows, max_lag_rows))


class SelectionKernel(GatherKernel):
    """Gathers the rows of a batch into new memory.

    Args:
        setting: The setting to make smaller where a batch holds too much.
    """

    def __init__(self, setting: str) -> None:
        self._setting = setting

    def gather(self, chunk: RowSelection, origin: Origin) -> pa.RecordBatch:
        rows = chunk.rows
        cuts = [*np.searchsorted(rows, chunk.starts).tolist(), len(rows)]
        pieces = zip(chunk.chunks, chunk.starts, cuts[:-1], cuts[1:], strict=True)
        parts = [gathered(part, rows[at:stop] - first) for part, first, at, stop in pieces if at < stop]
        return joined_batch(parts, self._setting)
