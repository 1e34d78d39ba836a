"""Hugging Face's `datasets`: streamed Parquet, features in batched `map`, batches that are cut of tables."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

os.environ["HF_HUB_OFFLINE"] = "1"  # read when it is imported

import datasets
import numpy as np
import pyarrow as pa

from benchmarks import data, stream, wide
from benchmarks.peers import epochs, packing

TABLE_ROWS: Final = 1 << 16


def _read(paths: list[str], columns: list[str]) -> Any:
    read = datasets.load_dataset(
        "parquet",
        data_files=paths,
        split="train",
        streaming=True,
        columns=columns,
        cache_dir=tempfile.mkdtemp(),
    )
    return read.with_format("arrow")


def _stream(paths: list[str]) -> Any:
    def features(table: pa.Table) -> pa.Table:
        kept = table.filter(stream.SHIPPED_SINCE).combine_chunks()
        (one,) = kept.to_batches() or [pa.RecordBatch.from_pylist([], schema=kept.schema)]
        return pa.table(stream.eager_arrays(one))

    read = _read(paths, stream.COLUMNS)
    return read.map(features, batched=True, batch_size=TABLE_ROWS, remove_columns=stream.COLUMNS[1:])


def _wide(paths: list[str]) -> Any:
    return _read(paths, wide.COLUMNS)


def _of(
    paths: Callable[[], list[str]],
    make: Callable[[list[str]], Any],
    finish: Callable[[Any], epochs.Batch],
    *,
    shuffle: bool,
) -> epochs.Epoch:
    import pandas  # noqa: F401  (pyarrow imports it at the first `to_numpy`)

    found = paths()
    data.read_through(found)
    rows = make(found)
    if shuffle:
        rows = rows.shuffle(seed=7, buffer_size=stream.WINDOW_ROWS)

    def epoch() -> Iterator[epochs.Batch]:
        return map(finish, rows.iter(stream.BATCH_ROWS, drop_last_batch=True))

    return epoch


def _arrays(table: pa.Table) -> epochs.Batch:
    return {name: np.asarray(table[name]) for name in table.column_names}


def _features(table: pa.Table) -> epochs.Batch:
    (batch,) = table.combine_chunks().to_batches()
    return wide.features(batch)


def _tokens() -> epochs.Epoch:
    def packed(batch: dict[str, Any]) -> dict[str, Any]:
        rows = list(packing.packed(batch["tokens"]))
        return {name: np.concatenate([one[name] for one in rows]) for name in rows[0]}

    paths = data.documents()
    data.read_through(paths)
    rows = _read(paths, ["tokens"]).with_format("numpy")
    made = rows.map(packed, batched=True, batch_size=1_000, remove_columns=["tokens"])
    return lambda: made.iter(packing.ROWS, drop_last_batch=True)


def _vectors(*, streaming: bool) -> epochs.Epoch:
    paths = data.embeddings_parquet()
    data.read_through(paths)
    read = datasets.load_dataset(
        "parquet", data_files=paths, split="train", streaming=streaming, cache_dir=tempfile.mkdtemp()
    )
    rows = read.with_format("numpy")
    return lambda: rows.iter(stream.BATCH_ROWS, drop_last_batch=True)


def _cached() -> epochs.Epoch:
    def features(batch: dict[str, Any]) -> dict[str, Any]:
        dense = [np.nan_to_num(np.asarray(batch[name], np.float32), nan=0) for name in data.DENSE]
        return {
            "dense": np.log1p(np.stack(dense, axis=1)),
            "sparse": np.stack([batch[name] for name in data.SPARSE], axis=1, dtype=np.int32),
            "label": np.asarray(batch["label"], np.int32),
        }

    paths = data.wide()
    data.read_through(paths)
    read = datasets.load_dataset("parquet", data_files=paths, split="train", cache_dir=tempfile.mkdtemp())
    rows = read.with_format("numpy").map(
        features, batched=True, batch_size=stream.BATCH_ROWS, remove_columns=[*data.DENSE, *data.SPARSE]
    )
    rows = rows.with_format("numpy")
    return lambda: rows.iter(stream.BATCH_ROWS, drop_last_batch=True)


WORKLOADS: Final[epochs.Workloads] = {
    "stream": partial(_of, data.lineitem, _stream, _arrays, shuffle=False),
    "stream-shuffled": partial(_of, data.lineitem, _stream, _arrays, shuffle=True),
    "wide": partial(_of, data.wide, _wide, _features, shuffle=False),
    "wide-shuffled": partial(_of, data.wide, _wide, _features, shuffle=True),
    "tokens": _tokens,
    "embeddings-parquet": partial(_vectors, streaming=True),
    "embeddings-ipc": partial(_vectors, streaming=False),
    "cached-disk": _cached,
}

if __name__ == "__main__":
    epochs.main("datasets", WORKLOADS)
