"""Damage to the bytes of files: flipped bits, other bytes, cut ends, and parts that are moved, doubled or left out."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from hypothesis import strategies as st

FAR: Final = 1 << 20
NUMBERS: Final = (
    *(0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 1 << 40, (1 << 63) - 1),
)


class Damage(NamedTuple):
    """One change of a file.

    Attributes:
        kind: The change, one of `KINDS`.
        place: Where, in millionths of the file, so that it means much the same after other changes.
        value: The bit, the byte, the number, or the place from which a part comes.
        size: The bytes of the part.
    """

    kind: str
    place: int
    value: int
    size: int

    def apply(self, data: bytes) -> bytes:
        at = len(data) * self.place // FAR
        source = len(data) * (self.value % FAR) // FAR
        if not data:
            return data
        match self.kind:
            case "bit":
                return data[:at] + bytes([data[at] ^ 1 << self.value % 8]) + data[at + 1 :]
            case "byte":
                return data[:at] + bytes([self.value % 256]) + data[at + 1 :]
            case "number":
                width = 8 if self.size % 2 else 4
                number = struct.pack("<Q", NUMBERS[self.value % len(NUMBERS)])[:width]
                return data[:at] + number[: len(data) - at] + data[at + width :]
            case "cut":
                return data[:at]
            case "head":  # what is left of a file whose end was written over another one
                return data[at:]
            case "insert":
                return data[:at] + data[source : source + self.size] + data[at:]
            case "copy":
                part = data[source : source + self.size]
                return data[:at] + part[: len(data) - at] + data[at + len(part) :]
            case "zero":
                return data[:at] + bytes(min(self.size, len(data) - at)) + data[at + self.size :]
            case _:
                return data[:at] + data[at + self.size :]


KINDS: Final = (
    *("bit", "bit", "bit", "byte", "byte", "number", "number", "cut", "head", "insert", "copy", "zero"),
    "drop",
)
"""Kinds as often as they are drawn; the last one drops a part."""

# Half of all places are near the end, where Parquet and IPC files have their footers.
PLACES: Final = st.integers(0, FAR - 1) | st.integers(FAR * 3 // 4, FAR - 1)
DAMAGES: Final = st.lists(
    st.builds(Damage, st.sampled_from(KINDS), PLACES, st.integers(0, FAR - 1), st.integers(1, 64)),
    min_size=1,
    max_size=3,
)


def damaged(data: bytes, damages: Sequence[Damage]) -> bytes:
    for damage in damages:
        data = damage.apply(data)
    return data
