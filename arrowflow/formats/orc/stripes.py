"""The stripes of an ORC file, from the footer that pyarrow hands out as bytes: it tells their number, and not their rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from arrowflow.errors import SourceError

_FOOTER: Final = 2
"""The field of the footer in a file's tail."""

_STRIPES: Final = 3
"""The field of a stripe in the footer."""

_START, _INDEX, _DATA, _END, _ROWS = range(1, 6)
"""The fields of a stripe: its first byte, the bytes of its three parts, its rows."""

_FIXED: Final = {1: 8, 5: 4}
"""Bytes of a field by its wire type, where the type has a fixed width."""


class Stripe(NamedTuple):
    """A stripe.

    Attributes:
        start: Its first byte.
        stop: The byte after it.
        num_rows: Its rows.
    """

    start: int
    stop: int
    num_rows: int


def stripes(tail: bytes) -> tuple[Stripe, ...]:
    """Returns the stripes of a file, from its tail: a message of protocol buffers that holds the footer.

    Raises:
        SourceError: The bytes are no such message.

    Examples:
        >>> stripe = bytes([0x08, 3, 0x10, 10, 0x18, 20, 0x20, 5, 0x28, 7])
        >>> footer = bytes([0x1A, len(stripe)]) + stripe
        >>> stripes(bytes([0x12, len(footer)]) + footer)
        (Stripe(start=3, stop=38, num_rows=7),)
    """
    found = []
    for footer in (value for number, value in _fields(tail) if number == _FOOTER):
        for stripe in (value for number, value in _fields(_bytes(footer)) if number == _STRIPES):
            told = {number: value for number, value in _fields(_bytes(stripe)) if isinstance(value, int)}
            start = told.get(_START, 0)
            size = sum(told.get(part, 0) for part in (_INDEX, _DATA, _END))
            found.append(Stripe(start, start + size, told.get(_ROWS, 0)))
    return tuple(found)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the numbers and values of a message's fields: whole numbers, or the bytes of what the field holds."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise SourceError(f"the footer has a field of the unknown kind {kind}")
        if at + size > len(message):
            raise SourceError("the footer ends within a field")
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Returns a whole number, and the place after it."""
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise SourceError("the footer ends within a number")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise SourceError("the footer has a number where a part of it is expected")
    return value
