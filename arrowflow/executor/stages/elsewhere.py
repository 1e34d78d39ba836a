"""`Elsewhere`: what other processes did for a run, as they tell of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from arrowflow.bad_rows import NO_BAD_ROWS, LeftOut
from arrowflow.physical.totals import workers_together
from arrowflow.physical.tuning import ClusterStatistics, WorkerStatistics


class Elsewhere:
    """The figures of the workers of a cluster that run the lanes of a run. Any thread."""

    def __init__(self) -> None:
        # Not the engine's: kernels add to it while they hold nothing. A finalizer may look in the middle of an addition.
        self._lock = threading.RLock()
        self._workers: dict[tuple[str, int], WorkerStatistics] = {}
        self._bad: dict[Any, tuple[str, LeftOut]] = {}
        self._moves: tuple[str, ...] = ()

    def add(self, worker: WorkerStatistics) -> None:
        """Adds what a worker did since it was asked last."""
        key = (worker.node, worker.process)
        with self._lock:
            before = self._workers.get(key)
            self._workers[key] = worker if before is None else workers_together(before, worker)

    def leave_out(self, operator: str, place: Any, found: LeftOut) -> None:
        """Counts bad rows of a place once. A run that comes there in the middle finds fewer of them, so the most count."""
        with self._lock:
            _, before = self._bad.get(place, (operator, NO_BAD_ROWS))
            most = LeftOut(max(before.rows, found.rows), max(before.parts, found.parts))
            self._bad[place] = operator, most

    def move(self, moves: Sequence[str]) -> None:
        """Takes the reasons for which workers came and went."""
        if len(moves) != len(self._moves):
            self._moves = tuple(moves)

    def statistics(self) -> ClusterStatistics | None:
        """Returns all of it; None where nothing ran elsewhere."""
        with self._lock:
            if not self._workers:
                return None
            left_out: dict[str, LeftOut] = {}
            for operator, found in self._bad.values():
                left_out[operator] = left_out.get(operator, NO_BAD_ROWS).plus(found)
            return ClusterStatistics(
                workers=tuple(self._workers.values()), left_out=left_out, moves=self._moves
            )
