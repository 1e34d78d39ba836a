"""PyTorch: a `DataLoader` with two workers, each of which runs a loop over pyarrow on every second file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks import by_hand, data, images, stream, wide
from benchmarks.by_hand import Chunk
from benchmarks.peers import epochs, frames, packing

WORKERS: Final = 2
Loop = Callable[[list[str]], Iterator[Chunk]]


class Rows(IterableDataset[dict[str, torch.Tensor]]):
    """Batches of a loop over the files of this worker."""

    def __init__(self, loop: Loop, paths: list[str]) -> None:
        self._loop = loop
        self._paths = paths

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yields whole batches."""
        warnings.simplefilter("ignore")  # that the memory must not be written
        info: Any = get_worker_info()
        for batch in by_hand.exact_batches(self._loop(self._paths[info.id :: WORKERS]), stream.BATCH_ROWS):
            yield {name: torch.from_numpy(array) for name, array in batch.items()}


def _of(paths: Callable[[], list[str]], loop: Loop) -> epochs.Epoch:
    import pandas  # noqa: F401  (pyarrow imports it at the first `to_numpy`)

    found = paths()
    data.read_through(found)
    loader: Any = DataLoader(Rows(loop, found), batch_size=None, num_workers=WORKERS, persistent_workers=True)
    return lambda: loader


class Tokens(IterableDataset[dict[str, torch.Tensor]]):
    """Packed rows of the files of this worker."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yields batches of packed rows."""
        info: Any = get_worker_info()
        for batch in packing.packed(packing.documents(self._paths[info.id :: WORKERS])):
            yield {name: torch.from_numpy(array) for name, array in batch.items()}


def _tokens() -> epochs.Epoch:
    paths = data.documents()
    data.read_through(paths)
    loader: Any = DataLoader(Tokens(paths), batch_size=None, num_workers=WORKERS, persistent_workers=True)
    return lambda: loader


def _images() -> epochs.Epoch:
    paths = data.images()
    data.read_through(paths)
    loader: Any = DataLoader(
        images.Images(paths), images.BATCH_ROWS, num_workers=WORKERS, persistent_workers=True
    )
    return lambda: ({"image": batch} for batch in loader)


WORKLOADS: Final[epochs.Workloads] = {
    "stream": partial(_of, data.lineitem, stream.scanner_two_files),
    "stream-shuffled": partial(_of, data.lineitem, stream.SHUFFLED["shuffled-scanner-two-files"]),
    "wide": partial(_of, data.wide, wide.scanner_two_files),
    "wide-shuffled": partial(_of, data.wide, wide.take_table_two_files),
    "tokens": _tokens,
    "images": _images,
    "embeddings-parquet": partial(_of, data.embeddings_parquet, frames.vectors_of),
}

if __name__ == "__main__":
    epochs.main("torch", WORKLOADS)
