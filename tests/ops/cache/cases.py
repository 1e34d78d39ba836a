"""Shared by the tests of caches: pipelines with a cache in them, places of a cache, and functions that tell of their calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.ops.cache.cache import Cache
from tests.ops.tables import Apply

SMALL = af.Options(max_chunk_rows=3)

TINY = 1
"""A budget of which not even half a chunk fits."""

SOME = 2048
"""One of which a chunk or two fit."""


def noise(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
    return batch.append_column("noise", pa.array(rng.random(batch.num_rows)))


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


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


class Counted:
    """A function that keeps the first row of each call, and makes some bytes of new memory of each row."""

    def __init__(self, row_bytes: int = 8) -> None:
        self.row_bytes = row_bytes
        self.rows: list[int] = []  # to append is a single step

    @property
    def calls(self) -> int:
        return len(self.rows)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.rows.append(batch["row"][0].as_py())
        width = self.row_bytes // 8
        data = np.repeat(np.asarray(batch["row"]), width)
        wide = pa.FixedSizeListArray.from_arrays(pa.array(data), width)
        return pa.record_batch({"row": pa.array(data[::width].copy()), "wide": wide})


def spilled(dataset: af.Dataset, folder: Path | str, ram_budget: int | None = None) -> af.Dataset:
    cached = af.Dataset(Cache(inputs=(dataset._plan,), spill=str(folder)))
    return cached if ram_budget is None else cached.with_options(af.Options(ram_budget=ram_budget))


def endless_at_first(cache: Apply) -> tuple[af.Dataset, Iterator[int]]:
    """Returns a cache of rows that cannot be repeated: 100 to 109 from the second run on; and the counter of its runs."""
    runs = itertools.count()

    def rows() -> Iterator[dict[str, int]]:
        run = next(runs)
        # The first run cannot be over before it is broken off, however far it reads ahead.
        yield from ({"row": 100 * run + number} for number in (range(10) if run else itertools.count()))

    return cache(af.from_generator(rows, schema=pa.schema([("row", pa.int64())]))), runs


def in_store(root: str) -> str:
    """Returns an address in the memory of this process."""
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    return f"memory:/{root}"


PLACES: dict[str, Callable[[af.Dataset, str], af.Dataset]] = {
    "memory": lambda ds, root: ds.cache(),
    "spilled": lambda ds, root: spilled(ds, root, TINY),
    "half spilled": lambda ds, root: spilled(ds, root, SOME),
    "folder": lambda ds, root: ds.cache(root),
    "compressed": lambda ds, root: ds.cache(root, compression="zstd"),
    "store": lambda ds, root: ds.cache(in_store(root)),
    "two stores": lambda ds, root: ds.cache(in_store(root), compression="lz4").cache(f"{in_store(root)}-too"),
}
"""Caches at or below a folder that exists."""

CASES: dict[str, Callable[[af.Dataset, Apply], af.Dataset]] = {
    "alone": lambda ds, cache: cache(ds),
    "twice": lambda ds, cache: cache(cache(ds).filter(pl.col("row") % 3 != 0)),
    "repeated": lambda ds, cache: cache(ds).repeat(3),
    "in batches": lambda ds, cache: cache(ds.batch(4)),
    "before a batch": lambda ds, cache: cache(ds).batch(4),
    "of a function": lambda ds, cache: cache(ds.with_options(SMALL).map(noise, seed=1)).batch(5),
    "of a shuffle": lambda ds, cache: cache(ds.shuffle(6, seed=1)),
    "of a repeat": lambda ds, cache: cache(ds.repeat(2)).skip(3).take(20),
    "of a filter": lambda ds, cache: cache(ds.filter(pl.col("row") > 8)).batch(2),
    "before a shuffle": lambda ds, cache: cache(ds).shuffle(5, seed=1).batch(3),
    "before a shuffle of all rows": lambda ds, cache: cache(ds).shuffle(seed=1).batch(3),
}
"""Pipelines with a cache in them; the filter leaves some chunks without rows."""
