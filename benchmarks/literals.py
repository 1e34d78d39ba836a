"""Expressions with a million keys: the time from the expression to the first batch.

`is_in` filters a Parquet file of ten row groups by a list, and `replace_strict` maps its column; with texts and binaries
`is_in` looks at a column of these. The keys are Series, so that Python's lists are no part of the time. `few` filters by three
keys: the time of everything else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
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
MOST_SECONDS: Final = {
    "is_in": 0.3,
    "is_in-texts": 0.3,
    "is_in-long-texts": 0.5,  # four times the bytes of numbers, which are written and digested
    "is_in-binaries": 0.3,
    "replace_strict": 0.3,
}
"""Seconds of CPU for each kind."""
KINDS: Final[dict[str, Callable[[pl.Series], pl.Series]]] = {
    "numbers": lambda numbers: numbers,
    "texts": lambda numbers: numbers.cast(pl.String).str.reverse(),  # in no order
    # A text of up to 12 bytes is compared as it is, and a longer one by its hash.
    "long texts": lambda numbers: numbers.cast(pl.String).str.reverse() + " is too long",
    "binaries": lambda numbers: numbers.cast(pl.String).str.reverse().cast(pl.Binary),
}


def _first_batch(count: int, kind: str = "numbers", *, maps: bool = False) -> harness.Measurement:
    keys = KINDS[kind](pl.Series("keys", np.arange(count) * 2))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "numbers.parquet")
        column = KINDS[kind](pl.Series("x", np.arange(ROWS) % 5000))
        pq.write_table(pa.table({"x": column.to_arrow()}), path, row_group_size=ROWS // 10)
        for _ in af.read_parquet(path).filter(pl.col("x") > column[3]).head(10):
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
    for name, most in MOST_SECONDS.items():
        if name in rounds:
            got = harness.median_cpu(rounds[name])
            shown = f"{got:.2f} s of CPU"
            bars.append(
                harness.Bar(
                    f"{name}, {KEYS:,} keys, first batch",
                    f"<= {most} s",
                    shown,
                    got <= most,
                    got,
                )
            )
    return bars


CONTENDERS: Final = {
    "is_in": lambda: _first_batch(KEYS),
    "is_in-texts": lambda: _first_batch(KEYS, "texts"),
    "is_in-long-texts": lambda: _first_batch(KEYS, "long texts"),
    "is_in-binaries": lambda: _first_batch(KEYS, "binaries"),
    "replace_strict": lambda: _first_batch(KEYS, maps=True),
    "few": lambda: _first_batch(3),
}

if __name__ == "__main__":
    harness.main("literals", CONTENDERS, judge)
