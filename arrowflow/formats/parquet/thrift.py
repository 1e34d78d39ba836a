"""The parts of Parquet footers that pyarrow does not offer, read from their Thrift structures.

Compact protocol: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from arrowflow.formats.varints import signed, varint, written_number, written_varint

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
_BOOLEANS, _VARINTS = (1, 2), (4, 5, 6)
_FIXED_BYTES: Final = {1: 0, 2: 0, 3: 1, 7: 8}  # a boolean is in the header of its field

Tree = dict[int, Any]
"""Fields of a structure by number: a mark for a value, or the tree of a structure, or of each structure of a list.

The tree of structures of a list has a mark for their starts, at the number 0. The outermost tree may have one for its end, at
`END`.
"""
END: Final = -1


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
        number, kind, at = _header(data, at, number)
        end = passed(data, at, kind)
        yield Field(number, kind, at, end)
        at = end


def walk(data: bytes, tree: Tree, at: int = 0) -> Iterator[tuple[Any, int, int]]:
    """Yields mark, type and start of each value that a tree asks for of the structure at `at`, in the order of the bytes.

    A field is passed over where the tree has a structure, or a list, and the field has another type.
    """
    number = left = 0
    around: list[tuple[Tree, int, int]] = []  # with the number of the field, and the elements that are left
    while True:
        if not data[at]:
            at += 1
            if left:
                left, number = left - 1, 0
                yield tree[0], STRUCT, at
            elif around:
                tree, number, left = around.pop()
            else:
                if END in tree:
                    yield tree[END], STRUCT, at
                return
            continue
        number, kind, at = _header(data, at, number)
        wanted = tree.get(number)
        if wanted is not None and type(wanted) is not dict:
            yield wanted, kind, at
        elif wanted is not None and kind == (LIST if 0 in wanted else STRUCT):
            count = 1
            if kind == LIST:
                count, _, at = list_header(data, at)
            if count:
                around.append((tree, number, left))
                tree, number, left = wanted, 0, count - 1
                if kind == LIST:
                    yield tree[0], STRUCT, at
            continue
        at = passed(data, at, kind)


def _header(data: bytes, at: int, number: int) -> tuple[int, int, int]:
    """Returns number and type of the field after the one of this number, and the start of its value."""
    found = data[at]
    if found > 15:
        return number + (found >> 4), found & 15, at + 1
    number, at = signed(data, at + 1)
    return number, found, at


def passed(data: bytes, at: int, kind: int) -> int:
    """Returns the end of the value that starts at `at`: that of a structure without a look at each of its fields."""
    if kind == STRUCT:  # most values of a footer are numbers in structures: these are passed without a call
        while header := data[at]:
            at = at + 1 if header > 15 else varint(data, at + 1)[1]
            kind = header & 15
            if kind in _VARINTS:
                while data[at] > 127:
                    at += 1
                at += 1
            elif kind not in _BOOLEANS:
                at = passed(data, at, kind)
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
    if kind in _VARINTS:
        while data[at] > 127:
            at += 1
        return at + 1
    if kind in _FIXED_BYTES:
        return at + _FIXED_BYTES[kind]
    raise ValueError(f"a Parquet footer has no Thrift type {kind}")


def elements(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yields start and end of each structure of the list that starts at `at`."""
    count, _, at = list_header(data, at)
    for _ in range(count):
        end = passed(data, at, STRUCT)
        yield at, end
        at = end


def list_header(data: bytes, at: int) -> tuple[int, int, int]:
    """Returns length and element type of a list, and the start of its first element."""
    count, element = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15:
        count, at = varint(data, at)
        if count > len(data):
            raise ValueError(f"a list of {count} elements does not fit into {len(data)} bytes")
    return count, element, at


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
