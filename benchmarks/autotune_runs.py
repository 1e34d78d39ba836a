"""Runs of the autotuner's bars: what one process measures, and the definitions of settled, idle and ideal.

All rates are of batches of one size, between two of them: *after settling* is from the first batch that comes when
1 s has passed and 30 batches were delivered. Runs begin cold, in a process of their own, which has done nothing but
import the library and bring the files into the page cache; the clock starts at the first `next()`.
"""

from __future__ import annotations

import heapq
import itertools
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks import harness
from benchmarks.autotune_pipelines import (
    PHASES,
    PIPELINES,
    STEADY,
    Pipeline,
    Settings,
    load_change,
    straggler,
)
from benchmarks.memory import Sampler, resident_bytes

SETTLE_SECONDS: Final = 1.0
SETTLE_BATCHES: Final = 30
MEASURE_SECONDS: Final = 1.5
SETTLED_SHARE: Final = 0.95
RANK_SETTLE_SECONDS: Final = 0.4  # fixed settings have nothing to learn
RANK_MEASURE_SECONDS: Final = 0.8
CHECKED_BATCHES: Final = 3  # in the round before the first, which makes the data

HICCUP_SECONDS: Final = 0.1  # what a shared machine takes away now and then
HICCUP_BATCHES: Final = 10
BUDGET: Final = 256 << 20
CROWD_SECONDS: Final = 0.005  # a consumer's step, so that everything that may fill up does
PAUSE_SECONDS: Final = (1.0, 0.5)  # the consumer pauses: what is made ahead is made; then nobody has work
STRAGGLER_CALLS: Final = 8
STRAGGLER_READS: Final = {"given": 512, "tuned": 3072}  # seconds of work for either
PHASE_SECONDS: Final = 5.0
PHASE_SPEEDS: Final = ("fast", "slow", "fast")
ADAPT_SECONDS: Final = 3.0

EVERY: Final = PIPELINES | STEADY
MEMORY: Final = {
    "decode": ("256MiB", "unbounded"),
    "decode-wide": ("256MiB", "unbounded"),
    "inflating-map": ("256MiB", "256MiB-crowded"),
}
"""The pipelines whose memory is measured, and how."""


# ---------------------------------------------------------------- one run


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of a run: seconds since its begin, and what was used and delivered by then."""

    seconds: float
    batches: int
    waited_seconds: float
    cpu_seconds: float
    consumer_cpu_seconds: float


class Run:
    """A run that is about to begin, and when each batch of it came.

    Attributes:
        files: What it reads.
        iterator: What is consumed.
        batch_rows: Rows of each batch.
        began: When the first batch was about to be asked for, by `time.perf_counter`.
        times: Seconds from then to each batch.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        settings: Settings | None = None,
        *,
        step_seconds: float | None = None,
        **options: Any,
    ) -> None:
        self.files = pipeline.files()
        self.files.read_through()
        self.iterator = iter(pipeline.dataset(self.files, settings, **options).to_numpy())
        self.batch_rows = pipeline.batch_rows
        self.times: list[float] = []
        self._step_seconds = pipeline.step_seconds if step_seconds is None else step_seconds
        self._waited_seconds = 0.0
        self.began = time.perf_counter()

    def consume(self, until_seconds: float, *, batches: int = 0) -> Mark:
        """Takes batches until this time and until there were this many; returns the moment of the last one."""
        now = 0.0
        while now < until_seconds or len(self.times) < batches:
            if not self.take():
                raise AssertionError(f"the data ended after {now:.2f} s; list the files more often")
            now = self.times[-1]
        return self.mark()

    def take(self) -> bool:
        """Takes one batch, after a consumer's step; returns whether there was one."""
        if self._step_seconds and self.times:
            time.sleep(self._step_seconds)
        asked = time.perf_counter()
        batch = next(self.iterator, None)
        now = time.perf_counter()
        self._waited_seconds += now - asked
        if batch is None:
            return False
        lengths = {len(column) for column in batch.values()}
        if lengths != {self.batch_rows}:
            raise AssertionError(f"expected batches of {self.batch_rows} rows, got {lengths}")
        self.times.append(now - self.began)
        return True

    def mark(self) -> Mark:
        """Returns the moment of the last batch."""
        return Mark(
            self.times[-1], len(self.times), self._waited_seconds, time.process_time(), time.thread_time()
        )

    def between(self, start: Mark, end: Mark, **extra: float) -> harness.Measurement:
        """Returns the part of the run between two moments."""
        seconds = end.seconds - start.seconds
        extra["waited_share"] = (end.waited_seconds - start.waited_seconds) / seconds
        extra["consumer_cpu_seconds"] = end.consumer_cpu_seconds - start.consumer_cpu_seconds
        rows = (end.batches - start.batches) * self.batch_rows
        return harness.Measurement(rows, seconds, end.cpu_seconds - start.cpu_seconds, extra)


def checked(run: Run) -> harness.Measurement | None:
    """Returns a very short measurement in the round that only checks that everything runs, else None."""
    if harness.CHECKING not in os.environ:
        return None
    with run.iterator:
        first = run.consume(0.0, batches=1)
        return run.between(first, run.consume(0.0, batches=1 + CHECKED_BATCHES))


def after_settling(run: Run) -> harness.Measurement:
    """Measures a run after it settled, and when that was."""
    with run.iterator:
        settled = run.consume(SETTLE_SECONDS, batches=SETTLE_BATCHES)
        before = run.iterator.stats()
        end = run.consume(settled.seconds + MEASURE_SECONDS)
        after = run.iterator.stats()
        one = run.between(settled, end, ledger_peak_bytes=after.ledger_peak_bytes)
    batches_per_second = (end.batches - settled.batches) / one.seconds
    seconds, batches = settling(run.times, batches_per_second)
    one.extra["settling_seconds"], one.extra["settling_batches"] = seconds, batches
    one.extra["settling_share"] = seconds / max(SETTLE_SECONDS, run.times[SETTLE_BATCHES - 1])
    return harness.Measurement(
        one.rows, one.seconds, one.cpu_seconds, one.extra | in_flight(before, after, one.seconds)
    )


def in_flight(before: Any, after: Any, seconds: float) -> dict[str, float]:
    """Returns the mean calls in flight of each stage; says where the tuner went, and judges nothing."""
    return {
        f"in flight {number} {'+'.join(late.operators)}": (late.busy_seconds - early.busy_seconds) / seconds
        for number, (early, late) in enumerate(zip(before.stages, after.stages, strict=False))
    }


def settling(times: Sequence[float], batches_per_second: float) -> tuple[float, int]:
    """Returns the seconds, and the batches, after which a run kept to its rate.

    That is the first batch, or the begin, from which on no later moment lacks more than an allowance of what 95 % of
    the rate would have delivered since. The allowance is ten batches, or what comes in 0.1 s if that is more: chunks
    make several batches at once, and the machine is shared. So a hiccup does not count, and a run that gains its last
    speed slowly is found settled a little early.
    """
    rate = SETTLED_SHARE * batches_per_second
    allowance = max(HICCUP_BATCHES, HICCUP_SECONDS * batches_per_second)
    moments = [0.0, *times]
    # How far ahead of the line the run is at each batch, and just before it: the worst of a wait.
    ahead = [number - rate * moment for number, moment in enumerate(moments)]
    worst = ahead[-1]
    first = len(times)
    for number in range(len(times), -1, -1):
        if worst < ahead[number] - allowance:
            break
        first = number
        worst = min(worst, ahead[number] - 1)
    return moments[first], first


# ---------------------------------------------------------------- contenders


def tuned(pipeline: Pipeline, settings: Settings | None = None, **options: Any) -> harness.Contender:
    """Returns a run after settling, tuned where no settings are given."""

    def measure() -> harness.Measurement:
        run = Run(pipeline, settings, **options)
        return checked(run) or after_settling(run)

    return measure


def ranked(pipeline: Pipeline, settings: Settings) -> harness.Contender:
    """Returns a short run with fixed settings."""

    def measure() -> harness.Measurement:
        if harness.CHECKING in os.environ:
            pipeline.files()  # there are hundreds of contenders; the best ones are checked when they are paired
            return harness.Measurement(1, 1.0, 0.0)
        run = Run(pipeline, settings)
        with run.iterator:
            first = run.consume(RANK_SETTLE_SECONDS, batches=2)
            return run.between(first, run.consume(first.seconds + RANK_MEASURE_SECONDS))

    return measure


def under_memory(
    pipeline: Pipeline, ram_budget: int | None, *, step_seconds: float = 0.0
) -> harness.Contender:
    """Returns a run whose memory is sampled."""

    def measure() -> harness.Measurement:
        import pyarrow as pa

        run = Run(pipeline, step_seconds=step_seconds, ram_budget=ram_budget)
        short = checked(run)
        if short is not None:
            return short
        baseline = resident_bytes()
        sampler = Sampler()
        one = after_settling(run)
        one.extra["rss_peak_bytes"] = sampler.stop()
        one.extra["pool_peak_bytes"] = pa.default_memory_pool().max_memory()
        one.extra["baseline_bytes"] = baseline
        return one

    return measure


def paused(pipeline: Pipeline, *, step_seconds: float) -> harness.Contender:
    """Returns a run after settling, at whose end the consumer pauses: `idle_cores` are then in use."""

    def measure() -> harness.Measurement:
        run = Run(pipeline, step_seconds=step_seconds)
        short = checked(run)
        if short is not None:
            return short
        with run.iterator:
            settled = run.consume(SETTLE_SECONDS, batches=SETTLE_BATCHES)
            end = run.consume(settled.seconds + MEASURE_SECONDS)
            time.sleep(PAUSE_SECONDS[0])
            cpu = time.process_time()
            time.sleep(PAUSE_SECONDS[1])
            idle = (time.process_time() - cpu) / PAUSE_SECONDS[1]
            return run.between(settled, end, idle_cores=idle)

    return measure


def straggling(which: str) -> harness.Contender:
    """Returns a whole run over a remote file with stragglers, as against its ideal schedule.

    The ideal gives the same reads, in the order in which they were started and each as long as it took, to as many
    callers as the run itself had at most, each read to the caller that is free first; so it neither starts fewer
    calls for a while nor waits for a read whose turn it is. What else a call does, and delivering, takes no time in
    it. With calls given it is counted from the first read; tuned, from when the run has settled, with the reads in
    flight then as they were.
    """

    def measure() -> harness.Measurement:
        pipeline = straggler(STRAGGLER_READS[which])
        settings = Settings(STRAGGLER_CALLS, (), STRAGGLER_CALLS) if which == "given" else None
        run = Run(pipeline, settings)
        short = checked(run)
        if short is not None:
            return short
        with run.iterator:
            while run.take():
                pass
        reads = sorted(run.files.filesystem.reads)
        since = reads[0][0] if settings else run.began + SETTLE_SECONDS
        return against_ideal(reads, since=since, until=run.began + run.times[-1])

    return measure


def against_ideal(reads: Sequence[tuple[float, float]], *, since: float, until: float) -> harness.Measurement:
    """Returns the reads that were started after `since`, in which time, and how that compares with the ideal."""
    late = [read for read in reads if read[0] >= since]
    running = [end for begin, end in reads if begin < since < end]
    callers = most_in_flight([read for read in reads if read[1] > since])
    free = running + [since] * (callers - len(running))
    heapq.heapify(free)
    for begin, end in late:
        heapq.heapreplace(free, free[0] + end - begin)
    busy_seconds = sum(end - max(begin, since) for begin, end in reads if end > since)
    return harness.Measurement(
        len(late),
        until - since,
        0.0,
        {
            "times_ideal": (until - since) / (max(free) - since),
            "most_in_flight": callers,
            "mean_in_flight": busy_seconds / (until - since),
        },
    )


def most_in_flight(reads: Iterable[tuple[float, float]]) -> int:
    """Returns how many reads were under way at the same time, at most."""
    events = sorted(event for begin, end in reads for event in ((begin, 1), (end, -1)))
    return max(itertools.accumulate(change for _, change in events))


def changing(kind: str) -> harness.Contender:
    """Returns a run of three phases with the rate in each, from 3 s after its begin to its end."""

    def measure() -> harness.Measurement:
        run = Run(load_change(kind, PHASE_SECONDS))
        short = checked(run)
        if short is not None:
            return short
        with run.iterator:
            first = run.consume(0.0, batches=1)
            one = run.between(first, run.consume(len(PHASE_SPEEDS) * PHASE_SECONDS))
        for phase in range(len(PHASE_SPEEDS)):
            rate, seconds = phase_rate(run.times, phase)
            one.extra[f"rows_per_second_{phase}"] = rate * run.batch_rows
            one.extra[f"reached_seconds_{phase}"] = seconds
        return one

    return measure


def phase_rate(times: Sequence[float], phase: int) -> tuple[float, float]:
    """Returns batches a second at the end of a phase, and how soon in the phase the run kept to that."""
    begin = phase * PHASE_SECONDS
    within = [moment - begin for moment in times if begin < moment <= begin + PHASE_SECONDS]
    settled = [moment for moment in within if moment > ADAPT_SECONDS]
    rate = (len(settled) - 1) / (settled[-1] - settled[0])
    return rate, settling(within, rate)[0]


def contenders() -> dict[str, harness.Contender]:
    """Returns all contenders of all bars, and of the ranking."""
    made: dict[str, harness.Contender] = {}
    for name, pipeline in EVERY.items():
        made[f"{name}/tuned"] = tuned(pipeline)
        made[f"{name}/cpu-1"] = tuned(pipeline, cpu_budget=1)
        for settings in pipeline.grid():
            made[f"{name}/{settings.label}"] = tuned(pipeline, settings)
            made[f"{name}/rank-{settings.label}"] = ranked(pipeline, settings)
    for name in MEMORY:
        made[f"{name}/256MiB"] = under_memory(PIPELINES[name], BUDGET)
        made[f"{name}/unbounded"] = under_memory(PIPELINES[name], None)
        made[f"{name}/256MiB-crowded"] = under_memory(PIPELINES[name], BUDGET, step_seconds=CROWD_SECONDS)
    consumer = PIPELINES["slow-consumer"]
    made["consumer/slow"] = paused(consumer, step_seconds=consumer.step_seconds)
    made["consumer/full-speed"] = paused(consumer, step_seconds=0.0)
    made |= {f"straggler/{which}": straggling(which) for which in STRAGGLER_READS}
    made |= {f"load/{kind}": changing(kind) for kind in PHASES}
    return made
