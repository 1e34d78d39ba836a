"""Pipelines that run in lanes, and what their ranks deliver."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import arrowflow as af

Make = Callable[[Path], af.Dataset]
Rows = list[dict[str, Any]]

BATCH = 320
SIZES = (1, 2, 4, 8, 16)


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A function of a user that keeps rows."""
    ids = batch.column("id").to_numpy()
    return pa.record_batch({"id": pa.array(ids), "x": pa.array(2 * ids)})


def noisy(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
    """A function with random numbers."""
    noise = pa.array(rng.random(batch.num_rows))
    return pa.record_batch({"id": batch.column("id"), "noise": noise})


def tokens(row: dict[str, Any]) -> dict[str, Any]:
    """A document for a row, of 1 to 7 tokens."""
    return {"id": row["id"], "tokens": [row["id"]] * (1 + row["id"] % 7)}


def documents(ds: af.Dataset) -> af.Dataset:
    """Documents of different length."""
    return ds.map_rows(tokens, schema=pa.schema({"id": pa.int64(), "tokens": pa.list_(pa.int64())}))


def of(path: Path) -> af.Dataset:
    """The files that `write_shards` makes, with one column."""
    return af.read_parquet(path).select("id")


PIPELINES: dict[str, Make] = {
    "plain": lambda path: of(path).batch(BATCH),
    "columns": lambda path: of(path).with_columns(x=pl.col("id") * 2).batch(BATCH, drop_remainder=True),
    "map": lambda path: (
        of(path).map(doubled, keeps_rows=True).map(noisy, seed=5, keeps_rows=True).batch(BATCH)
    ),
    "shuffle": lambda path: of(path).shuffle(3200, seed=3).batch(BATCH),
    "global shuffle": lambda path: (
        af.range(15_000).shuffle(seed=4).with_columns(x=pl.col("id") + 1).batch(BATCH)
    ),
    "memory": lambda path: af.from_arrow(of(path).to_table()).shuffle(7000, seed=3).batch(BATCH),
    "zip": lambda path: af.zip(of(path), of(path).rename({"id": "other"})).shuffle(1600, seed=1).batch(BATCH),
    "concatenate": lambda path: of(path).concatenate(af.range(3330)).shuffle(1600, seed=2).batch(BATCH),
    "repeat below": lambda path: of(path).shuffle(1600, seed=1).repeat(2).batch(BATCH),
    "repeat above": lambda path: of(path).shuffle(1600, seed=1).batch(BATCH, drop_remainder=True).repeat(2),
    "cache": lambda path: of(path).map(doubled, keeps_rows=True).cache().shuffle(1700, seed=8).batch(BATCH),
    "a range of rows": lambda path: of(path).skip(1000).take(10_000).shuffle(1600, seed=1).batch(BATCH),
    "a part": lambda path: of(path).split([0.9, 0.1], seed=1)[0].shuffle(1600, seed=1).batch(BATCH),
    "function behind": lambda path: (
        of(path).shuffle(1600, seed=9).batch(3 * BATCH).map(doubled, keeps_rows=True)
    ),
    "lists": lambda path: documents(of(path)).shuffle(1600, seed=1).batch(BATCH),
    "padded": lambda path: documents(of(path)).padded_batch(BATCH, padded_shapes={"tokens": 8}),
    "remainder filled": lambda path: of(path).shuffle(1600, seed=1).batch(BATCH, pad_remainder=True),
}
"""Pipelines whose counts are known."""

UNCOUNTED: dict[str, Make] = {
    "filter": lambda path: of(path).filter(pl.col("id") % 7 != 3).shuffle(1600, seed=3).batch(BATCH),
    "an uneven filter": lambda path: (
        of(path).filter(pl.col("id") % 100 > 30 + pl.col("id") // 400).batch(BATCH)
    ),
    "a function filters": lambda path: (
        of(path)
        .filter(lambda batch: pc.not_equal(pc.bit_wise_and(batch.column("id"), 7), 3))
        .shuffle(1600, seed=1)
        .batch(BATCH)
    ),
    "mix": lambda path: af.sample_from_datasets([of(path), af.range(9000)], seed=4).batch(BATCH),
    "bucket": lambda path: documents(of(path)).bucket_by_sequence_length("tokens", [3, 6], [40, 30, 20]),
    "pack": lambda path: documents(of(path)).select("tokens").pack_sequences("tokens", 16).batch(BATCH),
    "interleave": lambda path: (
        af.range(130).interleave(lambda row: af.range(row["id"])).shuffle(1600, seed=2).batch(BATCH)
    ),
    "explode": lambda path: documents(of(path)).explode("tokens").batch(BATCH),
}
"""Pipelines of which only a run tells how many rows they have."""


def write_shards(path: Path) -> Path:
    """Writes 17,770 rows in seven files of unequal row groups."""
    at = 0
    for number, groups in enumerate(
        [[1000, 330], [640], [5000, 10, 2000], [70], [1280, 3000], [440], [2500, 1500]]
    ):
        ids = af.range(at, at + sum(groups)).to_table()
        at += sum(groups)
        with pq.ParquetWriter(path / f"{number}.parquet", ids.schema) as writer:
            start = 0
            for rows in groups:
                writer.write_table(ids.slice(start, rows), row_group_size=rows)
                start += rows
    return path


def ranks(make: Callable[[], af.Dataset], size: int, **options: Any) -> list[af.Dataset]:
    """Returns the datasets of all ranks."""
    return [make().split_by_rank(rank, size, **options) for rank in range(size)]


def state_after(dataset: af.Dataset, step: int) -> dict[str, Any]:
    """Returns the state after so many steps, as a file keeps it."""
    with iter(dataset) as run:
        for _ in range(step):
            next(run)
        state: dict[str, Any] = json.loads(json.dumps(run.state_dict()))
        return state


def rest_of(dataset: af.Dataset, state: dict[str, Any]) -> list[pa.RecordBatch]:
    """Returns the batches from a state on."""
    run = iter(dataset)
    run.load_state_dict(state)
    return list(run)


def joined(batches: Iterable[Sequence[pa.RecordBatch]]) -> list[Rows]:
    """Returns global batches, given those of each rank at each step."""
    return [list(itertools.chain(*(batch.to_pylist() for batch in step))) for step in batches]


def steps_of(datasets: Sequence[af.Dataset]) -> list[Rows]:
    """Returns the global batches of one epoch; all ranks have to make as many steps of one size."""
    found = [list(dataset) for dataset in datasets]
    assert len({len(batches) for batches in found}) == 1
    sizes = [[batch.num_rows for batch in batches] for batches in found]
    assert all(size == sizes[0] for size in sizes)
    return joined(zip(*found, strict=True))
