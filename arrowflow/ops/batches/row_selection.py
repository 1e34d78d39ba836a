"""Rows selected for one batch: the chunks that are kept for these rows, and the kernel that gathers the rows."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.kernels.gather import GatherKernel, gathered, joined_batch
from arrowflow.kernels.items import Origin, Ticket
from arrowflow.plan.node import Count, Node
from arrowflow.plan.position import Position
from arrowflow.plan.walk import fold
from arrowflow.plan.widths import row_bytes


@dataclass(slots=True)
class RowSelection:
    """The rows of one batch: chunks, the number of the first row of each, and numbers of rows, ascending."""

    chunks: list[pa.RecordBatch]
    starts: list[int]
    rows: npt.NDArray[np.int64]

    @property
    def num_rows(self) -> int:
        """Rows of the batch."""
        return len(self.rows)


class Kept(NamedTuple):
    """A chunk whose rows may be held.

    Attributes:
        chunk: The rows.
        ticket: The chunk's claim on the ledger.
        before: The position before the chunk.
        earlier: A value that the operator noted about the rows before the chunk.
    """

    chunk: pa.RecordBatch
    ticket: Ticket
    before: Position
    earlier: Any = None


class KeptChunks:
    """The chunks with held rows, in order; rows are named by their numbers."""

    def __init__(self) -> None:
        self._kept: list[Kept] = []
        self._starts: list[int] = []  # the first row of each

    def add(self, kept: Kept, start: int) -> None:
        """Keeps a chunk whose first row has the number `start`."""
        self._kept.append(kept)
        self._starts.append(start)

    def select(self, rows: npt.NDArray[np.int64]) -> tuple[RowSelection, list[Ticket]]:
        """Returns rows, ascending, with the tickets of their chunks."""
        first = bisect_right(self._starts, int(rows[0])) - 1
        stop = bisect_right(self._starts, int(rows[-1]))
        used = self._kept[first:stop]
        selection = RowSelection([kept.chunk for kept in used], self._starts[first:stop], rows)
        return selection, [kept.ticket for kept in used]

    def release(self, oldest: int | None) -> None:
        """Releases the chunks before the chunk with row `oldest`; None releases all chunks."""
        gone = len(self._starts) if oldest is None else bisect_right(self._starts, oldest) - 1
        if gone:
            del self._kept[:gone], self._starts[:gone]

    @property
    def first(self) -> tuple[Kept, int] | None:
        """The first chunk, with the number of its first row."""
        return (self._kept[0], self._starts[0]) if self._kept else None


def first_late(oldest: int, max_lag_rows: int) -> int:
    """Returns the row before which the batch of row `oldest` is emitted short: at most `max_lag_rows` are held.

    Examples:
        >>> first_late(oldest=0, max_lag_rows=2)  # rows 0 and 1 may be held
        2
    """
    return oldest + max_lag_rows


def held_bytes(below: Node, max_lag_rows: int) -> int:
    """Returns the bytes of the most rows that are kept, if the plan tells: one held row keeps all rows after it."""
    rows: Count = fold(below, lambda node, inputs: node.count_rows(inputs))
    return row_bytes(below.schema) * int(max_lag_rows if rows is None else min(rows, max_lag_rows))


class SelectionKernel(GatherKernel):
    """Gathers the rows of a batch into new memory.

    Args:
        setting: The setting to make smaller where a batch holds too much.
    """

    def __init__(self, setting: str) -> None:
        self._setting = setting

    def gather(self, chunk: RowSelection, origin: Origin) -> pa.RecordBatch:
        """Returns the batch."""
        rows = chunk.rows
        cuts = [*np.searchsorted(rows, chunk.starts).tolist(), len(rows)]
        parts = []
        for part, first, start, stop in zip(chunk.chunks, chunk.starts, cuts[:-1], cuts[1:], strict=True):
            if start < stop:
                parts.append(gathered(part, rows[start:stop] - first))
        return joined_batch(parts, self._setting)
