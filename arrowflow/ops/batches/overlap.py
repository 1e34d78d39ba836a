"""Held rows that are read before they are removed: shared by operators whose results overlap."""

from __future__ import annotations

from collections import deque

import pyarrow as pa

from arrowflow.kernels.held import Held
from arrowflow.kernels.items import Item, Ticket
from arrowflow.plan.position import Mark, Position

TicketedChunks = list[tuple[pa.RecordBatch, Ticket]]
"""Chunks with the tickets that they stand on."""


class Overlap:
    """Held rows; the oldest rows may be used several times.

    A `Held` knows the position. The same rows are kept beside it as they came. So nothing is copied, and no row is
    kept longer than the position needs.

    Args:
        before: Position at which the input was opened.
        skip: Rows after `before` that are dropped.
    """

    __slots__ = ("_held", "_parts")

    def __init__(self, before: Position = None, skip: int = 0) -> None:
        self._held = Held(before, skip)
        self._parts: deque[tuple[pa.RecordBatch, Ticket]] = deque()

    @property
    def rows(self) -> int:
        """How many rows are held."""
        return self._held.rows

    def add(self, item: Item) -> None:
        """Keeps an item's rows."""
        before = self._held.rows
        self._held.add(item)
        added = self._held.rows - before
        if added:
            self._parts.append((item.chunk.slice(item.chunk.num_rows - added), item.ticket))

    def first_rows(self) -> int:
        """Returns how many of the oldest rows lie in one chunk."""
        return int(self._parts[0][0].num_rows)

    def peek(self, rows: int) -> TicketedChunks:
        """Returns the oldest `rows` rows, which stay."""
        found: TicketedChunks = []
        for chunk, ticket in self._parts:
            if rows <= 0:
                break
            found.append((chunk if chunk.num_rows <= rows else chunk.slice(0, rows), ticket))
            rows -= chunk.num_rows
        return found

    def drop(self, rows: int) -> None:
        """Removes the oldest `rows` rows; rows that are still missing are removed when they come."""
        here = min(rows, self._held.rows)
        self._held.pop(here)
        left = here
        while left:
            chunk, ticket = self._parts.popleft()
            if chunk.num_rows > left:
                self._parts.appendleft((chunk.slice(left), ticket))
            left -= min(left, chunk.num_rows)
        if rows > here:
            before, offset = self._held.mark()
            self._held = Held(before, offset + rows - here)

    def mark(self) -> Mark:
        """Returns the position before the oldest row, and how many rows after it are gone or will be dropped."""
        return self._held.mark()
