"""Many columns: 1,000 and 10,000 of them with 1,000 rows, read from Parquet as they are, shuffled, and computed with.

To be compared with `read_table` and one `take` of a permutation, which plan nothing and compute nothing. Everything is
measured: the listing of the file, the plan and its rules, the run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import data, harness

SIZES: Final = (1_000, 10_000)
NULLS: Final = ("take-nulls", "fill_null")
"""What reads columns of which a tenth is null."""
NEEDED: Final = 1.5

Pipeline = Callable[[Any, list[str]], Any]

PIPELINES: Final[dict[str, Pipeline]] = {
    "plain": lambda rows, names: rows,
    "shuffle": lambda rows, names: rows.shuffle(data.MANY_COLUMNS_ROWS, seed=7),
    "stack": lambda rows, names: rows.stack(x=names),
    "fill_null": lambda rows, names: rows.fill_null(0.0),
    "cast": lambda rows, names: rows.cast(dict.fromkeys(names, pa.float64())),
    "to_numpy": lambda rows, names: rows.to_numpy(),
}


def take(name: str, size: int) -> harness.Measurement:
    """Measures reading and gathering by hand."""

    def run(path: str) -> int:
        order = np.random.default_rng(7).permutation(data.MANY_COLUMNS_ROWS)
        return int(pq.read_table(path).take(pa.array(order)).num_rows)

    return _measured(run, name, size)


def arrowflow(name: str, size: int) -> harness.Measurement:
    """Measures one pipeline of arrowflow."""
    import arrowflow as af

    def run(path: str) -> int:
        names = pq.read_schema(path).names if name in {"stack", "cast"} else []
        batches = list(PIPELINES[name](af.read_parquet(path), names))
        return sum(
            len(next(iter(one.values()))) if isinstance(one, dict) else one.num_rows for one in batches
        )

    return _measured(run, name, size)


def _measured(run: Callable[[str], int], name: str, size: int) -> harness.Measurement:
    nulls = name in NULLS
    run(data.many_columns(10, nulls=nulls)[0])  # whatever is imported at first
    paths = data.many_columns(size, nulls=nulls)
    data.read_through(paths)
    watch = harness.Stopwatch()
    rows = run(paths[0])
    measurement = watch.measurement(rows)
    if rows != data.MANY_COLUMNS_ROWS:
        raise AssertionError(f"expected {data.MANY_COLUMNS_ROWS} rows, got {rows}")
    return measurement


CONTENDERS: Final[dict[str, harness.Contender]] = {
    f"{name}-{size}": functools.partial(run, name, size)
    for size in SIZES
    for name, run in {"take": take, "take-nulls": take, **dict.fromkeys(PIPELINES, arrowflow)}.items()
}


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns a bar for each pipeline and number of columns."""
    bars = []
    for size in SIZES:
        for name in PIPELINES:
            ours, theirs = f"{name}-{size}", f"{'take-nulls' if name in NULLS else 'take'}-{size}"
            if ours in rounds and theirs in rounds:
                times = 1 / harness.ratio(rounds, ours, theirs)
                cpu = [1000 * harness.median_cpu(rounds[one]) for one in (ours, theirs)]
                needed = f"<= {NEEDED} x read_table, take"
                got = f"{times:.2f} x; CPU {cpu[0]:,.0f} against {cpu[1]:,.0f} ms"
                bars.append(harness.Bar(f"{name}, {size:,} columns", needed, got, times <= NEEDED, times))
    return bars


if __name__ == "__main__":
    harness.main("columns", CONTENDERS, judge)
