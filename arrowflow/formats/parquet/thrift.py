"""The parts of Parquet footers that pyarrow does not offer, read from their Thrift structures.

Compact protocol: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
_VARINTS: Final = frozenset((4, 5, 6))
_BOOLEANS: Final = (1, 2)
_FIXED_BYTES: Final = {1: 0, 2: 0, 3: 1, 7: 8}  # a boolean is in the header of its field


class Field(NamedTuple):
    """A field of a structure: its number, its type, and the bytes of its value."""

    number: int
    kind: int
    start: int
    end: int


def fields(data: bytes, at: int) -> Iterator[Field]:
    """Yields the fields of the structure that starts at `at`."""
    number = 0
    while data[at]:
        header = data[at]
        at += 1
        if header >> 4:
            number += header >> 4
        else:
            value, at = varint(data, at)
            number = value >> 1 ^ -(value & 1)
        kind = header & 15
        end = passed(data, at, kind)
        yield Field(number, kind, at, end)
        at = end


def header(data: bytes, at: int, number: int) -> tuple[int, int, int]:
    """Returns number and type of the field after the one of this number, and the start of its value; type 0 at the end."""
    found = data[at]
    if found > 15:
        return number + (found >> 4), found & 15, at + 1
    if not found:
        return number, 0, at + 1
    value, at = varint(data, at + 1)
    return value >> 1 ^ -(value & 1), found, at


def passed(data: bytes, at: int, kind: int) -> int:
    """Returns the end of the value that starts at `at`."""
    if kind == STRUCT:
        return _passed_struct(data, at)
    if kind in _VARINTS:
        while data[at] > 127:
            at += 1
        return at + 1
    if kind == BINARY:
        size, at = varint(data, at)
        return at + size
    if kind == LIST:
        count, element, at = list_header(data, at)
        if element in _BOOLEANS:
            return at + count
        for _ in range(count):
            at = passed(data, at, element)
        return at
    if kind in _FIXED_BYTES:
        return at + _FIXED_BYTES[kind]
    raise ValueError(f"a Parquet footer has no Thrift type {kind}")


def _passed_struct(data: bytes, at: int) -> int:
    """Returns the end of the structure that starts at `at`, without a look at each of its fields."""
    depth = 1
    while depth:
        found = data[at]
        at += 1
        if not found:
            depth -= 1
            continue
        if found < 16:
            at = varint(data, at)[1]
        kind = found & 15
        if kind in _VARINTS:
            while data[at] > 127:
                at += 1
            at += 1
        elif kind == STRUCT:
            depth += 1
        else:
            at = passed(data, at, kind)
    return at


def list_header(data: bytes, at: int) -> tuple[int, int, int]:
    """Returns length and element type of a list, and the start of its first element."""
    count, element = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15:
        count, at = varint(data, at)
    if count > len(data):
        raise ValueError(f"a list of {count} elements does not fit into {len(data)} bytes")
    return count, element, at


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns an unsigned number, and its end."""
    value: Any = data[at]
    if value < 128:
        return value, at + 1
    value = shift = 0
    while True:
        byte: Any = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def written_varint(value: int) -> bytes:
    """Returns the bytes of an unsigned number."""
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def written_number(value: int) -> bytes:
    """Returns the bytes of a number that is not negative, as a field holds it."""
    return written_varint(value << 1)


def written_struct(fields: Iterable[tuple[int, int, bytes]]) -> bytes:
    """Returns the bytes of a structure, given number, type and value of its fields in the order of numbers."""
    parts, last = [], 0
    for number, kind, value in fields:
        step = number - last
        header = bytes([step << 4 | kind]) if step < 16 else bytes([kind]) + written_number(number)
        parts += [header, value]
        last = number
    return b"".join([*parts, b"\0"])


def written_list(kind: int, values: list[bytes]) -> bytes:
    """Returns the bytes of a list of values of one type."""
    count = len(values)
    header = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + written_varint(count)
    return b"".join([header, *values])
