"""Chunks of a cache in a folder on their way through a pipeline: stored chunks, computed groups, and their writer."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pyarrow as pa

from arrowflow.caching.store.chunk import Chunk, Link, batch_bytes, of_schema
from arrowflow.caching.store.claim import Claim
from arrowflow.caching.store.entry import Entry
from arrowflow.caching.store.shared_entry import FarChunk, Free, SharedEntry
from arrowflow.errors import CacheFullError
from arrowflow.formats.ipc.aligned import same_file
from arrowflow.kernels.context import Context
from arrowflow.kernels.items import Item, Made, Ticket
from arrowflow.kernels.kinds import ReaderKernel
from arrowflow.ops.order.random_access import InPlaceRows
from arrowflow.plan.node import Columns
from arrowflow.plan.position import Position

logger = logging.getLogger("arrowflow")

INFLATION: Final = 4
"""The assumed ratio of decompressed bytes to compressed bytes."""

AnyEntry = Entry | SharedEntry


class Stored(NamedTuple):
    """A chunk that the cache holds, from one of its items on."""

    chunk: Chunk | FarChunk
    start: int

    @property
    def num_rows(self) -> int:
        """Its rows."""
        return sum(link.rows for link in self.chunk.links[self.start :])


@dataclass(slots=True, eq=False)
class Group:
    """Computed items that make one chunk.

    Attributes:
        entry: The entry that the chunk belongs to.
        claim: The lock, held as long as groups are on their way.
        first_row: Rows before the group.
        before: The position before the group.
        schema: Schema of its batches; without batches, the schema of the batches before it.
        began: When its first item came.
        end: Whether nothing comes after the group.
        items: The items; a batch without rows only has a link.
        tickets: The tickets of the items with rows.
        num_rows: Rows of the items.
        num_bytes: Bytes of these rows.
    """

    entry: AnyEntry
    claim: Claim | Free | None
    first_row: int
    before: Position
    schema: pa.Schema
    began: float
    end: bool = False
    items: list[tuple[pa.RecordBatch, Link]] = field(default_factory=list)
    tickets: list[Ticket] = field(default_factory=list)
    num_rows: int = 0
    num_bytes: int = 0

    @property
    def position(self) -> Position:
        """The position after the group."""
        return self.items[-1][1].position if self.items else self.before

    def add(self, item: Item) -> None:
        """Adds an item."""
        rows = item.chunk.num_rows
        self.items.append((item.chunk, Link(rows, item.position, item.origin.split, item.origin.last)))
        if rows:
            self.schema = item.chunk.schema
            self.tickets.append(item.ticket)
            self.num_rows += rows
            self.num_bytes += batch_bytes(item.chunk)

    def takes(self, chunk: pa.RecordBatch) -> bool:
        """Whether the same file can hold a batch."""
        first = next((batch for batch, link in self.items if link.rows), None)
        return first is None or same_file([first, chunk])


@dataclass(slots=True)
class EntryProgress:
    """The state that the kernels of one run share.

    Attributes:
        full: The disk is full, and nothing more is added.
        ended: The last chunk was committed.
    """

    full: bool = False
    ended: bool = False

    def go_on_without(self, error: CacheFullError, *, bypasses: bool) -> None:
        """Notes that there is no room; raises the error, unless the run may go on."""
        if not bypasses:
            raise error
        logger.warning("cache: %s; the run goes on without caching", error)
        self.full = True


def progress_of(context: Context, found: AnyEntry) -> EntryProgress:
    """Returns the state of an entry that the kernels of a run share."""
    made: EntryProgress = context.run_storage.setdefault((EntryProgress, found.folder), EntryProgress())
    return made


def selected(batch: pa.RecordBatch, columns: Columns) -> pa.RecordBatch:
    """Returns these columns of a batch, in the batch's order; the batch itself where these are all its columns."""
    return (
        batch if columns is None else batch.select([name for name in batch.schema.names if name in columns])
    )


@dataclass(eq=False, kw_only=True)
class ChunkKernel(ReaderKernel):
    """Writes missing chunks, and makes the batches of chunks that are compressed or far away. Mapped ones pass unchanged.

    Attributes:
        progress: The state of the run.
        inflation: The bytes that a byte of a stored chunk takes in memory; 0 for mapped chunks.
        bypasses: Whether a run goes on without a cache that has no room.
        in_place: Whether rows are handed out as descriptors of mapped memory.
        columns: The columns that are handed out.
    """

    passes = True

    progress: EntryProgress
    inflation: int
    bypasses: bool
    in_place: bool
    columns: Columns

    def num_bytes(self, payload: Stored | Group) -> int:
        """Returns the bytes that decoding takes; mapped memory is not the pipeline's."""
        if isinstance(payload, Stored):
            return self.inflation * payload.chunk.num_bytes
        return payload.num_bytes

    def splits(self, payload: Stored | Group) -> Collection[int]:
        """Returns those of all its items: chunks are cut where they are full, also in the middle of a split."""
        if isinstance(payload, Stored):
            return {link.split for link in payload.chunk.links[payload.start :]}
        return {link.split for _, link in payload.items}

    def read(self, payload: Stored | Group) -> Iterator[Made]:
        """Yields the items of the chunk, once the chunk is stored."""
        if isinstance(payload, Stored):
            yield from self._items(payload.chunk.load(), payload.start)
        else:
            yield from self._written(payload)

    def _written(self, group: Group) -> Iterator[Made]:
        committed = None
        if not self.progress.full:
            try:
                committed = group.entry.commit(
                    group.first_row, group.before, group.items, group.schema, end=group.end
                )
            except CacheFullError as error:
                self.progress.go_on_without(error, bypasses=self.bypasses)
        if committed is not None:
            self.progress.ended |= group.end
            opened = group.entry.open(committed) if self.in_place and isinstance(group.entry, Entry) else None
            if opened is not None:
                yield from self._items(opened, 0)
            if self.progress.ended:
                group.entry.finish()
            if opened is not None:
                return
        for batch, link in group.items:
            # Written items are handed out from memory: no reader has to read them again.
            shown = selected(of_schema(batch, group.schema), self.columns)
            yield Made(shown, link.position, link.last, link.split)

    def _items(self, chunk: Chunk, start: int) -> Iterator[Made]:
        for number in range(start, len(chunk.links)):
            link = chunk.links[number]
            batch = selected(chunk.batch(number), self.columns)
            shown = InPlaceRows(batch) if self.in_place and link.rows else batch
            yield Made(shown, link.position, link.last, link.split)
