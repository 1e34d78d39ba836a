"""Polars: a lazy query, whose result comes in batches of its streaming engine. The window of a shuffle is NumPy's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from benchmarks import data, stream
from benchmarks.by_hand import Chunk
from benchmarks.peers import epochs, frames

CHUNK_ROWS: Final = 1 << 16


def stream_chunks(paths: list[str]) -> Iterator[Chunk]:
    """The rows of `stream`."""
    price, discount = pl.col("l_extendedprice").cast(pl.Float32), pl.col("l_discount").cast(pl.Float32)
    query = (
        pl.scan_parquet(paths)
        .filter(pl.col("l_shipdate") >= stream.SINCE)
        .select(
            "l_orderkey",
            quantity=pl.col("l_quantity").cast(pl.Float32),
            revenue=price * (1 - discount),
            tax=pl.col("l_tax").cast(pl.Float32),
            shipdate=pl.col("l_shipdate").cast(pl.Int32),
        )
    )
    for frame in query.collect_batches(chunk_size=CHUNK_ROWS, maintain_order=True):
        yield {name: frame[name].to_numpy() for name in frame.columns}


def wide_chunks(paths: list[str]) -> Iterator[Chunk]:
    """The rows of `wide`."""
    dense = [pl.col(name).fill_null(0).log1p() for name in data.DENSE]
    query = pl.scan_parquet(paths).select(*dense, *data.SPARSE, "label")
    for frame in query.collect_batches(chunk_size=CHUNK_ROWS, maintain_order=True):
        yield {
            "dense": frame.select(data.DENSE).to_numpy(order="c"),
            "sparse": frame.select(data.SPARSE).to_numpy(order="c"),
            "label": frame["label"].to_numpy(),
        }


WORKLOADS: Final[epochs.Workloads] = frames.workloads(stream_chunks, wide_chunks)

if __name__ == "__main__":
    epochs.main("polars", WORKLOADS)
