"""SPDL: a pipeline whose stage of two threads decodes a batch a call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from spdl.pipeline import PipelineBuilder

from benchmarks import data, images
from benchmarks.peers import epochs


def _images() -> epochs.Epoch:
    paths = data.images()
    data.read_through(paths)
    images.one_thread_a_call()

    def batches() -> Iterator[pa.RecordBatch]:
        for path in paths:
            yield from pq.ParquetFile(path).iter_batches(images.BATCH_ROWS, columns=["jpeg"])

    def decoded(batch: pa.RecordBatch) -> dict[str, Any]:
        return {"image": images.decode(batch["jpeg"].to_pylist())}

    def epoch() -> Iterator[dict[str, Any]]:
        built = PipelineBuilder().add_source(batches()).pipe(decoded, concurrency=images.THREADS)
        pipeline = built.add_sink(2 * images.THREADS).build(num_threads=images.THREADS)
        with pipeline.auto_stop():
            yield from pipeline

    return epoch


WORKLOADS: Final[epochs.Workloads] = {"images": _images}

if __name__ == "__main__":
    epochs.main("spdl", WORKLOADS)
