"""Rows from the middle of a row group: the pages that hold them, decoded as a small file of their own.

A row group may be larger than the budget. Its columns are stored in pages of about 1 MiB, and the header of each page
says how many values the page has. So the headers tell which pages hold some rows, and where they lie. Such pages, with
the dictionary before them, become a Parquet file in memory. Its footer is that of the file, with other offsets and
counts for these columns. Arrow decodes it as any other file, so its values are exact, and checksums are verified.

Pages of different columns end at different rows. Columns whose pages end at the same rows share one such file.

https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

from arrowflow.formats.parquet import thrift
from arrowflow.formats.varints import signed, written_number

_MAGIC: Final = b"PAR1"
_HEADER_BYTES: Final = (256, 1 << 14)
"""The bytes that are read of a page's header: more if it has long statistics."""

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_KIND, _BYTES, _VALUES, _END = range(4)
_NUM_VALUES: Final[thrift.Tree] = {1: _VALUES}
_PAGE: Final[thrift.Tree] = dict.fromkeys((5, 7, 8), _NUM_VALUES) | {1: _KIND, 3: _BYTES, thrift.END: _END}
_ROW_GROUPS, _NUM_ROWS = 4, 3
"""Field numbers of a footer."""
_METADATA: Final = 3
"""The field of a column chunk that holds its metadata."""

Read = Callable[[int, int], bytes]
"""Returns the bytes of a file from one offset to another."""


class Pages(NamedTuple):
    """The pages of a column chunk without lists, so that each value is a row.

    Attributes:
        dictionary: The bytes of the file from which to which the dictionary lies; both 0 if there is none.
        offsets: Where each data page begins, and where the last one ends.
        rows: The first row of each data page, and the number of all rows.
    """

    dictionary: tuple[int, int]
    offsets: list[int]
    rows: list[int]

    def around(self, start: int, stop: int) -> tuple[int, int]:
        """Returns the number of the page with row `start`, and the number after the page with row `stop - 1`."""
        return bisect_right(self.rows, start) - 1, bisect_left(self.rows, stop)


class _Header(NamedTuple):
    """The header of a page, with its own length in bytes."""

    kind: int
    num_bytes: int
    values: int
    length: int


def pages_of(read: Read, start: int, end: int, num_rows: int) -> Pages | None:
    """Returns the pages of the column chunk that lies in some bytes; None if these are not what they should be."""
    dictionary, offsets, rows = (0, 0), [], [0]
    at = start
    while rows[-1] < num_rows and at < end:
        header = _header(read, at, end)
        if header is None or header.num_bytes < 0 or header.values < 0:
            return None
        after = at + header.length + header.num_bytes
        if header.kind == _DICTIONARY:
            dictionary = (at, after)
        elif header.kind in (_DATA, _DATA_V2):
            offsets.append(at)
            rows.append(rows[-1] + header.values)
        at = after
    if rows[-1] != num_rows or at > end:
        return None
    return Pages(dictionary, [*offsets, at], rows)


def _header(read: Read, at: int, end: int) -> _Header | None:
    for size in _HEADER_BYTES:
        data = read(at, min(end, at + size))
        with suppress(IndexError, ValueError):
            places = {mark: place for mark, _, place in thrift.walk(data, _PAGE)}
            end = places.pop(_END)
            found = {mark: signed(data, place)[0] for mark, place in places.items()}
            kind, num_bytes, values = (found.get(mark, -1) for mark in (_KIND, _BYTES, _VALUES))
            return _Header(kind, num_bytes, values, end)
    return None


def borders(pages: Sequence[Pages], rows: int) -> list[int]:
    """Returns the rows at which to cut, at least `rows` apart, of those at which pages of one column begin."""
    found = [0]
    for row in max(pages, key=lambda each: len(each.rows)).rows[1:-1]:
        if row >= found[-1] + rows:
            found.append(row)
    return found[1:]


def file_of(read: Read, footer: bytes, row_group: int, pages: Mapping[int, tuple[Pages, int, int]]) -> bytes:
    """Returns a Parquet file with one row group, in which some leaf columns have some of their pages only.

    Of each of these leaves `pages` has all pages, the first one wanted, and the one to stop before. All have the same rows. No
    other column can be read.
    """
    parts, chunks, at = [_MAGIC], {}, len(_MAGIC)
    num_rows = 0
    for leaf, (table, first, before) in pages.items():
        dictionary = read(*table.dictionary) if table.dictionary[1] else b""
        data = read(table.offsets[first], table.offsets[before])
        num_rows = table.rows[before] - table.rows[first]
        chunks[leaf] = _Chunk(at, len(dictionary), len(data), num_rows)
        parts += [dictionary, data]
        at += len(dictionary) + len(data)
    written = _footer(footer, row_group, chunks, num_rows)
    return b"".join([*parts, written, len(written).to_bytes(4, "little"), _MAGIC])


def stored_footer(file: bytes) -> bytes:
    """Returns the footer of a file that `file_of` made."""
    end = len(file) - len(_MAGIC) - 4
    return file[end - int.from_bytes(file[end : end + 4], "little") : end]


class _Chunk(NamedTuple):
    """A column chunk of the file in memory."""

    at: int
    dictionary_bytes: int
    data_bytes: int
    num_rows: int


def _footer(footer: bytes, row_group: int, chunks: Mapping[int, _Chunk], num_rows: int) -> bytes:
    made = []
    for field in thrift.fields(footer, 0):
        value = footer[field.start : field.end]
        if field.number == _NUM_ROWS:
            value = written_number(num_rows)
        elif field.number == _ROW_GROUPS:
            group, _ = next(islice(thrift.elements(footer, field.start), row_group, None))
            value = thrift.written_list(thrift.STRUCT, [_row_group(footer, group, chunks, num_rows)])
        made.append((field.number, field.kind, value))
    return thrift.written_struct(made)


def _row_group(data: bytes, at: int, chunks: Mapping[int, _Chunk], num_rows: int) -> bytes:
    made = []
    for field in thrift.fields(data, at):
        if field.number == 1:
            columns = [
                data[start:end] if (chunk := chunks.get(leaf)) is None else _column(data, start, chunk)
                for leaf, (start, end) in enumerate(thrift.elements(data, field.start))
            ]
            made.append((1, thrift.LIST, thrift.written_list(thrift.STRUCT, columns)))
        elif field.number == 2:
            made.append((2, field.kind, data[field.start : field.end]))
        elif field.number == 3:
            made.append((3, thrift.I64, written_number(num_rows)))
    return thrift.written_struct(made)  # without sorting columns, offsets and sizes of the whole


def _column(data: bytes, at: int, chunk: _Chunk) -> bytes:
    (metadata,) = (field for field in thrift.fields(data, at) if field.number == _METADATA)
    found: dict[int, tuple[int, bytes]] = {
        field.number: (field.kind, data[field.start : field.end])
        for field in thrift.fields(data, metadata.start)
        if field.number in (1, 2, 3, 4, 6)  # type, encodings, path, codec, uncompressed bytes
    }
    size = chunk.dictionary_bytes + chunk.data_bytes
    found[5] = thrift.I64, written_number(chunk.num_rows)
    found[7] = thrift.I64, written_number(size)
    found[9] = thrift.I64, written_number(chunk.at + chunk.dictionary_bytes)
    if chunk.dictionary_bytes:
        found[11] = thrift.I64, written_number(chunk.at)
    made = thrift.written_struct((number, *found[number]) for number in sorted(found))
    return thrift.written_struct([(2, thrift.I64, written_number(chunk.at)), (3, thrift.STRUCT, made)])
