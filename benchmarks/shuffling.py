"""Shuffling: is `shuffle()` uniform, does `shuffle(n)` mix as tf.data's buffer of n rows does, and how fast are they?

tf.data's algorithm is simulated: a buffer of n rows, of which a random one is put out and the next row takes its
place. Mixing is measured in rows of the input, as shares of all rows: how far a row is moved, and how far apart in the
input two neighbours of the output were.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks import harness

BUFFER_ROWS: Final = 65_536
SPEED_ROWS: Final = 4_000_000
SPEED_COLUMNS: Final = 5
BATCH_ROWS: Final = 8_192
SEEDS: Final = 1_000
FEW_ROWS: Final = 4
SOME_ROWS: Final = 32
CELL_BITS: Final = 13
CELLS: Final = 33
MANY_ROWS: Final = CELLS << CELL_BITS  # more than 2**18, up to where orders are sorted
TF_ROWS_PER_SECOND: Final = 0.31e6
NEEDED_SPEED: Final = 40.0
NEEDED_RATIO: Final = 0.3
MAX_DEVIATIONS: Final = 4.0
DISTANCES: Final = ("moved", "neighbours")

Orders = npt.NDArray[np.int64]


# ------------------------------------------------------------------------------------------- uniformity


def uniformity() -> harness.Measurement:
    """Measures how many standard deviations statistics of 1,000 orders lie off those of chance."""
    watch = harness.Stopwatch()
    few = _orders(FEW_ROWS)
    counts = np.unique(few @ FEW_ROWS ** np.arange(FEW_ROWS), return_counts=True)[1]
    some = _orders(SOME_ROWS)
    cells = np.bincount((some * SOME_ROWS + np.arange(SOME_ROWS)).ravel(), minlength=SOME_ROWS**2)
    found = {
        f"z of all orders of {FEW_ROWS} rows": _chi_square(counts, len(counts) - 1),
        f"z of places of {SOME_ROWS} rows": _chi_square(cells, (SOME_ROWS - 1) ** 2),
        **_correlation(f"{SOME_ROWS} rows", [_ranks(order, np.arange(SOME_ROWS)) for order in some]),
        **_correlation(
            f"{SOME_ROWS} rows of two epochs", list(map(_ranks, some, _orders(SOME_ROWS, epoch=1)))
        ),
        **_many(),
    }
    return watch.measurement(SEEDS, **found)


def _orders(num_rows: int, *, epoch: int = 0) -> Orders:
    import arrowflow as af

    data = af.range(num_rows)
    found = []
    for seed in range(SEEDS):
        with iter(data.shuffle(seed=seed)) as iterator:
            iterator.set_epoch(epoch)
            found.append(np.concatenate([batch["id"].to_numpy() for batch in iterator]))
    return np.stack(found)


def _many() -> dict[str, float]:
    """Returns the statistics of so many rows that their order is not sorted, but computed place by place."""
    from arrowflow.random import Permutation

    cells = np.zeros(CELLS**2, np.int64)
    places = np.arange(MANY_ROWS)
    centred = places - (MANY_ROWS - 1) / 2
    scale = (MANY_ROWS - 1) ** 0.5 / float(centred @ centred)
    ranks, neighbours = [], []
    for seed in range(SEEDS):
        rows = Permutation(MANY_ROWS, (seed,)).part(0, MANY_ROWS)
        cells += np.bincount((rows >> CELL_BITS) * CELLS + (places >> CELL_BITS), minlength=CELLS**2)
        moved = rows - (MANY_ROWS - 1) / 2
        ranks.append(float(moved @ centred) * scale)
        neighbours.append(float(moved[1:] @ moved[:-1]) * scale)
    return {
        f"z of places of {MANY_ROWS} rows": _chi_square(cells, (CELLS - 1) ** 2),
        **_correlation(f"{MANY_ROWS} rows", ranks),
        **_correlation(f"neighbours of {MANY_ROWS} rows", neighbours),
    }


def _chi_square(counts: Orders, freedom: int) -> float:
    expected = counts.sum() / counts.size
    return float((((counts - expected) ** 2).sum() / expected - freedom) / (2 * freedom) ** 0.5)


def _ranks(first: Orders, second: Orders) -> float:
    """Returns Spearman's correlation of two orders, in standard deviations."""
    return float(np.corrcoef(first, second)[0, 1] * (len(first) - 1) ** 0.5)


def _correlation(what: str, scores: list[float]) -> dict[str, float]:
    count = len(scores)
    return {
        f"z of mean correlation of {what}": float(np.mean(scores)) * count**0.5,
        f"z of its spread of {what}": (float(np.var(scores)) - 1) / (2 / count) ** 0.5,
    }


# ------------------------------------------------------------------------------------------- mixing


def mixing(make: Callable[[], Any]) -> harness.Contender:
    """Returns a contender that delivers the numbered rows of a dataset."""

    def measure() -> harness.Measurement:
        dataset = make()
        watch = harness.Stopwatch()
        order = np.concatenate([batch["id"] for batch in dataset.batch(BATCH_ROWS).to_numpy()])
        return watch.measurement(len(order), **_distances(order))

    return measure


def buffer() -> harness.Measurement:
    """Measures tf.data's algorithm, in plain Python: its speed is not tf.data's."""
    from benchmarks import data

    draws = np.random.default_rng(7).integers(0, BUFFER_ROWS, data.COUNTED_ROWS).tolist()
    watch = harness.Stopwatch()
    held = list(range(BUFFER_ROWS))
    order = []
    for draw, row in zip(draws, range(BUFFER_ROWS, data.COUNTED_ROWS), strict=False):
        order.append(held[draw])
        held[draw] = row
    rest = np.random.default_rng(8).permutation(held)
    found = np.array(list(itertools.chain(order, rest.tolist())), np.int64)
    return watch.measurement(len(found), **_distances(found))


def _distances(order: Orders) -> dict[str, float]:
    num_rows = len(order)
    if not np.array_equal(np.sort(order), np.arange(num_rows)):
        raise AssertionError("not every row came once")
    return {
        "moved": float(np.abs(order - np.arange(num_rows)).mean() / num_rows),
        "neighbours": float(np.abs(np.diff(order)).mean() / num_rows),
    }


def _numbered_files() -> Any:
    import arrowflow as af
    from benchmarks import data

    return af.read_parquet(data.counted())


def _numbers() -> Any:
    import arrowflow as af
    from benchmarks import data

    return af.range(data.COUNTED_ROWS)


# ------------------------------------------------------------------------------------------- speed


def windows() -> harness.Measurement:
    """Measures windows over 5 columns in memory."""
    import arrowflow as af

    rng = np.random.default_rng(3)
    arrays = {f"c{index}": rng.random(SPEED_ROWS, dtype=np.float32) for index in range(SPEED_COLUMNS)}
    dataset = af.from_numpy(arrays).shuffle(BUFFER_ROWS, seed=7).batch(BATCH_ROWS, drop_remainder=True)
    return harness.drain(dataset.to_numpy, batch_rows=BATCH_ROWS)


def vectors(*, shuffle: bool) -> harness.Measurement:
    """Measures 10 M rows of 16 float32, each batch summed up so that all of it is read."""
    import arrowflow as af
    from benchmarks import data

    paths = data.vectors()
    data.read_through(paths)
    dataset = af.read_ipc(paths)
    if shuffle:
        dataset = dataset.shuffle(seed=7)
    total, rows = 0.0, 0
    watch = harness.Stopwatch()
    for batch in dataset.batch(BATCH_ROWS).to_numpy():
        total += float(batch["x"].sum())
        rows += len(batch["x"])
    return watch.measurement(rows, total=total)


# ------------------------------------------------------------------------------------------- bars


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars."""
    return [*_uniform_bars(rounds), *_mixing_bars(rounds), *_speed_bars(rounds)]


def _uniform_bars(rounds: harness.Rounds) -> list[harness.Bar]:
    if "uniformity" not in rounds:
        return []
    found = {name: z for name, z in rounds["uniformity"][0].extra.items() if name.startswith("z of ")}
    worst = max(found, key=lambda name: abs(found[name]))
    got = f"{abs(found[worst]):.1f} at worst ({worst.removeprefix('z of ')}; {len(found)} statistics)"
    needed = f"<= {MAX_DEVIATIONS:.0f} deviations"
    return [harness.Bar("shuffle() is uniform", needed, got, abs(found[worst]) <= MAX_DEVIATIONS)]


def _mixing_bars(rounds: harness.Rounds) -> list[harness.Bar]:
    """Windows of sources whose files and row groups, or blocks of rows, are permuted too, against a buffer."""
    if "files-windows" not in rounds or "buffer" not in rounds:
        return []
    bars = []
    for what in DISTANCES:
        got = {
            name: harness.median_extra(rounds[name], what)
            for name in ("files-windows", "buffer", "memory-windows", "memory-all")
            if name in rounds
        }
        shown = ", ".join(f"{name} {share:.3f}" for name, share in got.items())
        ratio = min(got[name] / got["buffer"] for name in ("files-windows", "memory-windows") if name in got)
        bars.append(harness.Bar(f"mixing, {what}", ">= 1 x the buffer", shown, ratio >= 1, ratio))
    return bars


def _speed_bars(rounds: harness.Rounds) -> list[harness.Bar]:
    bars = []
    if "windows" in rounds:
        got = harness.median_speed(rounds["windows"]) / TF_ROWS_PER_SECOND
        needed, shown = f">= {NEEDED_SPEED:.0f} x tf.data", f"{harness.millions(rounds, 'windows')} M rows/s"
        bars.append(harness.Bar("windows of 5 columns", needed, shown, got >= NEEDED_SPEED, got))
    if "vectors" in rounds and "vectors-shuffled" in rounds:
        got = harness.ratio(rounds, "vectors-shuffled", "vectors")
        shown = " against ".join(harness.millions(rounds, name) for name in ("vectors-shuffled", "vectors"))
        needed = f">= {NEEDED_RATIO:.1f} x reading"
        bars.append(
            harness.Bar("shuffle() of vectors", needed, f"{shown} M rows/s", got >= NEEDED_RATIO, got)
        )
    return bars


CONTENDERS: Final[dict[str, harness.Contender]] = {
    "uniformity": uniformity,
    "files-windows": mixing(lambda: _numbered_files().shuffle(BUFFER_ROWS, seed=7)),
    "memory-windows": mixing(lambda: _numbers().shuffle(BUFFER_ROWS, seed=7)),
    "memory-all": mixing(lambda: _numbers().shuffle(seed=7)),
    "buffer": buffer,
    "windows": windows,
    "vectors": lambda: vectors(shuffle=False),
    "vectors-shuffled": lambda: vectors(shuffle=True),
}

if __name__ == "__main__":
    harness.main("shuffling", CONTENDERS, judge, rounds=3)
