"""The kernels of `read.py` that decode splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.bad_rows import LeftOut, is_bad_data
from arrowflow.errors import ArrowflowError, SourceError
from arrowflow.expr import empty_batch
from arrowflow.formats.capabilities import InPlaceFormat, PiecesFormat, RunFormat, Sifted, SiftingFormat
from arrowflow.formats.protocol import check_unchanged, reading
from arrowflow.kernels.items import Made
from arrowflow.kernels.kept import KeptChunk, KeptChunks
from arrowflow.kernels.kinds import ReaderKernel
from arrowflow.ops.order.random_access import InPlaceRows
from arrowflow.ops.sources.files.file_scan import FileScan
from arrowflow.ops.sources.files.partitions import without
from arrowflow.ops.sources.files.split_fetcher import SplitFetcher
from arrowflow.ops.sources.files.split_sizes import SplitSizes
from arrowflow.ops.sources.files.split_tasks import SplitTask, middle_of
from arrowflow.ops.sources.files.survivors import Survivors
from arrowflow.options import MAX_SIZE
from arrowflow.storage import Mapped

LARGE_BYTES = 8 << 20
"""A chunk of a lane that takes more is passed on in halves. Lanes hold one chunk each. What column operators make of a
half is let go of with the half: 16 lanes of `wide` hold 410 MiB in place of 730. Small halves would cost more than that."""


class SplitReader(ReaderKernel):
    """Decodes splits.

    Args:
        node: The bound source.
        num_threads: The CPU budget.
        sizes: The bytes that splits take, and may take.
        survivors: Tells which splits have rows that are of use, if that can be told.
        kept: Chunks of earlier epochs; None where none are kept.
        fetcher: Of files that are not local what fetches them; None where nothing is kept.
    """

    def __init__(
        self,
        node: FileScan,
        num_threads: int,
        sizes: SplitSizes | None = None,
        survivors: Survivors | None = None,
        kept: KeptChunks | None = None,
        fetcher: SplitFetcher | None = None,
    ) -> None:
        self._node = node
        self._kept = kept
        self._fetcher = fetcher
        self._looked_at: tuple[SplitTask | None, int] = None, 0  # and its bytes
        self._survivors = survivors
        self._sizes = sizes or SplitSizes(node.operator, node.format, MAX_SIZE)
        self._format = node.decoder(num_threads)
        self._joins = isinstance(self._format, RunFormat)
        assert node.schema is not None
        self._stored = without(node.schema, node.partitions)
        self._names = self._stored.names

    def num_bytes(self, payload: SplitTask) -> int:
        """Returns output and scratch of the wanted columns; of kept chunks what their copies take."""
        if (kept := self._kept) is None or not kept.chunks:
            return self._decoded_bytes(payload)
        if self._looked_at[0] is payload:
            return self._looked_at[1]
        found = payload.holding(kept.chunks, self._version).splits
        rest = [self._decoded_bytes(task) for task in found if not task.kept]
        copies = [sum(task.kept.buffers.values()) for task in found if task.kept and kept.copies]
        num_bytes = sum(rest) + sum(copies)
        # A run has up to 64 splits, and is looked at often while it waits. Later it holds chunks, which have to go with it.
        if all(task.kept is None for task in payload.splits):
            self._looked_at = payload, num_bytes
        return num_bytes

    def most_bytes(self, payload: SplitTask) -> int:
        """Returns the same, or a size that never fits while the size of a column is unknown."""
        return self.num_bytes(payload) if self._sizes.is_known(payload) else MAX_SIZE

    def holding(self, payload: SplitTask) -> tuple[SplitTask, Sequence[KeptChunk]]:
        """Returns the task with what is kept of its splits."""
        self._looked_at = None, 0
        payload = payload if self._kept is None else payload.holding(self._kept.chunks, self._version)
        return payload, [task.kept for task in payload.splits if task.kept is not None]

    def _version(self, task: SplitTask) -> str | None:
        return "" if self._fetcher is None else self._fetcher.version(task)

    def _decoded_bytes(self, payload: SplitTask) -> int:
        late = 0 if self._fetcher is None else self._fetcher.late_bytes(payload)
        return self._sizes.num_bytes(payload) + self._folder_bytes(payload) + late

    def _folder_bytes(self, payload: SplitTask) -> int:
        node = self._node
        if node.partitions is None or node.schema is None:
            return 0
        return payload.num_rows * node.partitions.row_bytes(node.schema.names, payload.number)

    def read(self, payload: SplitTask) -> Iterator[Made]:
        """Yields the split's rows: one chunk, or a few where offsets would overflow."""
        for task in payload.splits:
            self._check_unchanged(task)  # to read a mapped file that became shorter would end the process
            if task.kept is None:
                self._sizes.check(task, self._names)
        return self._read(payload)

    def _read(self, payload: SplitTask) -> Iterator[Made]:
        *_, last = payload.splits
        for run in self._runs(payload.splits):
            for task, made in self._read_run(run):
                self._check_unchanged(task)
                yield made if task is last else made._replace(more=True)

    def _check_unchanged(self, task: SplitTask) -> None:
        """Raises `SourceError` if the file is another one by now: the rows may be of either. It is 1 µs a split."""
        file = task.footer.file
        with reading(self._node.operator, file, task.split.index, self._format.part):
            check_unchanged(file)

    def _runs(self, tasks: Sequence[SplitTask]) -> Iterator[list[SplitTask]]:
        """Yields the tasks that are decoded together: they follow each other. A kept one is alone."""
        run: list[SplitTask] = []
        for task in tasks:
            if run and not (self._joins and task.follows(run[-1])):
                yield run
                run = []
            run.append(task)
        yield run

    def _read_run(self, run: Sequence[SplitTask]) -> Iterator[tuple[SplitTask, Made]]:
        """Yields the chunks of a run, each with its task; a split in which no row is of use has none."""
        if self._kept is not None and (kept := run[0].kept) is not None:
            (task,), chunk = run, self._kept.take(kept)
            yield task, Made(chunk, task.position(task.stop), task.is_last, task.key, is_kept=True)
            return
        if self._fetcher is not None:
            run = list(map(self._fetcher.fetched, run))
        missing = frozenset() if self._survivors is None else self._survivors.missing(run)
        for is_missing, part in groupby(run, lambda task: task.key in missing):
            tasks = list(part)
            chunks = self._decoded(tasks) if len(tasks) > 1 and not is_missing else None
            for number, task in enumerate(tasks):
                if is_missing:
                    nothing = self._completed(empty_batch(self._stored), task, task.stop)
                    key = task.kept_key(task.start, task.stop, self._version(task))
                    yield task, Made(nothing, task.position(task.stop), split=task.key, key=key)
                elif chunks is not None:
                    chunk = self._completed(chunks[number].slice(task.start), task, task.start)
                    chunks[number] = None
                    for made in self._halves(chunk, task, task.start, last=True):
                        yield task, made
                else:
                    for made in self._read_split(task):
                        yield task, made

    def _decoded(self, run: Sequence[SplitTask]) -> list[Any] | None:
        """Decodes a run; None where that fails: read one by one, splits say which of them is broken."""
        assert isinstance(self._format, RunFormat)
        try:
            pairs = [(task.footer, task.split) for task in run]
            return self._format.read_run(run[0].store, pairs, self._stored)
        except Exception:  # noqa: BLE001  (a split read alone says what is wrong, and which one)
            return None

    def _read_split(self, payload: SplitTask) -> Iterator[Made]:
        row = payload.start
        for chunk in self._chunks(payload, self._stored):
            self._learn(payload, chunk)
            if row + chunk.num_rows > payload.stop:
                chunk = chunk.slice(0, payload.stop - row)
            made = self._completed(chunk, payload, row)
            row += chunk.num_rows
            ends = row >= payload.stop and payload.is_last
            yield from self._halves(made, payload, row - chunk.num_rows, last=ends)
            if row >= payload.stop:
                return
        footer, split = payload.footer, payload.split
        error = SourceError(
            f"expected {split.num_rows} rows as the footer says, found {row}; the file is truncated or corrupt: write "
            "it anew, or leave it out"
        )
        raise error.locate(
            operator=self._node.operator, file=footer.file.path, row_group=split.index, part=self._format.part
        )

    def _halves(self, chunk: Any, task: SplitTask, row: int, *, last: bool) -> Iterator[Made]:
        """Yields a chunk that begins at a row of its split; a large one of a lane in halves."""
        stop = row + chunk.num_rows
        is_whole = (row, stop) == (task.start, task.stop)
        version = self._version(task) if is_whole else None
        if self._node.lane is not None and chunk.nbytes > LARGE_BYTES:
            middle = middle_of(row, stop)
            key, half = task.kept_key(row, middle, version), chunk.slice(0, middle - row)
            yield Made(half, task.position(middle), False, task.key, more=True, key=key)
            chunk, row = chunk.slice(middle - row), middle
        key = task.kept_key(row, stop, version)
        yield Made(chunk, task.position(stop), last, task.key, key=key)

    def _learn(self, payload: SplitTask, chunk: Any) -> None:
        self._sizes.learn(payload, chunk)

    def _completed(self, chunk: Any, payload: SplitTask, row: int | npt.NDArray[np.int64]) -> Any:
        """Returns rows, from one of the split on or of these numbers, with the columns that the file does not hold."""
        schema, folders = self._node.schema, self._node.partitions
        if folders is None or schema is None or len(schema) == len(self._names):
            return chunk
        return folders.fill(chunk, schema.names, payload.number, payload.split.index, row)

    def _chunks(self, payload: SplitTask, schema: pa.Schema) -> Iterator[Any]:
        footer, split = payload.footer, payload.split
        format, start = self._format, payload.start
        with reading(self._node.operator, footer.file, split.index, format.part):
            if payload.is_piece and isinstance(format, PiecesFormat):
                yield from format.read_rows(payload.store, footer, split, schema, start, payload.stop)
            else:
                yield from format.read(payload.store, footer, split, schema, start)


class SiftingReader(SplitReader):
    """Decodes splits, and leaves bad rows out. See `SplitReader`."""

    def __init__(self, node: FileScan, num_threads: int, sizes: SplitSizes) -> None:
        super().__init__(node, num_threads, sizes)
        self._quarantine = node.policy.quarantine(node.operator)
        self._hints = node.hints.setdefault(self._stored, set())

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


class SplitFinder(SplitReader):
    """Finds the rows of splits in mapped files, so that a global `shuffle` can gather them."""

    def __init__(self, node: FileScan) -> None:
        super().__init__(node, num_threads=1)
        self._mapped: dict[str, Mapped] = {}
        self._checks: dict[str, Callable[[], None]] = {}

    def num_bytes(self, payload: SplitTask) -> int:
        """Returns 0: mapped rows are not read yet, and take no memory of the pipeline."""
        return 0

    def most_bytes(self, payload: SplitTask) -> int:
        """Returns 0."""
        return 0

    def read(self, payload: SplitTask) -> Iterator[Made]:
        """Yields the split's rows, unread."""
        return self._read(payload)

    def _learn(self, payload: SplitTask, chunk: Any) -> None:
        pass

    def _chunks(self, payload: SplitTask, schema: pa.Schema) -> Iterator[Any]:
        return super()._chunks(payload._replace(store=self._map(payload)), schema)

    def _completed(self, chunk: Any, payload: SplitTask, row: int | npt.NDArray[np.int64]) -> InPlaceRows:
        rows = super()._completed(chunk, payload, row)
        file = payload.footer.file
        buffers = (buffer for column in rows.columns for buffer in column.buffers())
        mapped = self._mapped[file.path]
        copies = tuple(buffer for buffer in buffers if buffer is not None and not mapped.has(buffer))
        check = self._checks.setdefault(file.path, partial(check_unchanged, file, self._node.operator))
        return InPlaceRows(rows, copies, check)  # the check is the same one for all splits of a file

    def _map(self, payload: SplitTask) -> Mapped:
        """Maps a file once, not once a split: a process may have 65,530 mappings."""
        file = payload.footer.file
        mapped = self._mapped.get(file.path)
        if mapped is None:
            assert isinstance(self._format, InPlaceFormat)
            self._format.check_in_place(payload.store, payload.footer)
            with reading(self._node.operator, file):
                # If two splits come at the same time, the first split's mapping stays.
                mapped = self._mapped.setdefault(file.path, Mapped(payload.store, file))
        return mapped
