"""What every hand-written loop needs: exact batches, windows, and row groups read ahead by threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pyarrow.dataset as ds
from numpy.typing import NDArray

Chunk = dict[str, NDArray[np.generic]]
T = TypeVar("T")


def exact_batches(chunks: Iterable[Chunk], rows: int) -> Iterator[Chunk]:
    """Cuts chunks into batches of exactly `rows` rows; only a batch across a border is copied."""
    held: list[Chunk] = []
    held_rows = 0
    for chunk in chunks:
        length, start = _length(chunk), 0
        if held_rows:
            start = min(rows - held_rows, length)
            held.append(_slice(chunk, 0, start))
            held_rows += start
            if held_rows < rows:
                continue
            yield _joined(held)
            held, held_rows = [], 0
        while length - start >= rows:
            yield _slice(chunk, start, start + rows)
            start += rows
        if start < length:
            held, held_rows = [_slice(chunk, start, length)], length - start


def windows(chunks: Iterable[Chunk], rows: int) -> Iterator[Chunk]:
    """Joins chunks into windows of exactly `rows` rows; the last one may be short."""
    held: list[Chunk] = []
    held_rows = 0
    for whole in chunks:
        chunk = whole
        while held_rows + _length(chunk) >= rows:
            cut = rows - held_rows
            yield _joined([*held, _slice(chunk, 0, cut)])
            held, held_rows, chunk = [], 0, _slice(chunk, cut, _length(chunk))
        held.append(chunk)
        held_rows += _length(chunk)
    if held_rows:
        yield _joined(held)


def shuffled(chunks: Iterable[Chunk], rows: int, seed: int) -> Iterator[Chunk]:
    """Permutes windows of `rows` rows."""
    rng = np.random.default_rng(seed)
    for window in windows(chunks, rows):
        order = rng.permutation(_length(window))
        yield {name: values.take(order, axis=0) for name, values in window.items()}


def row_groups(paths: Iterable[str], *, pre_buffer: bool = True) -> Iterator[ds.ParquetFileFragment]:
    """Yields one fragment per row group, file after file; the footer is read when its file's turn comes."""
    options = ds.ParquetFragmentScanOptions(pre_buffer=pre_buffer)
    dataset = ds.dataset(list(paths), format=ds.ParquetFileFormat(default_fragment_scan_options=options))
    for fragment in dataset.get_fragments():
        for group in fragment.row_groups:
            yield fragment.subset(row_group_ids=[group.id])


def ahead(function: Callable[[T], Chunk], items: Iterable[T], *, threads: int) -> Iterator[Chunk]:
    """Maps in threads and yields in order, with at most twice as many calls as threads under way."""
    pending: deque[Future[Chunk]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > 2 * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _length(chunk: Chunk) -> int:
    return len(next(iter(chunk.values())))


def _slice(chunk: Chunk, start: int, stop: int) -> Chunk:
    return {name: values[start:stop] for name, values in chunk.items()}


def _joined(chunks: list[Chunk]) -> Chunk:
    if len(chunks) == 1:
        return chunks[0]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
