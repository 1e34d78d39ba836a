"""Statistics of twelve million rows, and features by them: arrowflow beside Polars.

`describe` of Polars reads the same file lazily. It has other figures than `fit` has: exact quartiles of all columns, and no
vocabulary. The features are computed from a table in memory. Each library holds it in its own layout: Polars' texts are views,
and Arrow's have offsets. Polars computes them for the whole table at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow.parquet as pq

import arrowflow as af
from benchmarks import data, harness

ROWS: Final = 12_000_000
WORDS: Final = 20_000
FITTED: Final[dict[str, Any]] = {
    "mean": ["a", "b"],
    "min_max": ["d"],
    "quantiles": {"c": 16, "e": 16},
    "vocabulary": {"s": 10_000},
}
NEEDED_FIT, NEEDED_FEATURES = 1.0, 0.9


def _write(folder: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {
        "a": rng.gamma(2.0, 1.0, ROWS),
        "b": rng.normal(size=ROWS).astype(np.float32),
        "c": rng.integers(0, 50, ROWS),
        "d": rng.random(ROWS),
        "e": rng.integers(0, 1_000_000_000, ROWS),
        "s": np.array([f"word-{number}" for number in range(WORDS)])[rng.integers(0, WORDS, ROWS)],
    }
    pl.DataFrame(columns).write_parquet(folder / "rows.parquet", row_group_size=262_144)


def _paths() -> list[str]:
    paths = [str(path) for path in data.made_once("features", _write).glob("*.parquet")]
    data.read_through(paths)
    return paths


def fit() -> harness.Measurement:
    """Fits six columns."""
    paths = _paths()
    watch = harness.Stopwatch()
    af.read_parquet(paths).fit(**FITTED)
    return watch.measurement(ROWS)


def describe() -> harness.Measurement:
    """Describes six columns."""
    paths = _paths()
    watch = harness.Stopwatch()
    af.read_parquet(paths).describe()
    return watch.measurement(ROWS)


def polars() -> harness.Measurement:
    """Describes six columns by Polars."""
    paths = _paths()
    watch = harness.Stopwatch()
    pl.scan_parquet(paths).describe()
    return watch.measurement(ROWS)


def features() -> harness.Measurement:
    """Computes features in batches."""
    paths = _paths()
    table, stats = af.from_arrow(pq.read_table(paths)), af.read_parquet(paths).fit(**FITTED)
    exprs = _features(stats)
    for _ in table.take(10).select(**exprs).batch(10):  # imports, and threads of pools
        pass
    watch = harness.Stopwatch()
    rows = sum(batch.num_rows for batch in table.select(**exprs).batch(65_536))
    return watch.measurement(rows)


def features_by_polars() -> harness.Measurement:
    """Computes the same features for the whole table."""
    paths = _paths()
    table, stats = pl.read_parquet(paths), af.read_parquet(paths).fit(**FITTED)
    # As one writes it for Polars: a cast to an Enum is its fastest way to number words.
    number = pl.col("s").cast(pl.Enum(stats.vocabulary("s")), strict=False).to_physical().cast(pl.UInt32)
    exprs = _features(stats) | {"s": (number + 1).fill_null(0)}
    watch = harness.Stopwatch()
    rows = len(table.select(**exprs))
    return watch.measurement(rows)


def _features(stats: af.FeatureStatistics) -> dict[str, pl.Expr]:
    return {
        "a": stats.standardize("a"),
        "d": stats.rescale("d"),
        "e": stats.bucketize("e"),
        "s": stats.index("s"),
    }


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars of fitting and of features."""
    bars = harness.race_bar(rounds, "fit", ours="fit", theirs=["Polars describe"], needed=NEEDED_FIT)
    more = harness.race_bar(
        rounds, "features", ours="features", theirs=["Polars features"], needed=NEEDED_FEATURES
    )
    return [*bars, *more]


CONTENDERS: Final[dict[str, harness.Contender]] = {
    "fit": fit,
    "describe": describe,
    "Polars describe": polars,
    "features": features,
    "Polars features": features_by_polars,
}

if __name__ == "__main__":
    harness.main("features", CONTENDERS, judge)
