"""Pipelines of all kinds whose states are kept, and the rows that follow a state.

Their rows must not depend on the machine, nor on the versions of pyarrow, Polars, NumPy and Python. So no function draws
from a generator of NumPy. A state knows files by their sizes: a Parquet file names the version of its writer, an Arrow IPC
file does not, and the text files are written byte by byte.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

import arrowflow as af
from arrowflow import state

State = dict[str, Any]
Make = Callable[[Path], af.Dataset]

SPLITS = [[40, 25], [60], [33, 50, 17], [5], [70]]
"""Rows of the record batches of each IPC file."""
LISTS = pa.schema({"id": pa.int64(), "tokens": pa.list_(pa.int64())})


def write_files(folder: Path) -> Path:
    """Writes 300 numbered rows, as IPC and as text."""
    ids = itertools.count()
    for number, sizes in enumerate(SPLITS):
        batches = [pa.record_batch({"id": list(itertools.islice(ids, size))}) for size in sizes]
        with pa.ipc.new_file(folder / f"{number}.arrow", batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        text = "".join(f"{row}\n" for batch in batches for row in batch["id"].to_pylist())
        (folder / f"{number}.csv").write_bytes(f"id\n{text}".encode())
    return folder


def files(folder: Path) -> af.Dataset:
    return af.read_ipc(folder / "*.arrow")


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array([2 * row for row in batch["id"].to_pylist()], pa.int64())})


def with_tokens(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "tokens": [row["id"]] * (1 + row["id"] * 7 % 11)}


def with_sum(total: int, batch: pa.RecordBatch) -> tuple[int, pa.RecordBatch]:
    total += sum(batch["id"].to_pylist())
    return total, batch.append_column("total", pa.array([total] * batch.num_rows, pa.int64()))


def up_to(row: dict[str, Any]) -> af.Dataset:
    return af.range(100 * row["id"], 100 * row["id"] + row["id"] % 9)


def generated() -> Iterator[dict[str, int]]:
    yield from ({"id": number} for number in range(200))


def documents(rows: int) -> af.Dataset:
    return af.range(rows).map_rows(with_tokens, schema=LISTS)


TABLE = pa.Table.from_batches(
    [pa.record_batch({"id": list(range(first, first + 90))}) for first in (0, 90, 180)]
)

PIPELINES: dict[str, Make] = {
    "numbers": lambda folder: af.range(1_000).batch(64),
    "a table": lambda folder: af.from_arrow(TABLE).batch(50, drop_remainder=True),
    "files": lambda folder: files(folder).batch(32),
    "text files": lambda folder: af.read_csv(folder / "*.csv").batch(32),
    "a range of rows": lambda folder: files(folder).skip(50).take(200).batch(16),
    "columns and a filter": lambda folder: (
        files(folder).with_columns(x=pl.col("id") * 2).filter(pl.col("id") % 7 != 3).batch(32)
    ),
    "a generator": lambda folder: af.from_generator(generated, schema=pa.schema({"id": pa.int64()})).batch(16),
    "windows of files": lambda folder: files(folder).shuffle(64, seed=3).batch(16),
    "windows of a table": lambda folder: af.from_arrow(TABLE).shuffle(40, seed=3).batch(16),
    "all rows": lambda folder: af.range(1_000).shuffle(seed=4).batch(64),
    "repeat": lambda folder: files(folder).shuffle(100, seed=1).repeat(3).batch(64),
    "cache": lambda folder: files(folder).shuffle(100, seed=1).cache().repeat(2).batch(64),
    "functions": lambda folder: files(folder).map(doubled).batch(20).map(doubled),
    "scan": lambda folder: files(folder).batch(20).scan(5, with_sum),
    "a mix": lambda folder: (
        af.sample_from_datasets([files(folder), af.range(500, 900)], [0.3, 0.7], seed=1)
        .shuffle(50, seed=2)
        .batch(32)
    ),
    "a choice": lambda folder: af.choose_from_datasets(
        [files(folder), af.range(500, 900)], af.range(400).select(choice=pl.col("id") % 2)
    ).batch(32),
    "zip and concatenate": lambda folder: (
        af.zip(files(folder), af.range(200).rename({"id": "other"})).concatenate(
            af.range(90).with_columns(other=pl.col("id"))
        ).batch(32)
    ),
    "interleave": lambda folder: af.range(60).interleave(up_to, cycle_length=4, block_length=3).batch(16),
    "numbered and sharded": lambda folder: files(folder).enumerate().shard(3, 1).batch(8),
    "unique": lambda folder: af.range(400).select(id=pl.col("id") % 150).unique("id", max_rows=1_000).batch(16),
    "resampled": lambda folder: (
        files(folder).rejection_resample(pl.col("id") % 3 == 0, [0.5, 0.5], seed=6).batch(16)
    ),
    "buckets": lambda folder: (
        documents(400).bucket_by_sequence_length("tokens", [4, 8], [16, 12, 8], max_lag_rows=60)
    ),
    "groups": lambda folder: af.range(400).group_by_window(pl.col("id") % 5, 12, max_lag_rows=70),
    "packed": lambda folder: documents(400).select("tokens").pack_sequences("tokens", 32, window_rows=50).batch(8),
    "packed and cut": lambda folder: (
        documents(400)
        .select("tokens")
        .pack_sequences("tokens", 32, strategy="concat_then_split", window_rows=50)
        .batch(8)
    ),
    "packed columns": lambda folder: (
        documents(400)
        .with_columns(labels=pl.col("tokens"))
        .pack_sequences(["tokens", "labels"], 32, strategy="best_fit", window_rows=50, bos=-1, overlong="drop")
        .batch(8)
    ),
    "overlapping and exploded": lambda folder: documents(60).explode("tokens").select("id").window(5, shift=3).batch(16),
    "lanes": lambda folder: files(folder).shuffle(64, seed=3).batch(16).split_by_rank(0, 1, lanes=4, how="parts"),
    "lanes of a rank": lambda folder: files(folder).batch(16).map(doubled, keeps_rows=True).split_by_rank(1, 2, lanes=4),
}  # fmt: skip


def taken(ds: af.Dataset) -> State:
    """Returns the state of the middle of epoch 1, as a file keeps it, and the rest of the epoch."""
    with iter(ds) as run:
        run.set_epoch(1)
        length = sum(1 for _ in run)
        run.set_epoch(1)
        for _ in range(length // 2):
            next(run)
        state = json.loads(json.dumps(run.state_dict()))
    return {"state": state, **rest_of(ds, state)}


def rest_of(ds: af.Dataset, kept: State) -> State:
    """Returns what follows a state: the number of batches, the first numbers, and a digest of all values."""
    with iter(ds) as run:
        run.load_state_dict(kept)
        rest = [batch.to_pydict() for batch in run]
    first = next(iter(rest[0].values()))
    return {"batches": len(rest), "first": first[:4], "digest": state.digest(rest)}
