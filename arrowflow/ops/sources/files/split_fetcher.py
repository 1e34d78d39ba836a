"""The kernel of `read.py` that fetches splits."""

from __future__ import annotations

from collections.abc import Iterator

from arrowflow.formats.protocol import raise_change, reading
from arrowflow.kernels.context import Context
from arrowflow.kernels.items import Made
from arrowflow.kernels.kinds import ReaderKernel
from arrowflow.ops.sources.files.file_identity import versions_in_run
from arrowflow.ops.sources.files.file_scan import FileScan
from arrowflow.ops.sources.files.split_sizes import total_bytes
from arrowflow.ops.sources.files.split_tasks import SplitTask
from arrowflow.ops.sources.files.splits import change_of, fetch_ahead, store_in_run
from arrowflow.storage import Fetched


class SplitFetcher(ReaderKernel):
    """Fetches the bytes that decoding a split needs, so that decoding never waits. The task's end frees them.

    After each fetch, it asks whether the file is still the one whose footer was read: one more request beside one for a row
    group, and of a file of one row group one in three or four.

    A split that is kept from an earlier epoch is not fetched. If what was kept goes before the reader takes it, the call of
    the reader fetches the split, and waits.
    """

    def __init__(self, node: FileScan, context: Context) -> None:
        self._store = store_in_run(node.store, context)
        self._versions = versions_in_run(node.files, context)
        self._kept = node.keeps
        self._operator = node.operator
        self._part = node.format.part

    def num_bytes(self, payload: SplitTask) -> int:
        return 0 if self._is_kept(payload) else total_bytes(payload.footer, payload.ranges)

    def late_bytes(self, payload: SplitTask) -> int:
        """Returns the bytes that the reader has to fetch."""
        return 0 if isinstance(payload.store, Fetched) else total_bytes(payload.footer, payload.ranges)

    def version(self, task: SplitTask) -> str | None:
        """Returns the version of its file, as this run met it; None where the store tells none, or nothing has asked."""
        return self._versions.get(task.footer.file.path)

    def _is_kept(self, task: SplitTask) -> bool:
        if self._kept is None or not (chunks := self._kept.chunks):
            return False
        return all(each.kept is not None for each in task.holding(chunks, self.version).splits)

    def read(self, payload: SplitTask) -> Iterator[Made]:
        """Yields the task with its bytes, or as it is if it is kept."""
        yield Made(payload if self._is_kept(payload) else self.fetched(payload), None)

    def fetched(self, task: SplitTask) -> SplitTask:
        """Returns a task with its bytes."""
        if isinstance(task.store, Fetched):
            return task
        file = task.footer.file
        with reading(self._operator, file, task.split.index, self._part):
            if self._store.is_python and file.path not in self._versions:
                # Else two fetches may be of two versions.
                raise_change(change_of(self._store, file, self._versions), file, self._operator)
            store = fetch_ahead(self._store, file, task.ranges, self._versions, self._operator)
            raise_change(change_of(self._store, file, self._versions), file, self._operator)
        return task._replace(store=store)
