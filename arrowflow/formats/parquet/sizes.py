"""The bytes that decoded texts take, if a Parquet footer says so.

A dictionary holds each text once, so encoded sizes tell nothing of decoded sizes. `SizeStatistics` do tell. Arrow C++
writes them whatever else it is told to leave out, but pyarrow does not offer them. See parquet.thrift:
`FileMetaData.row_groups`, `RowGroup.columns`, `ColumnChunk.meta_data`, `ColumnMetaData.size_statistics`,
`SizeStatistics.unencoded_byte_array_data_bytes`.
"""

from __future__ import annotations

from typing import Final

from arrowflow.formats.parquet.thrift import Field, fields, list_header, varint

_ROW_GROUPS, _COLUMNS, _METADATA, _SIZES, _TEXT_BYTES = 4, 1, 3, 16, 1

_MAX_CHUNKS: Final = 10_000
"""The most column chunks of a footer that are read: each takes some 50 µs."""


class TextSizes:
    """The unencoded bytes of the texts of a file; its footer is parsed at the first question.

    Args:
        footer: The footer as it is stored.
        num_chunks: Its column chunks.
    """

    __slots__ = ("_footer", "_found", "_num_chunks")

    def __init__(self, footer: bytes, num_chunks: int) -> None:
        self._footer = footer
        self._num_chunks = num_chunks
        self._found: list[list[int | None]] | None = None

    def of(self, row_group: int, leaf: int) -> int | None:
        """Returns the bytes of all texts of a column chunk, without offsets; None if the file does not say."""
        if self._found is None:
            self._found = self._parsed() if self._num_chunks <= _MAX_CHUNKS else []
        try:
            return self._found[row_group][leaf]
        except IndexError:  # too many to be read, or C++ has read a corrupt footer in another way
            return None

    def _parsed(self) -> list[list[int | None]]:
        try:
            return _text_bytes(self._footer)
        except (ValueError, IndexError, StopIteration):
            return []


def _text_bytes(footer: bytes) -> list[list[int | None]]:
    """Returns for each row group the text bytes of each of its column chunks."""
    groups = _field(footer, 0, _ROW_GROUPS)
    if groups is None:
        return []
    count, _, at = list_header(footer, groups.start)
    found = []
    for _ in range(count):
        own = list(fields(footer, at))
        columns = next(field for field in own if field.number == _COLUMNS)
        found.append(_of_columns(footer, columns))
        at = own[-1].end + 1  # after the byte 0 that ends a structure
    return found


def _of_columns(footer: bytes, columns: Field) -> list[int | None]:
    count, _, at = list_header(footer, columns.start)
    found = []
    for _ in range(count):
        own = list(fields(footer, at))
        found.append(_of_column(footer, next((field for field in own if field.number == _METADATA), None)))
        at = own[-1].end + 1
    return found


def _of_column(footer: bytes, metadata: Field | None) -> int | None:
    sizes = None if metadata is None else _field(footer, metadata.start, _SIZES)
    text_bytes = None if sizes is None else _field(footer, sizes.start, _TEXT_BYTES)
    if text_bytes is None:
        return None
    value = varint(footer, text_bytes.start)[0]
    return None if value & 1 else value >> 1  # negative if the lowest bit is set


def _field(data: bytes, at: int, number: int) -> Field | None:
    return next((field for field in fields(data, at) if field.number == number), None)
