"""The demo: predict, when a parcel is handed to the carrier, whether it will arrive late.

The data is TPC-H's `lineitem`: 6 M rows in 8 Parquet shards, written once by `tpchgen-cli`. arrowflow reads,
filters, featurises, stacks, shuffles and batches them; a logistic regression in NumPy learns from the batches.
The truth is known: TPC-H draws the days in transit evenly from 1 to 30, whatever else the row says, so a line
arrives late with a probability that falls to one half when 15 days are left to the promised date. The model is
not told. It sees five columns of which one matters, and should find the 15 days, and near-zero weights for
the rest.
"""

from __future__ import annotations

import datetime
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

import arrowflow as af

DATA: Final = Path(__file__).parent.parent / "demo-data"
SHARDS: Final = 8
BATCH_ROWS: Final = 8192
WINDOW_ROWS: Final = 262_144
EPOCHS: Final = 2
LEARNING_RATE: Final = 0.3
SINCE: Final = datetime.date(1993, 1, 1)

# Features at about the same scale, around zero.
FEATURES: Final = {
    "days left": (pl.col("l_commitdate").cast(pl.Int32) - pl.col("l_shipdate").cast(pl.Int32)).cast(
        pl.Float32
    )
    / 30,
    "quantity": pl.col("l_quantity").cast(pl.Float32) / 25 - 1,
    "price": pl.col("l_extendedprice").cast(pl.Float32) / 40_000 - 1,
    "discount": pl.col("l_discount").cast(pl.Float32) * 20 - 1,
    "tax": pl.col("l_tax").cast(pl.Float32) * 25 - 1,
}
LATE: Final = (pl.col("l_receiptdate") > pl.col("l_commitdate")).cast(pl.Float32)

Batch = dict[str, NDArray[np.float32]]


def batches(files: list[Path]) -> Any:
    """Returns the pipeline from shards to batches of `features` (8192, 5) and `late` (8192,)."""
    return (
        af.read_parquet([str(file) for file in files])
        .filter(pl.col("l_shipdate") >= SINCE)
        .with_columns(**FEATURES, late=LATE)
        .select(*FEATURES, "late")
        .stack(features=list(FEATURES))
        .shuffle(WINDOW_ROWS, seed=7)
        .batch(BATCH_ROWS, drop_remainder=True)
        .to_numpy()
    )


class Logistic:
    """A logistic regression, trained by plain stochastic gradient descent."""

    def __init__(self, num_features: int) -> None:
        self.weights = np.zeros(num_features, np.float32)
        self.bias = np.float32(0)
        self.steps = 0

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns the probability of each row."""
        return 1 / (1 + np.exp(-(features @ self.weights + self.bias)))

    def learn(self, features: NDArray[np.float32], target: NDArray[np.float32]) -> float:
        """Takes one step and returns the share of rows that were predicted rightly before it."""
        predicted = self.predict(features)
        error = predicted - target
        self.steps += 1
        rate = np.float32(LEARNING_RATE * 10 / (1 + self.steps / 100))
        self.weights -= rate * (error @ features / len(error))
        self.bias -= rate * error.mean()
        return float(((predicted > 0.5) == (target > 0.5)).mean())


class Progress:
    """A line of text that is rewritten on a terminal, and printed now and then elsewhere."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._every_seconds = 0.1 if self._live else 0.5
        self._next = time.perf_counter()

    def show(self, text: str) -> None:
        """Shows the line, if the last one is old enough."""
        if time.perf_counter() >= self._next:
            print(f"\r{text}\x1b[K" if self._live else text, end="" if self._live else "\n", flush=True)
            self._next = time.perf_counter() + self._every_seconds

    def done(self) -> None:
        """Ends the line."""
        if self._live:
            print()


def shards() -> list[Path]:
    """Returns the Parquet files; writes them at the first call."""
    folder = DATA / "lineitem"
    files = sorted(folder.glob("*.parquet"))
    if len(files) != SHARDS:
        print(f"writing TPC-H lineitem at scale factor 1 into {folder} (once) ...", flush=True)
        tool = Path(sysconfig.get_path("scripts"), "tpchgen-cli")
        what = [
            "parquet",
            "--quiet",
            "--overwrite",
            "--scale-factor=1",
            "--tables=lineitem",
            f"--parts={SHARDS}",
        ]
        subprocess.run([str(tool), *what, f"--output-dir={DATA}"], check=True)
        files = sorted(folder.glob("*.parquet"))
    return files


def train(model: Logistic, files: list[Path]) -> None:
    """Trains for some epochs, with a progress line, and prints how the input kept up."""
    dataset, progress = batches(files), Progress()
    started, rows, waited, right = time.perf_counter(), 0, 0.0, 0.5
    for epoch in range(EPOCHS):
        with iter(dataset) as iterator:
            for batch in iterator:
                right += 0.05 * (model.learn(batch["features"], batch["late"]) - right)
                rows += BATCH_ROWS
                speed = rows / (time.perf_counter() - started)
                progress.show(
                    f"epoch {epoch}  {rows:>10,} rows  {speed / 1e6:5.1f} M rows/s  {right:.1%} right"
                )
            waited += iterator.stats().waited_seconds
    progress.done()
    seconds = time.perf_counter() - started
    print(
        f"\n{rows:,} rows in {EPOCHS} epochs, {seconds:.1f} s: {rows / seconds:,.0f} rows/s; "
        f"the model waited for data {waited / seconds:.0%} of the time"
    )


def judge(model: Logistic, file: Path) -> None:
    """Prints what the model learnt beside what is true, on a shard that it has not seen."""
    right, by_the_rule, late, rows = 0.0, 0.0, 0.0, 0
    for batch in batches([file]):
        features, target = batch["features"], batch["late"] > 0.5
        right += float(((model.predict(features) > 0.5) == target).sum())
        by_the_rule += float(((features[:, 0] < 0.5) == target).sum())
        late += float(target.sum())
        rows += len(target)
    border = -30 * float(model.bias / model.weights[0])
    print(f"on {rows:,} rows of a shard not trained on:")
    print(f"  always guessing 'late'         {max(late, rows - late) / rows:6.1%} right")
    print(f"  the model                      {right / rows:6.1%} right")
    print(f"  the rule behind the data       {by_the_rule / rows:6.1%} right (the most that is possible)")
    print(f"  learnt: late when fewer than {border:.1f} days are left; true: 15")
    weights = ", ".join(f"{name} {weight:+.2f}" for name, weight in zip(FEATURES, model.weights, strict=True))
    print(f"  weights: {weights}; true: only the first matters")


def main() -> None:
    """Runs the demo."""
    files = shards()
    model = Logistic(len(FEATURES))
    train(model, files[:-1])
    judge(model, files[-1])


if __name__ == "__main__":
    main()
