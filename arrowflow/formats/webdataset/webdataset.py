"""WebDataset shards: tar archives, whose members with one key are one row.

A split is a run of rows of some MiB, found when the archive is opened; a compressed archive is one split. The types of columns
follow from their names, or from `schema=`, and never from the data. A member that cannot be parsed as its type is a bad row.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Self

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow.bad_rows import first_bad
from arrowflow.errors import SchemaError, SourceError
from arrowflow.formats.protocol import Footer, Format, Split, split_borders
from arrowflow.formats.text.blocks import Source, as_bytes, opened, opened_bytes, streamed
from arrowflow.formats.text.codings import CODECS_OF_TAR, UTF8, is_stream, with_codecs
from arrowflow.formats.text.scan import Bytes
from arrowflow.formats.types import conform
from arrowflow.formats.webdataset.members import KEY, Members, walk
from arrowflow.lazy import compute as pc
from arrowflow.storage import File, Range, Store
from arrowflow.types import VIEWS, is_number

SPLIT_BYTES: Final = 4 << 20
SPLIT_ROWS: Final = 1 << 10
"""A split ends at so many bytes, or rows: some ms of copying."""

_TYPES: Final = {
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), pa.int64()),
    **dict.fromkeys(("txt", "text", "transcript", "json"), pa.string()),
}
"""Types of columns by their names, as the package `webdataset` decodes them; JSON stays a text, whose keys may differ."""


@dataclass(frozen=True, slots=True, eq=False)
class _Details:
    """The details that `WebdatasetFormat` keeps of a file.

    Attributes:
        members: The members of all rows.
        borders: The number of the first row of each split; of a compressed archive, of each batch.
        is_stream: Whether the archive is compressed, and so one split.
    """

    members: Members
    borders: Sequence[int]
    is_stream: bool

    def rows(self, index: int) -> Iterator[tuple[int, int]]:
        """Yields the first row of a split, or of each batch of it, and the row to stop before."""
        borders = self.borders
        for number in range(len(borders) - 1) if self.is_stream else (index,):
            if number + 1 < len(borders):  # else it stands for the fault
                yield borders[number], borders[number + 1]

    def span(self, first: int, before: int) -> tuple[int, int]:
        """Returns the first byte of some rows, and the byte to stop before."""
        return int(self.members.start[self.members.firsts[first]]), int(self.members.ends[before - 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class WebdatasetFormat(Format):
    """Tar archives of members that are called `key.column`.

    Attributes:
        types: The columns of all files, or None to name them for each file.
    """

    name: ClassVar[str] = "webdataset"
    part: ClassVar[str] = "run of rows"
    suffixes: ClassVar[tuple[str, ...]] = (*with_codecs(".tar"), *CODECS_OF_TAR)

    types: pa.Schema | None = field(default=None, compare=False)

    def typed(self, schema: pa.Schema, *, is_inferred: bool = False) -> Self:
        """See `Untyped.typed`."""
        for each in schema:
            if each.name != each.name.lower():
                raise SchemaError(
                    f"column {each.name!r}: columns of WebDataset are in lower case, however members are spelled; write "
                    f"{each.name.lower()!r}"
                ).locate(operator=f"read_{self.name}")
            is_parsed = (
                is_number(each.type) or pa.types.is_float16(each.type) or pa.types.is_boolean(each.type)
            )
            if each.type.id not in VIEWS and not is_parsed:
                raise SchemaError(
                    f"column {each.name!r}: a member cannot be read as {each.type}; expected binary, string, a number or a "
                    "boolean: read the bytes, and decode them by a map"
                ).locate(operator=f"read_{self.name}")
        return dataclasses.replace(self, types=schema)

    def holds(self, store: Store, footer: Footer, names: Sequence[str]) -> list[str]:
        """See `Untyped.holds`."""
        known = (KEY, *footer.details.members.columns)
        return [name for name in names if name in known]

    def footer(self, store: Store, file: File, *, is_sample: bool = False) -> Footer:
        """See `Untyped.footer`; any row may have a column that no other one has, so all of them tell the columns."""
        with opened(store, file) as source:
            members = walk(source, 1 << 10 if is_sample and self.types is not None else None)
        if not members.keys and self.types is None:
            raise SourceError(
                members.fault
                or "the archive has no members called key.column, to take columns from; pass schema="
            )
        schema = self.types
        if schema is None:
            columns = [
                pa.field(name, _TYPES.get(name.rpartition(".")[2], pa.binary())) for name in members.columns
            ]
            schema = pa.schema([pa.field(KEY, pa.string()), *columns])
        borders = split_borders(
            members.start[members.firsts[:-1]], members.ends, max_count=SPLIT_ROWS, max_bytes=SPLIT_BYTES
        )
        details = _Details(members, borders, is_stream(file, UTF8))
        return Footer(file, schema, _splits(details), len(members.keys), details)

    def footer_bytes(self, file: File) -> int:
        return opened_bytes(file)

    def column_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """See `Format.column_bytes`: the stored bytes of the wanted members, and their offsets."""
        details: _Details = footer.details
        members, most = details.members, 0
        wanted = [number for number, name in enumerate(members.columns) if name in columns]
        for first, before in details.rows(split.index):
            part = slice(members.firsts[first], members.firsts[before])
            is_wanted = np.isin(members.column[part], wanted)
            size = int((members.stop[part] - members.start[part])[is_wanted].sum())
            keys = sum(map(len, members.keys[first:before])) if KEY in columns else 0
            most = max(most, size + keys + 9 * (before - first) * len(columns))
        return most

    def scratch_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """See `Format.scratch_bytes`: the bytes of the rows as they are stored."""
        details: _Details = footer.details
        spans = [details.span(first, before) for first, before in details.rows(split.index) if before > first]
        most = max((stop - start for start, stop in spans), default=0)
        return 2 * most + (opened_bytes(footer.file) if details.is_stream else 0)

    def ranges(self, footer: Footer, split: Split, columns: Sequence[str]) -> list[Range]:
        details: _Details = footer.details
        if not set(columns) & set(details.members.columns):
            return []
        if details.is_stream:
            return [Range(0, footer.file.size)]
        return [Range(*details.span(first, before)) for first, before in details.rows(split.index)]

    def read(
        self, store: Store, footer: Footer, split: Split, schema: pa.Schema, offset_rows: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """See `Format.read`; a compressed archive yields several batches. The rows in front of a fault come before its error."""
        details: _Details = footer.details
        if details.members.fault is not None and split.index == len(footer.splits) - 1:
            raise SourceError(details.members.fault)
        names = [name for name in schema.names if name == KEY or name in details.members.columns]
        types = pa.schema([schema.field(name) for name in names])
        for data, first, before in self._stored(store, footer, split, names, offset_rows):
            skipped = max(0, offset_rows - first) if details.is_stream else offset_rows
            made = pa.RecordBatch.from_struct_array(pa.nulls(before - first, pa.struct([])))
            if names:
                columns = [_column(details.members, data, first, before, each) for each in types]
                made = pa.RecordBatch.from_arrays(columns, schema=types)
            yield from conform(made.slice(skipped), schema)

    def _stored(
        self, store: Store, footer: Footer, split: Split, names: Sequence[str], offset_rows: int
    ) -> Iterator[tuple[Bytes, int, int]]:
        """Yields bytes of rows, the first row, and the row to stop before."""
        details: _Details = footer.details
        reads = bool(set(names) - {KEY})
        source: Source | None = None
        for first, before in details.rows(split.index):
            if details.is_stream and before <= offset_rows:
                continue
            data = np.zeros(0, np.uint8)
            start, stop = details.span(first, before)
            if reads and details.is_stream:
                source = source or streamed(store, footer.file, UTF8)
                data = source.window(start, stop - start)
            elif reads:
                data = as_bytes(store.unmapped.fetch(footer.file, [(start, stop)])[0])
            if reads and data.size < stop - start:
                raise SourceError(f"expected {stop - start:,} bytes behind byte {start}, found {data.size:,}")
            yield data, first, before


def _column(members: Members, data: Bytes, first: int, before: int, wanted: pa.Field) -> pa.Array:
    """Returns a column of the rows from `first` on and before another one, with the bytes from their first member on.

    Raises:
        SchemaError: A member is none of the column's type.
    """
    keys = members.keys[first:before]
    if wanted.name == KEY:
        texts = pl.Series([key.encode("utf-8", "surrogateescape") for key in keys], dtype=pl.Binary)
        texts = texts.to_arrow(compat_level=pl.CompatLevel.oldest())
    else:
        firsts = members.firsts[first : before + 1]
        chosen = np.flatnonzero(members.column[firsts[0] : firsts[-1]] == members.columns.index(wanted.name))
        chosen += firsts[0]
        # Every other value is a member, and the others are what lies between two.
        borders = np.stack([members.start[chosen], members.stop[chosen]], axis=1).ravel()
        borders -= members.start[firsts[0]]
        buffers = [None, pa.py_buffer(borders), pa.py_buffer(data)]
        texts = pa.Array.from_buffers(pa.large_binary(), max(0, borders.size - 1), buffers)
        places = np.full(len(keys), -1)
        places[np.searchsorted(firsts, chosen, side="right") - 1] = np.arange(0, borders.size, 2)
        texts = pc.take(texts, pl.Series(places).replace(-1, None).to_arrow())
    try:
        return _cast(texts, wanted.type)
    except SchemaError as whole:
        row, error = first_bad(len(texts), lambda start, stop: _cast(texts[start:stop], wanted.type), whole)
        raise SchemaError(
            f"the member {keys[row]}.{wanted.name} {error.args[0]}; read the column as bytes, by schema= with pa.binary(), "
            "and decode it by a map"
        ) from error.__cause__


def _cast(texts: pa.Array, type: pa.DataType) -> pa.Array:
    try:
        if type.id not in VIEWS:
            texts = pc.utf8_trim_whitespace(texts.cast(pa.string()))
        return texts.cast(type)
    except pa.ArrowInvalid as error:
        raise SchemaError(f"is no {type}: {error}") from error


def _splits(details: _Details) -> tuple[Split, ...]:
    borders = (0, details.borders[-1]) if details.is_stream else details.borders
    found = []
    for index, (first, before) in enumerate(itertools.pairwise(borders)):
        if before > first:
            start, stop = details.span(first, before)
            found.append(Split(index, before - first, stop - start))
    if details.members.fault is not None:
        found.append(Split(len(found), 1, 0))
    return tuple(found)
