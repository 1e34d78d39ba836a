"""`FileRows`: the rows of each split of a source's files, so that a run can begin in the middle of an epoch's order.

All footers are read once, by whoever asks first. It is asked on the thread that plans a run, never by a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from arrowflow.formats.protocol import Format, footer_of
from arrowflow.ops.order.source_order import permuted
from arrowflow.ops.sources.files.split_tasks import OPEN_FILES, ReadPosition, drawn
from arrowflow.plan.node import SourceOrder
from arrowflow.random import FILE_ORDER
from arrowflow.storage import File, Store


class FileRows:
    """The rows of the splits of some files. Safe to use from several threads: at worst footers are read twice."""

    def __init__(self, operator: str, format: Format, store: Store, files: Sequence[File]) -> None:
        self._operator = operator
        self._format = format
        self._store = store
        self._files = files

    @cached_property
    def splits(self) -> list[tuple[int, ...]]:
        """The rows of each split, by file."""
        footers = (footer_of(self._operator, self._format, self._store, file) for file in self._files)
        return [tuple(split.num_rows for split in footer.splits) for footer in footers]

    @cached_property
    def _of_files(self) -> npt.NDArray[np.int64]:
        return np.array([sum(rows) for rows in self.splits], np.int64)

    @cached_property
    def num_rows(self) -> int:
        """The rows of all files."""
        return int(self._of_files.sum())

    def position(self, row: int, order: SourceOrder | None, epoch: int) -> ReadPosition:
        """Returns the position right before a row, by its number in the order of an epoch."""
        if order is None:
            numbers, size = np.arange(len(self._files)), 1
        else:
            numbers, size = np.array(permuted(len(self._files), order, FILE_ORDER, epoch)), OPEN_FILES
        ends = np.cumsum(self._of_files[numbers])[size - 1 :: size]  # of all blocks, but for a short last one
        block = int(np.searchsorted(ends, row, side="right"))
        counted = int(ends[block - 1]) if block else 0
        files = [int(number) for number in numbers[block * size : (block + 1) * size]]
        found = drawn(
            [(place, number, len(self.splits[number])) for place, number in enumerate(files)], order, epoch
        )
        at = 0
        for done, number, index in found:
            rows = self.splits[number][index]
            if counted + rows > row:
                return ReadPosition(block, done, row - counted, counted)
            counted += rows
            at = done + 1
        return ReadPosition(block, at, 0, counted)
