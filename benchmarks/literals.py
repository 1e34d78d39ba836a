"""Expressions with a million keys: the time from the expression to the first batch.

`is_in` filters a Parquet file of ten row groups by a list, and `replace_strict` maps its column. The keys are Series, so
that Python's lists are no part of the time. `few` filters by three keys: the time of everything else.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import arrowflow as af
from benchmarks import harness

KEYS: Final = 1_000_000
ROWS: Final = 1_000_000
MOST_SECONDS: Final = 0.3


def _first_batch(keys: pl.Series, *, maps: bool) -> harness.Measurement:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "numbers.parquet")
        pq.write_table(pa.table({"x": np.arange(ROWS) % 5000}), path, row_group_size=ROWS // 10)
        for _ in af.read_parquet(path).filter(pl.col("x") > 3).head(10):
            pass  # imports, and threads of pools
        watch = harness.Stopwatch()
        ds = af.read_parquet(path)
        if maps:
            ds = ds.with_columns(y=pl.col("x").replace_strict(keys, keys, default=-1))
        else:
            ds = ds.filter(pl.col("x").is_in(keys.implode()))
        with iter(ds) as batches:
            next(batches)
            return watch.measurement(len(keys))


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns a bar for each kind."""
    bars = []
    for name in ("is_in", "replace_strict"):
        if name in rounds:
            got = harness.median_cpu(rounds[name])
            shown = f"{got:.2f} s of CPU"
            bars.append(
                harness.Bar(
                    f"{name}, {KEYS:,} keys, first batch",
                    f"<= {MOST_SECONDS} s",
                    shown,
                    got <= MOST_SECONDS,
                    got,
                )
            )
    return bars


def _keys(count: int) -> pl.Series:
    return pl.Series("keys", np.arange(count) * 2)


CONTENDERS: Final = {
    "is_in": lambda: _first_batch(_keys(KEYS), maps=False),
    "replace_strict": lambda: _first_batch(_keys(KEYS), maps=True),
    "few": lambda: _first_batch(_keys(3), maps=False),
}

if __name__ == "__main__":
    harness.main("literals", CONTENDERS, judge)
