"""Shared by the tests of caches in folders and in stores: pipelines, and a function that tells when it is called."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

import arrowflow as af

SMALL = af.Options(max_chunk_rows=3)


def noise(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
    return batch.append_column("noise", pa.array(rng.random(batch.num_rows)))


class Log:
    """A function that notes the first row of each batch in a file, from any process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        with self.path.open("a") as file:
            file.write(f"{batch.column(0)[0].as_py()}\n")
        return batch

    @property
    def rows(self) -> list[int]:
        return [int(line) for line in self.path.read_text().split()] if self.path.exists() else []


def endless_at_first(root: str | Path) -> tuple[af.Dataset, Iterator[int]]:
    """Returns a cache of rows that cannot be repeated: 100 to 109 from the second run on; and the counter of its runs."""
    runs = itertools.count()

    def rows() -> Iterator[dict[str, int]]:
        run = next(runs)
        # The first run cannot be over before it is broken off, however far it reads ahead.
        yield from ({"x": 100 * run + number} for number in (range(10) if run else itertools.count()))

    return af.from_generator(rows, schema=pa.schema([("x", pa.int64())])).cache(root, key="rows"), runs


CASES: dict[str, Callable[[af.Dataset, str], af.Dataset]] = {
    "alone": lambda ds, root: ds.cache(root),
    "twice": lambda ds, root: ds.cache(root).filter(pl.col("row") % 3 != 0).cache(root),
    "repeated": lambda ds, root: ds.cache(root).repeat(3),
    "in batches": lambda ds, root: ds.batch(4).cache(root),
    "below a batch": lambda ds, root: ds.cache(root).batch(4),
    "of a function": lambda ds, root: ds.with_options(SMALL).map(noise, seed=1).cache(root).batch(5),
    "of a shuffle": lambda ds, root: ds.shuffle(6, seed=1).cache(root),
    "of a repeat": lambda ds, root: ds.repeat(2).cache(root).skip(3).take(20),
    "compressed": lambda ds, root: ds.cache(root, compression="zstd").batch(3),
    "of a filter that drops chunks": lambda ds, root: ds.filter(pl.col("row") > 8).cache(root).batch(2),
}
"""Pipelines with a cache at a place."""
