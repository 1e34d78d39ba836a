"""`cache(path)`: its input's rows of epoch 0, computed once, by the process that comes first, and kept in a folder.

There are two kernels. A boundary decides for each run of rows whether the folder has them or they have to be computed.
It collects computed items into groups. A reader does the slow work: it writes groups as chunks, in order, and decodes
compressed chunks. **Every delivered row has been committed.** So an epoch that is broken off loses nothing that a
consumer saw, and another process can follow up to the same place.

**Groups.** A write that is flushed to the disk takes a millisecond at least, so small chunks are collected, up to
8 MiB. But only an eighth of the bytes written before may wait for that, and no item that took 0.1 s to come waits.
Items that came faster wait for the item after them. So an input that makes an item only after its consumer took the
item before does not work before a cache.

**The computing process** holds the lock of the entry (`arrowflow.caching.store.entry`). Other processes wait for its
chunks. They compute after all where no chunk has come for a while. The lock's holder may itself wait for them, as
where ranks meet at a barrier.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from arrowflow.caching.fingerprint.fingerprint import fingerprint
from arrowflow.caching.fingerprint.installed import version_of
from arrowflow.caching.store.entry import entry
from arrowflow.caching.store.stored import CachedPlan
from arrowflow.errors import PlanError
from arrowflow.kernels.context import Context
from arrowflow.kernels.operator import Cost, KernelSpec
from arrowflow.ops.cache.cache import KeepsRows, facts_before
from arrowflow.ops.cache.chunks import INFLATION, AnyEntry, ChunkKernel, progress_of
from arrowflow.ops.cache.serving import DiskCacheKernel
from arrowflow.ops.combine.interleave import in_order
from arrowflow.options import ResolvedOptions
from arrowflow.plan.access import SourceOrder, with_source_order
from arrowflow.plan.file_source import FileSource
from arrowflow.plan.lane import Lane, in_lane
from arrowflow.plan.node import BindContext, Columns, Count, Node
from arrowflow.plan.position import Position
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Traits
from arrowflow.plan.walk import post_order, repeatable


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCache(KeepsRows):
    """Its input as it is in epoch 0, in every epoch and in every process that names the same folder.

    Row order: as its input; what it keeps has that order also with `deterministic=False`. Memory: a group of up to 8 MiB or one
    chunk a call; mapped memory is the page cache's. Deterministic. Resume: its input's position; stored rows are served, the
    rest computed.

    Attributes:
        path: The folder.
        key: A text that stands for the code of functions, or None for their code itself.
        compression: `"lz4"`, `"zstd"` or None.
        on_full: `"error"` or `"bypass"`: how a run goes on when the disk is full.
        verify: `"first"` or `"never"`: whether checksums are compared when a process first maps a chunk.
        fingerprint: Bound: the name of the entry.
        bound_options: Bound: the options of the pipeline.
        in_place: Whether a global `shuffle` after the cache gathers rows from the mapped chunks themselves.
        shown: The columns that are yielded then, or None for all columns; a chunk has all of them.
    """

    traits: ClassVar[Traits] = Traits(one_to_one=True, opaque=True, once=True, known_by="fingerprint")
    # Chunks appear in order, so that a run that ends leaves no gap. A run that reads ahead in a gap would compute again
    # the rows after the gap.
    calls_to_fill: ClassVar[int] = 1
    reads: ClassVar[Cost] = "unknown"

    path: str
    key: str | None = None
    compression: str | None = None
    on_full: str = "error"
    verify: str = "first"
    fingerprint: str = field(default="", compare=False)
    bound_options: ResolvedOptions | None = field(default=None, compare=False, repr=False)
    in_place: bool = False
    shown: Columns = None

    def describe(self) -> str:
        compression = "" if self.compression is None else f", compression={self.compression!r}"
        return f"cache({self.path!r}{compression})"

    @property
    def in_memory(self) -> bool:
        """The fingerprint of an entry takes a look at all rows."""
        return False

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Puts the operators before the cache into one exact order, and names the entry after that plan."""
        return dataclasses.replace(self, bound_options=context.options)._named(in_order(inputs[0]))

    def _named(self, plan: Node) -> Node:
        options = self.bound_options
        assert options is not None
        name = fingerprint(plan, options, self.key)
        return dataclasses.replace(self, fingerprint=name).on(plan)

    def in_lane(self, lane: Lane) -> Node:
        """Keeps the rows of each lane in an entry of their own."""
        (child,) = self.inputs
        name = hashlib.blake2b(repr((self.fingerprint, lane)).encode(), digest_size=16).hexdigest()
        return dataclasses.replace(self, fingerprint=name).on(in_lane(child, lane))

    def with_source_order(self, order: SourceOrder) -> Node:
        """Orders the source, by the order of epoch 0; the result is another entry."""
        return self._named(with_source_order(self.inputs[0], order))

    def random_access(self) -> Node:
        """Rows of mapped chunks can be gathered where they lie."""
        if self.compression is not None:
            raise PlanError(
                f"shuffle without buffer_size, and sample, find rows where they lie, which those of {self.describe()} do not "
                "once they are compressed: leave out compression=, or use shuffle(buffer_size)"
            )
        return dataclasses.replace(self, in_place=True)

    def narrow(self, wanted: frozenset[str]) -> Node:
        """Leaves columns out where rows stay in place: no operator between the cache and the `shuffle` can do so."""
        if not self.in_place or self.schema is None or len(wanted) == len(self.schema):
            return self
        return dataclasses.replace(self, shown=wanted).on(*self.inputs)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Returns its input's schema, or the shown part of this schema."""
        if self.shown is None:
            return inputs[0]
        return pa.schema([each for each in inputs[0] if each.name in self.shown])

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        """Returns its input's rows; where only a run tells these, the rows of the complete entry."""
        if inputs[0] is not None:
            return inputs[0]
        return self._entry().refresh().num_rows

    def position_behind(self, rows: int, epoch: int | None = None) -> tuple[Any, int] | None:
        """Returns the position of the chunk with this row, where all chunks are stored."""
        found = self._entry()
        found.refresh()
        return found.position_behind(rows)

    def copies(self) -> tuple[str, ...]:
        if self.compression is None:
            return ()
        return (f"cache: {self.compression}: every epoch decodes all columns into new memory",)

    def owns_buffers(self, inputs: Sequence[bool]) -> bool:
        """All users of a mapped chunk share its memory. Decoded memory belongs to its reader, and rows that are added to the input."""
        return self.compression is not None and inputs[0]

    def _changed_file(self) -> str | None:
        sources = (node for node in post_order(self.inputs[0]) if isinstance(node, FileSource))
        found = (source.changed_file() for source in sources)
        return next((path for path in found if path is not None), None)

    @property
    def _cached(self) -> CachedPlan:
        plan = self.inputs[0]
        about = {
            "format": 1,
            "arrowflow": version_of("arrowflow"),
            "plan": [node.describe() for node in post_order(plan)],
            "key": self.key,
            "compression": self.compression,
            "schema": None if plan.schema is None else str(plan.schema),
        }
        return CachedPlan(
            fingerprint=self.fingerprint
            if self.compression is None
            else f"{self.fingerprint}-{self.compression}",
            about=about,
            repeatable=repeatable(plan),
            verify=self.verify == "first",
            compression=self.compression,
        )

    def _entry(self) -> AnyEntry:
        return entry(self.path, self._cached)

    def _in_run(self, found: AnyEntry, context: Context) -> AnyEntry:
        """Returns the entry as all kernels of a run see it."""
        return found

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        found = self._entry()
        is_complete = found.refresh().num_rows is not None
        return (
            KernelSpec(
                "boundary",
                lambda context: DiskCacheKernel(
                    self._in_run(found, context),
                    self.inputs[0].schema,
                    context,
                    defers=self._inflation > 0,
                    changed=self._changed_file,
                    bypasses=self.on_full == "bypass",
                    budget_bytes=options.ram_budget,
                    columns=self.shown,
                ),
                sees_borders=True,  # it keeps them, for other plans too
                position=Shape(Position),
                pins_order=True,
                facts=lambda: self._facts(found),
            ),
            KernelSpec(
                "reader",
                lambda context: ChunkKernel(
                    progress=progress_of(context, found),
                    inflation=self._inflation,
                    bypasses=self.on_full == "bypass",
                    in_place=self.in_place,
                    columns=self.shown,
                ),
                phase="cache",
                engine="arrow",
                max_calls=None if is_complete else self.calls_to_fill,
                cost=self.reads if is_complete else "unknown",
                connections=self._connections,
                # A state of rows in any order fits only the same stages, whether the entry is complete or not.
                fuses=options.deterministic,
                facts=self._costs,
            ),
        )

    @property
    def _inflation(self) -> int:
        """The bytes that a stored byte takes in memory."""
        return 0 if self.compression is None else INFLATION

    @property
    def _connections(self) -> int | None:
        return None

    def _facts(self, found: AnyEntry) -> tuple[str, ...]:
        found.refresh()
        return (f"entry {found.fingerprint}: {found.share}", *facts_before(self.inputs[0]))

    def _costs(self) -> tuple[str, ...]:
        if self.compression is None:
            return ("mapped, no copy; what is missing is written once",)
        return (
            f"{self.compression}: decoded into new memory in every epoch; what is missing is written once",
        )
