"""The exercise of tf.data's performance guide against the best schedule there is: `examples/tutorial.py`, measured.

    python -m benchmarks.tutorial
    python -m benchmarks.tutorial --only prefetch map-parallel --rounds 15

Each case runs in a process of its own, for the first time in it. The clock starts before the pipeline is built, so
planning, the start of threads and what is imported late are all in the time; only the imports at the top are not.

A case takes hardly anything but sleeps, and a sleep takes longer than was asked for. So what it is held against is
worked out in the same process from its own sleeps: `best_seconds` puts them, each as long as those of its kind took
on average, into the best schedule.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks import harness
from examples import tutorial

NEEDED_TIMES: Final = 1.03
NEEDED_VECTORISED_MILLISECONDS: Final = 5.0

TF_DATA_SECONDS: Final = {
    "naive": 0.200,
    "prefetch": 0.199,
    "interleave-sequential": 0.368,
    "interleave-parallel": 0.287,
    "map-sequential": 0.386,
    "map-parallel": 0.291,
    "cache": 0.319,
    "scalar": 0.196,
    "vectorised": 0.033,
    "whole": 6.22,
}
"""Of TensorFlow 2.21, measured once, on another machine with 2 cores: no contender, but something to hold on to."""

Took = Callable[[float], float]
"""How long a sleep of so many seconds takes."""


# ---------------------------------------------------------------- the best schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a case sleeps for, and what it may do at the same time.

    Attributes:
        ahead: Whether everything begins as soon as it can; else each thing waits for the one before it.
        sources: Data sets, which take turns row by row.
        samples: Rows of each.
        batch_rows: Rows of a batch.
        map_seconds: What the preparation of a batch takes.
        cached: Whether what was prepared in the first epoch is there in the others.
        late_map_seconds: What a second preparation takes, behind the cache.
        epochs: How often the model sees the data.
    """

    ahead: bool = False
    sources: int = 1
    samples: int = tutorial.SAMPLES
    batch_rows: int = 1
    map_seconds: float = 0.0
    cached: bool = False
    late_map_seconds: float = 0.0
    epochs: int = tutorial.EPOCHS


class Schedule:
    """Jobs, each of which begins as soon as all that it needs has ended: so `end` is the longest chain of needs.

    There is a thread for every job, since one that sleeps needs no core. Without `ahead` there is one thread for all.

    Attributes:
        end: When the last job ends.
    """

    def __init__(self, *, ahead: bool, took: Took) -> None:
        self.end = 0.0
        self._ahead = ahead
        self._took = took

    def job(self, seconds: float, *needs: float) -> float:
        """Adds a sleep that needs what ended at these times, and returns when it ends."""
        began = max(needs) if self._ahead else self.end
        ended = began + self._took(seconds) if seconds else began
        self.end = max(self.end, ended)
        return ended


def best_seconds(work: Work, took: Took) -> float:
    """Returns how long the best schedule takes.

    What orders it: a data set opens and then reads one row after the other; a batch is prepared when its last row is
    read; the model trains on one row after the other; and nothing of an epoch is asked for before the one in front
    of it has ended.
    """
    schedule = Schedule(ahead=work.ahead, took=took)
    for epoch in range(work.epochs):
        _add_epoch(schedule, work, from_cache=work.cached and epoch > 0)
    return schedule.end


def _add_epoch(schedule: Schedule, work: Work, *, from_cache: bool) -> None:
    """Adds the jobs of an epoch in the order in which one thread would do them."""
    began = trained = schedule.end
    read: dict[int, float] = {}  # when a data set has read its latest row
    for start in range(0, work.sources * work.samples, work.batch_rows):
        ready = began
        if not from_cache:
            for row in range(start, start + work.batch_rows):
                source = row % work.sources
                if source not in read:
                    read[source] = schedule.job(tutorial.OPEN_SECONDS, began)
                read[source] = schedule.job(tutorial.READ_SECONDS, read[source])
                ready = max(ready, read[source])
            ready = schedule.job(work.map_seconds, ready)
        ready = schedule.job(work.late_map_seconds, ready)
        for _ in range(work.batch_rows):
            trained = schedule.job(tutorial.STEP_SECONDS, ready, trained)


WORK: Final = {
    "naive": Work(),
    "prefetch": Work(ahead=True),
    "interleave-sequential": Work(sources=2),
    "interleave-parallel": Work(sources=2, ahead=True),
    "map-sequential": Work(map_seconds=tutorial.MAP_SECONDS),
    "map-parallel": Work(map_seconds=tutorial.MAP_SECONDS, ahead=True),
    "cache": Work(map_seconds=tutorial.MAP_SECONDS, cached=True, epochs=5),
    "whole": Work(
        ahead=True,
        sources=2,
        samples=tutorial.MANY,
        batch_rows=tutorial.MANY,
        map_seconds=tutorial.MANY * tutorial.SLOW_SECONDS,
        cached=True,
        late_map_seconds=tutorial.MANY * tutorial.QUICK_SECONDS,
        epochs=5,
    ),
}
"""All cases that sleep."""


# ---------------------------------------------------------------- one run


class Sleeps:
    """Sleeps, from any thread, and notes how long it took."""

    def __init__(self) -> None:
        self._sleep = time.sleep
        self._took: defaultdict[float, list[float]] = defaultdict(list)

    def __call__(self, seconds: float) -> None:
        began = time.perf_counter()
        self._sleep(seconds)
        self._took[seconds].append(time.perf_counter() - began)

    def mean(self, seconds: float) -> float:
        """Returns how long the sleeps of so many seconds took on average."""
        return statistics.fmean(self._took[seconds])


def measure(case: tutorial.Case) -> harness.Measurement:
    """Measures a case from its first line on, and what it could have been."""
    sleeps = Sleeps()
    time.sleep = sleeps  # type: ignore[assignment]  # for all that this process does
    gc.collect()  # what the imports left behind: looking through it takes 10 to 25 ms, whoever happens to start it
    watch = harness.Stopwatch()
    rows = tutorial.train(case, case.make().to_numpy())
    one = watch.measurement(rows)
    if case.name in WORK:
        work = WORK[case.name]
        if rows != work.epochs * work.sources * work.samples:
            raise AssertionError(f"{case.name}: {rows} rows do not fit {work}")
        one.extra["best_seconds"] = best_seconds(work, sleeps.mean)
    return one


# ---------------------------------------------------------------- bars


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Prints all cases, and returns the bars of those that are tuned."""
    rows = [("case", "seconds", "best", "times", "over", "tf.data 2.21")]
    rows += [_row(name, ones) for name, ones in rounds.items()]
    harness.print_table(rows)
    bars = [_bar(name, rounds[name]) for name, work in WORK.items() if work.ahead and name in rounds]
    if "vectorised" in rounds:
        got = 1e3 * _median_seconds(rounds["vectorised"])
        needed = f"<= {NEEDED_VECTORISED_MILLISECONDS:.0f} ms"
        met = got <= NEEDED_VECTORISED_MILLISECONDS
        bars.append(harness.Bar("tutorial, vectorised", needed, f"{got:.1f} ms", met))
    return bars


def _row(name: str, ones: Sequence[harness.Measurement]) -> tuple[str, str, str, str, str, str]:
    seconds, tf_data = f"{_median_seconds(ones):.4f}", f"{TF_DATA_SECONDS[name]:.3f}"
    if name not in WORK:
        return name, seconds, "", "", "", tf_data
    best = harness.median_extra(ones, "best_seconds")
    over = statistics.median(1e3 * (one.seconds - one.extra["best_seconds"]) for one in ones)
    return name, seconds, f"{best:.4f}", f"{_times(ones):.3f}", f"{over:.1f} ms", tf_data


def _bar(name: str, ones: Sequence[harness.Measurement]) -> harness.Bar:
    times = _times(ones)
    got = f"{_median_seconds(ones):.4f} against {harness.median_extra(ones, 'best_seconds'):.4f} s"
    return harness.Bar(
        f"tutorial, {name}", f"<= {NEEDED_TIMES} x the best schedule", got, times <= NEEDED_TIMES, times
    )


def _times(ones: Sequence[harness.Measurement]) -> float:
    """Returns how many times the best schedule a case took."""
    return statistics.median(one.seconds / one.extra["best_seconds"] for one in ones)


def _median_seconds(ones: Sequence[harness.Measurement]) -> float:
    return statistics.median(one.seconds for one in ones)


CONTENDERS: Final[dict[str, harness.Contender]] = {
    case.name: partial(measure, case) for cases in tutorial.STORY for case in cases
}

if __name__ == "__main__":
    harness.main("tutorial", CONTENDERS, judge)
