"""Windows within series: each key's rows, counted for themselves, wherever they lie in the stream.

A row is known by the number of its key and by its number within the key. A window is complete with its last row, so the rows
of a chunk tell which windows to make. The rows that a later window needs, fewer than a window has, are copied out of the chunk, so
that no chunk lives on for a few of its rows. The copies lie in parts, each at least twice as long as the next one.
Rows that no window needs any more go when parts are merged.

Keys and rows would be too large for a state. So a resumed run reads the epoch again, and yields the windows from the position on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.errors import BudgetError
from arrowflow.expr import Program
from arrowflow.kernels.gather import GatherKernel, OfSchema, gathered, joined_batch
from arrowflow.kernels.items import Item, Noted, Origin
from arrowflow.kernels.kinds import SerialKernel, StatelessKernel
from arrowflow.options import MAX_CHUNK_ROWS
from arrowflow.plan.position import Position

Numbers = npt.NDArray[np.int64]
Piece = tuple[pa.RecordBatch, Numbers | None]
"""A record batch, and which of its rows are used; None for all."""

_SHIFT: Final = 39
"""A row is the number of its key, shifted by so many bits, and its number within the key."""
MAX_KEYS: Final = 1 << 24


class SeriesShape(NamedTuple):
    """The shape of windows; see `Window`."""

    size: int
    shift: int
    stride: int
    drop_remainder: bool

    @property
    def span(self) -> int:
        """Rows from the first to the last of a window."""
        return (self.size - 1) * self.stride + 1

    def next_start(self, rows: Numbers) -> Numbers:
        """Returns, after so many rows of a key, the first row of its first window that is not complete."""
        return np.maximum(0, -((self.span - 1 - rows) // self.shift) * self.shift)


@dataclass(slots=True)
class SeriesRows(Noted):
    """A chunk with the keys of its rows.

    Attributes:
        keys: The different keys.
        codes: The key of each row, as its number in `keys`.
        order: The rows, key by key, ascending within one.
        firsts: Where the rows of each key begin there.
        within: How many rows of its key come before each row.
    """

    keys: list[Hashable]
    codes: Numbers
    order: Numbers
    firsts: Numbers
    within: Numbers


class SeriesKernel(StatelessKernel):
    """Finds the keys of a chunk, and sorts its rows by them.

    Args:
        program: Returns the program that computes the key, for a schema.
    """

    def __init__(self, program: Callable[[pa.Schema], Program]) -> None:
        self._program = OfSchema(program)

    def apply(self, chunk: pa.RecordBatch, origin: Origin) -> SeriesRows:
        keys = self._program(chunk.schema).run(chunk).column(0).dictionary_encode("encode")
        codes = keys.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        counts = np.bincount(codes, minlength=len(keys.dictionary))
        firsts = np.cumsum(counts) - counts
        within = np.empty(len(codes), np.int64)
        within[order] = np.arange(len(codes)) - np.repeat(firsts, counts)
        return SeriesRows(chunk, keys.dictionary.to_pylist(), codes.astype(np.int64), order, firsts, within)


class Part(NamedTuple):
    """Rows that are held.

    Attributes:
        rows: Their keys and numbers, ascending.
        places: Of each its place in the stream.
        batch: The rows themselves.
    """

    rows: Numbers
    places: Numbers
    batch: pa.RecordBatch


@dataclass(slots=True)
class SeriesWindows:
    """Windows to gather.

    Attributes:
        pieces: The rows that are used.
        places: Of each value of each window its place among these rows; -1 for none.
    """

    pieces: list[Piece]
    places: Numbers

    @property
    def num_rows(self) -> int:
        """How many windows."""
        return len(self.places)

    @property
    def buffers(self) -> tuple[pa.Buffer | None, ...]:
        """The buffers that the ledger counts."""
        columns = (column for batch, _ in self.pieces for column in batch.columns)
        return (pa.py_buffer(self.places), *(one for column in columns for one in column.buffers()))


class HeldRows:
    """The rows that later windows need, in parts that are sorted by key and number."""

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def add(self, part: Part, needed: Callable[[Numbers], npt.NDArray[np.bool_]]) -> None:
        """Adds rows, and forgets some of those that are not needed any more."""
        self.parts.append(part)
        while len(self.parts) > 1 and len(self.parts[-2].rows) < 2 * len(self.parts[-1].rows):
            self.merge(self.parts[-2:], needed)

    def merge(self, parts: list[Part], needed: Callable[[Numbers], npt.NDArray[np.bool_]]) -> None:
        """Makes one of the last parts."""
        rows, places = (np.concatenate(each) for each in ([p.rows for p in parts], [p.places for p in parts]))
        kept = np.flatnonzero(needed(rows))
        kept = kept[np.argsort(rows[kept])]
        batch = gathered(joined_batch([part.batch for part in parts], "size"), kept)
        self.parts[len(self.parts) - len(parts) :] = [Part(rows[kept], places[kept], batch)]

    def find(self, wanted: Numbers) -> tuple[list[Piece], Numbers]:
        """Returns the pieces that hold some rows, and the place of each row among the rows of the pieces."""
        asked, back = np.unique(wanted, return_inverse=True)
        found, total = np.empty(len(asked), np.int64), 0
        pieces: list[Piece] = []
        for part in self.parts:
            at = np.searchsorted(part.rows, asked)
            at[at == len(part.rows)] = 0
            here = np.flatnonzero(part.rows[at] == asked)
            if len(here):
                pieces.append((part.batch, at[here]))
                found[here] = np.arange(total, total + len(here))
                total += len(here)
        return pieces, found[back]


class SeriesWindowKernel(SerialKernel):
    """Says which windows are complete; the position is (windows,).

    Args:
        shape: The shape of the windows.
        max_keys: The most keys.
    """

    def __init__(self, shape: SeriesShape, max_keys: int) -> None:
        self._shape = shape
        self._max_keys = max_keys
        self._numbers: dict[Hashable, int] = {}
        self._seen: Numbers = np.zeros(64, np.int64)  # rows of each key
        self._held = HeldRows()
        self._rows = 0
        self._windows = 0
        self._skip = 0
        self._split = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Notes how many windows pass without a result; the input starts over."""
        if position is not None:
            (self._skip,) = position
        return None

    def push(self, item: Item) -> Iterator[Item]:
        """Yields the windows that the rows of a chunk complete, and keeps the rows that later windows need."""
        given, shape = item.chunk, self._shape
        if not given.num_rows:
            return
        self._split = item.origin.split
        numbers = self._numbers_of(given.keys)
        keys = numbers[given.codes]
        before = self._seen[keys]
        rows = before + given.within
        ends = np.flatnonzero((rows >= shape.span - 1) & ((rows - shape.span + 1) % shape.shift == 0))
        ends = ends[self._passed(len(ends)) :]

        def windows(some: Numbers) -> SeriesWindows:
            return self._windows_of(given, some, keys[some], rows[some] - shape.span + 1, before[some])

        yield from self._cut(ends, windows, last=item.origin.last and shape.drop_remainder)
        self._seen[numbers] += np.bincount(given.codes, minlength=len(numbers))
        held = (keys << _SHIFT) + rows
        kept = np.flatnonzero(self._needed(held))
        kept = kept[np.argsort(held[kept])]
        if len(kept):
            part = Part(held[kept], self._rows + kept, gathered(given.chunk, kept))
            self._held.add(part, self._needed)
        self._rows += given.num_rows

    def finish(self) -> Iterator[Item]:
        """Yields the windows that the end cuts short, unless they are dropped, by their first rows."""
        held, shape = self._held, self._shape
        if shape.drop_remainder or not held.parts:
            return
        held.merge(held.parts, self._needed)
        (part,) = held.parts
        keys, rows = part.rows >> _SHIFT, part.rows & ((1 << _SHIFT) - 1)
        starts = np.flatnonzero((rows - shape.next_start(self._seen[keys])) % shape.shift == 0)
        starts = starts[np.argsort(part.places[starts])]
        starts = starts[self._passed(len(starts)) :]

        def windows(some: Numbers) -> SeriesWindows:
            places = some[:, None] + np.arange(shape.size) * shape.stride
            left = self._seen[keys[some]] - rows[some]  # rows from the first one on
            places[places - some[:, None] >= left[:, None]] = -1
            return SeriesWindows([(part.batch, None)], places)

        yield from self._cut(starts, windows, last=False)

    def _passed(self, count: int) -> int:
        """Returns how many of the next windows were delivered before this run, and counts these."""
        passed = max(0, min(count, self._skip - self._windows))
        self._windows += passed
        return passed

    def _cut(
        self, windows: Numbers, make: Callable[[Numbers], SeriesWindows], *, last: bool
    ) -> Iterator[Item]:
        most = max(1, MAX_CHUNK_ROWS // self._shape.size)
        for start in range(0, len(windows), most):
            some = windows[start : start + most]
            self._windows += len(some)
            ends = last and start + most >= len(windows)
            yield Item(make(some), (self._windows,), None, Origin(self._split, last=ends))

    def _windows_of(
        self, given: SeriesRows, ends: Numbers, keys: Numbers, starts: Numbers, before: Numbers
    ) -> SeriesWindows:
        """Returns windows by their keys, the first rows of them, and the rows of the keys before the chunk."""
        rows = starts[:, None] + np.arange(self._shape.size) * self._shape.stride
        here = rows - before[:, None]
        inside = here >= 0
        places = np.empty(rows.shape, np.int64)
        pieces, places[~inside] = self._held.find(((keys << _SHIFT)[:, None] + rows)[~inside])
        total = sum(len(used) for _, used in pieces if used is not None)
        of_chunk = given.order[(given.firsts[given.codes[ends]][:, None] + here)[inside]]
        first, stop = int(of_chunk.min()), int(of_chunk.max()) + 1
        places[inside] = total + of_chunk - first
        return SeriesWindows([*pieces, (given.chunk.slice(first, stop - first), None)], places)

    def _needed(self, rows: Numbers) -> npt.NDArray[np.bool_]:
        """Returns which rows are in windows that are not complete."""
        starts = self._shape.next_start(self._seen[rows >> _SHIFT])
        return (rows & ((1 << _SHIFT) - 1)) >= starts

    def _numbers_of(self, keys: list[Hashable]) -> Numbers:
        known = self._numbers
        numbers = np.array([known.setdefault(key, len(known)) for key in keys], np.int64)
        if len(known) > self._max_keys:
            raise BudgetError(
                f"there are more than max_keys={self._max_keys:,} series, of which {self._shape.span - 1:,} rows each may be held; "
                "raise max_keys"
            )
        if len(known) > len(self._seen):
            self._seen = np.concatenate([self._seen, np.zeros(2 * len(known), np.int64)])
        return numbers


class SeriesGatherKernel(GatherKernel):
    """Makes lists of rows.

    Args:
        size: Rows of a window.
    """

    def __init__(self, size: int) -> None:
        self._size = size

    def gather(self, chunk: SeriesWindows, origin: Origin) -> pa.RecordBatch:
        parts = [batch if rows is None else gathered(batch, rows) for batch, rows in chunk.pieces]
        places = chunk.places.ravel()
        rows = gathered(joined_batch(parts, "size"), places, places >= 0)
        return as_lists(rows, self._size)

    def limit(self, chunk: Any) -> tuple[str, str, str]:
        what = f"window: {chunk.num_rows:,} windows of {self._size:,} rows cannot be gathered"
        return what, "65,536 rows", "use smaller windows"


def as_lists(rows: pa.RecordBatch, size: int) -> pa.RecordBatch:
    """Returns every `size` rows as one row of lists."""
    lists = [pa.FixedSizeListArray.from_arrays(column, size) for column in rows.columns]
    return pa.RecordBatch.from_arrays(lists, names=rows.schema.names)
