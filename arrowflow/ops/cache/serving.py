"""The kernel of a cache in a folder: it delivers stored chunks, waits for other processes, and computes the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

from arrowflow.caching.store.chunk import Chunk, Link
from arrowflow.caching.store.claim import Claim
from arrowflow.caching.store.shared_entry import FarChunk, Free
from arrowflow.caching.store.stored import start_in
from arrowflow.errors import CacheFullError, SourceError
from arrowflow.kernels.context import Context, StreamHandle
from arrowflow.kernels.items import PAUSE, Item, Origin
from arrowflow.kernels.kinds import BoundaryKernel
from arrowflow.ops.cache.chunks import AnyEntry, Group, Stored, progress_of, selected
from arrowflow.plan.node import Columns
from arrowflow.plan.position import Position

GROUP_BYTES: Final = 8 << 20
GROUP_SHARE: Final = 8
"""At most one part in this many of the written bytes waits to be written."""
GROUP_SECONDS: Final = 0.1

LOOK_SECONDS: Final = 0.02
PATIENCE_SECONDS: Final = 10.0
PATIENCE_HERE_SECONDS: Final = 0.25
"""Patience where another iterator of this process computes: that iterator may wait for this one, and would for ever."""
PATIENCE_TIMES: Final = 8
"""A run waits at least this many times the longest time between two chunks."""


class DiskCacheKernel(BoundaryKernel):
    """Delivers the cached chunks, and reads the input for the missing ones."""

    reads_runs = True

    def __init__(
        self,
        entry: AnyEntry,
        schema: pa.Schema | None,
        context: Context,
        *,
        defers: bool,
        changed: Callable[[], str | None],
        bypasses: bool,
        budget_bytes: int,
        columns: Columns = None,
    ) -> None:
        self._entry: AnyEntry = entry
        self._target: AnyEntry = entry
        self._changed = changed  # names a source file that has changed
        self._bypasses = bypasses
        self._group_bytes = min(GROUP_BYTES, budget_bytes // GROUP_SHARE)
        self._defers = defers  # the reader makes the batches of stored chunks
        self._columns = columns  # those that are handed out
        self._context = context
        self._progress = progress_of(context, entry)
        self._position: Position = None
        self._row = 0
        self._schema = pa.schema([]) if schema is None else schema
        self._adds = True
        self._claim: Claim | Free | None = None
        self._stream: StreamHandle | None = None
        self._leaving = False  # the next rows of the open stream are stored
        self._group: Group | None = None
        self._written_bytes = 0
        self._latest: float | None = None  # when the last item came
        self._waited = self._longest = 0.0  # for a chunk of another process, and the most so far
        self._seen: object = None  # how far the other process had got at the last look

    @property
    def any_ready(self) -> bool:  # type: ignore[override]
        """Whether the kernel wants its input anew, from another position."""
        return self._leaving

    @property
    def exhausted(self) -> bool:
        """Whether the remaining chunks are stored, or the input is open."""
        return self.done or self._stream is not None

    def open(self, position: Position, epoch: int) -> Position:
        """Notes the position; `begin` looks up the stored chunks."""
        self._position = position
        return None

    def begin(self) -> Iterator[Item]:
        """Yields the stored rows after the position, and waits for the rows that another process computes."""
        self._check_sources()
        found = self._entry
        found.refresh()
        if not found.repeatable:
            yield from self._serve_whole()
            return
        place = found.find(self._position)
        if place is None:
            self._adds = False  # a run from the start will add these rows
            return
        chunk, start = place
        if chunk is not None:
            yield from self._stored(chunk, start)
        if not self.done:
            yield from self._serve()

    def _serve_whole(self) -> Iterator[Item]:
        """Yields all chunks or none: rows of two runs of an input that is not repeatable do not fit together."""
        found, position = self._entry, self._position
        while (whole := found.whole()) is None:
            if position is not None:
                self._adds = False
                return
            yield PAUSE
            if not self._looks_again():
                return
        start = 0 if position is None else None
        for chunk in whole:
            start = start_in(chunk, position) if start is None else start
            if start is not None:
                yield from self._stored(chunk, start)
                start = 0
        if start is None:
            self._adds = False
        else:
            found.touch()

    def _serve(self) -> Iterator[Item]:
        """Yields chunk after chunk until no chunk is left and this run has to compute the next one."""
        while True:
            chunk = self._chunk_at(self._row, self._position)
            if chunk is not None:
                self._longest, self._waited = max(self._longest, self._waited), 0.0
                yield from self._stored(chunk, 0)
                if self.done:
                    self._entry.touch()
                    return
            else:
                yield PAUSE
                if not self._looks_again():
                    return

    def _looks_again(self) -> bool:
        """Takes the claim or waits for its holder; returns whether there may be more by now, or False to compute."""
        found = self._entry
        if self._claim is not None:
            return False
        try:
            self._claim = found.claim()
        except CacheFullError as error:
            self._progress.go_on_without(error, bypasses=self._bypasses)
            return False
        if self._claim is not None:
            found.refresh()
            return True
        least = PATIENCE_HERE_SECONDS
        if not found.is_held_here:
            least = max(PATIENCE_SECONDS, PATIENCE_TIMES * self._longest)
        if self._waited > least or not self._context.wait(LOOK_SECONDS):
            return False
        found.refresh()
        before, self._seen = self._seen, found.progress
        self._waited = 0.0 if self._seen != before else self._waited + LOOK_SECONDS
        return True

    def _check_sources(self) -> None:
        path = self._changed()
        if path is not None:
            raise SourceError(
                f"{path!r} has changed since this pipeline was planned, and its rows would be cached as those of what it "
                "was; iterate anew"
            )

    def _chunk_at(self, row: int, position: Position) -> Chunk | FarChunk | None:
        """Returns the stored chunk that goes on at a row and a position."""
        chunk = self._entry.chunk_at(row) if self._entry.repeatable else None
        return chunk if chunk is not None and chunk.before == position else None

    def _stored(self, chunk: Chunk | FarChunk, start: int) -> Iterator[Item]:
        self._row = chunk.name.first_row + chunk.name.num_rows
        self._schema = chunk.schema
        links = chunk.links
        if links:
            self._position = links[-1].position
        if chunk.name.end:
            self.done = True
            if self._claim is not None:
                # The writer of the last chunk may have died right after it; or a gap was filled, perhaps just now.
                self._progress.ended = True
                self._entry.finish()
                self._claim = None
        if self._defers and start < len(links):
            yield Item(Stored(chunk, start), self._position, (), Origin(links[-1].split, 0, links[-1].last))
            return
        for number in range(start, len(links)):
            link = links[number]
            # Mapped memory is no memory of the pipeline.
            batch = selected(chunk.load().batch(number), self._columns)
            yield Item(batch, link.position, (), Origin(link.split, 0, link.last))

    def next_input(self) -> StreamHandle | None:
        """Returns its input, as epoch 0, from the first missing row on."""
        if self._leaving and self._stream is not None:
            self._context.close(self._stream)
            self._stream, self._leaving = None, False
        if self._stream is None and not self.done:
            self._stream = self._context.open(0, 0, self._position)
        return self._stream

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        """Collects the item, and yields the group when the group is full."""
        if self._leaving:
            return
        if self._progress.full or not self._adds:
            if self._group is not None:
                yield from self._cut()
            yield item._replace(chunk=selected(item.chunk, self._columns))
            return
        if item.chunk.num_rows and self._group is not None and not self._group.takes(item.chunk):
            yield from self._cut()
        now = self._context.now()
        group = self._group = self._group or self._new_group(now)
        if group is None:
            yield item
            return
        slow, self._latest = now - (now if self._latest is None else self._latest), now
        group.add(item)
        if group.num_rows and self._is_due(group, now, slow):
            yield from self._cut()
            if self._entry.repeatable:
                # Another process may compute these rows, too: this run follows that process as soon as it can.
                self._entry.follow(is_claimed=self._claim is not None)
            if self._chunk_at(self._row, self._position) is not None:
                self._leaving, self._waited = True, 0.0
                yield from self._serve()

    def _new_group(self, now: float) -> Group | None:
        """Returns a group without items; None where the disk is full, and the run goes on without adding."""
        try:
            if self._target is self._entry and not self._entry.repeatable:
                self._target = self._entry.filling()
        except CacheFullError as error:
            self._progress.go_on_without(error, bypasses=self._bypasses)
            return None
        return Group(self._target, self._claim, self._row, self._position, self._schema, now)

    def _is_due(self, group: Group, now: float, slow: float) -> bool:
        """Whether a group has waited for long enough, or the next stored chunk goes on where the group ends."""
        if group.num_bytes >= min(self._group_bytes, self._written_bytes // GROUP_SHARE):
            return True
        if now - group.began + slow >= GROUP_SECONDS:
            return True
        return self._chunk_at(group.first_row + group.num_rows, group.position) is not None

    def _cut(self, *, end: bool = False) -> Iterator[Item]:
        group, self._group = self._group or self._new_group(0.0), None
        if group is None:
            return
        group.end = end
        self._schema = group.schema
        self._row += group.num_rows
        self._position = group.position
        self._written_bytes += group.num_bytes
        last = group.items[-1][1] if group.items else Link(0, group.before, 0, True)
        yield Item(group, self._position, tuple(group.tickets), Origin(last.split, 0, last.last))

    def failed(self, stream: StreamHandle) -> Iterator[Item] | None:
        """Yields the items that came before an error."""
        return None if self._group is None else self._cut()

    def ended(self, stream: StreamHandle) -> Iterator[Item] | None:
        self._stream = None
        self.done = True
        if self._leaving or self._progress.full or not self._adds:
            return None if self._group is None else self._cut()
        return self._last()

    def _last(self) -> Iterator[Item]:
        self._check_sources()
        yield from self._cut(end=True)
