"""What measurements mean: the figures of one window of time, and which stage limits a pipeline.

The model is Little's law. With D the seconds of a call and X the calls a second, X·D calls are in flight; so a stage
that may have N in flight makes at most N/D, and a chain whose calls use C seconds of CPU a row makes at most
budget/ΣC rows a second (J. D. C. Little, "A proof for the queuing formula L = λW", 1961).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from arrowflow.physical.tuning import RunSample, StageKey, StageStatistics, Statistics
from arrowflow.records import dataclass

HARDLY_WAITS = 0.02
"""Below this share of waiting the consumer has what it wants."""
SATURATED = 0.85
"""A stage, or the CPU budget, that is in use for this share of the time has nothing left to give."""

_DOING = {"open": "opening files for", "read": "reading for", "decode": "decoding for"}
_FORMATS = {"read_parquet": "Parquet", "read_ipc": "Arrow IPC"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWindow:
    """What one stage did in a window.

    Attributes:
        stage: Its statistics at the end of the window.
        calls: Calls that ended in it.
        in_flight: Calls in flight, on average.
        cores: Cores that they used, on average.
        queued: Calls that waited for a core, on average.
        capped: Whether it had input, but as many calls in flight as may be.
        full: Whether its output had no room.
    """

    stage: StageStatistics
    calls: int
    in_flight: float
    cores: float
    queued: float
    capped: bool
    full: bool

    @property
    def share(self) -> float:
        """Share of a call's time that is CPU time."""
        alive = max(self.in_flight - self.queued, self.cores)
        return self.cores / alive if alive else 0.0

    def call_seconds(self, seconds: float) -> float:
        """Returns the mean length of a call, given that of the window."""
        return self.in_flight * seconds / self.calls if self.calls else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a run did between two samples.

    Attributes:
        seconds: Its length.
        rows: Rows delivered.
        chunks: Chunks delivered.
        waiting: Share of the time that the consumer waited.
        stages: What each stage did.
    """

    seconds: float
    rows: int
    chunks: int
    waiting: float
    stages: dict[StageKey, StageWindow]

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


def window_between(before: RunSample, after: RunSample) -> Window:
    """Returns what happened between two samples of one run."""
    seconds = after.now - before.now
    earlier = {stage.key: stage for stage in before.stages}
    return Window(
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
    return StageWindow(
        stage=after,
        calls=int(grown("calls")),
        in_flight=busy / seconds,
        # What other pools do is not in the CPU time of the workers; their calls say that they compute.
        cores=(busy if after.foreign else grown("cpu_seconds")) / seconds,
        queued=grown("queued_seconds") / seconds,
        capped=grown("capped") > 0,
        full=grown("full") > 0,
    )


def bottleneck(statistics: Statistics, cpu_budget: int) -> str:
    """Returns one line that says what limits a run, and what would help.

    Example:
        >>> from arrowflow.physical.tuning import Statistics
        >>> from dataclasses import fields
        >>> nothing = Statistics(**{field.name: 0 for field in fields(Statistics)} | {"stages": ()})
        >>> bottleneck(nothing, 2)
        'nothing was measured yet'
    """
    if not statistics.seconds or not statistics.stages:
        return "nothing was measured yet"
    seconds = statistics.seconds
    waiting = statistics.waiting_share
    parts = [_stage_window(None, stage, seconds) for stage in statistics.stages]
    if waiting <= HARDLY_WAITS:
        return f"your own step limits you: {_percent(waiting)} of it is waiting; no pipeline can be faster"
    text, gain = _limit(parts, cpu_budget, statistics)
    # No more than a consumer that never waits.
    gain = min(gain, 1 / max(1 - waiting, 0.01) - 1)
    line = f"{text} limits you: {_percent(waiting)} of the step is waiting"
    return line if gain < 0.01 else f"{line}; {_help(parts, cpu_budget, gain)}"


def _limit(parts: Sequence[StageWindow], cpu_budget: int, statistics: Statistics) -> tuple[str, float]:
    """Returns what limits, in words, and what two more cores would give."""
    alone = max(parts, key=_alone, default=None)
    cores = sum(part.cores for part in parts)
    computing = max(parts, key=lambda part: part.cores)
    if alone is not None and _alone(alone) >= SATURATED:
        why = (
            "which makes one chunk after the other" if alone.stage.kind == "parallel" else "which runs alone"
        )
        return f"{phrase(alone.stage)}, {why},", 0.0
    if cores >= SATURATED * cpu_budget:
        return phrase(computing.stage), min(2.0 / cpu_budget, 2.0)
    if statistics.ledger_peak_bytes >= SATURATED * statistics.ledger_budget_bytes:
        return "ram_budget", 0.0
    waits = max(parts, key=lambda part: part.in_flight)
    lock = " (it holds the interpreter lock)" if "interpreter lock" in waits.stage.reason else ""
    return f"{phrase(waits.stage)}{lock}", 0.0


def _alone(part: StageWindow) -> float:
    """Returns the share of time in which a stage that can only have one call had it."""
    return part.in_flight if part.stage.kind != "parallel" or part.stage.asked_calls == 1 else 0.0


def _help(parts: Iterable[StageWindow], cpu_budget: int, gain: float) -> str:
    return f"two more cores would give about {gain:+.0%}".replace("%", " %")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def phrase(stage: StageStatistics) -> str:
    """Returns what a stage does, as a person would say it."""
    first = stage.operators[0]
    if stage.phase == "decode" and first in _FORMATS:
        words = f"decoding {_FORMATS[first]}"
    elif stage.phase in _DOING:
        words = f"{_DOING[stage.phase]} {first}"
    else:
        words = first
    rest = "+".join(stage.operators[1:])
    return f"{words} with {rest}" if rest else words
