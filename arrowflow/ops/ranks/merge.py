"""A part of several lanes, copied once into the order of its batches.

Where lanes end in a `shuffle`, it would gather each window of each lane, and the rows would be copied once more here. So
lanes run without it: their windows are only cut, as `shuffle` cuts them, and the windows of all lanes are permuted and
gathered in one call. Positions are those that `shuffle` would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.kernels.cutting import CuttingKernel, Parts
from arrowflow.kernels.gather import GatherKernel, gathered
from arrowflow.kernels.held import Held, join
from arrowflow.kernels.items import Item, Origin
from arrowflow.ops.batches.batch import masked
from arrowflow.ops.order.scatter import reordered
from arrowflow.ops.order.shuffle import Shuffle
from arrowflow.ops.order.spans import addresses_of, array_of, width_of
from arrowflow.random import Key, permutation
from arrowflow.recycler import Recycler


@dataclass(slots=True)
class Window:
    """Some rows of a permuted window, which still lie where they were read.

    Attributes:
        parts: The rows of the window before the permutation.
        key: The key of the permutation.
        start: The place of the first row after the permutation.
        num_rows: Rows from there on.
    """

    parts: Parts
    key: Key
    start: int
    num_rows: int

    @property
    def nbytes(self) -> int:
        """Bytes of its rows, about."""
        return sum(chunk.nbytes for chunk in self.parts.chunks) * self.num_rows // self.parts.num_rows

    def slice(self, start: int, num_rows: int) -> Window:
        """Returns some of its rows."""
        return Window(self.parts, self.key, self.start + start, num_rows)

    def places(self) -> npt.NDArray[Any]:
        """Returns the number that each of its rows has in the window."""
        return permutation(self.parts.num_rows, self.key)[self.start : self.start + self.num_rows]

    def rows(self) -> pa.RecordBatch:
        """Returns its rows, gathered."""
        return gathered(join(self.parts.chunks), self.places())


class WindowCutter(CuttingKernel):
    """Cuts the rows of one lane into windows, in place of the operator that it ends in."""

    def __init__(self, shuffle: Shuffle, epoch: int) -> None:
        super().__init__(shuffle.size)
        self._shuffle = shuffle
        self._epoch = epoch

    @property
    def held(self) -> Held:
        """The rows of the window that is not whole yet."""
        return self._held

    def _cut(self, rows: int) -> Item:
        item = super()._cut(rows)
        key = self._shuffle.window_key(self._epoch, item.origin.split)
        return item._replace(chunk=Window(item.chunk, key, 0, rows))


@dataclass(slots=True)
class LaneRows:
    """Rows of a part: of each lane its chunks, whose last row it repeats if it has fewer rows than others.

    Attributes:
        chunks: The chunks of each lane, or its windows.
        counts: Rows of each lane; of a lane that has none, the one in its chunk is a repeat, too.
        rows: Rows that each lane gives to the part, repeats included.
        nbytes: Bytes of the rows of the chunks.
    """

    chunks: list[list[Any]]
    counts: list[int]
    rows: int
    nbytes: int

    @property
    def num_rows(self) -> int:
        """Rows of the part."""
        return self.rows * len(self.chunks)


class MergeKernel(GatherKernel):
    """Copies the rows of a part into the order of its batches: at each step `step_rows` of each lane, lane after lane.

    The column `mask`, if there is one, is false for repeats.
    """

    def __init__(self, step_rows: int, mask: str | None, recycler: Recycler, *, of_windows: bool) -> None:
        self._step_rows = step_rows
        self._of_windows = of_windows
        self._mask = mask
        self._recycler = recycler

    def gather(self, chunk: LaneRows, origin: Origin) -> pa.RecordBatch:
        real = np.ones(chunk.num_rows, np.bool_)
        if min(chunk.counts) < chunk.rows:
            merged, real = self._filled(chunk)
        elif self._of_windows:
            merged = merged_windows(chunk.chunks, min(self._step_rows, chunk.rows), self._recycler)
        else:
            merged = self._merged(chunk)
        return merged if self._mask is None else masked(merged, self._mask, real)

    def limit(self, chunk: LaneRows) -> tuple[str, str, str]:
        return f"{chunk.num_rows:,} rows of all lanes cannot be joined", "them", "use a smaller batch_size"

    def _merged(self, part: LaneRows) -> pa.RecordBatch:
        lanes, step = len(part.chunks), min(self._step_rows, part.rows)
        chunks = [chunk for some in part.chunks for chunk in some]
        if lanes == 1:
            return join(chunks)
        schema = chunks[0].schema
        columns: dict[str, pa.Array] = {}
        for index, field in enumerate(schema):
            if width_of(field.type) is not None and (addresses := addresses_of(chunks, index)) is not None:
                columns[field.name] = self._copied(field.type, part, addresses, step)
        rest = [name for name in schema.names if name not in columns]
        if rest:
            numbers = np.arange(part.num_rows, dtype=np.int64).reshape(lanes, -1, step)
            order = np.ascontiguousarray(numbers.transpose(1, 0, 2)).ravel()
            taken = gathered(join([chunk.select(rest) for chunk in chunks]), order)
            columns.update(zip(rest, taken.columns, strict=True))
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _copied(self, type: pa.DataType, part: LaneRows, addresses: Sequence[int], step: int) -> pa.Array:
        """Returns a column of fixed width without nulls: runs of `step` rows are copied to where they belong."""
        width = width_of(type)
        assert width is not None
        buffer = self._recycler.allocate(part.num_rows * width)
        lanes = len(part.chunks)
        out = np.frombuffer(buffer, np.uint8).reshape(-1, lanes, step, width)
        found = iter(addresses)
        for lane, chunks in enumerate(part.chunks):
            at = 0
            for count in (chunk.num_rows for chunk in chunks):
                values = np.frombuffer(pa.foreign_buffer(next(found), count * width), np.uint8)
                copy_rows(out[:, lane], values.reshape(count, width), at)
                at += count
        return array_of(type, part.num_rows, buffer)

    def _filled(self, part: LaneRows) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
        """Returns one step in which some lanes are filled up by repeats, and which rows are real."""
        chunks = [chunk.rows() if self._of_windows else chunk for some in part.chunks for chunk in some]
        counts = np.array(part.counts)[:, np.newaxis]
        lasts = np.maximum(counts, 1)
        places = np.arange(part.rows)
        order = np.cumsum(lasts)[:, np.newaxis] - lasts + np.minimum(places, lasts - 1)
        return gathered(join(chunks), order.ravel()), (places < counts).ravel()


def merged_windows(lanes: Sequence[Sequence[Window]], step_rows: int, recycler: Recycler) -> pa.RecordBatch:
    """Returns the rows of all lanes, equally many of each: at each step `step_rows` of each lane, lane after lane."""
    chunks: list[pa.RecordBatch] = []
    rows = sum(window.num_rows for window in lanes[0])
    order = np.empty(len(lanes) * rows, np.uint32)
    steps = order.reshape(-1, len(lanes), step_rows)
    start = 0
    for lane, windows in enumerate(lanes):
        at = 0
        for window in windows:
            places = window.places()
            places += np.uint32(start)
            copy_rows(steps[:, lane], places, at)
            chunks += window.parts.chunks
            start += window.parts.num_rows
            at += window.num_rows
    if len(order) == start:
        return reordered(chunks, order, recycler)
    return gathered(join(chunks), order)


def copy_rows(out: npt.NDArray[Any], rows: npt.NDArray[Any], at: int) -> None:
    """Copies rows into the steps of a lane, from row `at` of the lane on."""
    step = out.shape[1]
    turn, place = divmod(at, step)
    head = min(len(rows), step - place) if place else 0
    if head:
        out[turn, place : place + head] = rows[:head]
        turn += 1
    whole = (len(rows) - head) // step
    stop = head + whole * step
    if whole:
        out[turn : turn + whole] = rows[head:stop].reshape(whole, *out.shape[1:])
    if stop < len(rows):
        out[turn + whole, : len(rows) - stop] = rows[stop:]
