"""`KeyIndex`: the row of each key in a table, found for a whole chunk of keys at once.

A hash table with open addresses, made once. Its slots hold numbers of rows, and at least three of four are free. All keys of a
block look at their slots together; then those of the chunk that met another key look at the next slot together, and so on.
12 million keys in chunks of 131,072 take 0.09 s in a table of 10,000 keys and 0.30 s in one of 1,000,000, on one core (Intel
Xeon). A binary search takes 0.9 and 2.5 s. To make an index anew for each chunk, as `pyarrow.compute.index_in` does, takes
17 s (AMD EPYC).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.lookup.keys import MOST_WORDS, Keys, Words, num_words, present, words

Rows = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]

MISSING: Final = -1
"""Stands for the row of a key that the table lacks."""
BLOCK_ROWS: Final = 1 << 17
"""Rows that are looked up or added together. With a quarter of these rows one thread takes as long. Two take 1.7 times as long as
they hand the interpreter lock to each other more often (10,000 numbers far apart: 9.6 and 7.0 ns a row)."""
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
        self._keys = np.append(mine, mine.dtype.type(0))  # one more, to read for MISSING
        self._slots: Rows = np.full(1 << bits, MISSING, np.int32)
        self._same_as: Rows = np.arange(
            rows, dtype=np.int32
        )  # of each row one row of its key, the same for all
        for start in range(0, rows, BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            left, slots = self._same_as[block], self._first_slots(mine[block])
            if there is not None:
                left, slots = left[there[block]], slots[there[block]]
            self._add(left, slots)
        self.again = self._found_again()
        self._idle: list[_Arrays] = []  # those that no thread uses

    def _add(self, left: Rows, slots: npt.NDArray[np.int64]) -> None:
        while len(left):
            free = self._slots[slots] == MISSING
            self._slots[slots[free]] = left[free]
            held = self._slots[slots]
            same = ~_differ(self._keys[held], self._keys[left])
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
        try:
            arrays = self._idle.pop()
        except IndexError:
            arrays = _Arrays()
        left = []  # those whose first slot holds another key: the rows of the chunk, and their keys
        for start in range(0, len(rows), BLOCK_ROWS):
            wanted = words(keys.slice(start, BLOCK_ROWS))
            others = self._look(wanted, rows[start : start + BLOCK_ROWS], arrays)
            left.append((others + start, wanted[others]))
        self._idle.append(arrays)
        if left:
            self._search(rows, *map(np.concatenate, zip(*left, strict=True)))
        if there is not None:
            rows[~there] = MISSING
        return rows

    def _look(self, wanted: Keys, rows: Rows, arrays: _Arrays) -> Places:
        """Sets rows to those of the first slots. Returns which of them have other keys than wanted."""
        slots, mine = arrays.slots[: len(rows)], wanted.view(np.uint64)
        held, differ = arrays.words[: len(mine)], arrays.differ[: len(mine)]
        self._first_slots(wanted, out=slots, more=held[: len(rows)])
        self._slots.take(slots, out=rows, mode="clip")  # the other modes copy first
        slots[:] = rows  # a gather by numbers of another type takes two to three times as long
        np.maximum(slots, 0, out=slots)  # as it does where processors guess wrongly which are missing
        self._keys.take(slots, out=held.view(wanted.dtype), mode="clip")
        others = np.not_equal(held, mine, out=differ)
        if len(mine) > len(rows):
            others = np.not_equal(differ.view(np.uint16), 0, out=arrays.others[: len(rows)])
        others &= np.not_equal(rows, MISSING, out=arrays.there[: len(rows)])
        return np.flatnonzero(others)

    def _search(self, rows: Rows, places: Places, wanted: Keys) -> None:
        """Looks at one slot after the other until all keys are found, or are missing.

        All blocks of a chunk at once: each call of NumPy gives the interpreter lock away, which costs more than few rows do.
        """
        slots = self._first_slots(wanted)
        while len(places):
            slots = (slots + 1) & self._last
            rows[places] = found = self._slots[slots]
            others = self._others(found, wanted)
            places, slots, wanted = places[others], slots[others], wanted[others]

    def _others(self, rows: Rows, wanted: Keys) -> npt.NDArray[np.bool_]:
        """Returns which rows have other keys than wanted; not for `MISSING`."""
        others = _differ(self._keys[rows.astype(np.intp)], wanted)
        others &= rows != MISSING
        return others

    def _first_slots(self, keys: Keys, out: Places | None = None, more: Words | None = None) -> Places:
        """Returns the slot where the search for each key begins.

        Args:
            keys: The keys.
            out: Memory for the slots.
            more: Memory for as many words.
        """
        words = keys.view(np.uint64)
        slots = np.empty(len(keys), np.int64) if out is None else out
        mixed = slots.view(np.uint64)
        if len(words) == len(keys):
            np.right_shift(words, _HALF, out=mixed)
            mixed ^= words
        else:
            np.multiply(words[1::2], _GOLDEN, out=mixed)
            mixed ^= words[::2]
            mixed ^= np.right_shift(mixed, _HALF, out=more)
        mixed *= _GOLDEN
        mixed >>= self._shift
        return slots


class _Arrays:
    """Arrays for the rows of a block, of one thread at a time, to be used again: to get new memory takes longer than to fill it.

    Attributes:
        slots: Numbers of slots, and then of rows.
        words: Words of keys.
        differ: Whether the words differ.
        others: Whether the keys do.
        there: Whether there is a row.
    """

    def __init__(self) -> None:
        self.slots = np.empty(BLOCK_ROWS, np.int64)
        self.words = np.empty(MOST_WORDS * BLOCK_ROWS, np.uint64)
        self.differ = np.empty(MOST_WORDS * BLOCK_ROWS, np.bool_)
        self.others = np.empty(BLOCK_ROWS, np.bool_)
        self.there = np.empty(BLOCK_ROWS, np.bool_)


def _differ(keys: Keys, others: Keys) -> npt.NDArray[np.bool_]:
    """Returns which of two keys differ, in any word."""
    differ = keys.view(np.uint64) != others.view(np.uint64)
    return differ if len(differ) == len(keys) else differ.view(np.uint16) != 0


def _bits(rows: int) -> int:
    least, wanted = (max(1, (slots * rows - 1).bit_length()) for slots in (LEAST_SLOTS, SMALL_SLOTS))
    return max(least, min(wanted, SMALL_BITS))


def index_bytes(keys: pa.RecordBatch, *, groups: bool) -> int:
    """Returns the bytes of an index of keys, perhaps with its groups."""
    row_bytes = 4 + 8 * num_words(keys.schema.types) + (20 if groups else 0)
    return 4 * (1 << _bits(keys.num_rows)) + row_bytes * keys.num_rows
