"""`Held`: the rows that an operator keeps back, with the position to come back to."""

from __future__ import annotations

from collections import deque
from typing import Any

import pyarrow as pa

from arrowflow.kernels.items import Item, Slices, Ticket
from arrowflow.plan.position import Mark, Position

LARGE_BYTES = 1 << 20
LARGE_COLUMN_BYTES = 8 << 10
"""A rest of a smaller chunk may keep the chunk alive: to copy the rest takes 20 µs, and 1.3 µs for each column."""


class Held:
    """The rows that an operator keeps back, with the position to come back to. Used by all that do.

    Args:
        before: Position that the input was opened at.
        skip: Rows after `before` that were delivered already and are dropped.
    """

    __slots__ = ("_after", "_entries", "_skip", "rows")

    def __init__(self, before: Position = None, skip: int = 0) -> None:
        self.rows = 0
        self._after = before
        self._skip = skip
        # [chunk, position before it, first row still held, ticket, rows of the original before the chunk]
        self._entries: deque[list[Any]] = deque()

    def add(self, item: Item) -> None:
        """Keeps an item's rows."""
        rows = item.chunk.num_rows
        if self._skip >= rows:
            # `_after` moves on only when the chunk is skipped whole: a position lies between chunks.
            self._skip -= rows
        else:
            self._entries.append([item.chunk, self._after, self._skip, item.ticket, 0])
            self.rows += rows - self._skip
            self._skip = 0
        self._after = item.position

    def restart(self) -> None:
        """Notes that the next item is the first one of the input again."""
        self._after = None

    def pop(self, rows: int, *, keeps_last: bool = False) -> tuple[list[pa.RecordBatch], list[Ticket]]:
        """Removes the oldest `rows` rows and returns them as zero-copy slices with the tickets they stand on.

        With `keeps_last` the last of them stays, too: it is the oldest one from then on.
        """
        chunks, tickets = [], []
        self.rows -= rows - keeps_last
        while rows:
            entry = self._entries[0]
            chunk, _, start, ticket, _ = entry
            here = min(rows, chunk.num_rows - start)
            chunks.append(chunk if here == chunk.num_rows else chunk.slice(start, here))
            tickets.append(ticket)
            rows -= here
            entry[2] = start + here - (keeps_last and not rows)
            if entry[2] == chunk.num_rows:
                self._entries.popleft()
        return chunks, tickets

    def pop_slices(self, size: int, number: int) -> tuple[Slices, Ticket] | None:
        """Removes all batches of `size` rows that the oldest chunk holds whole; None if it holds none.

        Args:
            size: Rows of a batch.
            number: Batches that were made before.
        """
        entry = self._entries[0]
        chunk, before, start, ticket, _ = entry
        count, left = divmod(chunk.num_rows - start, size)
        if not count:
            return None
        self.rows -= count * size
        if left:
            entry[2] = chunk.num_rows - left
        else:
            self._entries.popleft()
        return Slices(chunk, start, size, count, before, number), ticket

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

    def tickets(self) -> list[Ticket]:
        """Returns what its rows stand on."""
        return [entry[3] for entry in self._entries]

    def row_bytes(self) -> float:
        """Returns the bytes of a row, of the chunk with the widest ones."""
        return max((chunk.nbytes / chunk.num_rows for chunk, *_ in self._entries), default=0.0)

    def compact(self) -> None:
        """Copies its rows, if they are a small rest of one chunk, so that they do not keep the whole chunk alive."""
        if len(self._entries) != 1:
            return
        chunk, before, start, _, gone = self._entries[0]
        if 4 * self.rows > chunk.num_rows:
            return
        if chunk.get_total_buffer_size() >= max(LARGE_BYTES, LARGE_COLUMN_BYTES * chunk.num_columns):
            rest = pa.concat_batches(
                [chunk.slice(start), chunk.slice(0, 0)]
            )  # two, since one would be a slice
            self._entries[0] = [rest, before, 0, (), start + gone]

    def mark(self) -> Mark:
        """Returns the position before the oldest held row, and how many rows from there on are gone."""
        if self._entries:
            _, before, start, _, gone = self._entries[0]
            return Mark(before, start + gone)
        return Mark(self._after, self._skip)


def join(chunks: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Returns the chunks as one record batch; a single one is returned as it is."""
    return chunks[0] if len(chunks) == 1 else pa.concat_batches(chunks)
