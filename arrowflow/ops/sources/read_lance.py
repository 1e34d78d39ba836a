"""`read_lance`: the rows of one version of a Lance dataset, by the package `lance`.

Four decisions matter.

* **The version is fixed when the dataset is bound**, and a state holds it. A state of another version is refused.
* **Rows have the numbers that a scan gives them**, without the rows that were deleted. A scan begins at any of them in 1 ms. So
  a split is some MiB of rows, whatever the fragments are, and order, lanes and resume are those of `range`.
* **A global `shuffle` takes rows by their numbers**, in 20 µs a row.
* **Filters are not handed on.** The package's engine has other rules for NaN and null than Polars and pyarrow.

`lance` reads and decodes in threads of its own, one a core (`LANCE_CPU_THREADS`), while a worker waits for it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, ClassVar, Final

import pyarrow as pa

from arrowflow.errors import ArrowflowError, PlanError, SourceError
from arrowflow.expr import empty_batch
from arrowflow.formats.capabilities import bits_of, least_bytes
from arrowflow.formats.types import conform, decoded_schema
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.order.spans import Places
from arrowflow.ops.sources.dealt import NumberedRows
from arrowflow.ops.sources.range import Range
from arrowflow.optional import optional
from arrowflow.options import MAX_CHUNK_ROWS, ResolvedOptions
from arrowflow.plan.file_source import FileSource
from arrowflow.plan.node import BindContext, Node
from arrowflow.storage.settings import Settings, without_secrets

SPLIT_BYTES: Final = 16 << 20
"""Bytes of the rows of a split, as far as the dataset tells them. Two calls at a time of 16 MiB read 0.8 to 1.0 times as fast as
one scan of all rows; those of 4 MiB 0.6 to 0.7 times."""

_BLOB: Final = b"lance-encoding:blob"

_LINE_OF_CODE: Final = re.compile(r"(, *)?[^\s,]*\.rs:\d+:\d+")
"""A place in the code of `lance`, which its messages name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLance(Range, FileSource):
    """The rows of a version of a Lance dataset, which have the numbers from `start` to `stop`.

    Row order: as a scan of the dataset gives them; before a windowed `shuffle` in blocks, ordered by (seed, epoch). Memory: one
    split a call. Deterministic. Resume: seeks to the split. A split is 16 MiB of rows, at most 65,536, or a block.

    Attributes:
        table: The folder of the dataset, or its URL.
        version: The version to read; None until bound for the latest.
        client: Arguments of the client by which `lance` reads.
        num_parallel_calls: Splits read at the same time; None for the best number.
        columns: Names of the columns to read. Set by a rule; None for all.
        types: Bound: all columns.
        blobs: Bound: names of the columns of blobs.
        files: Bound: the names of data files and of their lists of deleted rows.
        stored_bytes: Bound: bytes of a row in the files.
    """

    name: ClassVar[str] = "read_lance"

    start: int = 0
    stop: int = 0
    step: int = 1
    table: str
    version: int | None = None
    client: Mapping[str, str] | None = field(default=None, hash=False, compare=False, repr=False)
    num_parallel_calls: int | None = None
    columns: tuple[str, ...] | None = None
    types: pa.Schema | None = field(default=None, compare=False, repr=False)
    blobs: tuple[str, ...] = field(default=(), compare=False, repr=False)
    files: tuple[str, ...] = field(default=(), compare=False, repr=False)
    stored_bytes: int = field(default=0, compare=False, repr=False)

    def arguments(self) -> Mapping[str, Any]:
        """Returns the version and, once bound, the files, whose names no other dataset has."""
        return {"version": self.version, "rows": self.stop, "sources": list(self.files)}

    def identity(self) -> dict[str, Any]:
        return {
            "arguments": self.arguments(),
            "schema": self.schema,
            "blocks": self.blocks,
            "in_place": self.in_place,
        }

    def describe(self) -> str:
        parts = [repr(self.table)] if self.version is None else [repr(self.table), f"version {self.version}"]
        if self.bound:
            parts.append(f"{self.stop:,} rows")
        if self.columns is not None and self.types is not None:
            parts.append(f"columns {len(self.columns)} of {len(self.types)}: {', '.join(self.columns)}")
        return f"{self.name}({'; '.join(parts)})"

    @property
    def in_memory(self) -> bool:
        return False

    @property
    def is_current(self) -> bool:
        """A version stays as it is."""
        return True

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Opens the version, and looks at its columns and fragments."""
        with _located(self):
            found = _opened(self)
            fragments = found.get_fragments()
            rows = sum(each.count_rows() for each in fragments)
            metadata = [each.metadata for each in fragments]
            stored = pa.schema(found.schema)
        files = [file for each in metadata for file in each.files]
        deletions = [
            f"{each.id}: {each.deletion_file}" for each in metadata if each.deletion_file is not None
        ]
        size = sum(file.file_size_bytes or 0 for file in files)
        types = decoded_schema(stored)
        bound = dataclasses.replace(
            self,
            version=found.version,
            stop=rows,
            types=types,
            blobs=tuple(each.name for each in stored if (each.metadata or {}).get(_BLOB) == b"true"),
            files=(*(file.path for file in files), *deletions),
            stored_bytes=size // max(1, rows),
        )
        split_rows = min(max(1, SPLIT_BYTES // max(1, bound.row_bytes(types))), MAX_CHUNK_ROWS)
        return dataclasses.replace(bound, split_rows=split_rows).on()

    def row_bytes(self, columns: pa.Schema) -> int:
        """Returns the bytes of a row: those that types tell, and where they do not, all that are stored."""
        bits = bits_of(columns)
        return least_bytes(bits, 8) // 8 + (self.stored_bytes if None in bits.values() else 0)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema | None:
        if self.types is None or self.columns is None:
            return self.types
        return pa.schema([each for each in self.types if each.name in self.columns])

    def narrow(self, wanted: frozenset[str]) -> Node:
        assert self.schema is not None
        names = tuple(name for name in self.schema.names if name in wanted)
        return dataclasses.replace(self, columns=names).on()

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        """Returns a source of one task per split; refuses blobs that would be taken by numbers, which gives no bytes."""
        assert self.schema is not None
        blobs = [name for name in self.schema.names if name in self.blobs and self.in_place]
        if blobs:
            raise PlanError(
                f"shuffle: without buffer_size it takes rows of {self.name} by their numbers, which gives no bytes of blobs "
                f"(columns {', '.join(blobs)}); put `.cache()` before it, or use shuffle(buffer_size)"
            )
        return dataclasses.replace(
            Range.lower(self, options),
            phase="read",
            engine="lance",
            cost="waits" if "://" in self.table else "computes",
            max_calls=self.num_parallel_calls,
        )

    def numbered(self) -> NumberedRows:
        return LanceRows(self, cache(partial(_opened, self)))


@dataclass(frozen=True, slots=True)
class LanceRows(NumberedRows):
    """Rows that are read when a reader asks for them.

    Attributes:
        node: The source of these rows.
        opened: Opens the dataset, once a stream.
    """

    node: ReadLance
    opened: Callable[[], Any]

    @property
    def num_rows(self) -> int:
        return self.node.stop - self.node.start

    @property
    def num_bytes(self) -> int:
        return self.num_rows * self.node.row_bytes(self._schema)

    def slice(self, offset: int, length: int | None = None) -> LanceRows:
        stop = self.num_rows if length is None else offset + length
        return LanceRows(self.node.part(offset, stop), self.opened)

    def gather(self, places: Places) -> pa.RecordBatch:
        if not self._schema.names:
            return _without_columns(len(places))
        with _located(self.node):
            table = self.opened().take(places + self.node.start, columns=self._schema.names)
            return self._batch(table, len(places))

    def everything(self) -> pa.RecordBatch:
        if not self._schema.names:
            return _without_columns(self.num_rows)
        with _located(self.node):
            scanner = self.opened().scanner(
                columns=self._schema.names,
                offset=self.node.start,
                limit=self.num_rows,
                batch_size=self.num_rows,
                scan_in_order=True,
                blob_handling="all_binary",
            )
            return self._batch(scanner.to_table(), self.num_rows)

    def _batch(self, table: pa.Table, num_rows: int) -> pa.RecordBatch:
        if table.num_rows != num_rows:
            raise SourceError(f"it gave {table.num_rows:,} rows where it had {num_rows:,} when it was bound")
        parts = [part for batch in table.to_batches() for part in conform(batch, self._schema)]
        if not parts:
            return empty_batch(self._schema)
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    @property
    def _schema(self) -> pa.Schema:
        assert self.node.schema is not None
        return self.node.schema


def _without_columns(num_rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.nulls(num_rows, pa.struct([])))


def _opened(node: ReadLance) -> Any:
    """Opens the version of a dataset, or raises an error that names those that there are."""
    lance = optional("lance", user=ReadLance.name, extra="lance")
    options = dict(node.client or {}) or None
    try:
        return lance.dataset(node.table, version=node.version, storage_options=options)
    except ValueError as error:  # what it has for all that is missing
        if node.version is None:
            raise
        known = [each["version"] for each in lance.dataset(node.table, storage_options=options).versions()]
        if not known:
            raise
        shown = ", ".join(map(str, known[-10:]))
        more = f" and {len(known) - 10} before them" if len(known) > 10 else ""
        raise SourceError(f"there is no version {node.version}; there are {shown}{more}") from error


@contextmanager
def _located(node: ReadLance) -> Iterator[None]:
    """Turns errors of the package inside into a `SourceError` that names the dataset."""
    try:
        yield
    except ArrowflowError as error:
        raise error.locate(operator=node.name, file=node.table) from error.__cause__
    except Exception as error:
        text = _LINE_OF_CODE.sub("", without_secrets(str(error), Settings(node.client or {})))
        raise SourceError(f"the dataset cannot be read: {text}").locate(
            operator=node.name, file=node.table
        ) from error
