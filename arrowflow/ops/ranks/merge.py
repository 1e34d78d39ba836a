"""A part of several lanes, copied once into the order of its batches.

Where lanes end in a `shuffle`, it would gather each window of each lane, and the rows would be copied once more here. So
lanes run without it: their windows are only cut, as `shuffle` cuts them, and the windows of all lanes are permuted and
gathered in one call. Positions are those that `shuffle` would have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
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


class WindowCutter(CuttingKernel):
    """Cuts the rows of one lane into windows, in place of the operator that it ends in."""

    def __init__(self, shuffle: Shuffle, epoch: int) -> None:
        super().__init__(shuffle.size)
        self._key = partial(shuffle.window_key, epoch)

    @property
    def held(self) -> Held:
        """The rows of the window that is not whole yet."""
        return self._held

    def _cut(self, rows: int) -> Item:
        item = super()._cut(rows)
        return item._replace(chunk=Window(item.chunk, self._key(item.origin.split), 0, rows))


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

    def __init__(self, step_rows: int, mask: str | None, recycler: Recycler) -> None:
        self._step_rows = step_rows
        self._mask = mask
        self._recycler = recycler

    def gather(self, chunk: LaneRows, origin: Origin) -> pa.RecordBatch:
        merged = self._merged(chunk)
        if self._mask is None:
            return merged
        real = np.arange(chunk.rows) < np.array(chunk.counts)[:, np.newaxis]
        return masked(merged, self._mask, real.ravel())

    def limit(self, chunk: LaneRows) -> tuple[str, str, str]:
        return f"{chunk.num_rows:,} rows of all lanes cannot be joined", "them", "use a smaller batch_size"

    def _merged(self, part: LaneRows) -> pa.RecordBatch:
        chunks = [chunk for some in part.chunks for chunk in some]
        if isinstance(chunks[0], Window) or min(part.counts) < part.rows:
            return self._gathered(part)
        if len(part.chunks) == 1:
            return join(chunks)
        schema = chunks[0].schema
        columns: dict[str, pa.Array] = {}
        for index, field in enumerate(schema):
            width = width_of(field.type)
            if width is not None and (addresses := addresses_of(chunks, index)) is not None:
                copied = self._copied(width, part, iter(addresses))
                columns[field.name] = array_of(field.type, part.num_rows, copied)
        rest = [name for name in schema.names if name not in columns]
        if rest:
            others = [[chunk.select(rest) for chunk in some] for some in part.chunks]
            taken = self._gathered(replace(part, chunks=others))
            columns.update(zip(rest, taken.columns, strict=True))
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _copied(self, width: int, part: LaneRows, addresses: Iterator[int]) -> pa.Buffer:
        """Returns a column of fixed width without nulls: runs of `step_rows` rows are copied to where they belong."""
        buffer = self._recycler.allocate(part.num_rows * width)
        steps = self._steps(part, np.frombuffer(buffer, np.uint8).reshape(-1, width))
        for lane, chunks in enumerate(part.chunks):
            at = 0
            for count in (chunk.num_rows for chunk in chunks):
                values = np.frombuffer(pa.foreign_buffer(next(addresses), count * width), np.uint8)
                copy_rows(steps[:, lane], values.reshape(count, width), at)
                at += count
        return buffer

    def _gathered(self, part: LaneRows) -> pa.RecordBatch:
        """Returns the rows of a part by the number of each, counted over all chunks."""
        chunks: list[pa.RecordBatch] = []
        order = np.empty(part.num_rows, np.uint32)
        start = 0
        for lane, steps in enumerate(self._steps(part, order).swapaxes(0, 1)):
            at = 0
            for chunk in part.chunks[lane]:
                if isinstance(chunk, Window):
                    parts, places = chunk.parts, chunk.places()
                else:
                    parts, places = Parts([chunk], chunk.num_rows), np.arange(chunk.num_rows, dtype=np.uint32)
                places += np.uint32(start)
                copy_rows(steps, places, at)
                chunks += parts.chunks
                start += parts.num_rows
                at += chunk.num_rows
            if at < part.rows:  # a part with repeats is one step
                steps[0, at:] = steps[0, at - 1]
        if start == len(order) and min(part.counts) == part.rows:  # each row of the chunks once
            return reordered(chunks, order, self._recycler)
        return gathered(join(chunks), order)

    def _steps(self, part: LaneRows, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the rows of a part by step, by lane, and by place in both."""
        return rows.reshape(-1, len(part.chunks), min(self._step_rows, part.rows), *rows.shape[1:])


def copy_rows(out: npt.NDArray[Any], rows: npt.NDArray[Any], at: int) -> None:
    """Copies rows into the steps of a lane, from row `at` of the lane on: steps that are whole in one call."""
    step = out.shape[1]
    while len(rows):
        turn, place = divmod(at, step)
        whole = 0 if place else len(rows) // step
        count = whole * step or min(len(rows), step - place)
        if whole:
            out[turn : turn + whole] = rows[:count].reshape(whole, *out.shape[1:])
        else:
            out[turn, place : place + count] = rows[:count]
        rows, at = rows[count:], at + count
