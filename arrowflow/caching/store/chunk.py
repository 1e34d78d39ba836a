"""Chunks: the files of a cache. A chunk is written as a whole, and its name alone shows that it is whole.

A chunk is an Arrow IPC file of the record batches of a group of items. Its name has the first row, the number of rows
and a checksum of all its bytes. So the listing of a folder says which rows it has. The name and the header reveal a chunk
that was damaged, cut or renamed. The header is a JSON text in the footer's metadata. It has the fingerprint of the plan,
the first row again, the position before the chunk and one `Link` an item. An item without rows has a link and no record
batch.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import xxhash

from arrowflow.errors import ArrowflowError, SchemaError, WriteError
from arrowflow.formats.ipc.aligned import Sink, write_aligned
from arrowflow.plan.position import Position, listed, tupled
from arrowflow.workarounds.codes import has_dictionary

VERSION: Final = 2
"""Version of the header; chunks of another version are not read."""

HEADER: Final = "arrowflow.cache"
"""Key of the header in the metadata of the file's footer."""

_NAME: Final = re.compile(r"([0-9]{15,})-([0-9]+)-([0-9a-f]{16})(-end)?\.arrow")


class ChunkError(ArrowflowError):
    """A file does not match its chunk's name: damaged, cut, renamed, foreign, or of another plan."""


class Link(NamedTuple):
    """The data of one item in a chunk.

    Attributes:
        rows: Its rows.
        position: The position after it.
        split: Number of its split.
        last: Whether it ends its split.
    """

    rows: int
    position: Position
    split: int
    last: bool


class Name(NamedTuple):
    """The content of a chunk's name.

    Attributes:
        first_row: Number of its first row among all rows of the entry.
        num_rows: Its rows.
        checksum: XXH3 of the file, in 64 bits.
        end: Whether no row follows it.

    Examples:
        >>> Name(4096, 1000, 0xC0FFEE, True).render()
        '000000000004096-1000-0000000000c0ffee-end.arrow'
        >>> Name.parse("000000000004096-1000-0000000000c0ffee-end.arrow").num_rows
        1000
    """

    first_row: int
    num_rows: int
    checksum: int
    end: bool

    @classmethod
    def parse(cls, text: str) -> Name | None:
        """Returns a chunk's name from a text; None if the text is not the name of a chunk."""
        match = _NAME.fullmatch(text)
        if match is None:
            return None
        name = cls(int(match[1]), int(match[2]), int(match[3], 16), match[4] is not None)
        return name if name.render() == text else None

    def render(self) -> str:
        """Returns the name of the file."""
        end = "-end" if self.end else ""
        return f"{self.first_row:015}-{self.num_rows}-{self.checksum:016x}{end}.arrow"


# ---------------------------------------------------------------------------------------------------- writing


@dataclass(frozen=True, slots=True)
class Draft:
    """A chunk that is to be written.

    Attributes:
        first_row: Number of its first row.
        before: The position before its first item.
        items: Each item's record batch and link. A column has the same dictionary in all batches (see `same_file`).
        schema: Schema of the record batches.
        fingerprint: The fingerprint of the plan.
        end: Whether no row follows.
        compression: `"lz4"`, `"zstd"` or None.
    """

    first_row: int
    before: Position
    items: Sequence[tuple[pa.RecordBatch, Link]]
    schema: pa.Schema
    fingerprint: str
    end: bool
    compression: str | None = None

    @property
    def num_bytes(self) -> int:
        """The bytes of its rows."""
        return sum(batch_bytes(batch) for batch, link in self.items if link.rows)

    def encode(self, sink: Sink) -> Name:
        """Gives a sink the bytes of the file, and returns the name of the chunk.

        Raises:
            SchemaError: A record batch has other columns than `schema`.
            WriteError: pyarrow cannot write these batches to one file.
        """
        if any(batch.num_rows != link.rows for batch, link in self.items):
            raise ValueError("an item's link has another number of rows than its batch")
        batches = [of_schema(batch, self.schema) for batch, link in self.items if link.rows]
        header = {
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "first_row": self.first_row,
            "end": self.end,
            "before": listed(self.before),
            "items": [[link.rows, listed(link.position), link.split, link.last] for _, link in self.items],
        }
        metadata = {HEADER: json.dumps(header, separators=(",", ":"))}
        try:
            written = write_aligned(
                sink, self.schema, batches, compression=self.compression, metadata=metadata
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            text = f"these record batches cannot be written to one Arrow IPC file: {error}"
            raise WriteError(text).locate(operator="cache") from error
        return Name(self.first_row, sum(link.rows for _, link in self.items), written.checksum, self.end)


def of_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns a batch with exactly the schema of its chunk: pyarrow's writer compares nullability too.

    Raises:
        SchemaError: The batch has other columns.
    """
    if not batch.num_rows or batch.schema.equals(schema, check_metadata=True):
        return batch
    try:
        if batch.schema.names != schema.names:
            raise ValueError("its columns have other names")
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    except (ValueError, TypeError) as error:
        raise SchemaError(
            f"expected record batches of\n{schema.to_string()}\nfound one of\n{batch.schema.to_string()}"
        ).locate(operator="cache") from error


def batch_bytes(batch: pa.RecordBatch) -> int:
    """Returns the bytes of the rows themselves, without the rest of their buffers."""
    try:
        return int(batch.nbytes)
    except pa.ArrowTypeError:  # pyarrow 22 cannot tell the bytes of views
        return int(batch.get_total_buffer_size())


# ---------------------------------------------------------------------------------------------------- reading


def chunk_in(data: pa.Buffer, name: Name, fingerprint: str, *, verify: bool) -> Chunk:
    """Returns the chunk that some memory holds, once it is known to match its name.

    Args:
        data: The whole file.
        name: The chunk.
        fingerprint: The fingerprint of the plan.
        verify: Whether to compare the checksum, for which all bytes are read.

    Raises:
        ChunkError: The file is not that chunk.
    """
    if verify:
        found = xxhash.xxh3_64_intdigest(data)
        if found != name.checksum:
            raise ChunkError(
                f"a chunk of a cache is damaged: its checksum is {found:016x}, not {name.checksum:016x}"
            )
    reader, head = read_head(pa.BufferReader(data), name, fingerprint)
    return Chunk(data, head, reader)


def read_head(source: Any, name: Name, fingerprint: str) -> tuple[Any, Head]:
    """Returns the reader of a file, which reads its footer, and what that says.

    Raises:
        ChunkError: The file is not that chunk.
    """
    try:
        reader = pa.ipc.open_file(source)
        header = json.loads((reader.metadata or {})[HEADER.encode()])
        links = tuple(
            Link(int(rows), tupled(position), int(split), bool(last))
            for rows, position, split, last in header["items"]
        )
        head = Head(name, reader.schema, tupled(header["before"]), links)
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise ChunkError(
            f"expected a chunk of a cache, found another file or a part of one: {error}"
        ) from error
    expected = {"version": VERSION, "fingerprint": fingerprint, "first_row": name.first_row, "end": name.end}
    for what, mine in expected.items():
        theirs = header.get(what)
        if mine != theirs:
            what = what.replace("_", " ")
            raise ChunkError(f"expected a chunk of a cache with {what} {mine!r}, found {theirs!r}")
    rows, num_batches = sum(link.rows for link in links), reader.num_record_batches
    if rows != name.num_rows or num_batches != sum(link.rows > 0 for link in links):
        raise ChunkError(
            f"expected a chunk of {name.num_rows} rows, found {rows} rows in {num_batches} record batches"
        )
    return reader, head


@dataclass(slots=True, eq=False)
class Head:
    """The footer of a chunk.

    Attributes:
        name: Its name.
        schema: Schema of its record batches.
        before: The position before its first item.
        links: The data of each item.
    """

    name: Name
    schema: pa.Schema
    before: Position
    links: tuple[Link, ...]


class Chunk(Head):
    """A chunk in memory, where it is mapped or was fetched. Any thread may use it, several at the same time.

    Attributes:
        mapped: The whole file. Uncompressed columns are views of it.
    """

    __slots__ = ("_batches", "_primed", "_reader", "mapped")

    def __init__(self, mapped: pa.Buffer, head: Head, reader: Any) -> None:
        super().__init__(head.name, head.schema, head.before, head.links)
        self.mapped = mapped
        self._batches = tuple(itertools.accumulate((link.rows > 0 for link in self.links), initial=0))
        self._reader = reader
        self._primed = not any(map(has_dictionary, self.schema.types))

    @property
    def num_bytes(self) -> int:
        """The size of its file."""
        return int(self.mapped.size)

    def load(self) -> Chunk:
        """Returns itself: its bytes are here."""
        return self

    def batch(self, number: int) -> pa.RecordBatch:
        """Returns the rows of item `number` (as in `links`): a view of the map, or a copy if they are compressed.

        Raises:
            ChunkError: The file is damaged.
        """
        rows = self.links[number].rows
        if not rows:
            nothing = [pa.nulls(0, type) for type in self.schema.types]
            return pa.RecordBatch.from_arrays(nothing, schema=self.schema)
        try:
            batch = self._read(self._batches[number])
            if batch.num_rows != rows:
                raise ValueError(f"expected {rows} rows in record batch {number}, found {batch.num_rows}")
        except (pa.ArrowException, OSError, ValueError) as error:
            text = f"a chunk of a cache is damaged: {error}"
            raise ChunkError(text).locate(file=self.name.render()) from error
        return batch

    def _read(self, index: int) -> pa.RecordBatch:
        if self._primed:
            return self._reader.get_batch(index)
        # In its first call a reader decodes the dictionaries, which must not race with another call. So each thread
        # that comes before the first call is over uses a reader of its own. It shares this reader when its own first
        # call is over.
        reader = pa.ipc.open_file(pa.BufferReader(self.mapped))
        batch = reader.get_batch(index)
        self._reader = reader
        self._primed = True
        return batch
