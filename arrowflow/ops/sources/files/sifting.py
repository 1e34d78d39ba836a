"""Reading without bad rows: the reader of splits that leaves them out, with `on_error="skip"` or `"quarantine"`.

Where the format tells good rows from bad ones, single rows are left out; elsewhere whole splits. A file whose footer cannot
be read is left out, too. Positions count all rows of a split, bad ones as well: so a resumed run reads the same rows as
good, whatever the budget and the number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from arrowflow.bad_rows import LeftOut, is_bad_data
from arrowflow.errors import ArrowflowError, SourceError
from arrowflow.expr import empty_batch
from arrowflow.formats.capabilities import Sifted, SiftingFormat
from arrowflow.formats.protocol import reading
from arrowflow.kernels.items import Made
from arrowflow.ops.sources.files.split_readers import SplitReader
from arrowflow.ops.sources.files.split_sizes import SplitSizes
from arrowflow.ops.sources.files.split_tasks import SplitTask
from arrowflow.ops.sources.files.splits import FileScan
from arrowflow.ops.sources.files.survivors import Survivors


class SiftingReader(SplitReader):
    """Decodes splits, and leaves bad rows out. See `SplitReader`."""

    def __init__(
        self, node: FileScan, num_threads: int, sizes: SplitSizes, survivors: Survivors | None = None
    ) -> None:
        super().__init__(node, num_threads, sizes, survivors)
        self._quarantine = node.policy.quarantine(node.operator)
        self._hints: set[str] = set()

    def read(self, payload: SplitTask) -> Iterator[Made]:
        """Yields the good rows of the splits."""
        try:
            return super().read(payload)
        except ArrowflowError as error:
            if not is_bad_data(error):
                raise
            return self._one_by_one(payload)

    def _one_by_one(self, payload: SplitTask) -> Iterator[Made]:
        for task in payload.splits:
            try:
                self._sizes.check(task, self._names)
            except ArrowflowError as error:
                yield self._without(task, task.start, error)
            else:
                yield from self._read_split(task)
            self._check_unchanged(task)

    def _read_split(self, payload: SplitTask) -> Iterator[Made]:
        if isinstance(self._format, SiftingFormat):
            yield from self._sift(payload, self._format)
            return
        try:
            made = list(super()._read_split(payload))  # all of it, before any row of it goes on
        except ArrowflowError as error:
            if not is_bad_data(error):
                raise
            made = [self._without(payload, payload.start, error)]
        yield from made

    def _without(self, task: SplitTask, row: int, error: ArrowflowError) -> Made:
        """Returns no rows in place of a split from one of its rows on."""
        file, split = task.footer.file, task.split
        if self._quarantine is not None:
            self._quarantine.keep_part(file.path, split.index, split.num_rows, str(error))
        nothing = self._completed(empty_batch(self._stored), task, row)
        left_out = LeftOut(task.stop - row, 1)
        return Made(nothing, task.position(task.stop), task.is_last, task.key, left_out=left_out)

    def _sift(self, task: SplitTask, format: SiftingFormat) -> Iterator[Made]:
        footer, split = task.footer, task.split
        row = task.start
        try:
            with reading(self._node.operator, footer.file, split.index, self._format.part):
                parts = format.sift(
                    task.store,
                    footer,
                    split,
                    self._stored,
                    row,
                    keep=self._quarantine is not None,
                    hints=self._hints,
                )
                for part in parts:
                    stop = min(part.first + part.rows, task.stop)
                    yield from self._sifted(task, part, row, stop)
                    row = stop
                    if row >= task.stop:
                        return
                raise SourceError(f"expected {split.num_rows} rows as the footer says, found {row}")
        except ArrowflowError as error:
            if not is_bad_data(error):
                raise
            yield self._without(task, row, error)

    def _sifted(self, task: SplitTask, part: Sifted, start: int, stop: int) -> Iterator[Made]:
        """Yields the good rows of a part, from a row of the split to before another one."""
        last = stop >= task.stop and task.is_last
        file, split = task.footer.file, task.split
        if not part.numbers:
            chunk = part.batch.slice(start - part.first, stop - start)
            yield from self._halves(self._completed(chunk, task, start), task, start, last=last)
            return
        if self._quarantine is not None:
            self._quarantine.keep_rows(file.path, split.index, part.bad)
        bad = np.array(part.numbers, np.int64)
        before, until = np.searchsorted(bad, (start, stop)).tolist()
        good = np.ones(stop - start, np.bool_)
        good[bad[before:until] - start] = False
        rows = np.flatnonzero(good) + start
        chunk = self._completed(part.batch.slice(start - part.first - before, len(rows)), task, rows)
        left_out = LeftOut(until - before)
        yield Made(chunk, task.position(stop), last, task.key, left_out=left_out)
