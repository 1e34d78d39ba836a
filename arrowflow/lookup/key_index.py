"""`KeyIndex`: the row of each key in a table, found for a whole chunk of keys at once.

A hash table with open addresses, made once. Its slots hold numbers of rows, and at least three of four are free. All keys of a
block look at their slots together; those that met another key look at the next slot together, and so on. 12 million keys
in chunks of 131,072 take 0.09 s in a table of 10,000 keys and 0.30 s in one of 1,000,000, on one core of an Intel Xeon. On an
AMD EPYC they took 0.10 and 0.33 s in chunks of 65,536, and a binary search 0.9 and 2.5. To make an index anew for each chunk, as
`pyarrow.compute.index_in` does, takes 17 s.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.lookup.keys import Keys, Words, num_words, present, words

Rows = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]

MISSING: Final = -1
"""Stands for the row of a key that the table lacks."""
BLOCK_ROWS: Final = 1 << 17
"""Rows that are looked up or added together. Blocks of 32,768 rows cost one thread as much, but two threads, which hand the
interpreter lock to each other in each call of NumPy, 1.4 times (10,000 numbers far apart)."""
LEAST_SLOTS: Final = 4
"""Slots for each key, at least."""
SMALL_SLOTS, SMALL_BITS = 16, 18
"""The same up to 2^18 slots, which a core's cache holds. With 4 the 10,000 keys of above take 1.4 times as long."""
MAX_ROWS: Final = (1 << 31) - 1

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)


class Groups(NamedTuple):
    """The rows of each key.

    Attributes:
        rows: Rows, key by key, ascending within one.
        starts: Where the rows of a key begin there, at the row that `find` returns; `MISSING` at `MISSING`.
        counts: How many they are, at the same row.
    """

    rows: Rows
    starts: Places
    counts: Places


class KeyIndex:
    """The rows of a table by their keys.

    Args:
        keys: The columns of the key; a row with a null in them has no key.

    Attributes:
        again: Two rows of one key; None if no key comes twice.
    """

    def __init__(self, keys: pa.RecordBatch) -> None:
        rows, there = keys.num_rows, present(keys)
        bits = _bits(rows)
        self._shift, self._last = np.uint64(64 - bits), (1 << bits) - 1
        mine = words(keys)
        self._names = keys.schema.names
        self._keys = np.append(mine, mine.dtype.type(0))  # one more, to read where a row is missing
        self._slots: Rows = np.full(1 << bits, MISSING, np.int32)
        # Of each row one row of its key, the same for all.
        self._same_as: Rows = np.arange(rows, dtype=np.int32)
        for start in range(0, rows, BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            left, slots = self._same_as[block], self._first_slots(mine[block])
            if there is not None:
                left, slots = left[there[block]], slots[there[block]]
            self._add(left, slots)
        self.again = self._found_again()

    def _add(self, left: Rows, slots: npt.NDArray[np.int64]) -> None:
        while len(left):
            free = self._slots[slots] == MISSING
            self._slots[slots[free]] = left[free]
            held = self._slots[slots]
            differ = self._keys[held].view(np.uint64) != self._keys[left].view(np.uint64)
            same = ~(differ if len(differ) == len(left) else differ.view(np.uint16) != 0)  # in any word
            self._same_as[left[same]] = held[same]
            left, slots = left[~same], (slots[~same] + 1) & self._last

    def _found_again(self) -> tuple[int, int] | None:
        rows = np.flatnonzero(self._same_as != np.arange(len(self._same_as)))
        if not len(rows):
            return None
        first, second = np.flatnonzero(self._same_as == self._same_as[rows[0]])[:2].tolist()
        return first, second

    def groups(self) -> Groups:
        """Returns all rows of each key."""
        counts = np.bincount(self._same_as, minlength=len(self._same_as) + 1)
        starts = np.cumsum(counts) - counts
        starts[MISSING] = MISSING
        # One row more, which is never read, so that a table without rows has one.
        rows = np.append(np.argsort(self._same_as, kind="stable"), 0)
        return Groups(rows.astype(np.int32), starts, counts)

    def find(self, chunk: pa.RecordBatch) -> Rows:
        """Returns a row for the key of each row of a chunk, or `MISSING`; of several rows with this key the same each time."""
        keys = chunk.select(self._names)
        rows, there = np.empty(chunk.num_rows, np.int32), present(keys)
        scratch = _Scratch(min(len(rows), BLOCK_ROWS), self._keys.itemsize // 8)
        for start in range(0, len(rows), BLOCK_ROWS):
            self._look(words(keys.slice(start, BLOCK_ROWS)), rows[start : start + BLOCK_ROWS], scratch)
        if there is not None:
            rows[~there] = MISSING
        return rows

    def _look(self, wanted: Keys, rows: Rows, scratch: _Scratch) -> None:
        """Sets the rows of a block to those of the keys that are wanted: looks at one slot after the other."""
        slots = self._first_slots(wanted, scratch.numbers[: len(rows)], scratch.words[: len(rows)])
        self._slots.take(slots, out=rows, mode="clip")  # other modes copy first
        places = np.flatnonzero(self._others(rows, wanted, scratch))
        wanted = wanted[places]
        slots = self._first_slots(wanted)
        while len(places):
            slots = (slots + 1) & self._last
            rows[places] = found = self._slots[slots]
            others = self._others(found, wanted, scratch)
            places, slots, wanted = places[others], slots[others], wanted[others]

    def _others(self, rows: Rows, wanted: Keys, scratch: _Scratch) -> npt.NDArray[np.bool_]:
        """Returns which rows have other keys than wanted; not for `MISSING`. The next call overwrites the answer."""
        numbers, mine = scratch.numbers[: len(rows)], wanted.view(np.uint64)
        held = scratch.words[: len(mine)]
        numbers[:] = rows  # a gather by other types of numbers takes two to three times as long
        # For `MISSING`: clipping would branch, which takes four times as long.
        np.maximum(numbers, 0, out=numbers)
        self._keys.take(numbers, out=held.view(wanted.dtype), mode="clip")
        others = np.not_equal(held, mine, out=scratch.differ[: len(mine)])
        if len(mine) > len(rows):
            others = np.not_equal(others.view(np.uint16), 0, out=scratch.others[: len(rows)])
        others &= np.not_equal(rows, MISSING, out=scratch.there[: len(rows)])
        return others

    def _first_slots(self, keys: Keys, out: Places | None = None, mixed: Words | None = None) -> Places:
        """Returns the slot where the search for each key begins, in memory that is given or new; `mixed` is overwritten."""
        words = keys.view(np.uint64)
        slots = np.empty(len(keys), np.int64) if out is None else out
        numbers = slots.view(np.uint64)
        if len(words) == len(keys):
            np.right_shift(words, _HALF, out=numbers)
            numbers ^= words
        else:
            np.multiply(words[1::2], _GOLDEN, out=numbers)
            numbers ^= words[::2]
            numbers ^= np.right_shift(numbers, _HALF, out=mixed)
        numbers *= _GOLDEN
        numbers >>= self._shift
        return slots


class _Scratch:
    """Arrays for the rows of a block, in memory that Arrow's pool has from the call before.

    Attributes:
        numbers: Numbers of slots, and then of rows.
        words: Words of keys.
        differ: Whether the words differ.
        others: Whether the keys do.
        there: Whether there is a row.
    """

    def __init__(self, num_rows: int, num_words: int) -> None:
        self.numbers = _array(num_rows, np.int64)
        self.words = _array(num_words * num_rows, np.uint64)
        self.differ = _array(num_words * num_rows, np.bool_)
        self.others = _array(num_rows, np.bool_)
        self.there = _array(num_rows, np.bool_)


def _array(size: int, dtype: type) -> npt.NDArray[Any]:
    return np.frombuffer(pa.allocate_buffer(size * np.dtype(dtype).itemsize), dtype)


def _bits(rows: int) -> int:
    least, wanted = (max(1, (slots * rows - 1).bit_length()) for slots in (LEAST_SLOTS, SMALL_SLOTS))
    return max(least, min(wanted, SMALL_BITS))


def index_bytes(keys: pa.RecordBatch, *, groups: bool) -> int:
    """Returns the bytes of an index of keys, perhaps with its groups."""
    row_bytes = 4 + 8 * num_words(keys.schema.types) + (20 if groups else 0)
    return 4 * (1 << _bits(keys.num_rows)) + row_bytes * keys.num_rows
