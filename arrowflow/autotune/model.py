"""Turns measurements into the figures of one window of time, and finds the stage that limits a pipeline.

The model is Little's law (J. D. C. Little, "A proof for the queuing formula L = λW", 1961). With D the seconds of a
call and X the calls a second, X·D calls are in flight. So a stage that may have N calls in flight makes at most N/D a
second. A chain whose calls use C seconds of CPU a row makes at most budget/ΣC rows a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from arrowflow.physical.tuning import (
    MOSTLY_COMPUTES,
    NO_TIMES,
    WAITS,
    ClusterStatistics,
    Refusals,
    RunSample,
    StageKey,
    StageStatistics,
    Statistics,
    Times,
)

GAPS = 0.75
"""Calls that wait for a part of their time do so at the same time now and then: more of them keep the cores busy."""
LOCK = "it holds the interpreter lock"
"""Reasons use this text for functions that were found to hold the lock."""
CROWDED, ONE_LOCK = 0.7, 1.2
"""Cores that calls which may hold the interpreter lock use or wait for. From the first figure on the calls may be waiting
for the lock; above the second they do not."""
HARDLY_WAITS = 0.02
"""Below this share of waiting the consumer has what it wants."""
WANTS_MORE = 0.1
"""Above this share of waiting, the first batch apart, the pipeline limits a run; else the consumer's own step does."""
SATURATED = 0.85
"""A stage, or the CPU budget, that is in use for this share of the time has nothing left to give."""

IN_USE = 0.8
ENOUGH_CHUNKS, ENOUGH_SECONDS = 16, 0.5

_DOING = {"read": "fetching", "decode": "decoding"}
_FORMATS = {"read_parquet": "Parquet", "read_ipc": "Arrow IPC"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWindow:
    """The figures of one stage in a window.

    Attributes:
        stage: Its statistics at the end of the window.
        calls: Calls that ended in it.
        in_flight: Calls in flight, on average.
        cores: Cores that they used, on average.
        queued: Calls that waited for a core, on average.
        refused: How often it had input, and why no call could start.
        unfinished: Of long calls that still run: calls in flight, cores and those that waited for a core, on average.
    """

    stage: StageStatistics
    calls: int
    in_flight: float
    cores: float
    queued: float
    refused: Refusals
    unfinished: Times = NO_TIMES

    def with_unfinished(self) -> StageWindow:
        """Returns the figures with those of long calls that still run.

        They say who has the cores. Their share of CPU time may be another one when they end: many wait first.
        """
        busy, cores, queued = self.unfinished
        return replace(
            self,
            in_flight=max(0.0, self.in_flight + busy),
            cores=max(0.0, self.cores + cores),
            queued=max(0.0, self.queued + queued),
            unfinished=NO_TIMES,
        )

    @property
    def share(self) -> float:
        """Share of a call's time that is CPU time."""
        return self.cores / self.alive if self.alive else 0.0

    @property
    def alive(self) -> float:
        """Calls that had a core or waited for something else, on average."""
        return max(self.in_flight - self.queued, self.cores)

    @property
    def wanted(self) -> float:
        """Cores that they used or waited for, on average.

        That is one for calls that hold the interpreter lock, however busy the machine is.
        """
        return self.cores + self.queued

    @property
    def trust(self) -> float:
        """How much it says of the CPU time of calls, from 0 to 1: 1/2 where one call is always in flight.

        A few calls that find all in memory say little of many that wait.
        """
        return self.alive / (1 + self.alive)

    @property
    def may_wait(self) -> bool:
        """Whether its calls may wait for something, and how many there are is the tuner's to choose."""
        stage = self.stage
        tuned = stage.cost != "computes" and stage.asked_calls is None
        return tuned and max(stage.limits.weight, self.share) < MOSTLY_COMPUTES

    @property
    def flying(self) -> float:
        """Calls in flight, also where they have not ended yet."""
        return max(self.in_flight, self.stage.running)

    @property
    def all_in_use(self) -> bool:
        """Whether about as many calls were in flight as may be."""
        return self.flying >= IN_USE * self.stage.limits.max_calls

    def call_seconds(self, seconds: float) -> float:
        """Returns the mean length of a call, given that of the window."""
        return self.in_flight * seconds / self.calls if self.calls else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWindow:
    """The figures of a run between two samples.

    Attributes:
        seconds: Its length.
        rows: Rows delivered.
        chunks: Chunks delivered.
        waiting: Share of the time that the consumer waited.
        stages: The figures of each stage.
    """

    seconds: float
    rows: int
    chunks: int
    waiting: float
    stages: dict[StageKey, StageWindow]

    def with_unfinished(self) -> RunWindow:
        """Returns the figures with those of long calls that still run."""
        return replace(self, stages={key: part.with_unfinished() for key, part in self.stages.items()})

    def tunable(self) -> list[tuple[StageKey, StageWindow]]:
        """Returns the stages that may have many calls in flight, the most downstream first."""
        return [(key, part) for key, part in self.stages.items() if part.stage.kind == "parallel"]

    @property
    def waits(self) -> bool:
        """Whether the consumer does not have all that it wants."""
        return self.waiting > HARDLY_WAITS

    @property
    def says_something(self) -> bool:
        """Whether it is long enough for a rate."""
        return self.chunks >= ENOUGH_CHUNKS or self.seconds >= ENOUGH_SECONDS

    def doubt(self, key: StageKey) -> float:
        """Returns by what share the rate may be off, since calls of a stage may end together."""
        return self.stages[key].flying / max(1, self.chunks)

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    @property
    def cores(self) -> float:
        """Cores in use, on average."""
        return sum(stage.cores for stage in self.stages.values())

    @property
    def wanted_cores(self) -> float:
        """Cores in use, and calls that would use one more if the machine had it to give."""
        return self.cores + sum(stage.queued for stage in self.stages.values())

    @property
    def python_cores(self) -> float:
        """Cores that calls used which may hold the interpreter lock: one is all that they can have together."""
        return sum(part.cores for part in self.stages.values() if part.stage.cost != "computes")

    @property
    def python_wanted(self) -> float:
        """The same and those that such calls waited for: no more than one either, where they do hold the lock."""
        return self.python_cores + sum(
            part.queued for part in self.stages.values() if part.stage.cost != "computes"
        )


def window_between(before: RunSample, after: RunSample) -> RunWindow:
    """Returns what happened between two samples of one run."""
    seconds = after.now - before.now
    earlier = {stage.key: stage for stage in before.stages}
    return RunWindow(
        seconds=seconds,
        rows=after.rows - before.rows,
        chunks=after.chunks - before.chunks,
        waiting=min(1.0, (after.waited_seconds - before.waited_seconds) / seconds),
        stages={stage.key: _stage_window(earlier.get(stage.key), stage, seconds) for stage in after.stages},
    )


def _stage_window(before: StageStatistics | None, after: StageStatistics, seconds: float) -> StageWindow:
    def grown(name: str) -> float:
        value: float = getattr(after, name) - (getattr(before, name) if before is not None else 0)
        return value

    busy = grown("busy_seconds")
    earlier = NO_TIMES if before is None else before.unfinished
    unfinished = ((now - then) / seconds for now, then in zip(after.unfinished, earlier, strict=True))
    return StageWindow(
        stage=after,
        calls=int(grown("calls")),
        in_flight=busy / seconds,
        # The CPU time of the workers leaves out the work of other pools; calls in those pools say that they compute.
        cores=(busy * after.limits.weight if after.foreign else grown("cpu_seconds")) / seconds,
        queued=grown("queued_seconds") / seconds,
        refused=after.refusals if before is None else after.refusals.plus(before.refusals, -1),
        unfinished=Times(*unfinished),
    )


def bottleneck(statistics: Statistics) -> str:
    """Returns one line that says what limits a run, and what would help.

    Examples:
        >>> from arrowflow.physical.tuning import Statistics
        >>> from dataclasses import fields
        >>> nothing = Statistics(**{field.name: 0 for field in fields(Statistics)} | {"stages": ()})
        >>> bottleneck(nothing)
        'nothing was measured yet'
    """
    if not statistics.seconds or not statistics.stages:
        return "nothing was measured yet"
    waited, seconds = waiting_after_start(statistics)
    first = f"{statistics.first_batch_seconds:.2f} s for the first batch"
    if statistics.batches < 2 or seconds <= 0:
        return f"nothing was measured yet but {first}"
    waiting = min(1.0, waited / seconds)
    share = f"the loop waited {100 * waiting:.{int(waiting < 0.1)}f} % of {seconds:,.{2 - (seconds >= 10)}f} s (and {first})"
    if waiting < WANTS_MORE:
        return f"your own step limits you: {share}"
    parts = [_stage_window(None, stage, statistics.seconds).with_unfinished() for stage in statistics.stages]
    text, gain = _limit(parts, statistics)
    # No more than a consumer that never waits.
    gain = min(gain, 1 / max(1 - waiting, 0.01) - 1)
    line = f"{text} limits you: {share}"
    return line if gain < 0.01 else f"{line}; two more cores would give about +{_percent(gain)}"


def waiting_after_start(statistics: Statistics) -> tuple[float, float]:
    """Returns the seconds that the consumer waited, and all seconds, both without the wait for the first batch."""
    start = statistics.first_batch_seconds
    return max(0.0, statistics.waited_seconds - start), max(0.0, statistics.seconds - start)


def _limit(parts: Sequence[StageWindow], statistics: Statistics) -> tuple[str, float]:
    """Returns what limits, in words, and what two more cores would give."""
    cores = sum(part.cores for part in parts)
    if statistics.cluster is not None and cores < SATURATED * statistics.cpu_budget:
        return _of_workers(statistics.cluster), 0.0
    alone = max(parts, key=_alone)
    if _alone(alone) >= SATURATED:
        return f"{phrase(alone.stage)}, {_why_alone(alone.stage)},", 0.0
    if cores >= SATURATED * statistics.cpu_budget:
        return phrase(max(parts, key=lambda part: part.cores).stage), 2.0 / statistics.cpu_budget
    if statistics.ledger_peak_bytes >= SATURATED * statistics.ledger_budget_bytes:
        return "ram_budget, which is used up,", 0.0
    longest = max(parts, key=lambda part: part.in_flight)
    stage = longest.stage
    if LOCK in stage.limits.reason:
        return f"{phrase(stage)}, which holds the interpreter lock,", 0.0
    if stage.asked_calls is not None and longest.in_flight >= SATURATED * stage.asked_calls:
        return f"{phrase(stage)}, of which you asked for {stage.asked_calls} calls at a time,", 0.0
    if (few := few_connections(statistics)) is not None:
        return f"the client of your storage, which opens at most {few} connections,", 0.0
    # Calls that wait for the interpreter lock look as if they waited for something else.
    python = sum(part.wanted for part in parts if part.stage.cost != "computes")
    if longest.share < WAITS and longest.in_flight >= 1 and python < CROWDED:
        return f"{phrase(stage)}, which waits with {longest.in_flight:.0f} calls in flight,", 0.0
    return phrase(stage), 0.0


def _of_workers(cluster: ClusterStatistics) -> str:
    """Returns the longest work of workers whose lanes are waited for."""
    busy: dict[str, float] = {}
    for stage in (stage for worker in cluster.workers for stage in worker.stages):
        busy[phrase(stage)] = busy.get(phrase(stage), 0.0) + stage.busy_seconds
    longest = max(busy, key=busy.__getitem__, default="their start")
    return f"{longest}, in the workers of the cluster,"


def few_connections(statistics: Statistics) -> int | None:
    """Returns the connections of a client, if more calls than that waited for it nearly all of the time."""
    seconds = statistics.seconds
    waiting = [stage for stage in statistics.stages if stage.connections is not None]
    most = max((stage.connections for stage in waiting if stage.connections), default=None)
    in_flight = sum(stage.busy_seconds for stage in waiting) / seconds if seconds else 0.0
    return most if most is not None and in_flight >= SATURATED * most else None


def _alone(part: StageWindow) -> float:
    """Returns the share of time in which a stage that can only have one call had it."""
    return part.in_flight if part.stage.kind != "parallel" or part.stage.asked_calls == 1 else 0.0


def _why_alone(stage: StageStatistics) -> str:
    if stage.kind != "parallel":
        return "which runs on one thread at a time"
    return (
        "which makes one chunk after the other" if stage.phase == "read" else "which has one call at a time"
    )


def weight_of(share: float) -> float:
    """Returns what a call takes of the CPU budget, given its share of CPU time."""
    return 1.0 if share > MOSTLY_COMPUTES else max(min(share, WAITS), GAPS * share)


def cpu_time(share: float) -> str:
    """Returns what reasons say of the share of CPU time in a call."""
    return f"{_percent(share)} of a call is CPU time"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def phrase(stage: StageStatistics) -> str:
    """Returns what a stage does, as a person would say it."""
    first = stage.operators[0]
    if stage.phase == "open":
        words = f"opening files for {first}" if first in _FORMATS else f"opening inputs of {first}"
    elif stage.phase in _DOING and first in _FORMATS:
        words = f"{_DOING[stage.phase]} {_FORMATS[first]}"
    else:
        words = first
    rest = "+".join(stage.operators[1:])
    return f"{words} with {rest}" if rest else words
