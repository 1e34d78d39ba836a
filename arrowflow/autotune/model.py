"""Turns measurements into the figures of one window of time.

The model is Little's law (J. D. C. Little, "A proof for the queuing formula L = λW", 1961). With D the seconds of a
call and X the calls a second, X·D calls are in flight. So a stage that may have N calls in flight makes at most N/D a
second. A chain whose calls use C seconds of CPU a row makes at most budget/ΣC rows a second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from arrowflow.physical.tuning import (
    MOSTLY_COMPUTES,
    NO_TIMES,
    WAITS,
    Refusals,
    RunSample,
    StageKey,
    StageStatistics,
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

IN_USE = 0.8
ENOUGH_CHUNKS, ENOUGH_SECONDS = 16, 0.5


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
        return sum(stage.wanted for stage in self.stages.values())

    @property
    def python_cores(self) -> float:
        """Cores that calls used which may hold the interpreter lock: one is all that they can have together."""
        return sum(part.cores for part in self.stages.values() if part.stage.cost != "computes")

    @property
    def python_wanted(self) -> float:
        """The same and those that such calls waited for: no more than one either, where they do hold the lock."""
        return sum(part.wanted for part in self.stages.values() if part.stage.cost != "computes")


def window_between(before: RunSample, after: RunSample) -> RunWindow:
    """Returns what happened between two samples of one run."""
    seconds = after.now - before.now
    earlier = {stage.key: stage for stage in before.stages}
    return RunWindow(
        seconds=seconds,
        rows=after.rows - before.rows,
        chunks=after.chunks - before.chunks,
        waiting=min(1.0, (after.waited_seconds - before.waited_seconds) / seconds),
        stages={stage.key: stage_window(earlier.get(stage.key), stage, seconds) for stage in after.stages},
    )


def stage_window(before: StageStatistics | None, after: StageStatistics, seconds: float) -> StageWindow:
    """Returns the figures of a stage between two looks at it, the first of which may be its start."""

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


def weight_of(share: float) -> float:
    """Returns what a call takes of the CPU budget, given its share of CPU time."""
    return 1.0 if share > MOSTLY_COMPUTES else max(min(share, WAITS), GAPS * share)


def cpu_time(share: float) -> str:
    """Returns what reasons say of the share of CPU time in a call."""
    return f"{percent(share)} of a call is CPU time"


def percent(share: float) -> str:
    """Returns a share in words."""
    return f"{100 * share:.0f} %"
