"""`cache(path)`: what its input yields in epoch 0, computed once, by whoever comes first, and kept in a folder.

Two kernels. A boundary decides, for one run of rows after the other, whether they are there or have to be computed, and
collects what was computed into groups. A reader does what takes time: it writes groups as chunks, one after the other,
and decodes chunks that are compressed. **What is delivered has been committed**: so an
epoch that is broken off has lost nothing that anybody saw, and another process can follow to wherever this one has come.

**Groups.** A write that is flushed to the disk takes a millisecond at least, so small chunks are collected, up to 8 MiB.
But no more than an eighth of what was written before waits for that, and nothing for longer than 0.1 s.

**Who computes** holds the lock of the entry (`arrowflow.caching.entry`). Others wait for its chunks, and compute after
all where none has come for a while: whoever computes may itself wait for them, as where ranks meet at a barrier.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, Final

import pyarrow as pa

from arrowflow.caching.chunk import Chunk, Link
from arrowflow.caching.claim import Claim, held_here
from arrowflow.caching.entry import Entry, entry
from arrowflow.caching.fingerprint import fingerprint, fingerprint_of_key
from arrowflow.caching.installed import version_of
from arrowflow.errors import PlanError
from arrowflow.ops.base import (
    BoundaryKernel,
    Context,
    Item,
    KernelSpec,
    Origin,
    Position,
    RowOperator,
    StreamHandle,
)
from arrowflow.ops.cached_chunks import ChunkKernel, Group, Stored, progress_of
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import BindContext, Columns, Node, SourceOrder
from arrowflow.plan.traits import Traits
from arrowflow.plan.walk import post_order
from arrowflow.records import dataclass

GROUP_BYTES: Final = 8 << 20
GROUP_SHARE: Final = 8
"""At most one part in so many of what was written waits to be written."""
GROUP_SECONDS: Final = 0.1

LOOK_SECONDS: Final = 0.02
PATIENCE_SECONDS: Final = 10.0
PATIENCE_HERE_SECONDS: Final = 0.25
"""The same where another iterator of this process computes: it may wait for this one, and would for ever."""
PATIENCE_TIMES: Final = 8
"""The longest time between two chunks, so often, is waited at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCache(RowOperator):
    """Its input as it is in epoch 0, in every epoch and in every process that names the same folder.

    Row order: as its input, also with `deterministic=False`. Memory: a group of up to 8 MiB or one chunk a call; what is
    mapped is the page cache's. Deterministic. Resume: its input's position; what is there is served, the rest computed.

    Attributes:
        path: The folder.
        key: What stands for the code of functions, or None for their code.
        compression: `"lz4"`, `"zstd"` or None.
        on_full: `"error"` or `"bypass"`: what becomes of a run when the disk is full.
        verify: `"first"` or `"never"`: whether checksums are looked at when a process first maps a chunk.
        fingerprint: Bound: the name of the entry.
        bound_options: Bound: the options of the pipeline.
        in_place: Whether a global `shuffle` above gathers rows from the mapped chunks themselves.
    """

    name: ClassVar[str] = "cache"
    traits: ClassVar[Traits] = Traits(one_to_one=True, opaque=True)

    path: str
    key: str | None = None
    compression: str | None = None
    on_full: str = "error"
    verify: str = "first"
    fingerprint: str = field(default="", compare=False)
    bound_options: ResolvedOptions | None = field(default=None, compare=False, repr=False)
    in_place: bool = False

    def arguments(self) -> Mapping[str, Any]:
        """Returns nothing: what is cached does not change what comes."""
        return {}

    def describe(self) -> str:
        """Returns the operator as one line."""
        return (
            f"cache({self.path!r}{'' if self.compression is None else f', compression={self.compression!r}'})"
        )

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Puts what is below into one exact order, and names the entry after it."""
        return dataclasses.replace(self, bound_options=context.options)._named(inputs[0].in_order())

    def _named(self, plan: Node) -> Node:
        options = self.bound_options
        assert options is not None
        name = fingerprint(plan, options) if self.key is None else fingerprint_of_key(self.key, plan, options)
        return dataclasses.replace(self, fingerprint=name).on(plan)

    @property
    def known_as(self) -> str:
        """The name of the entry, which stands for all that is below."""
        return self.fingerprint

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        """Returns all columns: other epochs and other datasets may want others."""
        return (None,)

    def with_source_order(self, order: SourceOrder) -> Node:
        """Orders the source, by the order of epoch 0; that is another entry."""
        return self._named(self.inputs[0].with_source_order(order))

    def random_access(self) -> Node:
        """Rows of mapped chunks can be gathered where they lie."""
        if self.compression is not None:
            raise PlanError(
                f"shuffle: without buffer_size it finds rows where they lie, which those of {self.describe()} do not "
                "once they are compressed: leave out compression=, or use shuffle(buffer_size)"
            )
        return dataclasses.replace(self, in_place=True)

    def count_rows(self, inputs: Sequence[int | None]) -> int | None:
        """Returns its input's rows, or where only running that tells, those of the complete entry."""
        if inputs[0] is not None:
            return inputs[0]
        found = self._entry()
        found.refresh()
        return found.num_rows

    def position_behind(self, rows: int) -> tuple[Any, int] | None:
        """Returns that of the chunk with this row, where all are there."""
        found = self._entry()
        found.refresh()
        return found.position_behind(rows)

    def copies(self) -> tuple[str, ...]:
        """Returns what becomes of compressed chunks."""
        if self.compression is None:
            return ()
        return (f"cache: {self.compression}: every epoch decodes all columns into new memory",)

    def owns_buffers(self, inputs: Sequence[bool]) -> bool:
        """What is mapped belongs to all who map it; what is decoded, to who decoded it."""
        return self.compression is not None

    def _entry(self) -> Entry:
        plan = self.inputs[0]
        about = {
            "format": 1,
            "arrowflow": version_of("arrowflow"),
            "plan": [node.describe() for node in post_order(plan)],
            "key": self.key,
            "compression": self.compression,
            "schema": None if plan.schema is None else str(plan.schema),
        }
        return entry(
            self.path,
            self.fingerprint if self.compression is None else f"{self.fingerprint}-{self.compression}",
            about,
            repeatable=plan.repeatable,
            verify=self.verify == "first",
            compression=self.compression,
        )

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        """Returns the boundary and the reader."""
        found = self._entry()
        found.refresh()
        return (
            KernelSpec(
                operator=self.name,
                kind="boundary",
                make=lambda context: DiskCacheKernel(
                    found, self.schema, context, decodes=self.compression is not None
                ),
                pins_order=True,
                facts=lambda: tuple(self._facts(found)),
            ),
            KernelSpec(
                operator=self.name,
                kind="reader",
                make=lambda context: ChunkKernel(
                    progress_of(context, found),
                    decodes=self.compression is not None,
                    bypasses=self.on_full == "bypass",
                    in_place=self.in_place,
                ),
                phase="cache",
                engine="arrow",
                # Chunks appear in order, so that a run that ends leaves no gap: reading ahead in one would compute again
                # what lies behind it.
                max_calls=None if found.num_rows is not None else 1,
                cost="unknown",
                facts=self._costs,
            ),
        )

    def _facts(self, found: Entry) -> Iterator[str]:
        found.refresh()
        yield f"entry {found.fingerprint}: {found.share}"
        random = [
            node.name for node in post_order(self.inputs[0]) if node.arguments().get("seed") is not None
        ]
        frozen = f"; {', '.join(dict.fromkeys(random))} frozen with it" if random else ""
        yield f"below it runs as epoch 0, once{frozen}"
        if not self.inputs[0].repeatable:
            yield "what is below cannot be repeated from its middle: only a complete entry counts"

    def _costs(self) -> tuple[str, ...]:
        if self.compression is None:
            return ("mapped, no copy; what is missing is written once",)
        return (
            f"{self.compression}: decoded into new memory in every epoch; what is missing is written once",
        )


class DiskCacheKernel(BoundaryKernel):
    """Serves what is there, and opens its input where nothing is."""

    reads_runs = True

    def __init__(self, entry: Entry, schema: pa.Schema | None, context: Context, *, decodes: bool) -> None:
        self._entry = self._target = entry
        self._decodes = decodes  # record batches are compressed
        self._context = context
        self._progress = progress_of(context, entry)
        self._position: Position = None
        self._row = 0
        self._schema = pa.schema([]) if schema is None else schema
        self._adds = True
        self._claim: Claim | None = None
        self._stream: StreamHandle | None = None
        self._leaving = False  # what the stream goes on to yield is there
        self._group: Group | None = None
        self._written_bytes = 0

    @property
    def any_ready(self) -> bool:  # type: ignore[override]
        """Whether it wants its input anew, from another position."""
        return self._leaving

    @property
    def exhausted(self) -> bool:
        """Whether the rest is there, or the input is open."""
        return self.done or self._stream is not None

    def open(self, position: Position, epoch: int) -> Position:
        """Notes the position; `begin` looks what there is."""
        self._position = position
        return None

    def begin(self) -> Iterator[Item]:
        """Yields what is there behind the position, and waits for what another process computes."""
        found = self._entry
        found.refresh()
        place = found.find(self._position)
        if place is None or (not found.repeatable and found.num_rows is None and self._position is not None):
            self._adds = False  # whoever comes from the start will add these rows
            return
        if place.chunk is not None:
            yield from self._stored(place.chunk, place.start)
        if not self.done:
            yield from self._serve()

    def _serve(self) -> Iterator[Item]:
        """Yields chunk after chunk until there is none, and this is who computes the next one."""
        found = self._entry
        waited = longest = 0.0
        while True:
            chunk = self._next_chunk()
            if chunk is not None:
                longest, waited = max(longest, waited), 0.0
                yield from self._stored(chunk, 0)
                if self.done:
                    found.touch()
                    return
            elif self._claim is not None:
                return
            elif (taken := found.claim()) is not None:
                self._claim = taken
                found.refresh()  # there may be more since
            else:
                here = held_here(found.lock_path)
                least = PATIENCE_HERE_SECONDS if here else max(PATIENCE_SECONDS, PATIENCE_TIMES * longest)
                if waited > least or not self._context.wait(LOOK_SECONDS):
                    return
                before = found.progress
                found.refresh()
                waited = 0.0 if found.progress != before else waited + LOOK_SECONDS

    def _next_chunk(self) -> Chunk | None:
        """Returns the chunk that goes on where the last one ended; of inputs that cannot be repeated all or none."""
        if not self._entry.repeatable and self._entry.num_rows is None:
            return None
        chunk = self._entry.chunk_at(self._row)
        return chunk if chunk is not None and chunk.before == self._position else None

    def _stored(self, chunk: Chunk, start: int) -> Iterator[Item]:
        self._row = chunk.first_row + chunk.num_rows
        self._schema = chunk.schema
        links = chunk.links
        if links:
            self._position = links[-1].position
        if chunk.end:
            self.done = True
            self._claim = None
        if self._decodes and start < len(links):
            yield Item(Stored(chunk, start), self._position, (), Origin(links[-1].split, 0, links[-1].last))
            return
        for number in range(start, len(links)):
            link = links[number]
            # What is mapped is no memory of the pipeline.
            yield Item(chunk.batch(number), link.position, (), Origin(link.split, 0, link.last))

    def wants(self) -> StreamHandle | None:
        """Returns its input, as epoch 0, from where nothing is there."""
        if self._leaving and self._stream is not None:
            self._context.close(self._stream)
            self._stream, self._leaving = None, False
        if self._stream is None and not self.done:
            self._stream = self._context.open(0, 0, self._position)
        return self._stream

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        """Collects the item, and yields the group that is full."""
        if self._leaving:
            return
        if self._progress.full or not self._adds:
            if self._group is not None:
                yield from self._cut()
            yield item
            return
        if item.chunk.num_rows and self._group is not None and not self._group.takes(item.chunk):
            yield from self._cut()
        now = self._context.now()
        group = self._group
        if group is None:
            group = self._group = self._new_group(now)
        slow = now - group.latest
        group.add(item, now)
        if group.num_rows and self._is_due(group, now, slow):
            yield from self._cut()
            if self._next_chunk() is not None:
                self._leaving = True
                yield from self._serve()

    def _new_group(self, now: float) -> Group:
        if self._target is self._entry and not self._entry.repeatable:
            self._target = self._entry.filling()
        return Group(self._target, self._claim, self._row, self._position, self._schema, now)

    def _is_due(self, group: Group, now: float, slow: float) -> bool:
        """Whether a group has waited for long enough, or another chunk goes on behind it."""
        if group.num_bytes >= min(GROUP_BYTES, self._written_bytes // GROUP_SHARE):
            return True
        if now - group.began + slow >= GROUP_SECONDS:
            return True
        chunk = self._entry.chunk_at(group.first_row + group.num_rows) if self._entry.repeatable else None
        return chunk is not None and chunk.before == group.position

    def _cut(self, *, end: bool = False) -> Iterator[Item]:
        group, self._group = self._group, None
        if group is None:
            group = self._new_group(0.0)
        group.end = end
        self._schema = group.schema
        self._row += group.num_rows
        self._position = group.position
        self._written_bytes += group.num_bytes
        last = group.items[-1][1] if group.items else Link(0, group.before, 0, True)
        yield Item(group, self._position, tuple(group.tickets), Origin(last.split, 0, last.last))

    def ended(self, stream: StreamHandle) -> Iterator[Item] | None:
        """Yields the last group."""
        self._stream = None
        self.done = True
        if self._leaving or self._progress.full or not self._adds:
            return None if self._group is None else self._cut()
        return self._cut(end=True)
