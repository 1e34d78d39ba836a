"""`FileRows`: the rows of each split of a source's files, so that a run can begin in the middle of an epoch's order.

All footers are read once, by whoever asks first. It is asked on the thread that plans a run, never by a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from arrowflow.bad_rows import BadRowPolicy
from arrowflow.errors import ArrowflowError, PlanError
from arrowflow.formats.protocol import Format, footer_of
from arrowflow.ops.order.source_order import permuted
from arrowflow.ops.sources.files.row_counts import RowCounts
from arrowflow.ops.sources.files.split_tasks import OPEN_FILES, ReadPosition, drawn, is_no_file
from arrowflow.plan.access import SourceOrder
from arrowflow.random import FILE_ORDER
from arrowflow.storage import File, Store


class FileRows:
    """The rows of the splits of some files. Safe to use from several threads: at worst footers are read twice."""

    def __init__(
        self, operator: str, format: Format, store: Store, files: Sequence[File], policy: BadRowPolicy
    ) -> None:
        self._policy = policy
        self._operator = operator
        self._format = format
        self._store = store
        self._files = files

    @cached_property
    def splits(self) -> list[tuple[int, ...]]:
        """The rows of each split, by file."""
        return self._store.together([partial(self._rows, file) for file in self._files])

    def _rows(self, file: File) -> tuple[int, ...]:
        try:
            footer = footer_of(self._operator, self._format, self._store, file)
        except ArrowflowError as error:
            if is_no_file(error, self._policy):
                return ()
            raise
        return tuple(split.num_rows for split in footer.splits)

    @cached_property
    def _of_files(self) -> npt.NDArray[np.int64]:
        return _sums(self.splits)

    @cached_property
    def num_rows(self) -> int:
        """The rows of all files."""
        return int(self._of_files.sum())

    def position(self, row: int, order: SourceOrder | None, epoch: int) -> ReadPosition:
        """Returns the position right before a row, by its number in the order of an epoch."""
        at, _, rest = self._found(row, self.splits, self._of_files, order, epoch)
        return at._replace(row=rest)

    def row_of(self, number: int, kept: RowCounts, order: SourceOrder | None, epoch: int) -> int:
        """Returns the number of a row in the order of an epoch, given its number among the rows that are left.

        Raises:
            PlanError: The counts name splits that are not there.
        """
        weights = [
            tuple(kept.kept(file, split) for split in range(len(rows)))
            for file, rows in enumerate(self.splits)
        ]
        sums = _sums(weights)
        if int(sums.sum()) != kept.num_rows:
            raise PlanError(
                "assert_cardinality: the counts are of splits that the files do not have; count again with af.count_rows"
            )
        at, (file, split), rest = self._found(number, weights, sums, order, epoch)
        return at.counted + kept.row(file, split, rest)

    def rows_of(
        self, first: int, before: int, kept: RowCounts, order: SourceOrder | None, epoch: int
    ) -> tuple[int, int]:
        """Returns the range with some of the rows that are left, as (first, before), by numbers in the order of an epoch."""
        if first == before:
            return 0, 0
        start, last = (self.row_of(row, kept, order, epoch) for row in (first, before - 1))
        return start, last + 1

    def _found(
        self,
        number: int,
        weights: Sequence[tuple[int, ...]],
        of_files: npt.NDArray[np.int64],
        order: SourceOrder | None,
        epoch: int,
    ) -> tuple[ReadPosition, tuple[int, int], int]:
        """Finds the split in which the weights of an epoch's order, counted from its start, exceed a number.

        Returns: The position before the split, its file and its number there, and the weight to go. After the last split:
            the position there, and nothing to go.
        """
        if order is None:
            files, size = np.arange(len(self._files)), 1
        else:
            files, size = np.array(permuted(len(self._files), order, FILE_ORDER, epoch)), OPEN_FILES
        ends = np.cumsum(of_files[files])[size - 1 :: size]  # of all blocks, but for a short last one
        block = int(np.searchsorted(ends, number, side="right"))
        passed = int(ends[block - 1]) if block else 0
        counted = int(self._of_files[files[: block * size]].sum())
        own = files[block * size : (block + 1) * size].tolist()
        counts = [(place, file, len(self.splits[file])) for place, file in enumerate(own)]
        at, key = 0, (-1, -1)
        for done, file, index in drawn(counts, order, epoch) if own else ():
            at, key = done, (file, index)
            if passed + weights[file][index] > number:
                return ReadPosition(block, at, 0, counted), key, number - passed
            passed += weights[file][index]
            counted += self.splits[file][index]
            at += 1
        return ReadPosition(block, at, 0, counted), key, 0


def _sums(weights: Sequence[tuple[int, ...]]) -> npt.NDArray[np.int64]:
    return np.array([sum(rows) for rows in weights], np.int64)
