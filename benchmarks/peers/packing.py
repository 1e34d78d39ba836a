"""First-fit packing by hand: eight open rows of 2,048 tokens, which are full when a document fits into none of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow.dataset as ds
from numpy.typing import NDArray

from benchmarks.by_hand import Chunk

ROWS: Final = 8
LENGTH: Final = 2_048


def documents(paths: list[str]) -> Iterator[NDArray[np.int32]]:
    """Yields the lists of tokens of Parquet files, each as an array."""
    for batch in ds.dataset(paths).scanner(columns=["tokens"]).to_batches():
        values, offsets = batch["tokens"].values.to_numpy(), batch["tokens"].offsets.to_numpy().tolist()
        for start, stop in itertools.pairwise(offsets):
            yield values[start:stop]


def packed(documents: Iterable[NDArray[np.int32]]) -> Iterator[Chunk]:
    """Yields batches of packed rows with segment ids, 0 where a row is not filled, and positions."""
    batch, used, segments = _empty(), [0] * ROWS, [0] * ROWS
    for document in documents:
        size = len(document)
        row = next((row for row in range(ROWS) if used[row] + size <= LENGTH), None)
        if row is None:
            yield batch
            batch, used, segments, row = _empty(), [0] * ROWS, [0] * ROWS, 0
        start, stop = used[row], used[row] + size
        segments[row] += 1
        batch["tokens"][row, start:stop] = document
        batch["segment_ids"][row, start:stop] = segments[row]
        batch["positions"][row, start:stop] = _COUNTED[:size]
        used[row] = stop


_COUNTED: Final = np.arange(LENGTH, dtype=np.int32)


def _empty() -> Chunk:
    return {name: np.zeros((ROWS, LENGTH), np.int32) for name in ("tokens", "segment_ids", "positions")}
