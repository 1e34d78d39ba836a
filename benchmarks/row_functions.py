"""`map_rows`: what a row costs on its way to Python and back, and a function in pure Python in two processes.

`identity` hands each row to a function that returns it; `by hand` is pyarrow's `to_pylist` and `from_pylist`. `loop` calls
a function of some 7 µs for each of Polars' `to_dicts()`, and `processes` does so by `map_rows(executor="process")` on two
cores. Its workers are warm, as they are from the second epoch on.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

import arrowflow as af
from benchmarks import harness

ROWS: Final = 300_000
IDENTITY_ROWS: Final = 3_000_000
"""Of a run of seconds: until the tuner knows that the function holds the lock, two calls at a time disturb each other."""
LOOPS: Final = 150
"""Some 7 µs."""
MOST: Final = 1.5
NEEDED: Final = 1.6


def _table(rows: int = ROWS) -> pa.Table:
    numbers = np.arange(rows)
    texts = [f"text {number % 1000}" for number in range(rows)]
    return pa.table({"id": numbers, "x": np.random.default_rng(0).random(rows), "text": texts})


def same(row: dict[str, Any]) -> dict[str, Any]:
    """Does nothing."""
    return row


def spend(row: dict[str, Any]) -> dict[str, Any]:
    """Holds the interpreter lock for some 7 µs."""
    total = 0.0
    for number in range(LOOPS):
        total += number * row["x"]
    return {"id": row["id"], "total": total}


def _by_hand() -> harness.Measurement:
    batches = _table(IDENTITY_ROWS).to_batches(65_536)
    watch = harness.Stopwatch()
    for batch in batches:
        pa.RecordBatch.from_pylist(batch.to_pylist(), schema=batch.schema)
    return watch.measurement(IDENTITY_ROWS)


def _loop() -> harness.Measurement:
    frame = pl.from_arrow(_table())
    assert isinstance(frame, pl.DataFrame)
    watch = harness.Stopwatch()
    for row in frame.to_dicts():
        spend(row)
    return watch.measurement(ROWS)


def _rows(function: Any, rows: int, *, warm: bool = False, **arguments: Any) -> harness.Measurement:
    dataset = af.from_arrow(_table(rows)).map_rows(function, **arguments)
    for _ in dataset if warm else dataset.take(10):  # imports, and threads of pools
        pass
    watch = harness.Stopwatch()
    for _ in dataset:
        pass
    return watch.measurement(rows)


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns both bars."""
    bars = []
    if "identity" in rounds and "by hand" in rounds:
        got = harness.median_cpu(rounds["identity"]) / harness.median_cpu(rounds["by hand"])
        bars.append(
            harness.Bar("map_rows, identity, CPU", f"<= {MOST} x by hand", f"{got:.2f} x", got <= MOST, got)
        )
    if "processes" in rounds and "loop" in rounds:
        got = harness.ratio(rounds, "processes", "loop")
        bars.append(
            harness.Bar(
                "map_rows, two processes", f">= {NEEDED} x a loop", f"{got:.2f} x", got >= NEEDED, got
            )
        )
    return bars


CONTENDERS: Final = {
    "by hand": _by_hand,
    "identity": lambda: _rows(same, IDENTITY_ROWS),
    "loop": _loop,
    "processes": lambda: _rows(spend, ROWS, warm=True, executor="process"),
}

if __name__ == "__main__":
    harness.main("row_functions", CONTENDERS, judge)
