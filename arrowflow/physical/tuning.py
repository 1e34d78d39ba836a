"""The seam between the executor and whoever sets its limits: what a stage may tune and what it measures.

The executor writes `StageStatistics` and obeys `StageLimits`; a tuner reads the one and sets the other. Without
a tuner the limits are those that `default_limits` derives from the plan and the CPU budget.
"""

from __future__ import annotations

from dataclasses import replace

from arrowflow.records import dataclass

MAX_REORDER_SLOTS = 64
"""Calls started but not delivered, at most. Measured: tying it to the parallelism instead idles the workers behind
one straggler (1.178 s against 0.470 s, ideal 0.440 s)."""


@dataclass(slots=True, kw_only=True)
class StageLimits:
    """What may be changed while a stage runs, under the executor's lock. Order and values never depend on it.

    Attributes:
        max_calls: Calls at the same time.
        max_ready_items: Chunks that wait, in order, for the next stage.
        max_slots: Calls started but not delivered, ordered or not.
        ledger_share: Share of the byte budget up to which the stage may start calls ahead of need. Stages
            further down have more, so that a full ledger never keeps them from emptying it.
    """

    max_calls: int
    max_ready_items: int
    max_slots: int = MAX_REORDER_SLOTS
    ledger_share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStatistics:
    """What one stage did so far.

    Attributes:
        operators: The operators that it runs, upstream first.
        engine: Where its work runs.
        max_calls: Its limit of calls at the same time.
        calls: Finished calls.
        rows: Rows that it put out. Divide by the run's seconds for its throughput.
        bytes: Bytes of new buffers that it put out; what it only passed on does not count.
        chunks: Chunks with rows that it put out.
        busy_seconds: Wall time of its calls, summed over workers. Much above `cpu_seconds`: it waits, for I/O,
            for another pool, or for the interpreter lock.
        cpu_seconds: CPU time of the workers within its calls; work in Arrow's or Polars' own pools is not in it.
        ready_items: Chunks that wait for the next stage now. Always 0: the stage limits the pipeline, or one above
            it does. Always at its limit: what is below is faster than what is above.
        max_ready_items: The most that ever waited.
        running: Calls in flight now.
    """

    operators: tuple[str, ...]
    engine: str
    max_calls: int
    calls: int
    rows: int
    bytes: int
    chunks: int
    busy_seconds: float
    cpu_seconds: float
    ready_items: int
    max_ready_items: int
    running: int

    def plus(self, later: StageStatistics) -> StageStatistics:
        """Returns the sum of two stages of the same plan, such as those of two epochs."""
        return replace(
            later,
            calls=self.calls + later.calls,
            rows=self.rows + later.rows,
            bytes=self.bytes + later.bytes,
            chunks=self.chunks + later.chunks,
            busy_seconds=self.busy_seconds + later.busy_seconds,
            cpu_seconds=self.cpu_seconds + later.cpu_seconds,
            ready_items=self.ready_items + later.ready_items,
            max_ready_items=max(self.max_ready_items, later.max_ready_items),
            running=self.running + later.running,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """What one engine measured; see `Statistics` for the fields."""

    stages: tuple[StageStatistics, ...] = ()
    ledger_bytes: int = 0
    ledger_peak_bytes: int = 0
    workers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What one iterator did so far.

    Attributes:
        batches: Batches delivered.
        rows: Rows delivered.
        seconds: Seconds since the first batch was asked for.
        waited_seconds: Seconds that the consumer spent inside `next()`.
        first_batch_seconds: Seconds until the first batch was there; part of `waited_seconds`.
        ledger_bytes: Bytes charged to the ledger now.
        ledger_peak_bytes: The most that were ever charged.
        ledger_budget_bytes: The budget that they are held under.
        workers: Threads that were started.
        stages: One entry per stage, the most downstream first.
    """

    batches: int
    rows: int
    seconds: float
    waited_seconds: float
    first_batch_seconds: float
    ledger_bytes: int
    ledger_peak_bytes: int
    ledger_budget_bytes: int
    workers: int
    stages: tuple[StageStatistics, ...]

    @property
    def rows_per_second(self) -> float:
        """Rows delivered per second of wall time, the consumer's own time included."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def waiting_share(self) -> float:
        """Share of the time that the consumer spent inside `next()`. Near 0: the pipeline is fast enough."""
        return min(1.0, self.waited_seconds / self.seconds) if self.seconds else 0.0
