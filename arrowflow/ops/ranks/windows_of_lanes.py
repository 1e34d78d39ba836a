"""Windows of lanes that end in a `shuffle`: their rows go straight into the order of the batches.

`shuffle` would gather each window of each lane, and `merge.py` would copy the rows once more. So lanes run without their
last operator. Here their windows are only cut, as `shuffle` cuts them; `merge.py` permutes and gathers the windows of all
lanes in one call. Positions are those that `shuffle` would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.kernels.cutting import CuttingKernel, Parts
from arrowflow.kernels.gather import gathered
from arrowflow.kernels.held import Held, join
from arrowflow.kernels.items import Item
from arrowflow.ops.order.scatter import reordered
from arrowflow.ops.order.shuffle import Shuffle
from arrowflow.plan.position import Position
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

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self.parts.chunks[0].schema

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
    """Cuts the rows of one lane into windows.

    Args:
        shuffle: The operator that the lane ends in.
    """

    def __init__(self, shuffle: Shuffle) -> None:
        super().__init__(shuffle.size)
        self._shuffle = shuffle
        self._epoch = 0

    @property
    def held(self) -> Held:
        """The rows of the window that is not whole yet."""
        return self._held

    def open(self, position: Position, epoch: int) -> Position:
        """Returns the position of the lane before its `shuffle`."""
        self._epoch = epoch
        return super().open(position, epoch)

    def _cut(self, rows: int) -> Item:
        item = super()._cut(rows)
        key = self._shuffle.window_key(self._epoch, item.origin.split)
        return item._replace(chunk=Window(item.chunk, key, 0, rows))


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
