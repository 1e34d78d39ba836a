"""The wide bar as PyTorch gets it: against a `DataLoader` with two workers over a loop by hand, and against `datasets`.

arrowflow comes twice: as `to_torch` in one process, and in a `DataLoader` with two workers, too, of which one runs it.

The rows, their features, `shuffle(262_144)` and the batches of 8192 are those of `wide`; what arrives are tensors. By
hand means an `IterableDataset` that deals the files out to the workers, each of which runs one of the loops of `wide`
over its own. Whatever loop is fastest is the one to beat. All of them run some epochs
with the same workers, and each epoch decodes anew: `keep=False`. As by default, rows are kept in `arrowflow-loader-kept`,
of which the epochs count that take them from memory.

`datasets` streams the same files with `shuffle` and `with_format("torch")`. As its documentation shows it, a
`DataLoader` makes batches of its rows: that is what the bar is about. Since `datasets` 5 there are batches that are cut
of tables and never become rows, if `batch` is called behind both: hundreds of times as fast, and measured beside it.
Neither has to read all: the clock starts behind the first batch, for which `datasets` fills its buffer, and stops
after some seconds. PyTorch has to be installed; without `datasets` its bars are left out.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from benchmarks import by_hand, data, harness, wide
from benchmarks.by_hand import Chunk
from benchmarks.data import DENSE, SPARSE
from benchmarks.wide import BATCH_ROWS, WINDOW_ROWS

WORKERS: Final = 2
EPOCHS: Final = 3
NEEDED_OVER_TO_TORCH: Final = 0.9
NEEDED_OVER_LOADER: Final = 3.0
NEEDED_OVER_DATASETS: Final = 200.0
SECONDS_OF_DATASETS: Final = 5.0
ROUNDS: Final = 3
SHAPES: Final = {
    "dense": (BATCH_ROWS, len(DENSE)),
    "sparse": (BATCH_ROWS, len(SPARSE)),
    "label": (BATCH_ROWS,),
}
HAS_DATASETS: Final = importlib.util.find_spec("datasets") is not None

Loop = Callable[[list[str]], Iterator[Chunk]]


def arrowflow() -> harness.Measurement:
    """Measures arrowflow."""
    import torch  # noqa: F401  (imports are not measured)

    import arrowflow  # noqa: F401

    paths = data.wide()
    data.read_through(paths)
    return _drained(lambda: _pipeline(paths).to_torch())


def _pipeline(paths: list[str]) -> Any:
    import arrowflow as af

    return wide.pipeline(paths).with_options(af.Options(keep=False))


def arrowflow_loader() -> harness.Measurement:
    """Measures a `DataLoader` of arrowflow, from the start of its workers on."""
    import torch  # noqa: F401

    import arrowflow  # noqa: F401

    paths = data.wide()
    data.read_through(paths)
    return _drained(lambda: _data_loader(_pipeline(paths)))


def arrowflow_loader_kept() -> harness.Measurement:
    """Measures the epochs of a `DataLoader` of arrowflow after those that keep rows, of which the table has too many for the first."""
    paths = data.wide()
    data.read_through(paths)
    loader = _data_loader(wide.pipeline(paths))
    for _ in range(2):
        for _batch in loader:
            pass
    return _drained(lambda: loader)


def _data_loader(rows: Any) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(rows.to_torch_dataset(), batch_size=None, num_workers=WORKERS, persistent_workers=True)


def _drained(make: Callable[[], Iterable[dict[str, Any]]]) -> harness.Measurement:
    """Measures all batches of some epochs; a sum, where one is asked for, is that of a tensor's NumPy view."""

    def batches() -> Iterator[dict[str, Any]]:
        loader = make()
        for _ in range(EPOCHS):
            yield from loader

    if harness.CHECKING not in os.environ:
        return harness.drain(batches, batch_rows=BATCH_ROWS)
    arrays = ({name: tensor.numpy() for name, tensor in batch.items()} for batch in batches())
    return harness.drain(lambda: arrays, batch_rows=BATCH_ROWS)


# ---------------------------------------------------------------- by hand


def _loader(loop: Loop, paths: list[str]) -> Any:
    """Returns a `DataLoader` whose workers run `loop` over every second file each."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Rows(IterableDataset[dict[str, torch.Tensor]]):
        def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
            warnings.simplefilter("ignore")  # that the memory must not be written
            info = get_worker_info()
            mine = paths[info.id :: info.num_workers]
            for batch in by_hand.exact_batches(loop(mine), BATCH_ROWS):
                yield {name: torch.from_numpy(array) for name, array in batch.items()}

    return DataLoader(Rows(), batch_size=None, num_workers=WORKERS, persistent_workers=True)


def _by_hand(loop: Loop) -> harness.Contender:
    def measure() -> harness.Measurement:
        import pandas  # noqa: F401  (pyarrow imports it at the first `to_numpy`: 0.6 s that are not the loop's)
        import torch  # noqa: F401

        paths = data.wide()
        data.read_through(paths)
        return _drained(lambda: _loader(loop, paths))

    return measure


# ---------------------------------------------------------------- datasets


def _rows(paths: list[str]) -> Any:
    """Returns the rows of `datasets`, shuffled, with tensors for values."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when it is imported
    import datasets

    streamed = datasets.load_dataset(
        "parquet", data_files=paths, split="train", streaming=True, cache_dir=tempfile.mkdtemp()
    )
    return streamed.shuffle(seed=7, buffer_size=WINDOW_ROWS).with_format("torch")


def datasets_rows(paths: list[str]) -> Any:
    """A `DataLoader` that makes batches of rows, in two workers."""
    from torch.utils.data import DataLoader

    return DataLoader(_rows(paths), batch_size=BATCH_ROWS, num_workers=WORKERS)


def datasets_batches(paths: list[str]) -> Any:
    """Batches that were cut of tables."""
    return _rows(paths).batch(BATCH_ROWS)


def datasets_batches_loader(paths: list[str]) -> Any:
    """The same in two workers."""
    from torch.utils.data import DataLoader

    return DataLoader(_rows(paths).batch(BATCH_ROWS), batch_size=None, num_workers=WORKERS)


def _of_datasets(source: Callable[[list[str]], Any]) -> harness.Contender:
    def measure() -> harness.Measurement:
        import torch  # noqa: F401

        paths = data.wide()
        data.read_through(paths)
        batches = map(_stacked, source(paths))
        first = {name: tuple(tensor.shape) for name, tensor in next(batches).items()}
        if first != SHAPES:
            raise AssertionError(f"expected batches of {SHAPES}, got {first}")
        watch, rows = harness.Stopwatch(), 0
        give_up = time.perf_counter() + SECONDS_OF_DATASETS
        while time.perf_counter() < give_up:
            rows += len(next(batches)["label"])
        return watch.measurement(rows)

    return measure


def _stacked(batch: dict[str, Any]) -> dict[str, Any]:
    """Makes features and matrices of a batch; `datasets` has NaN for null."""
    import torch

    dense = torch.stack([batch[name] for name in DENSE], dim=1).nan_to_num_(nan=0.0).log1p_()
    return {
        "dense": dense,
        "sparse": torch.stack([batch[name] for name in SPARSE], dim=1),
        "label": batch["label"],
    }


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars against the loops and against `datasets`."""
    if not HAS_DATASETS:
        print("\nno figures of datasets, which is not installed: pip install datasets")
    bars = []
    for title, ours, theirs, needed in (
        ("wide in a DataLoader, to_torch", "arrowflow-loader", ["arrowflow"], NEEDED_OVER_TO_TORCH),
        ("wide to torch, DataLoader", "arrowflow", LOADERS, NEEDED_OVER_LOADER),
        ("wide to torch, both in a DataLoader", "arrowflow-loader", LOADERS, NEEDED_OVER_LOADER),
        ("(the same, from the third epoch on)", "arrowflow-loader-kept", LOADERS, NEEDED_OVER_LOADER),
        ("wide to torch, datasets", "arrowflow", DATASETS_ROWS, NEEDED_OVER_DATASETS),
        ("(wide to torch, datasets' batches)", "arrowflow", DATASETS_BATCHES, 1.0),
    ):
        bars += harness.race_bar(rounds, title, ours=ours, theirs=theirs, needed=needed)
    return bars


LOADERS: Final = {f"loader-{name}": loop for name, loop in wide.BY_HAND.items()}
DATASETS_ROWS: Final = {"datasets-rows": datasets_rows}
DATASETS_BATCHES: Final = {
    "datasets-batches": datasets_batches,
    "datasets-batches-loader": datasets_batches_loader,
}
CONTENDERS: Final[dict[str, harness.Contender]] = {
    "arrowflow": arrowflow,
    "arrowflow-loader": arrowflow_loader,
    "arrowflow-loader-kept": arrowflow_loader_kept,
    **{name: _by_hand(loop) for name, loop in LOADERS.items()},
    **{name: _of_datasets(one) for name, one in (DATASETS_ROWS | DATASETS_BATCHES).items() if HAS_DATASETS},
}

if __name__ == "__main__":
    harness.main("torch_wide", CONTENDERS, judge, rounds=ROUNDS)
