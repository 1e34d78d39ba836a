"""`executor="process"`: a function in pure Python of 20 ms a batch against one thread, and what the way there costs.

The workers of `processes` are warm, as they are from the second epoch on; `cold` starts them within what it measures.
`shipped` sends batches of 8192 rows of 40 float64 columns, 2.6 MB, there and back through a function that does nothing;
`kept` calls the same function in a thread.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

import arrowflow as af
from benchmarks import harness

CALLS: Final = 200
LOOPS: Final = 600_000
"""Some 20 ms."""
NEEDED: Final = 1.8
ROWS, COLUMNS, BATCHES = 8192, 40, 300


def spend(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Holds the interpreter lock for some 20 ms."""
    total = 0
    for number in range(LOOPS):
        total += number
    return batch


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Does nothing."""
    return batch


def _spending(executor: Any, **arguments: Any) -> af.Dataset:
    return af.range(64 * CALLS).batch(64).map(spend, executor=executor, **arguments)


def _measure(dataset: af.Dataset, *, warm: bool, batch_rows: int) -> harness.Measurement:
    if warm:
        for _ in dataset:
            pass
    watch = harness.Stopwatch()
    batches = sum(1 for _ in dataset)
    one = watch.measurement(batches * batch_rows)
    one.extra["batch_ms"] = 1e3 * one.seconds / batches
    return one


def _wide(executor: Any) -> harness.Measurement:
    arrays = {f"c{index}": np.random.default_rng(index).random(ROWS) for index in range(COLUMNS)}
    table = pa.Table.from_batches([pa.record_batch(arrays)] * BATCHES)
    return _measure(af.from_arrow(table).batch(ROWS).map(same, executor=executor), warm=True, batch_rows=ROWS)


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bar, and the other figures beside it."""
    bars = []
    if "processes" in rounds and "one thread" in rounds:
        got = harness.ratio(rounds, "processes", "one thread")
        shown = ", ".join(
            f"{name} {harness.median_extra(rounds[name], 'batch_ms'):.1f} ms a batch"
            for name in ("processes", "cold", "one thread")
            if name in rounds
        )
        bars.append(
            harness.Bar("processes, 20 ms a batch", f">= {NEEDED} x one thread", shown, got >= NEEDED, got)
        )
    if "shipped" in rounds and "kept" in rounds:
        there, here = (harness.median_extra(rounds[name], "batch_ms") for name in ("shipped", "kept"))
        bars.append(
            harness.Bar(
                "processes, 2.6 MB both ways", "for information", f"{there - here:.2f} ms a batch", True
            )
        )
    return bars


CONTENDERS: Final = {
    "one thread": lambda: _measure(_spending("thread", num_parallel_calls=1), warm=True, batch_rows=64),
    "processes": lambda: _measure(_spending("process"), warm=True, batch_rows=64),
    "cold": lambda: _measure(_spending("process"), warm=False, batch_rows=64),
    "shipped": lambda: _wide("process"),
    "kept": lambda: _wide("thread"),
}

if __name__ == "__main__":
    harness.main("processes", CONTENDERS, judge)
