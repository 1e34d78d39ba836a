"""Daft: a lazy query, whose result comes as Arrow record batches. The window of a shuffle is NumPy's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import daft
from daft import DataType, col

from benchmarks import data, stream
from benchmarks.by_hand import Chunk
from benchmarks.peers import epochs, frames


def stream_chunks(paths: list[str]) -> Iterator[Chunk]:
    """The rows of `stream`."""
    real = DataType.float32()
    price, discount = col("l_extendedprice").cast(real), col("l_discount").cast(real)
    query = (
        daft.read_parquet(paths)
        .where(col("l_shipdate") >= stream.SINCE)
        .select(
            col("l_orderkey"),
            col("l_quantity").cast(real).alias("quantity"),
            (price * (1 - discount)).cast(real).alias("revenue"),
            col("l_tax").cast(real).alias("tax"),
            col("l_shipdate").cast(DataType.int32()).alias("shipdate"),
        )
    )
    return map(frames.arrays, _batches(query))


def wide_chunks(paths: list[str]) -> Iterator[Chunk]:
    """The rows of `wide`."""
    real = DataType.float32()
    dense = [(col(name).fill_null(0).log1p()).cast(real).alias(name) for name in data.DENSE]
    query = daft.read_parquet(paths).select(*dense, *data.SPARSE, "label")
    return map(frames.stacked, _batches(query))


def _batches(query: Any) -> Iterator[Any]:
    return (batch for batch in query.to_arrow_iter() if batch.num_rows)


WORKLOADS: Final[epochs.Workloads] = frames.workloads(stream_chunks, wide_chunks)

if __name__ == "__main__":
    epochs.main("daft", WORKLOADS)
