"""Numbers of seven bits a byte, the lowest ones first, as Avro, Parquet and ORC store them."""

from __future__ import annotations

from typing import Any


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Returns an unsigned number, and its end.

    Raises:
        IndexError: The bytes end within the number.
        ValueError: It has more than 64 bits.

    Examples:
        >>> varint(bytes([3, 0x80, 1]), 1)
        (128, 3)
    """
    value: Any = data[at]
    if value < 128:
        return value, at + 1
    value = shift = 0
    while shift < 70:  # ten bytes
        byte: Any = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
    raise ValueError(f"no number ends before byte {at}")


def signed(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Returns a number that may be negative, and its end; raises as `varint`."""
    value, at = varint(data, at)
    return value >> 1 ^ -(value & 1), at


def written_varint(value: int) -> bytes:
    """Returns the bytes of an unsigned number."""
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def written_number(value: int) -> bytes:
    """Returns the bytes of a number that is not negative, where numbers may be."""
    return written_varint(value << 1)
