"""Tabular classification in PyTorch: who of the visitors of a shop will buy?

Parquet shards are filtered, get features, are shuffled and batched, and come as `(inputs, target)` to a small network.
The visits are made up, so that what is true of them is known: whether somebody buys follows from how late it is, from
the price against what people of that age pay, and from the country. One visit in five is that of a bot, which never buys
and has to be left out; one age in ten is not known.

    python examples/tabular.py        # needs PyTorch: the extra `torch`
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import nn

import arrowflow as af

DATA: Final = Path(__file__).parent.parent / "demo-data"
SHARDS: Final = 8
BATCH_ROWS: Final = 1024
COUNTRIES: Final = ("at", "br", "de", "jp", "ke", "us")
MEAN_AGE: Final = 45

HOUR: Final = pl.col("hour") * (2 * np.pi / 24)
FEATURES: Final = {
    "price_log": pl.col("price").log(),
    "age_scaled": (pl.col("age").fill_null(MEAN_AGE) - MEAN_AGE) / 16,
    "age_missing": pl.col("age").is_null().cast(pl.Float64),
    "hour_sin": HOUR.sin(),
    "hour_cos": HOUR.cos(),
}


def make(folder: Path, rows: int) -> None:
    """Writes made-up visits as Parquet shards."""
    rng = np.random.default_rng(1)
    hour, age = rng.uniform(0, 24, rows), rng.integers(18, 75, rows)
    price, country = np.exp(rng.normal(0, 0.7, rows)), rng.integers(len(COUNTRIES), size=rows)
    bot = rng.random(rows) < 0.2
    late = np.cos((hour - 21) * 2 * np.pi / 24)
    score = 1.5 * late - 3 * np.log(price) * np.sign(age - MEAN_AGE) + np.array([-1, 2, 0, 1, -2, 0])[country]
    probability = 1 / (1 + np.exp(1 - score))
    visits = pl.DataFrame(
        {
            "hour": hour,
            "age": pl.Series(age).set(pl.Series(rng.random(rows) < 0.1), None),
            "price": price,
            "country": np.array(COUNTRIES)[country],
            "bot": bot,
            "probability": probability,  # the truth, which no model is shown
            "bought": ~bot & (rng.random(rows) < probability),
        }
    )
    af.from_arrow(visits).write_parquet(folder, shard_rows=-(-rows // SHARDS))


def visits(files: Sequence[Path]) -> af.Dataset:
    """Returns the visits of people, with features."""
    return (
        af.read_parquet(files)
        .filter(~pl.col("bot"))
        .with_columns(**FEATURES)
        .stack(dense=list(FEATURES), dtype=pl.Float32)
        .cast({"country": pl.Enum(COUNTRIES)})  # comes as its number
    )


def collate(batch: dict[str, torch.Tensor]) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Returns inputs and target."""
    return (batch["dense"], batch["country"]), batch["bought"]


class Network(nn.Module):
    """Two hidden layers over the features and what is learnt about each country."""

    def __init__(self) -> None:
        super().__init__()
        self.country = nn.Embedding(len(COUNTRIES), 4)
        self.layers = nn.Sequential(
            nn.Linear(len(FEATURES) + 4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, dense: torch.Tensor, country: torch.Tensor) -> torch.Tensor:
        """Returns a score for each row."""
        return self.layers(torch.cat([dense, self.country(country)], dim=1)).squeeze(1)


def auc(score: NDArray[Any], bought: NDArray[Any]) -> float:
    """Returns how often somebody who bought has a higher score than somebody who did not."""
    ranks = np.empty(len(score))
    ranks[np.argsort(score)] = np.arange(1, len(score) + 1)
    buyers = int(bought.sum())
    below = ranks[bought].sum() - buyers * (buyers + 1) / 2
    return float(below / (buyers * (len(score) - buyers)))


def judge(network: Network, name: str, test: dict[str, torch.Tensor]) -> float:
    """Prints how good the network is on visits that it has not seen, and returns its AUC."""
    with torch.no_grad():
        score = network(test["dense"], test["country"]).numpy()
    bought = test["bought"].numpy()
    found = auc(score, bought)
    print(f"{name:<22} {((score > 0) == bought).mean():6.1%} right, AUC {found:.3f}", flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes the data, trains and tells what was learnt."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder for the data, which is made once")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args(arguments)
    torch.manual_seed(1)
    torch.set_num_threads(1)  # steps as small as these are slower with more

    folder = options.data / f"visits-{options.rows}"
    if not folder.exists():  # it gets its name when all of it is written
        make(folder, options.rows)
    *files, last = sorted(folder.glob("*.parquet"))

    train = visits(files).shuffle(65_536, seed=7).batch(BATCH_ROWS, drop_remainder=True)
    loader = train.with_options(af.Options(progress=True)).to_torch(
        columns=["dense", "country", "bought"],
        dtypes={"country": "int64", "bought": "float32"},
        collate=collate,
    )
    unseen = visits([last])
    (test,) = unseen.batch(options.rows).to_torch(
        columns=["dense", "country", "bought", "probability"], dtypes={"country": "int64"}
    )
    bought, probability = test["bought"].numpy(), test["probability"].numpy()
    print(f"{'the majority class':<22} {max(bought.mean(), 1 - bought.mean()):6.1%} right, AUC 0.500")

    network = Network()
    before = after = judge(network, "before training", test)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for epoch in range(options.epochs):
        for inputs, target in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(network(*inputs), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        after = judge(network, f"after epoch {epoch}", test)
    right = (
        (probability > 0.5) == bought
    ).mean()  # the most that is possible, and more than the network is told
    print(f"{'who knows all ages':<22} {right:6.1%} right, AUC {auc(probability, bought):.3f}\n")
    print(loader.explain())
    if after < max(before, 0.5) + 0.05:
        sys.exit(f"learnt nothing: AUC {before:.3f} before, {after:.3f} after")


if __name__ == "__main__":
    main()
