"""Runs: splits that follow each other in a file, and that one call decodes together.

A call costs the same for few rows as for many: 2 to 4 ms where Polars decodes, and two hand-overs between threads. So
many small row groups cost a third more than a few large ones. A run changes nothing else. Each split is still a chunk,
with its own position and its own key of everything random. So a run may be as long as the byte budget likes.

The first runs of an epoch are short, so that the first batch comes soon, and so that all cores have work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from arrowflow.ops.sources.files.split_tasks import SplitTask

RUN_BYTES: Final = 32 << 20
"""The most decoded bytes of a run. Longer ones gain nothing."""

RUNS_IN_BUDGET: Final = 32
"""The byte budget has room for this many of the longest runs."""

RUNS_PER_CORE: Final = 8
"""An epoch has at least this many runs for each core."""

_FIRST_BYTES: Final = 4 << 20
"""The decoded bytes of the first run; each is up to twice as long as the one before it."""


class Runs:
    """Joins the splits of one epoch.

    Args:
        most_bytes: The most decoded bytes of a run; 0 for runs of one split.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._next_bytes = min(_FIRST_BYTES, most_bytes)

    def of(self, tasks: Iterable[SplitTask]) -> Iterator[SplitTask]:
        """Yields the tasks of some splits in their order, those of runs joined."""
        run: SplitTask | None = None
        try:
            for task in tasks:
                if run is not None and self._joins(run, task):
                    run = run.with_next(task)
                    continue
                if run is not None:
                    yield run
                    self._next_bytes = min(2 * self._next_bytes, self._most_bytes)
                run = task
        except Exception:
            if run is not None:
                yield run
            raise
        if run is not None:
            yield run

    def _joins(self, run: SplitTask, task: SplitTask) -> bool:
        last = run.following[-1] if run.following else run.split
        return (
            0 < run.output_bytes + task.output_bytes <= self._next_bytes
            and task.footer is run.footer
            and task.split.index == last.index + 1
            and run.stop == run.split.num_rows
            and (task.start, task.stop) == (0, task.split.num_rows)
            and not run.unsure
            and not task.unsure
        )
