"""The limit of a run in words, and a forecast of the run under another CPU budget.

The model is that of `model.py`: a stage that may have N calls of D seconds in flight makes at most N/D a second, and all
stages together at most as many as the CPU budget has cores for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from arrowflow.autotune.model import CROWDED, LOCK, StageWindow, percent, stage_window
from arrowflow.errors import counted
from arrowflow.options import available_cpus
from arrowflow.physical.tuning import WAITS, ClusterStatistics, StageStatistics, Statistics

WANTS_MORE = 0.1
"""Above this share of waiting, the first batch apart, the pipeline limits a run; else the consumer's own step does."""
SATURATED = 0.85
"""A stage, or the CPU budget, that is in use for this share of the time has nothing left to give."""
SHARED_SPEED = 0.93
"""Of the speed of a core, what is left where twice as many compute: they share caches, the memory's bandwidth and heat.
`benchmarks.what_if` measured 0.81 to 1.0 from one core to two, on three CPUs."""

_HOLDS_LOCK = "which holds the interpreter lock"
_DOING = {"read": "fetching", "decode": "decoding"}
_FORMATS = {"read_parquet": "Parquet", "read_ipc": "Arrow IPC"}


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
    text, is_cpu = _limit(statistics)
    line = f"{text} limits you: {share}"
    more = forecast(statistics, statistics.cpu_budget + 2).rows_per_second if is_cpu else 0.0
    gain = more / statistics.rows_per_second - 1 if statistics.rows else 0.0
    return line if gain < 0.01 else f"{line}; two more cores would give about +{percent(gain)}"


def waiting_after_start(statistics: Statistics) -> tuple[float, float]:
    """Returns the seconds that the consumer waited, and all seconds, both without the wait for the first batch."""
    start = statistics.first_batch_seconds
    return max(0.0, statistics.waited_seconds - start), max(0.0, statistics.seconds - start)


def _limit(statistics: Statistics) -> tuple[str, bool]:
    """Returns what limits, in words, and whether it is the CPU budget."""
    parts = [stage_window(None, stage, statistics.seconds).with_unfinished() for stage in statistics.stages]
    cores = sum(part.cores for part in parts)
    if statistics.cluster is not None and cores < SATURATED * statistics.cpu_budget:
        return _of_workers(statistics.cluster), False
    alone = max(parts, key=_alone)
    if _alone(alone) >= SATURATED:
        return f"{phrase(alone.stage)}, {_why_alone(alone.stage)},", False
    if cores >= SATURATED * statistics.cpu_budget:
        return phrase(max(parts, key=lambda part: part.cores).stage), True
    if statistics.ledger_peak_bytes >= SATURATED * statistics.ledger_budget_bytes:
        return "ram_budget, which is used up,", False
    longest = max(parts, key=lambda part: part.in_flight)
    stage = longest.stage
    # Calls that wait for the interpreter lock look as if they waited for something else.
    python = sum(part.wanted for part in parts if part.stage.cost != "computes")
    if LOCK in stage.limits.reason:
        why = _HOLDS_LOCK
    elif stage.asked_calls is not None and longest.in_flight >= SATURATED * stage.asked_calls:
        why = f"of which you asked for {counted(stage.asked_calls, 'call')} at a time"
    elif (few := few_connections(statistics)) is not None:
        return f"the client of your storage, which opens at most {few} connections,", False
    elif longest.share < WAITS and longest.in_flight >= 1 and python < CROWDED:
        why = f"which waits with {counted(round(longest.in_flight), 'call')} in flight"
    else:
        return phrase(stage), False
    return f"{phrase(stage)}, {why},", False


class Forecast(NamedTuple):
    """A run under another CPU budget: the rows that it delivers a second, and its limit in words."""

    rows_per_second: float
    limit: str


def forecast(statistics: Statistics, cpu_budget: int) -> Forecast:
    """Returns what a run that has delivered rows would do under another CPU budget.

    Time that the model does not explain, such as the wait for the first batch, stays as it is.
    """
    now, _ = least(statistics.stages, statistics, statistics.cpu_budget)
    then, limit = least(statistics.stages, statistics, cpu_budget)
    unexplained = max(0.0, statistics.seconds - now)
    if unexplained > then:
        limit, _ = _limit(statistics)
    return Forecast(statistics.rows / (then + unexplained), limit)


def least(stages: Sequence[StageStatistics], statistics: Statistics, cpu_budget: int) -> tuple[float, str]:
    """Returns the time that an epoch takes where only these stages run under a CPU budget, and what limits it.

    The consumer makes its steps as before. The wall time of calls says little: calls wait for a core, for the
    interpreter lock and for each other.
    """
    found = [(statistics.seconds - statistics.waited_seconds, "your own step")]
    if stages:
        # The consumer's thread is outside of the budget, and takes its part of the machine's cores all the same.
        beside = max(0.0, statistics.cpu_seconds - _core_seconds(statistics.stages, statistics))
        computed = _core_seconds(stages, statistics)
        computed *= SHARED_SPEED ** -math.log2(cpu_budget / statistics.cpu_budget)
        seconds = max(computed / cpu_budget, (computed + beside) / max(cpu_budget, available_cpus()))
        found.append((seconds, phrase(max(stages, key=lambda stage: stage.core_seconds))))
    locked = [stage for stage in stages if LOCK in stage.limits.reason]
    if locked:
        seconds = sum(stage.cpu_seconds for stage in locked)
        found.append((seconds, f"{phrase(locked[0])}, {_HOLDS_LOCK},"))
    for stage in stages:
        # Where the limit was lowered, the calls were made in the time of the run all the same.
        seconds = stage.busy_seconds - stage.queued_seconds
        found += [
            (min(seconds / calls, statistics.seconds), f"{phrase(stage)}, {why},")
            for calls, why in _most_calls(stage)
        ]
    return max(found, key=lambda each: each[0])


def _core_seconds(stages: Sequence[StageStatistics], statistics: Statistics) -> float:
    """Returns the core seconds of stages: of pools no more than the process used, as their calls wait on a busy machine."""
    cores = sum(stage.core_seconds for stage in stages)
    is_here = all("polars" in stage.engine for stage in stages if stage.foreign)  # not in worker processes
    return min(cores, statistics.cpu_seconds) if is_here and statistics.cpu_seconds else cores


def _most_calls(stage: StageStatistics) -> Iterator[tuple[int, str]]:
    """Yields limits of the calls that a stage may have in flight, whatever the CPU budget, and says why."""
    if stage.kind != "parallel" or stage.asked_calls == 1:
        yield 1, _why_alone(stage)
    elif stage.asked_calls is not None:
        yield stage.asked_calls, f"of which you asked for {counted(stage.asked_calls, 'call')} at a time"
    elif stage.cost != "computes" and LOCK not in stage.limits.reason:
        yield stage.limits.max_calls, f"which waits with {counted(stage.limits.max_calls, 'call')} in flight"
    if stage.kind == "parallel" and stage.calls:
        yield stage.calls, f"which makes {counted(stage.calls, 'call')} in all"


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
    one = "makes one chunk after the other" if stage.phase == "read" else "has one call at a time"
    return f"which {one}"


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
