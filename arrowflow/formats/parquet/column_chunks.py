"""Facts of column chunks that pyarrow does not offer, or not safely: which bounds can be used, and the bytes of decoded texts.

pyarrow ends the process where a bound has too few bytes for its type. So a footer is walked before its statistics are used. It
is read as C++ reads it: a field of another type than it should have is passed over, and of several fields of one number all
count.

A dictionary holds each text once, so encoded sizes tell nothing of decoded sizes. `SizeStatistics` do tell. Arrow C++ writes
them whatever else it is told to leave out.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from arrowflow.formats.parquet.thrift import BINARY, I32, I64, Tree, walk
from arrowflow.formats.varints import signed, varint
from arrowflow.lazy import parquet as pq

_GROUP, _CHUNK, _TYPE, _BOUND, _TEXT_BYTES = range(5)
_FOOTER: Final[Tree] = {4: {0: _GROUP, 1: {0: _CHUNK}}}
_COLUMN_CHUNK: Final[Tree] = {3: {1: _TYPE, 12: dict.fromkeys((1, 2, 5, 6), _BOUND), 16: {1: _TEXT_BYTES}}}
"""See parquet.thrift: `FileMetaData.row_groups` and `RowGroup.columns`; `ColumnChunk.meta_data`, of which `type`, `statistics` and
`size_statistics`; `Statistics.max`, `.min`, `.max_value` and `.min_value`; `unencoded_byte_array_data_bytes`."""

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

_SOUND: Final[set[tuple[bytes, int]]] = set()
"""Digests of footers, and leaf columns whose bounds are sound in all their row groups: later epochs and lanes do not look at
them again. To find the 112 chunks of a file of `stream` takes 0.8 ms, and a digest 0.02 ms."""

_MOST_SOUND: Final = 1 << 16


class _Facts(NamedTuple):
    """The physical type of a column chunk, the bytes of its shortest bound, and those of its texts, if it has any."""

    type: int
    shortest: int
    text_bytes: int | None


class ColumnChunks:
    """The column chunks of a file. The first question finds where each of them starts; a chunk is read when it is asked about."""

    __slots__ = ("_digest", "_facts", "_footer", "_metadata", "_sound", "_starts")

    def __init__(self, footer: bytes, metadata: pq.FileMetaData) -> None:
        self._footer = footer
        self._metadata = metadata
        self._digest = b""
        self._starts: list[list[int]] | None = None
        self._facts: dict[tuple[int, int], _Facts] = {}
        self._sound: dict[int, list[bool]] = {}

    def text_bytes(self, row_group: int, leaf: int) -> int | None:
        """Returns the bytes of all texts of a column chunk, without offsets; None if the file does not say."""
        if self._metadata.num_row_groups * self._metadata.num_columns > 10_000:
            return None  # to ask takes some 15 µs a chunk
        facts = self._facts_of(row_group, leaf)
        return None if facts is None else facts.text_bytes

    def is_sound(self, row_group: int, leaf: int) -> bool:
        """Returns whether the statistics of a column chunk can be used."""
        if leaf not in self._sound:
            self._sound[leaf] = self._looked_up(leaf)
        return self._sound[leaf][row_group]

    def _looked_up(self, leaf: int) -> list[bool]:
        # Each leaf needs the digest, so it is taken once: by the leaf, it would be the square of a wide file's work.
        self._digest = self._digest or hashlib.blake2b(self._footer, digest_size=16).digest()
        num_row_groups, key = self._metadata.num_row_groups, (self._digest, leaf)
        if key in _SOUND:
            return [True] * num_row_groups
        column = self._metadata.schema.column(leaf)
        type, needed = _TYPES.get(column.physical_type, (7, column.length))
        facts = [self._facts_of(group, leaf) for group in range(num_row_groups)]
        sound = [each is not None and each.type == type and each.shortest >= needed for each in facts]
        if all(sound):
            if len(_SOUND) >= _MOST_SOUND:
                _SOUND.clear()
            _SOUND.add(key)
        return sound

    def _facts_of(self, row_group: int, leaf: int) -> _Facts | None:
        """Returns the facts of a column chunk; None where C++ has read the footer in another way, so that nothing is known."""
        facts = self._facts.get((row_group, leaf))
        if facts is None:
            starts = self._found()
            if not starts:
                return None
            facts = self._facts[row_group, leaf] = _read(self._footer, starts[row_group][leaf])
        return facts

    def _found(self) -> list[list[int]]:
        if self._starts is None:
            starts: list[list[int]] = []
            try:
                for mark, _, at in walk(self._footer, _FOOTER):
                    if mark == _GROUP:
                        starts.append([])
                    else:
                        starts[-1].append(at)
            except (IndexError, ValueError):
                starts = []
            expected = [self._metadata.num_columns] * self._metadata.num_row_groups
            self._starts = starts if [len(group) for group in starts] == expected else []
        return self._starts


def _read(footer: bytes, start: int) -> _Facts:
    type, shortest, text_bytes = -1, 1 << 31, None
    for mark, kind, at in walk(footer, _COLUMN_CHUNK, start):
        if mark == _BOUND and kind == BINARY:
            shortest = min(shortest, varint(footer, at)[0])
        elif mark == _TYPE and kind == I32:
            type, _ = signed(footer, at)
        elif mark == _TEXT_BYTES and kind == I64:
            texts, _ = signed(footer, at)
            text_bytes = None if texts < 0 else texts
    return _Facts(type, shortest, text_bytes)
