"""Ray Data: its streaming executor on this machine alone, with features in `map_batches`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa
import ray

from benchmarks import data, stream, wide
from benchmarks.peers import epochs


def _stream(paths: list[str]) -> Any:
    def features(batch: pa.Table) -> pa.Table:
        kept = batch.filter(stream.SHIPPED_SINCE).combine_chunks()
        (one,) = kept.to_batches() or [pa.RecordBatch.from_pylist([], schema=kept.schema)]
        return pa.table(stream.eager_arrays(one))

    read = ray.data.read_parquet(paths, columns=stream.COLUMNS)
    return read.map_batches(features, batch_format="pyarrow", batch_size=None)


def _wide(paths: list[str]) -> Any:
    def features(batch: pa.Table) -> dict[str, Any]:
        (one,) = batch.combine_chunks().to_batches()
        return wide.features(one)

    return ray.data.read_parquet(paths, columns=wide.COLUMNS).map_batches(
        features, batch_format="pyarrow", batch_size=None
    )


def _of(paths: Callable[[], list[str]], make: Callable[[list[str]], Any], *, shuffle: bool) -> epochs.Epoch:
    found = paths()
    data.read_through(found)
    ray.init(log_to_driver=False, include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = make(found)

    def epoch() -> Iterator[epochs.Batch]:
        buffer = stream.WINDOW_ROWS if shuffle else None
        batches = rows.iter_batches(
            batch_size=stream.BATCH_ROWS,
            batch_format="numpy",
            drop_last=True,
            local_shuffle_buffer_size=buffer,
            local_shuffle_seed=7 if shuffle else None,
        )
        yield from batches

    return epoch


WORKLOADS: Final[epochs.Workloads] = {
    "stream": partial(_of, data.lineitem, _stream, shuffle=False),
    "stream-shuffled": partial(_of, data.lineitem, _stream, shuffle=True),
    "wide": partial(_of, data.wide, _wide, shuffle=False),
    "wide-shuffled": partial(_of, data.wide, _wide, shuffle=True),
}

if __name__ == "__main__":
    epochs.main("ray", WORKLOADS)
