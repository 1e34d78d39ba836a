"""`StoredChunks`: the chunks of an entry that exist, and the one that holds a place, wherever they lie."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import pyarrow as pa

from arrowflow.caching.store.chunk import ChunkError, Draft, Head, Link, Name
from arrowflow.caching.store.folder import FILLING, NOTHING, Listing
from arrowflow.plan.position import Position

logger = logging.getLogger("arrowflow")

C = TypeVar("C", bound=Head)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedPlan:
    """The plan that an entry keeps, and how.

    Attributes:
        fingerprint: The identity of the plan and its sources, as hexadecimal digits.
        about: The content of `entry.json`.
        repeatable: Whether the input can go on from any position, so that single chunks are of use.
        verify: Whether to check the checksum of a chunk when this process first reads it.
        compression: The compression of record batches, or None.
    """

    fingerprint: str
    about: Mapping[str, Any] = field(compare=False)
    repeatable: bool
    verify: bool
    compression: str | None

    def filling(self) -> tuple[CachedPlan, str]:
        """Returns the same for one pass over an input that is not repeatable, and the name of a folder of its own."""
        folder = f"{self.fingerprint}{FILLING}{os.urandom(8).hex()}"
        return replace(self, repeatable=True, verify=False), folder


class StoredChunks(ABC, Generic[C]):
    """The chunks of one cached plan, as they are found.

    Any thread may use it: each attribute is replaced as a whole, and never changed.
    """

    def __init__(self, plan: CachedPlan) -> None:
        self._plan = plan
        self.fingerprint = plan.fingerprint
        self.repeatable = plan.repeatable
        self._listing = NOTHING
        self._chunks: dict[Name, C] = {}
        self._damaged: set[Name] = set()
        # For each position that was searched before, the first row of its chunk.
        self._rows: dict[Position, int] = {}

    @abstractmethod
    def _list(self) -> Listing:
        """Returns the chunks that exist now, without damaged ones."""

    @abstractmethod
    def _open(self, name: Name, *, verify: bool) -> C:
        """Opens a chunk; raises `ChunkError` if it is damaged, and `FileNotFoundError` if it is gone."""

    @abstractmethod
    def _write(self, draft: Draft) -> Name:
        """Writes a chunk, which is no longer a damaged one."""

    @abstractmethod
    def _discard(self, name: Name) -> None:
        """Removes a damaged chunk, so that another one can take its place, or leaves it out from now on."""

    def _missing(self, name: Name) -> None:
        """Leaves out a chunk that was listed and is gone, whatever the next listing says."""
        self._damaged.add(name)

    def refresh(self) -> Listing:
        """Lists the chunks that exist now."""
        self._listing = found = self._list()
        if not found.names:
            self._chunks = {}
        return found

    @property
    def share(self) -> str:
        """The share of its chunks that exist, in words."""
        names, num_rows = self._listing
        if num_rows is not None:
            return f"complete, {num_rows:,} rows"
        return f"{sum(name.num_rows for name in names.values()):,} rows so far" if names else "empty"

    @property
    def is_held_here(self) -> bool:
        """Whether this very process holds a lock of the entry."""
        return False

    @property
    def progress(self) -> object:
        """A value that changes whenever the computing process has made progress."""
        return len(self._listing.names)

    @abstractmethod
    def follow(self, *, is_claimed: bool) -> None:
        """Looks for chunks of other processes, where these may compute the same rows; `is_claimed` if this one has a claim."""

    def commit(
        self,
        first_row: int,
        before: Position,
        items: Sequence[tuple[pa.RecordBatch, Link]],
        schema: pa.Schema,
        *,
        end: bool,
    ) -> Name:
        """Writes a chunk. When this returns, the chunk will last, and everybody sees it.

        Raises:
            CacheFullError: There is no room for the chunk.
            WriteError: The chunk cannot be written.
        """
        compression = self._plan.compression
        return self._write(
            Draft(first_row, before, items, schema, self.fingerprint, end=end, compression=compression)
        )

    def chunk_at(self, row: int) -> C | None:
        """Returns the chunk that begins with this row, opened and checked; None if there is none, or no longer.

        A damaged chunk is removed, so that its rows are computed again.
        """
        while (name := self._listing.names.get(row)) is not None:
            chunk = self._chunks.get(name)
            if chunk is not None:
                return chunk
            try:
                return self._chunks.setdefault(name, self._open(name, verify=self._plan.verify))
            except FileNotFoundError:
                self._missing(name)
            except ChunkError as error:
                logger.warning("cache: %s; its rows are computed again", error)
                self._discard(name)
            self._listing = NOTHING
            self.refresh()
        return None

    def find(self, position: Position) -> tuple[C | None, int] | None:
        """Returns the chunk that goes on after a position, and its items before that; None if the chunks do not reach it.

        At the start there need be no chunk.
        """
        if position is None:
            return None, 0
        # The search also covers chunks after a gap: their rows need not be computed again.
        known = self._rows.get(position)
        rows = sorted(self._listing.names)
        for row in rows if known is None else (known, *rows):
            seen = self._glance(row)
            if seen is None or start_in(seen, position) is None:
                continue
            # If this chunk is damaged or cleared, another chunk replaces it, which may end earlier.
            chunk = self.chunk_at(row)
            start = None if chunk is None else start_in(chunk, position)
            if chunk is not None and start is not None:
                return chunk, start
        return None

    def _glance(self, row: int) -> C | None:
        """Opens the chunk that begins with a row only to find positions in it: 0.2 ms, without its checksum."""
        name = self._listing.names.get(row)
        if name is None:
            return None
        try:
            return self._chunks.get(name) or self._open(name, verify=False)
        except (ChunkError, OSError):
            return None

    def position_behind(self, rows: int) -> tuple[Position, int] | None:
        """Returns the position after the last item that ends within the first `rows` rows, and the rows before it.

        Returns None if the entry is not complete. One chunk is opened, however many there are.
        """
        listing = self._listing
        if listing.num_rows is None or rows <= 0:
            return None
        row = 0
        while not (name := listing.names[row]).end and row + name.num_rows <= rows:
            row += name.num_rows
        chunk = self.chunk_at(row)
        if chunk is None:
            return None
        before, position = row, chunk.before
        for link in chunk.links:
            if row + link.rows > rows:
                break
            row, position = row + link.rows, link.position
        self._rows[position] = before
        return position, row

    def whole(self) -> tuple[C, ...] | None:
        """Returns all chunks of a complete entry, opened and checked; else None, also if the entry was replaced."""
        listing = self._listing
        if listing.num_rows is None:
            return None
        chunks = [self.chunk_at(name.first_row) for name in listing.chain]
        found = tuple(chunk for chunk in chunks if chunk is not None)
        return found if [chunk.name for chunk in found] == listing.chain else None


def start_in(chunk: Head, position: Position) -> int | None:
    """Returns the number of a chunk's items before a position; None if the position is outside of the chunk."""
    if chunk.before == position:
        return 0
    return next((start for start, link in enumerate(chunk.links, start=1) if link.position == position), None)
