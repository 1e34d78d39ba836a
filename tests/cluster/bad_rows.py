"""Pipelines that leave bad rows out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import arrowflow as af

BATCH = 32
Make = Callable[[Path], af.Dataset]
CHUNKS = af.Options(max_chunk_rows=20)


def write_lines(folder: Path) -> Path:
    """Writes CSV files in which every 11th row has no number."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(4):
        rows = [f"{row if row % 11 else 'none'},{row % 5}" for row in range(300 * file, 300 * file + 250)]
        (folder / f"{file}.csv").write_text("\n".join(["id,n", *rows]) + "\n")
    (folder / "broken.csv.gz").write_bytes(b"no gzip")
    return folder


def lines(folder: Path) -> af.Dataset:
    """The files, without the bad rows."""
    schema = pa.schema({"id": pa.int64(), "n": pa.int64()})
    return af.read_csv(folder, schema=schema, on_error="skip", block_bytes="1KB")


def picky(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Refuses some pieces."""
    if batch.column("id")[0].as_py() % 3 == 1:
        raise ValueError("not these rows")
    return batch


def strict(row: dict[str, int]) -> dict[str, int]:
    """Refuses some rows."""
    if row["id"] % 7 == 2:
        raise ValueError("not this row")
    return row


PIPELINES: dict[str, Make] = {
    "lines": lambda path: lines(path).batch(BATCH),
    "lines, shuffled": lambda path: lines(path).shuffle(160, seed=2).batch(BATCH),
    "a function": lambda path: lines(path).map(picky, on_error="skip").with_options(CHUNKS).batch(BATCH),
    "a function of rows": lambda path: (
        lines(path)
        .shuffle(160, seed=2)
        .map_rows(strict, on_error="skip", schema=pa.schema({"id": pa.int64(), "n": pa.int64()}))
        .batch(BATCH)
    ),
    "twice": lambda path: lines(path).shuffle(160, seed=2).repeat(2).batch(BATCH),
    "two sources": lambda path: lines(path).concatenate(lines(path)).batch(BATCH),
}


def split(dataset: af.Dataset) -> af.Dataset:
    """Returns the plan in lanes, all of which end with the first one."""
    return dataset.split_by_rank(0, 1, how="parts", equal_steps="drop")
