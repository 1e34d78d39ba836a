"""The stream bars: Parquet shards, filtered and featurised, to NumPy batches of exactly 8192 rows.

TPC-H `lineitem` at scale factor 2 in 16 shards; six columns are read, rows shipped since 1995 are kept, and
five outputs are handed over, once in file order and once with `shuffle(262_144)`. Each is compared with the
best of several loops that somebody could write by hand over `pyarrow.dataset`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from benchmarks import by_hand, data, harness
from benchmarks.by_hand import Chunk

BATCH_ROWS: Final = 8192
WINDOW_ROWS: Final = 262_144
SINCE: Final = datetime.date(1995, 1, 1)
SINCE_DAYS: Final = (SINCE - datetime.date(1970, 1, 1)).days
COLUMNS: Final = ["l_orderkey", "l_quantity", "l_extendedprice", "l_discount", "l_tax", "l_shipdate"]
THREADS: Final = 2


# ---------------------------------------------------------------- ours


def rows(paths: list[str]) -> Any:
    """Returns the arrowflow Dataset of the workload's rows, in file order."""
    import polars as pl

    import arrowflow as af

    price = pl.col("l_extendedprice").cast(pl.Float32)
    discount = pl.col("l_discount").cast(pl.Float32)
    return (
        af.read_parquet(paths)
        .filter(pl.col("l_shipdate") >= SINCE)
        .with_columns(
            quantity=pl.col("l_quantity").cast(pl.Float32),
            revenue=price * (1 - discount),
            tax=pl.col("l_tax").cast(pl.Float32),
            shipdate=pl.col("l_shipdate").cast(pl.Int32),
        )
        .select("l_orderkey", "quantity", "revenue", "tax", "shipdate")
    )


def pipeline(paths: list[str], *, shuffle: bool) -> Any:
    """Returns the arrowflow Dataset of the workload."""
    dataset = rows(paths)
    if shuffle:
        dataset = dataset.shuffle(WINDOW_ROWS, seed=7)
    return dataset.batch(BATCH_ROWS, drop_remainder=True)


def _ours(*, shuffle: bool) -> harness.Contender:
    def measure() -> harness.Measurement:
        import arrowflow  # noqa: F401  (imports are not measured)

        paths = data.lineitem()
        data.read_through(paths)
        return harness.drain(lambda: pipeline(paths, shuffle=shuffle).to_numpy(), batch_rows=BATCH_ROWS)

    return measure


# ---------------------------------------------------------------- by hand: five sources of chunks

PROJECTION: Final = {
    "l_orderkey": pc.field("l_orderkey"),
    "quantity": pc.field("l_quantity").cast("float32"),
    "revenue": pc.multiply(
        pc.field("l_extendedprice").cast("float32"),
        pc.subtract(pc.scalar(pa.scalar(1, pa.float32())), pc.field("l_discount").cast("float32")),
    ),
    "tax": pc.field("l_tax").cast("float32"),
    "shipdate": pc.field("l_shipdate").cast("int32"),
}
TUNED: Final = {"fragment_readahead": 2, "batch_size": 1 << 20}
SHIPPED_SINCE: Final = pc.field("l_shipdate") >= pa.scalar(SINCE)


def scanner(paths: list[str]) -> Iterator[Chunk]:
    """One scanner over all files, with filter and projection pushed down."""
    return (_views(batch) for batch in _scan(paths, PROJECTION))


def scanner_two_files(paths: list[str]) -> Iterator[Chunk]:
    """The same with two files open at a time, which measured best of many settings."""
    return (_views(batch) for batch in _scan(paths, PROJECTION, **TUNED))


def scanner_eager(paths: list[str]) -> Iterator[Chunk]:
    """One scanner with the filter pushed down; the features are computed by eager calls on its batches."""
    return (_eager_features(batch) for batch in _scan(paths, COLUMNS, **TUNED))


def _scan(paths: list[str], columns: Any, **settings: int) -> Iterator[pa.RecordBatch]:
    made = ds.dataset(paths).scanner(columns=columns, filter=SHIPPED_SINCE, **settings)
    return (batch for batch in made.to_batches() if batch.num_rows)


def fragments(paths: list[str]) -> Iterator[Chunk]:
    """One plan per row group, filter and projection in it, driven by two threads that read ahead."""

    def read(fragment: ds.ParquetFileFragment) -> Chunk:
        table = fragment.to_table(columns=PROJECTION, filter=SHIPPED_SINCE, use_threads=False)
        return _views(_one_batch(table))

    return by_hand.ahead(read, by_hand.row_groups(paths, pre_buffer=False), threads=THREADS)


def fragments_eager(paths: list[str]) -> Iterator[Chunk]:
    """Row groups decoded by two threads, filter and features as eager calls there."""

    def read(fragment: ds.ParquetFileFragment) -> Chunk:
        batch = _one_batch(fragment.to_table(columns=COLUMNS, use_threads=False))
        return _eager_features(batch.filter(pc.greater_equal(batch["l_shipdate"], pa.scalar(SINCE))))

    return by_hand.ahead(read, by_hand.row_groups(paths, pre_buffer=False), threads=THREADS)


def fragments_views(paths: list[str]) -> Iterator[Chunk]:
    """Row groups decoded by two threads, filter and features in NumPy on views of the decoded buffers."""

    def read(fragment: ds.ParquetFileFragment) -> Chunk:
        return _view_features(_one_batch(fragment.to_table(columns=COLUMNS, use_threads=False)))

    return by_hand.ahead(read, by_hand.row_groups(paths, pre_buffer=False), threads=THREADS)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    return table.combine_chunks().to_batches()[0]


def _views(batch: pa.RecordBatch) -> Chunk:
    return {name: batch[name].to_numpy(zero_copy_only=True) for name in batch.schema.names}


def _eager_features(batch: pa.RecordBatch) -> Chunk:
    return {name: column.to_numpy(zero_copy_only=True) for name, column in eager_arrays(batch).items()}


def eager_arrays(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Returns the features of rows that passed the filter, each by eager calls."""
    one = pa.scalar(1, pa.float32())
    price, discount = batch["l_extendedprice"].cast("float32"), batch["l_discount"].cast("float32")
    return {
        "l_orderkey": batch["l_orderkey"],
        "quantity": batch["l_quantity"].cast("float32"),
        "revenue": pc.multiply(price, pc.subtract(one, discount)),
        "tax": batch["l_tax"].cast("float32"),
        "shipdate": batch["l_shipdate"].cast("int32"),
    }


def _view_features(batch: pa.RecordBatch) -> Chunk:
    shipdate = np.frombuffer(batch["l_shipdate"].buffers()[1], np.int32)[: batch.num_rows]
    keep = np.flatnonzero(shipdate >= SINCE_DAYS)
    hundredth = np.float32(0.01)
    discount = _low_words(batch["l_discount"])[keep].astype(np.float32)
    price = _low_words(batch["l_extendedprice"])[keep].astype(np.float32)
    return {
        "l_orderkey": np.frombuffer(batch["l_orderkey"].buffers()[1], np.int64)[: batch.num_rows][keep],
        "quantity": _low_words(batch["l_quantity"])[keep].astype(np.float32) * hundredth,
        "revenue": price * hundredth * (np.float32(1) - discount * hundredth),
        "tax": _low_words(batch["l_tax"])[keep].astype(np.float32) * hundredth,
        "shipdate": shipdate[keep],
    }


def _low_words(decimals: pa.Array) -> NDArray[np.int64]:
    """Returns the low 64 bits of each decimal: all of them, for values of up to 18 digits."""
    words = np.frombuffer(decimals.buffers()[1], np.int64)
    return words[2 * decimals.offset : 2 * (decimals.offset + len(decimals)) : 2]


SOURCES: Final[dict[str, Callable[[list[str]], Iterator[Chunk]]]] = {
    "scanner": scanner,
    "scanner-two-files": scanner_two_files,
    "scanner-eager": scanner_eager,
    "fragments": fragments,
    "fragments-eager": fragments_eager,
    "fragments-views": fragments_views,
}

# ---------------------------------------------------------------- by hand: shuffled


def take_table(paths: list[str]) -> Iterator[Chunk]:
    """A scanner's batches, collected to windows; each is one `Table.take` of a random permutation."""
    rng = np.random.default_rng(7)
    held: list[pa.RecordBatch] = []
    held_rows = 0
    for batch in _scan(paths, PROJECTION, **TUNED):
        while held_rows + batch.num_rows >= WINDOW_ROWS:
            cut = WINDOW_ROWS - held_rows
            yield _taken([*held, batch.slice(0, cut)], rng)
            held, held_rows, batch = [], 0, batch.slice(cut)
        held.append(batch)
        held_rows += batch.num_rows
    if held_rows:
        yield _taken(held, rng)


def _taken(batches: list[pa.RecordBatch], rng: np.random.Generator) -> Chunk:
    window = pa.Table.from_batches(batches).combine_chunks()
    return _views(_one_batch(window.take(pa.array(rng.permutation(window.num_rows)))))


def _shuffled(source: Callable[[list[str]], Iterator[Chunk]]) -> Callable[[list[str]], Iterator[Chunk]]:
    return lambda paths: by_hand.shuffled(source(paths), WINDOW_ROWS, seed=7)


SHUFFLED: Final = {"shuffled-take-table": take_table} | {
    f"shuffled-{name}": _shuffled(SOURCES[name])
    for name in ("scanner-two-files", "fragments", "fragments-views")
}


def _by_hand(source: Callable[[list[str]], Iterator[Chunk]]) -> harness.Contender:
    def measure() -> harness.Measurement:
        import pandas  # noqa: F401  (pyarrow imports it at the first `to_numpy`: 0.6 s that are not the loop's)

        paths = data.lineitem()
        data.read_through(paths)
        return harness.drain(lambda: by_hand.exact_batches(source(paths), BATCH_ROWS), batch_rows=BATCH_ROWS)

    return measure


CONTENDERS: Final[dict[str, harness.Contender]] = (
    {"arrowflow": _ours(shuffle=False)}
    | {name: _by_hand(source) for name, source in SOURCES.items()}
    | {"arrowflow-shuffled": _ours(shuffle=True)}
    | {name: _by_hand(source) for name, source in SHUFFLED.items()}
)


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the two bars: in file order, and shuffled."""
    plain = harness.race_bar(rounds, "stream", ours="arrowflow", theirs=SOURCES, needed=0.9)
    shuffle = harness.race_bar(
        rounds, "stream, shuffled", ours="arrowflow-shuffled", theirs=SHUFFLED, needed=0.9
    )
    return plain + shuffle


if __name__ == "__main__":
    harness.main("stream", CONTENDERS, judge)
