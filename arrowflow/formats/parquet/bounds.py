"""Bounds in a footer that pyarrow may be asked for: it ends the process where one has too few bytes for its type.

So a footer is walked once before its statistics are used. It is read as C++ reads it: a field of another type than it should
have is passed over, and of several fields of one number all count. See parquet.thrift: `FileMetaData.row_groups`,
`RowGroup.columns`, `ColumnChunk.meta_data`, `ColumnMetaData.type` and `.statistics`, `Statistics.max`, `.min`, `.max_value` and
`.min_value`.
"""

from __future__ import annotations

import hashlib
from typing import Final

from arrowflow.formats.parquet.thrift import BINARY, I32, LIST, STRUCT, header, list_header, passed, varint
from arrowflow.lazy import parquet as pq

_ROW_GROUPS, _COLUMNS, _METADATA, _TYPE, _STATISTICS = 4, 1, 3, 1, 12
_BOUNDS: Final = frozenset((1, 2, 5, 6))
_TYPES: Final = {
    "BOOLEAN": (0, 1),
    "INT32": (1, 4),
    "INT64": (2, 8),
    "INT96": (3, 12),
    "FLOAT": (4, 4),
    "DOUBLE": (5, 8),
    "BYTE_ARRAY": (6, 0),
}
"""The number of each physical type, and the bytes of a value. The last type, number 7, has values of a length of its own."""

_NO_BOUND: Final = 1 << 31

_SOUND: Final[set[bytes]] = set()
"""Digests of footers without a fault, which later epochs and lanes do not walk again: to walk the 112 chunks of a file of
`stream` takes 1.7 ms, a twentieth of an epoch for all of its files, and a digest 0.02 ms."""

_MOST_SOUND: Final = 1 << 16


class Bounds:
    """The column chunks of a file whose statistics cannot be used; its footer is walked at the first question.

    Args:
        footer: The footer as it is stored.
        metadata: The same, parsed.
    """

    __slots__ = ("_footer", "_found", "_metadata")

    def __init__(self, footer: bytes, metadata: pq.FileMetaData) -> None:
        self._footer = footer
        self._metadata = metadata
        self._found: list[frozenset[int]] | None = None

    def unsound(self, row_group: int) -> frozenset[int]:
        """Returns the leaf columns of a row group whose statistics cannot be used."""
        if self._found is None:
            self._found = self._looked_up()
        return self._found[row_group]

    def _looked_up(self) -> list[frozenset[int]]:
        digest = hashlib.blake2b(self._footer, digest_size=16).digest()
        if digest in _SOUND:
            return [frozenset()] * self._metadata.num_row_groups
        found = self._walked()
        if not any(found):
            if len(_SOUND) >= _MOST_SOUND:
                _SOUND.clear()
            _SOUND.add(digest)
        return found

    def _walked(self) -> list[frozenset[int]]:
        schema, num_leaves = self._metadata.schema, self._metadata.num_columns
        columns = [schema.column(leaf) for leaf in range(num_leaves)]
        least = [_TYPES.get(column.physical_type, (7, column.length)) for column in columns]
        try:
            groups = _row_groups(self._footer, 0)
        except (IndexError, ValueError):
            groups = []
        if [len(group) for group in groups] != [num_leaves] * self._metadata.num_row_groups:
            # C++ has read it in another way, so that nothing is known.
            return [frozenset(range(num_leaves))] * self._metadata.num_row_groups
        return [
            frozenset(
                leaf
                for leaf, ((found, shortest), (type, needed)) in enumerate(zip(group, least, strict=True))
                if found != type or shortest < needed
            )
            for group in groups
        ]


_Chunk = tuple[int, int]
"""The physical type of a column chunk, and the bytes of its shortest bound."""


def _row_groups(data: bytes, at: int) -> list[list[_Chunk]]:
    number = 0
    found: list[list[_Chunk]] = []
    while True:
        number, kind, at = header(data, at, number)
        if not kind:
            return found
        if number == _ROW_GROUPS and kind == LIST:
            count, _, at = list_header(data, at)
            for _ in range(count):
                group, at = _row_group(data, at)
                found.append(group)
        else:
            at = passed(data, at, kind)


def _row_group(data: bytes, at: int) -> tuple[list[_Chunk], int]:
    number = 0
    found: list[_Chunk] = []
    while True:
        number, kind, at = header(data, at, number)
        if not kind:
            return found, at
        if number == _COLUMNS and kind == LIST:
            count, _, at = list_header(data, at)
            for _ in range(count):
                chunk, at = _chunk(data, at)
                found.append(chunk)
        else:
            at = passed(data, at, kind)


def _chunk(data: bytes, at: int) -> tuple[_Chunk, int]:
    number, found = 0, (-1, _NO_BOUND)
    while True:
        number, kind, at = header(data, at, number)
        if not kind:
            return found, at
        if number == _METADATA and kind == STRUCT:
            found, at = _metadata(data, at)
        else:
            at = passed(data, at, kind)


def _metadata(data: bytes, at: int) -> tuple[_Chunk, int]:
    number, type, shortest = 0, -1, _NO_BOUND
    while True:
        number, kind, at = header(data, at, number)
        if not kind:
            return (type, shortest), at
        if number == _TYPE and kind == I32:
            value, at = varint(data, at)
            type = value >> 1 ^ -(value & 1)
        elif number == _STATISTICS and kind == STRUCT:
            size, at = _shortest(data, at)
            shortest = min(shortest, size)
        else:
            at = passed(data, at, kind)


def _shortest(data: bytes, at: int) -> tuple[int, int]:
    number, shortest = 0, _NO_BOUND
    while True:
        number, kind, at = header(data, at, number)
        if not kind:
            return shortest, at
        if number in _BOUNDS and kind == BINARY:
            size, at = varint(data, at)
            shortest, at = min(shortest, size), at + size
        else:
            at = passed(data, at, kind)
