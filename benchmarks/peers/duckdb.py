"""DuckDB: one SQL query, whose result is fetched as Arrow record batches. The window of a shuffle is NumPy's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import duckdb

from benchmarks import data, stream
from benchmarks.by_hand import Chunk
from benchmarks.peers import epochs, frames

CHUNK_ROWS: Final = 1 << 17


def stream_chunks(paths: list[str]) -> Iterator[Chunk]:
    """The rows of `stream`."""
    query = f"""
        SELECT l_orderkey, l_quantity::FLOAT AS quantity, l_extendedprice::FLOAT * (1 - l_discount::FLOAT) AS revenue,
               l_tax::FLOAT AS tax, (l_shipdate - DATE '1970-01-01')::INTEGER AS shipdate
        FROM read_parquet($paths) WHERE l_shipdate >= DATE '{stream.SINCE}'
    """
    return map(frames.arrays, _batches(query, paths))


def wide_chunks(paths: list[str]) -> Iterator[Chunk]:
    """The rows of `wide`."""
    dense = ", ".join(f"ln(1 + coalesce({name}, 0))::FLOAT AS {name}" for name in data.DENSE)
    query = f"SELECT {dense}, {', '.join(data.SPARSE)}, label FROM read_parquet($paths)"
    return map(frames.stacked, _batches(query, paths))


def _batches(query: str, paths: list[str]) -> Any:
    return duckdb.connect().execute(query, {"paths": paths}).to_arrow_reader(CHUNK_ROWS)


WORKLOADS: Final[epochs.Workloads] = frames.workloads(stream_chunks, wide_chunks)

if __name__ == "__main__":
    epochs.main("duckdb", WORKLOADS)
