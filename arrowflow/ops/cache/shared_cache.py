"""`cache("s3://…")`: a `cache(path)` whose entries lie in an object store, for all machines that reach it.

The kernels are those of `cache(path)`. No chunk is mapped: the boundary fetches footers, which tell the positions, and the
reader fetches the chunks, many at a time, in memory that counts. `arrowflow.caching.store.shared_entry` says what two writers
do.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar, cast

from arrowflow.caching.store.shared_entry import SharedEntry
from arrowflow.errors import PlanError
from arrowflow.kernels.context import Context
from arrowflow.kernels.operator import Cost
from arrowflow.ops.cache.chunks import INFLATION, AnyEntry
from arrowflow.ops.cache.disk_cache import DiskCache
from arrowflow.plan.node import BindContext, Node
from arrowflow.storage import Objects, Requests, Settings, is_chained, shown_paths


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCache(DiskCache):
    """Its input as it is in epoch 0, in every epoch and in every process that names the same address.

    Row order: as its input, also with `deterministic=False`. Memory: a group of up to 8 MiB or one chunk a call, fetched anew
    in every epoch. Deterministic. Resume: its input's position; stored rows are served, the rest computed.

    Attributes:
        settings: The arguments of the client.
        objects: Bound: the prefix of the address.
    """

    # A put takes some round trips. A run that is killed leaves as many gaps at the most. The next run computes their rows,
    # and what it reads ahead behind each gap.
    calls_to_fill: ClassVar[int] = 4
    reads: ClassVar[Cost] = "waits"

    settings: Settings | None = field(default=None, compare=False)
    objects: Objects | None = field(default=None, compare=False, repr=False)

    def describe(self) -> str:
        compression = "" if self.compression is None else f", compression={self.compression!r}"
        return f"cache({shown_paths(self.path)}{compression})"

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Opens the store, and does what `cache(path)` does."""
        requests = Requests.of(context.options, context.services)
        objects = Objects.at(self.path, self.settings, operator=self.name, requests=requests)
        return DiskCache.bind(dataclasses.replace(self, objects=objects), inputs, context)

    def random_access(self) -> Node:
        """Refuses: a row would take a request."""
        raise PlanError(
            f"shuffle without buffer_size, and sample, find rows where they lie, which for {self.describe()} is another "
            'machine: put cache("folder") behind it, which holds a copy on this one, or use shuffle(buffer_size)'
        )

    def copies(self) -> tuple[str, ...]:
        return ("cache: every epoch fetches all columns into new memory",)

    @property
    def _prefix(self) -> Objects:
        assert self.objects is not None
        return self.objects

    def _entry(self) -> AnyEntry:
        return SharedEntry(self._prefix, self._cached)

    def _in_run(self, found: AnyEntry, context: Context) -> AnyEntry:
        """Returns the entry that all kernels of a run share, so that footers are fetched once."""
        mine = cast(SharedEntry, found).served_by(context)
        return cast(SharedEntry, context.run_storage.setdefault((SharedEntry, found), mine))

    @property
    def _inflation(self) -> int:
        """The bytes that a stored byte takes in memory; decoding needs the chunk beside them."""
        return 1 if self.compression is None else 1 + INFLATION

    @property
    def _connections(self) -> int | None:
        return self._prefix.store.connections

    def _facts(self, found: AnyEntry) -> tuple[str, ...]:
        return (
            *DiskCache._facts(self, found),
            f"in {found.folder}; processes that fill it at the same time all compute the same rows",
        )

    def _costs(self) -> tuple[str, ...]:
        return ("fetched from the store in every epoch; what is missing is put there once",)


def is_address(path: object) -> bool:
    """Returns whether a path is an address of a store.

    Raises:
        PlanError: It is an address that is no place for a cache.

    Examples:
        >>> is_address("s3://bucket/cache"), is_address("cache")
        (True, False)
    """
    if not isinstance(path, str) or ("://" not in path and not is_chained(path)):
        return False
    if is_chained(path) or path.startswith("file://"):
        raise PlanError(
            f"cache: expected the path of a folder, or the address of an object store, got {shown_paths(path)}; leave out "
            "file://, and archives and caches of fsspec"
        )
    return True
