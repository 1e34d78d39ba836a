"""Mixing datasets row by row: how many rows a second, and how far the shares stray from the weights."""

from __future__ import annotations

from typing import Any, Final

from benchmarks import harness

SOURCE_ROWS: Final = 1_000_000
ROWS: Final = 8_000_000
BATCH_ROWS: Final = 8_192
WEIGHTS: Final = (0.7, 0.3)
MANY_WEIGHTS: Final = (0.4, 0.3, 0.2, 0.1)
SHARE_ROWS: Final = 1_000_000
SHARE_SEEDS: Final = 5
NEEDED_ROWS_PER_SECOND: Final = 5e6
NEEDED_SIGMAS: Final = 3.0


def sources(count: int) -> list[Any]:
    """Returns endless datasets of 5 columns in memory; `source` tells where a row comes from."""
    import numpy as np
    import pyarrow as pa

    import arrowflow as af

    rows = np.arange(SOURCE_ROWS)
    tables = [
        pa.table(
            {
                "source": np.full(SOURCE_ROWS, number, np.int32),
                "row": rows,
                "price": rows / 3,
                "tax": (rows / 7).astype(np.float32),
                "day": (rows % 365).astype(np.int16),
            }
        )
        for number in range(count)
    ]
    return [af.from_arrow(table).repeat() for table in tables]


def sample() -> harness.Measurement:
    """Measures `sample_from_datasets` of two sources, in batches, to NumPy."""
    import arrowflow as af

    return _measured(af.sample_from_datasets(sources(2), WEIGHTS, seed=7))


def choose() -> harness.Measurement:
    """Measures `choose_from_datasets` of two sources, in batches, to NumPy."""
    import numpy as np

    import arrowflow as af

    chosen = (np.random.default_rng(7).random(SOURCE_ROWS) > WEIGHTS[0]).astype(np.int64)
    return _measured(af.choose_from_datasets(sources(2), af.from_numpy({"choice": chosen}).repeat()))


def _measured(dataset: Any) -> harness.Measurement:
    loader = dataset.take(ROWS).batch(BATCH_ROWS).to_numpy()
    watch = harness.Stopwatch()
    rows = sum(len(batch["row"]) for batch in loader)
    return watch.measurement(rows)


def shares() -> harness.Measurement:
    """Measures the largest distance of a share from its weight, in standard deviations, over all prefixes."""
    import numpy as np

    import arrowflow as af

    worst = 0.0
    counted = np.arange(1, SHARE_ROWS + 1)
    watch = harness.Stopwatch()
    for seed in range(SHARE_SEEDS):
        ds = af.sample_from_datasets(sources(len(MANY_WEIGHTS)), MANY_WEIGHTS, seed=seed)
        batches = ds.select("source").take(SHARE_ROWS).to_numpy()
        drawn = np.concatenate([batch["source"] for batch in batches])
        for number, weight in enumerate(MANY_WEIGHTS):
            off = np.abs(np.cumsum(drawn == number) - counted * weight)
            worst = max(worst, float((off / np.sqrt(counted * weight * (1 - weight))).max()))
    return watch.measurement(SHARE_SEEDS * SHARE_ROWS, sigmas=worst)


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars."""
    bars = [
        harness.Bar(
            f"{name}: two sources of 5 columns",
            f">= {NEEDED_ROWS_PER_SECOND / 1e6:.0f} M rows/s",
            f"{harness.millions(rounds, name)} M rows/s",
            harness.median_speed(rounds[name]) >= NEEDED_ROWS_PER_SECOND,
            harness.median_speed(rounds[name]) / NEEDED_ROWS_PER_SECOND,
        )
        for name in ("sample", "choose")
        if name in rounds
    ]
    if "shares" in rounds:
        worst = max(one.extra["sigmas"] for one in rounds["shares"])
        met = worst <= NEEDED_SIGMAS * (1 + 1e-9)
        title = f"shares of {SHARE_SEEDS} seeds, every prefix of {SHARE_ROWS:,} rows"
        bars.append(harness.Bar(title, f"<= {NEEDED_SIGMAS:.0f} sigma", f"{worst:.2f} sigma", met))
    return bars


CONTENDERS: Final[dict[str, harness.Contender]] = {"sample": sample, "choose": choose, "shares": shares}

if __name__ == "__main__":
    harness.main("mixing", CONTENDERS, judge)
