"""Facts of column chunks that pyarrow does not offer, or not safely: which bounds can be used, and the bytes of decoded texts.

pyarrow ends the process where a bound has too few bytes for its type. So a footer is walked before its statistics are used. It
is read as C++ reads it: a field of another type than it should have is passed over, and of several fields of one number all
count.

A dictionary holds each text once, so encoded sizes tell nothing of decoded sizes. `SizeStatistics` do tell. Arrow C++ writes
them whatever else it is told to leave out.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from arrowflow.formats.parquet.thrift import BINARY, I32, I64, Tree, signed, varint, walk
from arrowflow.lazy import parquet as pq

_GROUP, _CHUNK, _TYPE, _BOUND, _TEXT_BYTES = range(5)
_STATISTICS: Final = dict.fromkeys((1, 2, 5, 6), _BOUND)
_METADATA: Final[Tree] = {1: _TYPE, 12: _STATISTICS, 16: {1: _TEXT_BYTES}}
_FOOTER: Final[Tree] = {4: {0: _GROUP, 1: {0: _CHUNK, 3: _METADATA}}}
"""See parquet.thrift: `FileMetaData.row_groups`, `RowGroup.columns`, `ColumnChunk.meta_data`; `ColumnMetaData.type`, `.statistics`
and `.size_statistics`; `Statistics.max`, `.min`, `.max_value` and `.min_value`; `unencoded_byte_array_data_bytes`."""

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

_SOUND: Final[set[bytes]] = set()
"""Digests of footers without a fault, which later epochs and lanes do not walk again: to walk the 112 chunks of a file of
`stream` takes 1.7 ms, a twentieth of an epoch for all of its files, and a digest 0.02 ms."""

_MOST_SOUND: Final = 1 << 16

_MAX_CHUNKS: Final = 10_000
"""The most column chunks of a footer that are walked for the bytes of texts: each takes some 15 µs."""


@dataclass(slots=True)
class _Chunk:
    """The physical type of a column chunk, the bytes of its shortest bound, and those of its texts, if it has any."""

    type: int = -1
    shortest: int = 1 << 31
    text_bytes: int | None = None


class ColumnChunks:
    """The column chunks of a file; its footer is walked at the first question.

    Args:
        footer: The footer as it is stored.
        metadata: The same, parsed.
    """

    __slots__ = ("_footer", "_found", "_metadata", "_unsound")

    def __init__(self, footer: bytes, metadata: pq.FileMetaData) -> None:
        self._footer = footer
        self._metadata = metadata
        self._found: list[list[_Chunk]] | None = None
        self._unsound: list[frozenset[int]] | None = None

    def text_bytes(self, row_group: int, leaf: int) -> int | None:
        """Returns the bytes of all texts of a column chunk, without offsets; None if the file does not say."""
        if self._metadata.num_row_groups * self._metadata.num_columns > _MAX_CHUNKS:
            return None
        try:
            return self._walked()[row_group][leaf].text_bytes
        except IndexError:  # C++ has read a corrupt footer in another way
            return None

    def unsound(self, row_group: int) -> frozenset[int]:
        """Returns the leaf columns of a row group whose statistics cannot be used."""
        if self._unsound is None:
            self._unsound = self._looked_up()
        return self._unsound[row_group]

    def _looked_up(self) -> list[frozenset[int]]:
        digest = hashlib.blake2b(self._footer, digest_size=16).digest()
        if digest in _SOUND:
            return [frozenset()] * self._metadata.num_row_groups
        found = self._faults()
        if not any(found):
            if len(_SOUND) >= _MOST_SOUND:
                _SOUND.clear()
            _SOUND.add(digest)
        return found

    def _faults(self) -> list[frozenset[int]]:
        schema, num_leaves = self._metadata.schema, self._metadata.num_columns
        columns = [schema.column(leaf) for leaf in range(num_leaves)]
        least = [_TYPES.get(column.physical_type, (7, column.length)) for column in columns]
        groups = self._walked()
        if [len(group) for group in groups] != [num_leaves] * self._metadata.num_row_groups:
            # C++ has read it in another way, so that nothing is known.
            return [frozenset(range(num_leaves))] * self._metadata.num_row_groups
        return [
            frozenset(
                leaf
                for leaf, (chunk, (type, needed)) in enumerate(zip(group, least, strict=True))
                if chunk.type != type or chunk.shortest < needed
            )
            for group in groups
        ]

    def _walked(self) -> list[list[_Chunk]]:
        if self._found is None:
            try:
                self._found = _chunks(self._footer)
            except (IndexError, ValueError):
                self._found = []
        return self._found


def _chunks(footer: bytes) -> list[list[_Chunk]]:
    groups: list[list[_Chunk]] = []
    chunk = _Chunk()
    for mark, kind, at in walk(footer, _FOOTER):
        if mark == _BOUND and kind == BINARY:
            chunk.shortest = min(chunk.shortest, varint(footer, at)[0])
        elif mark == _TYPE and kind == I32:
            chunk.type = signed(footer, at)
        elif mark == _TEXT_BYTES and kind == I64:
            texts = signed(footer, at)
            chunk.text_bytes = None if texts < 0 else texts
        elif mark == _CHUNK:
            chunk = _Chunk()
            groups[-1].append(chunk)
        elif mark == _GROUP:
            groups.append([])
    return groups
