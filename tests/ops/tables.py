"""Shared by the tests of operators: small tables of all types, and every operator with arguments that fit them."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.testing import assert_same_batches, batches_of, chunked

Apply = Callable[[af.Dataset], af.Dataset]

NAN = float("nan")
NUMBERS = pa.table(
    {
        "row": pa.array(range(17), pa.int64()),
        "x": pa.array([None if i % 5 == 0 else NAN if i == 7 else i / 4 for i in range(17)], pa.float64()),
        "n": pa.array([None if i % 6 == 2 else i * 3 - 20 for i in range(17)], pa.int32()),
        "s": pa.array([None if i % 7 == 0 else f"text {i}" for i in range(17)], pa.string()),
        "b": pa.array([None if i % 4 == 3 else i % 2 == 0 for i in range(17)], pa.bool_()),
    }
)
"""Numbers with null and NaN, texts, booleans; `row` tells the rows apart."""


def _some_null(make: Callable[[int], object], type: pa.DataType) -> pa.Array:
    return pa.array([None if i % 4 == 1 else make(i) for i in range(11)], type)


STRUCT = pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))])
ALL_TYPES = pa.table(
    {
        "row": pa.array(range(11), pa.int64()),
        "decimal": _some_null(lambda i: decimal.Decimal(i).scaleb(-2), pa.decimal128(15, 2)),
        "date": _some_null(lambda i: 9000 + i, pa.int32()).cast(pa.date32()),
        "time": _some_null(lambda i: i * 1_000_003, pa.int64()).cast(pa.timestamp("us", "UTC")),
        "duration": _some_null(lambda i: i * 7, pa.int64()).cast(pa.duration("ms")),
        "half": _some_null(lambda i: i / 2, pa.float16()),
        "null": pa.nulls(11),
        "text": _some_null(lambda i: "ä" * i, pa.string()),
        "view": _some_null(lambda i: "a longer text than fits inside a view " * i, pa.string_view()),
        "bytes": _some_null(lambda i: bytes([i]) * i, pa.large_binary()),
        "fixed": _some_null(lambda i: bytes([i]) * 3, pa.binary(3)),
        "dictionary": _some_null(lambda i: "ab"[i % 2], pa.string()).dictionary_encode(),
        "list": _some_null(lambda i: [None, *range(i)], pa.list_(pa.int32())),
        "large_list": _some_null(lambda i: [[NAN]] * i, pa.large_list(pa.list_(pa.float64()))),
        "vector": _some_null(lambda i: [i, i + 0.5], pa.list_(pa.float32(), 2)),
        "struct": _some_null(lambda i: {"a": i, "b": ["x"] * (i % 3)}, STRUCT),
        "map": _some_null(lambda i: [("k", i)] * (i % 3), pa.map_(pa.string(), pa.int64())),
    }
)
"""One column of each kind of type, with nulls; `row` tells the rows apart."""

ALL_TYPES_INSIDE = af.from_arrow(ALL_TYPES).to_table()
"""The same as a pipeline holds it: views, large offsets and dictionaries normalised."""


def identity(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def same_frame(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


def two_thirds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Drops rows by their value, so that the result does not depend on where pieces end."""
    return batch.filter(pa.array([value % 3 != 0 for value in batch.column("row").to_pylist()], pa.bool_()))


LOOKED_UP = pl.DataFrame({"row": [8, 2, 5], "looked_up": [1, 2, 3]})
ZEROS_AND_ONES = af.range(12).select(choice=pl.col("id") % 2)


def same_row(row: dict[str, Any]) -> dict[str, Any]:
    return row


def counted(count: int, batch: pa.RecordBatch) -> tuple[int, pa.RecordBatch]:
    return count + batch.num_rows, batch


def up_to(row: dict[str, Any]) -> af.Dataset:
    return af.range(row["row"] % 4)


PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c49444154081d636067670700002e0016005c12200000000049454e44ae426082"
)
"""A picture of one pixel."""

OPERATORS: dict[str, Apply] = {
    "select": lambda ds: ds.select(*reversed(ds.schema.names)),
    "with_columns": lambda ds: ds.with_columns(double=pl.col("row") * 2),
    "drop": lambda ds: ds.with_columns(gone=pl.col("row") + 1).drop("gone"),
    "rename": lambda ds: ds.rename({"row": "was", "text": "row"}).rename({"row": "text", "was": "row"}),
    "cast": lambda ds: ds.cast({"row": pa.int32()}).cast({"row": pa.int64()}),
    "fill_null": lambda ds: ds.fill_null({"row": 0}),
    "decode_image": lambda ds: ds.with_columns(gone=pl.lit(PNG)).decode_image("gone", 1).drop("gone"),
    "join": lambda ds: ds.join(LOOKED_UP, "row").drop("looked_up"),
    "stack": lambda ds: ds.with_columns(a=pl.col("row"), c=pl.col("row") + 1).stack(pair=["a", "c"]),
    "filter": lambda ds: ds.filter(pl.col("row") % 3 != 1),
    "map": lambda ds: ds.map(identity, schema=ds.schema),
    "take": lambda ds: ds.take(9),
    "take_while": lambda ds: ds.take_while(pl.col("row") < 9),
    "explode": lambda ds: ds.explode("list"),
    "skip": lambda ds: ds.skip(2),
    "assert_cardinality": lambda ds: ds.assert_cardinality(ds.to_table().num_rows),
    "sample": lambda ds: ds.cache().sample(4, weights=pl.col("row") + 1, replacement=True, seed=1),
    "repeat": lambda ds: ds.repeat(2),
    "shuffle": lambda ds: ds.shuffle(4, seed=1),
    "batch": lambda ds: ds.batch(3),
    "prefetch": lambda ds: ds.prefetch(2),
    "shard": lambda ds: ds.shard(2, 1),
    "concatenate": lambda ds: ds.concatenate(ds.take(4)),
    "enumerate": lambda ds: ds.enumerate(),
    "zip": lambda ds: af.zip(ds, af.range(9)),
    "choose_from_datasets": lambda ds: af.choose_from_datasets([ds, ds], ZEROS_AND_ONES),
    "map_rows": lambda ds: ds.map_rows(same_row, schema=ds.schema),
    "scan": lambda ds: ds.scan(0, counted, schema=ds.schema),
    "unique": lambda ds: ds.unique("row", max_rows=1_000),
    "rejection_resample": lambda ds: ds.rejection_resample(pl.col("row") % 2, [0.5, 0.5], seed=1),
    "sample_from_datasets": lambda ds: af.sample_from_datasets([ds, ds.take(5)], seed=1),
    "bucket_by_sequence_length": lambda ds: ds.bucket_by_sequence_length("text", [3, 6], [2, 3, 2]),
    "group_by_window": lambda ds: ds.group_by_window(pl.col("row") % 3, 2),
    "window": lambda ds: ds.window(2),
    "unbatch": lambda ds: ds.batch(3).unbatch(),
    "padded_batch": lambda ds: ds.select("row", "list").padded_batch(3),
    "pack_sequences": lambda ds: ds.select(tokens=pl.concat_list("row", "row")).pack_sequences("tokens", 4),
    "flat_map": lambda ds: ds.flat_map(up_to),
    "interleave": lambda ds: ds.interleave(up_to, cycle_length=2),
    "split_by_rank": lambda ds: ds.batch(4).split_by_rank(0, 1, lanes=2),
    "cache": lambda ds: ds.cache(),
    "with_options": lambda ds: ds.with_options(af.Options(cpu_budget=2)),
    "apply": lambda ds: ds.apply(lambda inner: inner.skip(1)),
}
"""Every operator, on a table with the columns `row` and `text`."""

BATCHED_ALLOWED = [
    "select",
    "with_columns",
    "drop",
    "rename",
    "cast",
    "fill_null",
    "stack",
    "decode_image",
    "join",
    "map",
    "repeat",
]
BATCHED_ALLOWED += ["batch", "unbatch", "prefetch", "with_options", "map_rows", "scan", "cache"]
BATCHED_ALLOWED += ["padded_batch", "pack_sequences", "bucket_by_sequence_length", "group_by_window"]
BATCHED_REFUSED = ["assert_cardinality", "unique", "rejection_resample", "window", "flat_map", "interleave"]
BATCHED_REFUSED += ["take", "skip", "shuffle", "filter", "shard", "enumerate", "zip", "choose_from_datasets"]
BATCHED_REFUSED += ["take_while", "explode", "sample"]


def stands_for_all(case: str, cases: Iterable[str]) -> bool:
    """Returns whether a case is the first one, which contract tests check in full, and the others with fewer cuts."""
    return case == next(iter(cases))


def rows_of(dataset: af.Dataset, column: str = "row", *, epoch: int = 0) -> list[Any]:
    """Returns one column of one epoch."""
    return [value for batch in batches_of(dataset, epoch=epoch) for value in batch.column(column).to_pylist()]


def ids(dataset: af.Dataset, *, epoch: int = 0) -> list[Any]:
    """Returns the numbers that are left of an `af.range`."""
    return rows_of(dataset, "id", epoch=epoch)


def sizes(dataset: af.Dataset) -> list[int]:
    """Returns the rows of each batch."""
    return [batch.num_rows for batch in batches_of(dataset)]


def numbers(*split_sizes: int) -> af.Dataset:
    """Returns a dataset whose `row` counts through splits of these sizes."""
    total = pa.record_batch({"row": pa.array(range(sum(split_sizes)), pa.int64())})
    starts = [sum(split_sizes[:number]) for number in range(len(split_sizes))]
    splits = [[total.slice(start, size)] for start, size in zip(starts, split_sizes, strict=True)]
    return chunked(splits, total.schema)


def write_shards(folder: Path, shards: Sequence[Sequence[int]]) -> Path:
    """Writes one Parquet file a shard, with row groups of the given sizes; `row` counts through all of them."""
    schema, start = pa.schema([("row", pa.int64()), ("file", pa.int32())]), 0
    for number, groups in enumerate(shards):
        with pq.ParquetWriter(folder / f"{number:02}.parquet", schema) as writer:
            for size in groups:
                rows = pa.array(range(start, start + size), pa.int64())
                writer.write_batch(
                    pa.record_batch([rows, pa.array([number] * size, pa.int32())], schema=schema)
                )
                start += size
    return folder


def check_two_at_once(dataset: af.Dataset, *, num_batches: int) -> None:
    """Checks that two iterators in turns, and one behind them, yield the same, of which the one gets on faster."""
    with iter(dataset) as one, iter(dataset) as other:
        fast, slow = [], []
        for number in range(num_batches):
            fast.append(next(one))
            if number % 3 == 0:
                slow.append(next(other))
        slow.extend(other)
        assert not list(one)
    assert_same_batches(fast, slow)
    assert_same_batches(batches_of(dataset), fast)


def refused(error: type[Exception], call: Callable[[], object], *texts: str) -> None:
    """Asserts that a call is refused with an error that mentions all texts."""
    with pytest.raises(error) as caught:
        call()
    for text in texts:
        assert text in str(caught.value), f"{text!r} is not in {caught.value}"
