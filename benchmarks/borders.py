"""Borders of windows and epochs: does a steady consumer ever wait for `shuffle(n).repeat()`?

The pipeline is run at full speed first, to know its mean time a batch. Then a consumer that takes 1.5 times
that long, as an accelerator would, without using a core, notes how long it waits for each batch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from typing import Any, Final

from benchmarks import data, harness, stream, wide

CONSUMER: Final = 1.5
NEEDED: Final = 3.0
EPOCHS: Final = 5
SHARDS: Final = 4
WINDOW_BATCHES: Final = stream.WINDOW_ROWS // stream.BATCH_ROWS


def _measure(paths: list[str], pipeline: Any) -> harness.Measurement:
    data.read_through(paths)
    _intake(pipeline(paths).to_numpy(), consumer_seconds=0.0)
    watch = harness.Stopwatch()
    batches = len(_intake(pipeline(paths, epochs=EPOCHS).to_numpy(), consumer_seconds=0.0))
    mean = watch.measurement(batches).seconds / batches
    waits = _intake(pipeline(paths, epochs=EPOCHS).to_numpy(), consumer_seconds=CONSUMER * mean)
    steady = sorted(waits[WINDOW_BATCHES:])
    return watch.measurement(
        len(waits) * stream.BATCH_ROWS,
        mean_seconds=mean,
        longest_wait=steady[-1] / mean,
        longest_wait_at=waits.index(steady[-1]),
        epoch_batches=batches / EPOCHS,
        p99_wait=steady[int(0.99 * len(steady))] / mean,
        median_wait=statistics.median(steady) / mean,
    )


def _intake(batches: Iterable[Any], *, consumer_seconds: float) -> list[float]:
    """Returns how long each batch was waited for."""
    waits: list[float] = []
    iterator = iter(batches)
    while True:
        asked = time.perf_counter()
        if next(iterator, None) is None:
            return waits
        waits.append(time.perf_counter() - asked)
        if consumer_seconds:
            time.sleep(consumer_seconds)


def _stream(paths: list[str], epochs: int = 1) -> Any:
    return stream.rows(paths).shuffle(stream.WINDOW_ROWS, seed=7).repeat(epochs).batch(stream.BATCH_ROWS)


def _wide(paths: list[str], epochs: int = 1) -> Any:
    return wide.rows(paths).shuffle(wide.WINDOW_ROWS, seed=7).repeat(epochs).batch(wide.BATCH_ROWS)


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bar for each pipeline, from the median over the rounds of the longest wait."""
    bars = []
    for name, ones in rounds.items():
        longest, p99 = (harness.median_extra(ones, which) for which in ("longest_wait", "p99_wait"))
        mean = 1e3 * harness.median_extra(ones, "mean_seconds")
        got = f"{longest:.1f} (99 % within {p99:.2f}), mean {mean:.2f} ms"
        bars.append(
            harness.Bar(f"borders, {name}", f"<= {NEEDED:.0f} mean times", got, longest <= NEEDED, longest)
        )
    return bars


CONTENDERS: Final = {
    "stream": lambda: _measure(data.lineitem()[:SHARDS], _stream),
    "wide": lambda: _measure(data.wide()[:SHARDS], _wide),
}

if __name__ == "__main__":
    harness.main("borders", CONTENDERS, judge)
