"""Decimals as the integers that Parquet stores.

Arrow widens a DECIMAL that a file stores as INT64 to 16 bytes a value. Arithmetic on such columns (see
`Program.stored`) then reads every other word of them. Where nothing else reads a column, the reader is given a footer
that does not call it a decimal, so that 8 bytes are decoded and read: 1.2 times the rows a second of the stream
benchmark.

Only the schema, the second field of the footer's Thrift structure, is written anew, without the annotations of those
columns; and the embedded Arrow schema, which repeats them, is hidden under another key. The file itself is not
touched. Thrift compact protocol: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa

from arrowflow.lazy import parquet as pq

_MAGIC: Final = b"PAR1"
_BINARY, _LIST, _STRUCT = 8, 9, 12
_VARINTS: Final = (4, 5, 6)
_FIXED_BYTES: Final = {1: 0, 2: 0, 3: 1, 7: 8}  # booleans are in the header of their field
_ANNOTATIONS: Final = (6, 7, 8, 10)
"""Fields of a SchemaElement: converted_type, scale, precision, logicalType."""


class _Field(NamedTuple):
    number: int
    kind: int
    start: int
    end: int


@lru_cache(maxsize=8)
def as_integers(metadata: pq.FileMetaData, leaves: frozenset[int]) -> pq.FileMetaData:
    """Returns the footer with these leaf columns as plain integers. Remembers the last 8 files."""
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    file = sink.getvalue().to_pybytes()
    footer = _without_annotations(file[len(_MAGIC) : -8], leaves)
    footer = footer.replace(b"ARROW:schema", b"arrow-schema")
    rewritten = _MAGIC + footer + len(footer).to_bytes(4, "little") + _MAGIC
    return pq.read_metadata(pa.BufferReader(rewritten))


def stored_as_integers(metadata: pq.FileMetaData, leaf: int) -> bool:
    """Whether a leaf column is stored as 64-bit integers."""
    return bool(metadata.schema.column(leaf).physical_type == "INT64")


def _without_annotations(footer: bytes, leaves: frozenset[int]) -> bytes:
    schema = next(field for field in _fields(footer, 0) if field.number == 2)
    count, _, at = _list_header(footer, schema.start)
    parts = [footer[:at]]
    leaf = 0
    for _ in range(count):
        fields = list(_fields(footer, at))
        end = fields[-1].end + 1  # the byte 0 that ends a structure
        is_leaf = not any(field.number == 5 for field in fields)  # num_children
        drop = is_leaf and leaf in leaves
        parts.append(_rewritten(footer, fields) if drop else footer[at:end])
        leaf += is_leaf
        at = end
    return b"".join([*parts, footer[at:]])


def _rewritten(data: bytes, fields: list[_Field]) -> bytes:
    """Returns a SchemaElement without its annotations; field numbers are stored as differences."""
    parts, last = [], 0
    for field in fields:
        if field.number not in _ANNOTATIONS:
            parts.append(bytes([(field.number - last) << 4 | field.kind]) + data[field.start : field.end])
            last = field.number
    return b"".join([*parts, b"\0"])


def _fields(data: bytes, at: int) -> Iterator[_Field]:
    number = 0
    while data[at]:
        header = data[at]
        at += 1
        if header >> 4:
            number += header >> 4
        else:
            value, at = _varint(data, at)
            number = value >> 1 ^ -(value & 1)
        kind = header & 15
        end = _skip(data, at, kind)
        yield _Field(number, kind, at, end)
        at = end


def _skip(data: bytes, at: int, kind: int) -> int:
    """Returns where the value that starts at `at` ends."""
    if kind in _FIXED_BYTES:
        return at + _FIXED_BYTES[kind]
    if kind in _VARINTS:
        return _varint(data, at)[1]
    if kind == _BINARY:
        size, at = _varint(data, at)
        return at + size
    if kind == _LIST:
        count, element, at = _list_header(data, at)
        for _ in range(count):
            at = at + 1 if element in (1, 2) else _skip(data, at, element)
        return at
    if kind == _STRUCT:
        for field in _fields(data, at):
            at = field.end
        return at + 1
    raise ValueError(f"a Parquet footer has no Thrift type {kind}")


def _list_header(data: bytes, at: int) -> tuple[int, int, int]:
    count, element = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15:
        count, at = _varint(data, at)
    return count, element, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte: Any = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
