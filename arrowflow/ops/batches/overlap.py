"""Held rows that are read before they are removed: shared by operators whose results overlap."""

from __future__ import annotations

import pyarrow as pa

from arrowflow.kernels.held import Held
from arrowflow.kernels.items import Ticket


class Overlap(Held):
    """Held rows; the oldest rows may be used several times, and no row is kept longer than the position needs."""

    __slots__ = ()

    def first_rows(self) -> int:
        """Returns how many of the oldest rows lie in one chunk."""
        chunk, _, start, *_ = self._entries[0]
        return int(chunk.num_rows) - int(start)

    def peek(self, rows: int) -> tuple[list[pa.RecordBatch], list[Ticket]]:
        """Returns the oldest `rows` rows, which stay, as zero-copy slices with the tickets they stand on."""
        chunks, tickets = [], []
        for chunk, _, start, ticket, _ in self._entries:
            if rows <= 0:
                break
            here = min(rows, chunk.num_rows - start)
            chunks.append(chunk if here == chunk.num_rows else chunk.slice(start, here))
            tickets.append(ticket)
            rows -= here
        return chunks, tickets

    def drop(self, rows: int) -> None:
        """Removes the oldest `rows` rows; rows that are still missing are removed when they come."""
        here = min(rows, self.rows)
        self.pop(here)
        self._skip += rows - here
