"""`Measures`: what a stage has measured, and its snapshot for tuner and user."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from arrowflow.bad_rows import NO_BAD_ROWS, LeftOut
from arrowflow.executor.limits import ONE_CALL_SHARE, RECENT_CALLS, SHORTEST_CALL_SECONDS
from arrowflow.physical.stage import StagePlan
from arrowflow.physical.tuning import (
    FIRST_CALLS,
    NO_TIMES,
    Gate,
    Refusals,
    StageKey,
    StageLimits,
    StageStatistics,
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
            "limits": replace(self.limits),
            "operators": plan.titles,
            "engine": plan.engine,
        }
        return StageStatistics(**told, **{name: getattr(self, name) for name in FIELDS if name not in told})
