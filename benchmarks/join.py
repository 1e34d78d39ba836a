"""A left join of twelve million rows with a table in memory: arrowflow beside Polars on the whole table.

The index of the table is made in the measured time. Polars has all cores for one call.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import numpy as np
import polars as pl

import arrowflow as af
from benchmarks import harness

ROWS: Final = 12_000_000
NEEDED: Final = 0.9
CASES: Final = {
    "10k numbers": (10_000, "numbers"),
    "1M numbers": (1_000_000, "numbers"),
    "10k far apart": (10_000, "far apart"),
    "1M far apart": (1_000_000, "far apart"),
    "10k texts": (10_000, "texts"),
}
"""Rows of the table, and the kind of its keys."""


def _data(table_rows: int, kind: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Returns the rows and the table."""
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 1 << 62, table_rows) if kind == "far apart" else rng.permutation(table_rows)
    values = {"a": rng.random(table_rows, np.float32), "b": rng.integers(0, 9, table_rows)}
    table = pl.DataFrame({"key": keys, **values})
    rows = pl.DataFrame({"key": rng.choice(keys, ROWS), "x": rng.random(ROWS)})
    if kind == "texts":
        rows, table = (each.with_columns(key=pl.format("user-{}", "key")) for each in (rows, table))
    return rows, table


def _drained(watch: harness.Stopwatch, frames: Iterable[Any]) -> harness.Measurement:
    rows, total = 0, 0.0
    for frame in frames:
        rows += len(frame)
        if harness.CHECKING in os.environ:
            found = pl.DataFrame(frame)
            total += float((found["a"] + found["b"] * found["x"]).to_numpy().sum())
    assert rows == ROWS
    checked = {"sum of all": total} if harness.CHECKING in os.environ else {}
    return watch.measurement(rows, **checked)


def arrowflow(table_rows: int, kind: str) -> harness.Measurement:
    """Joins chunk by chunk."""
    rows, table = _data(table_rows, kind)
    whole = af.from_arrow(rows)  # texts as they are in a pipeline
    watch = harness.Stopwatch()
    return _drained(watch, whole.join(table, "key"))


def polars(table_rows: int, kind: str) -> harness.Measurement:
    """Joins the whole table at once."""
    rows, table = _data(table_rows, kind)
    watch = harness.Stopwatch()
    return _drained(watch, [rows.join(table, on="key", how="left", maintain_order="left")])


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns a bar for each case."""
    return [
        bar
        for name in CASES
        for bar in harness.race_bar(
            rounds, name, ours=f"arrowflow, {name}", theirs=[f"Polars, {name}"], needed=NEEDED
        )
    ]


CONTENDERS: Final[dict[str, harness.Contender]] = {
    f"{title}, {name}": partial(join, *case)
    for name, case in CASES.items()
    for title, join in {"arrowflow": arrowflow, "Polars": polars}.items()
}

if __name__ == "__main__":
    harness.main("join", CONTENDERS, judge)
