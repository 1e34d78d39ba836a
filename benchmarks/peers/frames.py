"""Record batches as NumPy arrays; and batches and windows around a query engine, which has neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import by_hand, data, stream
from benchmarks.by_hand import Chunk
from benchmarks.peers import epochs

Chunks = Callable[[list[str]], Iterator[Chunk]]


def workloads(stream_chunks: Chunks, wide_chunks: Chunks) -> epochs.Workloads:
    """Returns the four workloads of two queries, each of which yields its rows in chunks."""
    return {
        "stream": partial(_of, data.lineitem, stream_chunks, shuffle=False),
        "stream-shuffled": partial(_of, data.lineitem, stream_chunks, shuffle=True),
        "wide": partial(_of, data.wide, wide_chunks, shuffle=False),
        "wide-shuffled": partial(_of, data.wide, wide_chunks, shuffle=True),
    }


def _of(paths: Callable[[], list[str]], chunks: Chunks, *, shuffle: bool) -> epochs.Epoch:
    import pandas  # noqa: F401  (pyarrow imports it at the first `to_numpy`)

    found = paths()
    data.read_through(found)

    def epoch() -> Iterator[Chunk]:
        made = chunks(found)
        if shuffle:
            made = by_hand.shuffled(made, stream.WINDOW_ROWS, seed=7)
        return by_hand.exact_batches(made, stream.BATCH_ROWS)

    return epoch


def arrays(batch: pa.RecordBatch) -> Chunk:
    """Returns the columns of a batch without nulls."""
    return {name: batch[name].to_numpy(zero_copy_only=False) for name in batch.schema.names}


def vectors(batch: pa.RecordBatch) -> Chunk:
    """Returns the embeddings of a batch as one matrix."""
    return {"x": batch["x"].flatten().to_numpy().reshape(-1, 256)}


def vectors_of(paths: list[str]) -> Iterator[Chunk]:
    """Yields the embeddings of Parquet files, a batch at a time."""
    return (
        vectors(batch) for path in paths for batch in pq.ParquetFile(path).iter_batches(stream.BATCH_ROWS)
    )


def stacked(batch: pa.RecordBatch) -> Chunk:
    """Returns the matrices of a batch of `wide` whose features are computed."""
    columns = arrays(batch)
    return {
        "dense": np.stack([columns[name] for name in data.DENSE], axis=1),
        "sparse": np.stack([columns[name] for name in data.SPARSE], axis=1),
        "label": columns["label"],
    }
