"""Loops by hand over pyarrow: the fastest of those in `benchmarks.stream`, and those in `benchmarks.wide`."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import by_hand, data, images, stream, wide
from benchmarks.by_hand import Chunk
from benchmarks.peers import epochs, frames, packing

BATCH_ROWS: Final = stream.BATCH_ROWS


def _of(
    paths: Callable[[], list[str]], loop: Callable[[list[str]], Iterator[Chunk]], *, cut: bool = True
) -> epochs.Epoch:
    import pandas  # noqa: F401  (pyarrow imports it at the first `to_numpy`)

    found = paths()
    data.read_through(found)
    return lambda: by_hand.exact_batches(loop(found), BATCH_ROWS) if cut else loop(found)


def _tokens(paths: list[str]) -> Iterator[Chunk]:
    return packing.packed(packing.documents(paths))


def _whole_table(paths: list[str]) -> Iterator[Chunk]:
    return map(frames.vectors, pq.read_table(paths).to_batches(max_chunksize=BATCH_ROWS))


def mapped(paths: list[str]) -> Iterator[pa.RecordBatch]:
    """Yields the batches of IPC files that are mapped, in slices."""
    for path in paths:
        file = pa.ipc.open_file(pa.memory_map(path))
        for number in range(file.num_record_batches):
            batch = file.get_batch(number)
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)


def _bare_map(paths: list[str]) -> Iterator[Chunk]:
    """Yields the features of `wide` out of a file that is written at the first call."""
    if not (_CACHE / "wide.arrow").exists():
        chunks = ({name: _column(array) for name, array in chunk.items()} for chunk in wide.fragments(paths))
        batches = map(pa.RecordBatch.from_pydict, chunks)
        first = next(batches)
        with pa.ipc.new_file(_CACHE / "wide.arrow", first.schema) as writer:
            for batch in itertools.chain([first], batches):
                writer.write_batch(batch)
    for batch in mapped([str(_CACHE / "wide.arrow")]):
        yield {
            "dense": batch["dense"].flatten().to_numpy().reshape(-1, len(data.DENSE)),
            "sparse": batch["sparse"].flatten().to_numpy().reshape(-1, len(data.SPARSE)),
            "label": batch["label"].to_numpy(),
        }


def _column(array: np.ndarray[Any, Any]) -> pa.Array:
    flat = pa.array(array.reshape(-1))
    return flat if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, array.shape[1])


_CACHE: Final = Path(tempfile.mkdtemp())


def _pool() -> epochs.Epoch:
    paths = data.images()
    data.read_through(paths)
    images.one_thread_a_call()
    threads = ThreadPoolExecutor(images.THREADS)
    return lambda: images.by_threads(threads, paths)


FASTEST: Final = ("scanner-two-files", "fragments", "fragments-views")

WORKLOADS: Final[epochs.Workloads] = (
    {f"stream:{name}": partial(_of, data.lineitem, stream.SOURCES[name]) for name in FASTEST}
    | {f"stream-shuffled:{name}": partial(_of, data.lineitem, loop) for name, loop in stream.SHUFFLED.items()}
    | {f"wide:{name}": partial(_of, data.wide, loop) for name, loop in wide.UNSHUFFLED.items()}
    | {
        f"wide-shuffled:{name}": partial(_of, data.wide, loop)
        for name, loop in (wide.BY_HAND | wide.THREADED).items()
    }
    | {
        "tokens": partial(_of, data.documents, _tokens, cut=False),
        "images": _pool,
        "embeddings-parquet:read_table": partial(_of, data.embeddings_parquet, _whole_table),
        "embeddings-parquet:iter_batches": partial(_of, data.embeddings_parquet, frames.vectors_of),
        "embeddings-ipc": partial(_of, data.embeddings, lambda paths: map(frames.vectors, mapped(paths))),
        "cached-disk": partial(_of, data.wide, _bare_map),
    }
)

if __name__ == "__main__":
    epochs.main("pyarrow", WORKLOADS)
