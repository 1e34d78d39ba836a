"""`Measures`: what a stage has measured; `Elsewhere`: what other processes tell of their stages. With snapshots of both."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from arrowflow.bad_rows import NO_BAD_ROWS, LeftOut
from arrowflow.executor.limits import ONE_CALL_SHARE, RECENT_CALLS, SHORTEST_CALL_SECONDS
from arrowflow.physical.stage import StagePlan
from arrowflow.physical.totals import workers_together
from arrowflow.physical.tuning import (
    FIRST_CALLS,
    NO_TIMES,
    ClusterStatistics,
    Gate,
    Refusals,
    StageKey,
    StageLimits,
    StageStatistics,
    WorkerStatistics,
    are_short,
    short_times,
)

FIELDS = [field.name for field in fields(StageStatistics)]


class Measures:
    """The figures of one stage. The fields are those of `StageStatistics`, and these.

    Attributes:
        refused: How often a look found input and no call could start, by `Gate`.
        lately: CPU and wall seconds of a call, or of a chunk of one that makes several. One call alone makes no short ones
            look long (`ONE_CALL_SHARE`): `overhead` with 512 inputs takes 1.5 x as long without that.
        calls_are_brief: Whether its calls are so brief that their CPU share would be noise: they count as computing.
        calls_are_short: Whether to wake another thread for its calls costs more than they do, as far as is known.
    """

    undelivered = turn_chunks = ready_items = running = 0
    left_out: LeftOut = NO_BAD_ROWS

    def __init__(self, key: StageKey, plan: StagePlan, limits: StageLimits) -> None:
        self.key = key
        self.plan = plan
        self.limits = limits
        self.foreign = plan.cost == "computes" and ("polars" in plan.engine or plan.process)
        self.holds_lock = plan.holds_lock
        self.refused = [0] * len(Gate)
        self.calls = self.rows = self.bytes = self.chunks = self.max_ready_items = 0
        self.busy_seconds = self.cpu_seconds = self.queued_seconds = 0.0
        self.unfinished = NO_TIMES
        self.lately = (0.0, 0.0)
        cpu, elapsed = short_times(holds_lock=self.holds_lock)
        self._most_change = (ONE_CALL_SHARE * cpu, ONE_CALL_SHARE * elapsed)
        self.calls_are_brief = False
        self.calls_are_short = limits.calls_are_short and not self.foreign

    @property
    def refusals(self) -> Refusals:
        """How often a look found input and no call could start."""
        return Refusals(*self.refused)

    def measure(self, cpu: float, elapsed: float, queued: float, chunks: int) -> None:
        """Counts a call that is over and has put out so many chunks."""
        self.calls = calls = self.calls + 1
        self.busy_seconds += elapsed
        self.cpu_seconds += cpu
        self.queued_seconds += queued
        if chunks > 1:
            cpu, elapsed = cpu / chunks, elapsed / chunks
        weight = 1 / calls if calls < RECENT_CALLS else 1 / RECENT_CALLS
        before_cpu, before = self.lately
        most_cpu, most = self._most_change
        change_cpu, change = weight * (cpu - before_cpu), weight * (elapsed - before)
        cpu = before_cpu + (change_cpu if change_cpu < most_cpu else most_cpu)
        elapsed = before + (change if change < most else most)
        self.lately = (cpu, elapsed)
        self.calls_are_brief = calls >= FIRST_CALLS and elapsed < SHORTEST_CALL_SECONDS
        calls = max(calls, self.chunks)
        if calls >= FIRST_CALLS and not self.foreign:
            self.calls_are_short = are_short(calls, cpu, elapsed, holds_lock=self.holds_lock)

    def statistics(self) -> StageStatistics:
        """Returns a snapshot."""
        plan = self.plan
        told: dict[str, Any] = {
            "kind": plan.kind,
            "cost": plan.cost,
            "asked_calls": plan.max_calls,
            "connections": plan.connections,
            "phase": plan.phase,
            "random": plan.random,
            "given_ready": plan.buffer_items is not None,
            "limits": self.limits.of_all(),
            "operators": plan.titles,
            "engine": plan.engine,
        }
        return StageStatistics(**told, **{name: getattr(self, name) for name in FIELDS if name not in told})


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
