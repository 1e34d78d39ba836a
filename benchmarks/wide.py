"""The wide bar: a recommender's table of 40 columns, featurised, stacked, shuffled and batched.

4 M rows in 16 zstd files: 13 nullable float32 columns are filled with 0, `log1p`ed and stacked, 26 int32
columns are stacked, a label goes along; `shuffle(262_144)`, batches of 8192. The loop to compare with does the
obvious over a scanner, with features and stacking behind or in front of the shuffle, whichever is faster.
A loop with threads of its own that read row groups ahead is measured beside it, for information.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from numpy.typing import NDArray

from benchmarks import by_hand, data, harness
from benchmarks.by_hand import Chunk
from benchmarks.data import DENSE, SPARSE

BATCH_ROWS: Final = 8192
WINDOW_ROWS: Final = 262_144
COLUMNS: Final = [*DENSE, *SPARSE, "label"]
THREADS: Final = 2


def rows(paths: list[str]) -> Any:
    """Returns the arrowflow Dataset of the workload's rows, featurised and stacked."""
    import polars as pl

    import arrowflow as af

    return (
        af.read_parquet(paths)
        .with_columns(**{name: pl.col(name).fill_null(0).log1p() for name in DENSE})
        .stack(dense=list(DENSE), sparse=list(SPARSE))
    )


def pipeline(paths: list[str]) -> Any:
    """Returns the arrowflow Dataset of the workload."""
    return rows(paths).shuffle(WINDOW_ROWS, seed=7).batch(BATCH_ROWS, drop_remainder=True)


def arrowflow() -> harness.Measurement:
    """Measures arrowflow."""
    import arrowflow as _  # noqa: F401  (imports are not measured)

    paths = data.wide()
    data.read_through(paths)
    return harness.drain(lambda: pipeline(paths).to_numpy(), batch_rows=BATCH_ROWS)


# ---------------------------------------------------------------- by hand


def take_table(paths: list[str], *, file_readahead: int = 4) -> Iterator[Chunk]:
    """Windows of a scanner's batches, `Table.take` of a permutation, features of the whole window."""
    rng = np.random.default_rng(7)
    held: list[pa.RecordBatch] = []
    held_rows = 0
    for batch in ds.dataset(paths).scanner(columns=COLUMNS, fragment_readahead=file_readahead).to_batches():
        while held_rows + batch.num_rows >= WINDOW_ROWS:
            cut = WINDOW_ROWS - held_rows
            yield _taken([*held, batch.slice(0, cut)], rng)
            held, held_rows, batch = [], 0, batch.slice(cut)
        held.append(batch)
        held_rows += batch.num_rows
    if held_rows:
        yield _taken(held, rng)


def take_table_two_files(paths: list[str]) -> Iterator[Chunk]:
    """The same with two files open at a time."""
    return take_table(paths, file_readahead=2)


def _taken(batches: list[pa.RecordBatch], rng: np.random.Generator) -> Chunk:
    window = pa.Table.from_batches(batches).combine_chunks()
    return features(window.take(pa.array(rng.permutation(window.num_rows))).combine_chunks().to_batches()[0])


def scanner_two_files(paths: list[str]) -> Iterator[Chunk]:
    """Features and stacking of a scanner's batches, with two files open at a time."""
    scanned = ds.dataset(paths).scanner(columns=COLUMNS, fragment_readahead=2).to_batches()
    return (features(batch) for batch in scanned if batch.num_rows)


def fragments(paths: list[str]) -> Iterator[Chunk]:
    """Features and stacking of row groups that two threads decode and read ahead."""

    def read(fragment: ds.ParquetFileFragment) -> Chunk:
        return features(
            fragment.to_table(columns=COLUMNS, use_threads=False).combine_chunks().to_batches()[0]
        )

    return by_hand.ahead(read, by_hand.row_groups(paths, pre_buffer=False), threads=THREADS)


def stack_first(paths: list[str]) -> Iterator[Chunk]:
    """Features and stacking of a scanner's batches first, then windows and one gather of the matrices."""
    return by_hand.shuffled(scanner_two_files(paths), WINDOW_ROWS, seed=7)


def stack_first_threads(paths: list[str]) -> Iterator[Chunk]:
    """The same, with decoding and features of the row groups in two threads that read ahead."""
    return by_hand.shuffled(fragments(paths), WINDOW_ROWS, seed=7)


def features(batch: pa.RecordBatch) -> Chunk:
    """Returns the matrices and the label of a batch."""
    dense = [batch[name].fill_null(0).to_numpy(zero_copy_only=False) for name in DENSE]
    sparse = [batch[name].to_numpy(zero_copy_only=False) for name in SPARSE]
    return {
        "dense": np.log1p(np.stack(dense, axis=1)),
        "sparse": np.stack(sparse, axis=1),
        "label": _label(batch),
    }


def _label(batch: pa.RecordBatch) -> NDArray[np.int32]:
    label: NDArray[np.int32] = batch["label"].to_numpy()
    return label


def _by_hand(source: Callable[[list[str]], Iterator[Chunk]]) -> harness.Contender:
    def measure() -> harness.Measurement:
        import pandas  # noqa: F401  (pyarrow imports it at the first `to_numpy`: 0.6 s that are not the loop's)

        paths = data.wide()
        data.read_through(paths)
        return harness.drain(lambda: by_hand.exact_batches(source(paths), BATCH_ROWS), batch_rows=BATCH_ROWS)

    return measure


BY_HAND: Final = {
    "take-table": take_table,
    "take-table-two-files": take_table_two_files,
    "stack-first": stack_first,
}
UNSHUFFLED: Final = {"scanner-two-files": scanner_two_files, "fragments": fragments}
THREADED: Final = {"stack-first-threads": stack_first_threads}
CONTENDERS: Final[dict[str, harness.Contender]] = {"arrowflow": arrowflow} | {
    name: _by_hand(source) for name, source in (BY_HAND | THREADED).items()
}


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bar against the loop."""
    bar = harness.race_bar(rounds, "wide, shuffled", ours="arrowflow", theirs=BY_HAND, needed=1.5)
    beside = harness.race_bar(rounds, "(wide, own threads)", ours="arrowflow", theirs=THREADED, needed=1.0)
    return bar + beside


if __name__ == "__main__":
    harness.main("wide", CONTENDERS, judge)
