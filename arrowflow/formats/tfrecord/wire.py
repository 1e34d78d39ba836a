"""Protocol-buffer wire format, walked for many messages at a time with NumPy.

A step of a walk reads one field of *each* message: a tag and a length at the message's cursor. So a step costs a few
gathers, and no Python objects. All positions are offsets into one block of bytes with `PADDING` zeros after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

PADDING: Final = 16
"""Readable bytes after a block, so that eight bytes can be read at each position of it."""

_FEW: Final = 8
"""Up to this number, messages are walked one by one: a step costs at least 30 µs, one field in Python 0.5 µs."""

_MAX_VARINT_BYTES: Final = 10
_WORD_BYTES: Final = 8
_SHORT_BYTES: Final = 4
_PIECE_BYTES: Final = 1 << 16
"""Bytes of varints decoded at a time, so that intermediate results stay in the caches."""


Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Bytes:
    """A block of bytes, readable at any position.

    Args:
        padded: The bytes, and `PADDING` zeros.
    """

    __slots__ = ("_words", "padded", "size")

    def __init__(self, padded: npt.NDArray[np.uint8]) -> None:
        self.padded = padded
        self.size = len(padded) - PADDING
        self._words = np.ndarray(self.size + 1, "<i8", padded.data, strides=(1,))

    def words(self, positions: Ints) -> Ints:
        """Returns the eight bytes at each position, first byte lowest. A position outside has the last eight bytes."""
        return self._words[np.minimum(positions, self.size)]


class Fields(NamedTuple):
    """Fields of wire type 2 (a length, then that number of bytes), one a message.

    Attributes:
        tags: The byte before each field: field number and wire type.
        starts: The start of its bytes.
        stops: The end of its bytes; before the start if the length must not be read.
    """

    tags: Ints
    starts: Ints
    stops: Ints


def fields_at(data: Bytes, positions: Ints) -> Fields:
    """Reads a tag of one byte and a length at each position."""
    words = data.words(positions)
    lengths = (words >> 8) & 0x7F
    starts = positions + 2
    longer = np.flatnonzero(words & 0x8000)
    for number in range(1, 5):
        if not len(longer):
            break
        found = words[longer] >> (8 * (number + 1))
        lengths[longer] |= (found & 0x7F) << (7 * number)
        starts[longer] += 1
        longer = longer[(found & 0x80) != 0]
    lengths[longer] = -1
    return Fields(words & 0xFF, starts, np.where(lengths < 0, -1, starts + lengths))


class Elements(NamedTuple):
    """The elements of messages that only repeat one field.

    Attributes:
        owners: Number of the message of each element; elements of one message stay in order.
        starts: The start of each element.
        stops: The end of each element.
        bad: Numbers of the messages that have other fields.
    """

    owners: Ints
    starts: Ints
    stops: Ints
    bad: Ints


def elements(data: Bytes, tag: int, starts: Ints, stops: Ints) -> Elements:
    """Walks messages whose only field is `tag`, repeated: one step an element of the longest message."""
    owners = np.flatnonzero(starts < stops)
    cursors, ends = starts[owners], stops[owners]
    found: list[tuple[Any, Any, Any]] = []
    bad: list[Any] = []
    while len(owners) > _FEW:
        tags, firsts, lasts = fields_at(data, cursors)
        wrong = (tags != tag) | (lasts > ends) | (lasts < firsts)
        if wrong.any():
            bad.append(owners[wrong])
            owners, firsts, lasts, ends = (each[~wrong] for each in (owners, firsts, lasts, ends))
        found.append((owners, firsts, lasts))
        cursors, more = lasts, lasts < ends
        if not more.all():
            owners, cursors, ends = owners[more], cursors[more], ends[more]
    for owner, cursor, end in zip(owners.tolist(), cursors.tolist(), ends.tolist(), strict=True):
        alone = _elements_of(data, tag, cursor, end)
        if alone is None:
            bad.append([owner])
        else:
            found.append((np.full(len(alone), owner), alone[:, 0], alone[:, 1]))
    owners, starts, stops = (_join(part[place] for part in found) for place in range(3))
    return Elements(owners, starts, stops, _join(bad))


def _join(parts: Iterable[Any]) -> Ints:
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64, copy=False)


def _elements_of(data: Bytes, tag: int, cursor: int, end: int) -> Ints | None:
    """Walks one message; None if it has other fields."""
    view = data.padded.data
    found = []
    while cursor < end:
        if view[cursor] != tag:
            return None
        length, shift, cursor = 0, 0, cursor + 1
        while cursor < end and view[cursor] >= 0x80 and shift < 35:
            length |= (view[cursor] & 0x7F) << shift
            shift, cursor = shift + 7, cursor + 1
        length |= view[cursor] << shift
        cursor += 1
        if cursor + length > end or shift >= 35:
            return None
        found.append((cursor, cursor + length))
        cursor += length
    return np.array(found, np.int64).reshape(-1, 2)


def varints(packed: Bytes) -> tuple[Ints, Ints] | None:
    """Decodes a block of varints alone; None if a varint cannot be read, for example of eleven bytes.

    Returns: The numbers, and the place of each number's last byte.
    """
    stored = packed.padded[: packed.size]
    is_end = stored < 0x80
    num = int(np.count_nonzero(is_end))
    if num == len(stored):
        return stored.astype(np.int64), np.arange(num)
    if not is_end[-1]:
        return None
    found, lasts = np.empty(num, np.int64), np.empty(num, np.int64)
    done, before = 0, -1
    for start in range(0, len(stored), _PIECE_BYTES):
        ends = np.flatnonzero(is_end[start : start + _PIECE_BYTES]) + start
        if not len(ends):
            return None
        values = _values(packed, stored, ends, np.diff(ends, prepend=before))
        if values is None:
            return None
        found[done : done + len(ends)] = values
        lasts[done : done + len(ends)] = ends
        done, before = done + len(ends), ends[-1]
    return found, lasts


def _values(packed: Bytes, stored: npt.NDArray[np.uint8], ends: Ints, lengths: Ints) -> Ints | None:
    longest = int(lengths.max())
    if longest > _MAX_VARINT_BYTES:
        return None
    if longest <= _SHORT_BYTES:
        # The numbers are built from their last bytes: for token ids this is twice as fast as words.
        short = stored[ends].astype(np.int32)
        for number in range(1, longest):
            more = (short << 7) | (stored[ends - number] & 0x7F)
            short = np.where(lengths > number, more, short)
        return short.astype(np.int64)
    starts = ends + 1 - lengths
    values = closed_up(packed.words(starts) & _KEPT[np.minimum(lengths, _WORD_BYTES)])
    if longest > _WORD_BYTES:
        long = np.flatnonzero(lengths > _WORD_BYTES)
        more = packed.words(starts[long] + _WORD_BYTES)
        last = np.where(lengths[long] == _MAX_VARINT_BYTES, (more >> 8) & 0x7F, 0)
        if (last > 1).any():
            return None
        values[long] |= ((more & 0x7F) << 56) | (last << 63)
    return values


def closed_up(words: Ints) -> Ints:
    """Returns the numbers in the lowest seven bits of each byte: single bytes become pairs, pairs fours, fours one."""
    words = (words & 0x007F007F007F007F) | ((words & 0x7F007F007F007F00) >> 1)
    words = (words & 0x00003FFF00003FFF) | ((words & 0x3FFF00003FFF0000) >> 2)
    return (words & 0x0FFFFFFF) | ((words & 0x0FFFFFFF00000000) >> 4)


def lone_varints(words: Ints, lengths: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Decodes the first `lengths` bytes of words, and flags each word that is one varint of at most eight bytes."""
    known = np.clip(lengths, 0, _WORD_BYTES)
    is_one = (words & _TOPS[known]) == _TOPS[np.maximum(known - 1, 0)]
    is_one &= (lengths > 0) & (lengths <= _WORD_BYTES)
    return closed_up(words & _KEPT[known]), is_one


LOWEST: Final[Ints] = np.array([(1 << (8 * size)) - 1 for size in range(8)] + [-1], np.int64)
"""Bit masks of the lowest bytes of a word, by their number."""

_KEPT: Final = LOWEST & 0x7F7F7F7F7F7F7F7F
"""Bit masks of a varint, by its number of bytes."""

_TOPS: Final = LOWEST & ~0x7F7F7F7F7F7F7F7F
"""Top bits of the bytes, by their number; a varint sets all of them but the last."""
