"""`bucket_by_sequence_length`: which rows make a batch and when it comes, against a loop over rows; lag, resume, waste."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.kernels.items import Item, Origin
from arrowflow.ops.batches.bucket_by_sequence_length import BucketBySequenceLength, BucketKernel
from arrowflow.testing import batches_of, check_operator, check_resume, chunked, cut
from tests.effort import scaled
from tests.ops.tables import refused, rows_of

pytestmark = pytest.mark.any_version

COUNTS = [3, 0, 1, 5, 2, 2, 0, 4, 1, 1, 7, 0, 3, 2, 2, 9, 1]
TABLE = pa.table(
    {
        "row": pa.array(range(17)),
        "tokens": pa.array(
            [None if row == 6 else [row] * count for row, count in enumerate(COUNTS)], pa.list_(pa.int32())
        ),
        "text": pa.array([None if row == 11 else "x" * count for row, count in enumerate(COUNTS)]),
    }
)


def reference(
    lengths: Sequence[int], boundaries: Sequence[int], sizes: Sequence[int], lag: int, *, drop: bool = False
) -> Iterator[list[int]]:
    """Yields the rows of each batch: a loop over rows, as simple as can be."""
    held: list[list[int]] = [[] for _ in sizes]
    for row, length in enumerate(lengths):
        for late, rows in enumerate(held):
            if rows and row - rows[0] >= lag:
                if not drop:
                    yield rows
                held[late] = []
        bucket = sum(length >= boundary for boundary in boundaries)
        held[bucket].append(row)
        if len(held[bucket]) == sizes[bucket]:
            yield held[bucket]
            held[bucket] = []
    if not drop:
        yield from filter(None, held)


def table_of(lengths: Sequence[int]) -> pa.RecordBatch:
    tokens = [None if length == 0 and row % 2 else [row] * length for row, length in enumerate(lengths)]
    return pa.record_batch(
        {"row": pa.array(range(len(lengths)), pa.int64()), "tokens": pa.array(tokens, pa.list_(pa.int32()))}
    )


def rows_in(ds: af.Dataset) -> list[list[int]]:
    return [batch["row"].to_pylist() for batch in ds]


@pytest.mark.parametrize(
    ("max_lag_rows", "drop_remainder", "no_padding"),
    [(4, False, False), (1, True, False), (4, True, True), (100, False, True)],
)
def test_contracts(max_lag_rows: int, drop_remainder: bool, no_padding: bool) -> None:
    given: dict[str, Any] = {
        "max_lag_rows": max_lag_rows,
        "drop_remainder": drop_remainder,
        "no_padding": no_padding,
    }
    check_operator(
        lambda ds: ds.bucket_by_sequence_length("tokens", [2, 4], [3, 2, 1], **given),
        TABLE,
        in_full=not (drop_remainder or no_padding),
    )


def test_contracts_with_everything_set() -> None:
    check_operator(
        lambda ds: ds.bucket_by_sequence_length(
            "text",
            [1, 2, 5],
            [2, 4, 3, 1],
            max_lag_rows=3,
            padded_shapes={"tokens": 4},
            padding_values={"tokens": -1},
            truncate=True,
            lengths={"tokens": "n"},
            num_parallel_calls=2,
        ),
        TABLE,
    )


@settings(max_examples=scaled(100))
@given(data=st.data())
def test_it_equals_a_loop_over_rows(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 9), max_size=60), "lengths")
    boundaries = sorted(data.draw(st.sets(st.integers(1, 9), max_size=3), "boundaries"))
    some = st.lists(st.integers(1, 5), min_size=len(boundaries) + 1, max_size=len(boundaries) + 1)
    sizes = data.draw(some, "sizes")
    lag = data.draw(st.integers(1, 30), "lag")
    drop = data.draw(st.booleans(), "drop")
    chunks = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=5), "chunks")
    batch = table_of(lengths)

    def make() -> af.Dataset:
        return chunked([cut(batch, chunks)], batch.schema).bucket_by_sequence_length(
            "tokens", boundaries, sizes, max_lag_rows=lag, drop_remainder=drop
        )

    assert rows_in(make()) == list(reference(lengths, boundaries, sizes, lag, drop=drop))
    check_resume(make)


def test_a_batch_is_emitted_by_the_row_that_fills_it() -> None:
    batch = table_of([1, 5, 1, 5, 5, 1, 1, 5])
    ds = chunked([[batch]], batch.schema).bucket_by_sequence_length("tokens", [3], [3, 2])
    assert rows_in(ds) == [[1, 3], [0, 2, 5], [4, 7], [6]]


def test_a_bucket_that_lags_comes_short() -> None:
    """Row 0 is alone in its bucket; four rows later it comes, with those of its bucket up to then."""
    batch = table_of([9, 1, 1, 9, 1, 1, 1, 9])
    ds = chunked([[batch]], batch.schema)
    short = ds.bucket_by_sequence_length("tokens", [3], [2, 5], max_lag_rows=4, no_padding=True)
    assert rows_in(short) == [[1, 2], [0, 3], [4, 5], [6], [7]]
    dropped = ds.bucket_by_sequence_length(
        "tokens", [3], [2, 5], max_lag_rows=4, drop_remainder=True, no_padding=True
    )
    assert rows_in(dropped) == [[1, 2], [4, 5]]


@pytest.mark.parametrize("max_lag_rows", [1, 2, 5])
def test_no_more_rows_are_held_than_may_lag_as_in_groups(max_lag_rows: int) -> None:
    batch = table_of([1, 9, 9, 1, 1, 9, 1, 1, 1, 9, 9, 1])
    ds = chunked([[batch]], batch.schema)
    buckets = ds.bucket_by_sequence_length("tokens", [3], [4, 4], max_lag_rows=max_lag_rows, no_padding=True)
    groups = ds.group_by_window(pl.col("tokens").list.len() < 3, 4, max_lag_rows=max_lag_rows)
    found = rows_in(buckets)
    assert sorted(found) == sorted(rows_in(groups))  # at the end buckets come by length, groups by age
    assert max(rows[-1] - rows[0] for rows in found) < max_lag_rows


def test_boundaries_belong_to_the_next_bucket() -> None:
    batch = table_of([2, 3, 4, 5, 6])
    ds = chunked([[batch]], batch.schema).bucket_by_sequence_length("tokens", [3, 5], [9, 9, 9])
    assert rows_in(ds) == [[0], [1, 2], [3, 4]]


def test_lists_are_padded_within_their_batch() -> None:
    ds = af.from_arrow(TABLE).drop("text")
    loader = ds.bucket_by_sequence_length("tokens", [2, 4], [3, 2, 2]).to_numpy()
    for batch in loader:
        rows = [TABLE["tokens"][row].as_py() or [] for row in batch["row"].tolist()]
        longest = max(map(len, rows))
        assert batch["tokens"].tolist() == [row + [0] * (longest - len(row)) for row in rows]
        assert longest - min(map(len, rows)) < 6


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.binary(), pa.list_(pa.string()), pa.list_(pa.list_(pa.int8()))],
)
def test_all_that_has_a_length_is_measured(kind: pa.DataType) -> None:
    values: list[Any] = ["a" * count for count in COUNTS]
    if pa.types.is_list(kind):
        values = [["a"] * count if kind.value_type == pa.string() else [[1, 2]] * count for count in COUNTS]
    table = pa.table({"row": range(17), "x": pa.array(values, kind)})
    ds = af.from_arrow(table).skip(3).bucket_by_sequence_length("x", [2, 4], [3, 2, 1], no_padding=True)
    expected = reference(COUNTS[3:], [2, 4], [3, 2, 1], 1000)
    assert rows_in(ds) == [[row + 3 for row in rows] for rows in expected]


def test_a_state_is_small_and_seeks() -> None:
    """Only the rows since the oldest held one are read again."""
    batch = table_of([1, 2, 9] * 4000)

    def make() -> af.Dataset:
        parts = cut(batch, [100])
        return chunked([[part] for part in parts], batch.schema).bucket_by_sequence_length(
            "tokens", [2, 5], [50, 50, 1000], max_lag_rows=300
        )

    with iter(make()) as iterator:
        for _ in range(150):
            next(iterator)
        state = iterator.state_dict()
        following = next(iterator)
    assert len(str(state)) < 2000
    with iter(make()) as resumed:
        resumed.load_state_dict(state)
        assert next(resumed).equals(following)


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_only_chunks_with_held_rows_are_kept(drop_remainder: bool) -> None:
    """Also where nothing comes out: all rows are of a bucket that lags, and is dropped each time."""
    ds = af.from_arrow(TABLE).bucket_by_sequence_length(
        "tokens", [2], [9, 1000], max_lag_rows=50, drop_remainder=drop_remainder, no_padding=True
    )
    assert isinstance(ds._plan, BucketBySequenceLength)
    kernel = BucketKernel(ds._plan)
    kernel.open(None, 0)
    for number, chunk in enumerate(cut(table_of([5] * 2000), [10])):
        batches = list(kernel.push(Item(chunk, (number,), None, Origin(number))))
        assert all(batch.chunk.num_rows == 50 for batch in batches)
        assert sum(chunk.num_rows for chunk, *_ in kernel._chunks._held) <= 70


def test_a_chunk_without_rows_after_a_resume_keeps_the_counts() -> None:
    """The rows that were emitted before the resume are still to come again."""
    ds = af.from_arrow(TABLE).bucket_by_sequence_length("tokens", [2], [3, 3], no_padding=True)
    assert isinstance(ds._plan, BucketBySequenceLength)
    kernel = BucketKernel(ds._plan)
    kernel.open((("start",), (2, 0), 1), 0)
    (item,) = kernel.push(Item(table_of([])[:0], ("after",), None, Origin(0)))
    assert item.position == (("after",), (2, 0), 1)


def test_column_operators_above_do_not_change_the_buckets() -> None:
    ds = af.from_arrow(TABLE).shuffle(17, seed=1)
    plain = ds.bucket_by_sequence_length("tokens", [2, 4], [3, 2, 1], no_padding=True)
    above = plain.with_columns(tokens=pl.col("text"), a=pl.col("row"), b=pl.col("row")).stack(both=["a", "b"])
    assert rows_in(above) == rows_in(plain)


def test_a_column_that_nobody_wants_still_measures() -> None:
    ds = af.from_arrow(TABLE).bucket_by_sequence_length("tokens", [2, 4], [3, 2, 1])
    assert rows_of(ds.select("row")) == rows_of(ds)
    assert ds.num_rows == 17
    assert (
        af.from_arrow(TABLE).bucket_by_sequence_length("tokens", [2], [3, 2], drop_remainder=True).num_rows
        is None
    )


def test_it_is_a_batch_to_what_is_above() -> None:
    ds = af.from_arrow(TABLE).bucket_by_sequence_length("tokens", [2], [3, 2])
    refused(af.PlanError, lambda: ds.shuffle(3), "write .shuffle(3).bucket_by_sequence_length(…)")
    assert len(batches_of(ds.repeat(2))) == 2 * len(batches_of(ds))


def test_above_a_map_the_column_is_looked_for_on_the_way() -> None:
    ds = af.from_arrow(TABLE).map(lambda batch: batch)
    assert rows_in(ds.bucket_by_sequence_length("tokens", [2], [3, 2])) == list(
        reference([*COUNTS[:6], 0, *COUNTS[7:]], [2], [3, 2], 1000)
    )
    wrong = ds.bucket_by_sequence_length("row", [2], [3, 2])
    refused(
        af.PlanError, lambda: list(wrong), "bucket_by_sequence_length", "'row'", "lists, strings or binaries"
    )


@pytest.mark.parametrize(
    ("texts", "changed"),
    [
        (["column"], {"column": 3}),
        (["bucket_boundaries", "list"], {"bucket_boundaries": 3}),
        (["bucket_boundaries", "go up"], {"bucket_boundaries": [3, 3], "bucket_batch_sizes": [1, 1, 1]}),
        (["bucket_boundaries", "at least 1"], {"bucket_boundaries": [0]}),
        (["1 bucket_boundaries make 2 buckets", "got 3"], {"bucket_batch_sizes": [1, 2, 3]}),
        (["bucket_batch_sizes", "at least 1"], {"bucket_batch_sizes": [1, 0]}),
        (["at most 1,024"], {"bucket_boundaries": range(1, 2000), "bucket_batch_sizes": [1] * 2000}),
        (["bucket_boundaries", "at most"], {"bucket_boundaries": [1 << 63]}),
        (["max_lag_rows"], {"max_lag_rows": 0}),
        (
            ["pad_to_bucket_boundary", "there is none"],
            {"bucket_boundaries": [], "bucket_batch_sizes": [2], "pad_to_bucket_boundary": True},
        ),
        (
            ["'tokens'", "7", "padded_shapes", "pad_to_bucket_boundary"],
            {"pad_to_bucket_boundary": True, "padded_shapes": {"tokens": 7}},
        ),
        (
            ["'tokens'", "to 1 ", "multiple_of=8"],
            {"pad_to_bucket_boundary": True, "multiple_of": 8},
        ),
        (["no_padding", "padded_shapes"], {"no_padding": True, "padded_shapes": {"tokens": 7}}),
        (["no_padding", "padding_values"], {"no_padding": True, "padding_values": 0}),
        (["no_padding", "multiple_of"], {"no_padding": True, "multiple_of": 8}),
        (
            ["no_padding", "truncate, lengths"],
            {"no_padding": True, "truncate": True, "lengths": {"tokens": "n"}},
        ),
        (["no_padding", "pad_to_bucket_boundary"], {"no_padding": True, "pad_to_bucket_boundary": True}),
        (["multiple_of"], {"multiple_of": 0}),
        (["num_parallel_calls"], {"num_parallel_calls": 0}),
    ],
)
def test_bad_arguments(texts: list[str], changed: dict[str, Any]) -> None:
    given = {"column": "tokens", "bucket_boundaries": [2], "bucket_batch_sizes": [1, 1], **changed}
    ds = af.from_arrow(TABLE)
    refused(af.PlanError, lambda: ds.bucket_by_sequence_length(**given), "bucket_by_sequence_length", *texts)


def test_boundaries_and_other_lengths_may_agree() -> None:
    """Those of other columns, of inner levels, and boundaries behind multiples."""
    table = pa.table({"x": [[1], [2] * 9], "y": [[[1], [2, 2]], [[3]]]})
    ds = af.from_arrow(table).bucket_by_sequence_length(
        "x", [9, 17], [1, 1, 1], pad_to_bucket_boundary=True, multiple_of=4, padded_shapes={"y": (None, 3)}
    )
    shapes = [(batch["x"].shape, batch["y"].shape) for batch in ds.to_numpy()]
    assert shapes == [((1, 8), (1, 4, 3)), ((1, 16), (1, 4, 3))]


def test_errors_of_its_padding_name_it() -> None:
    ds = af.from_arrow(TABLE)
    wrong = ds.bucket_by_sequence_length("tokens", [2], [3, 2], padding_values={"row": 1})
    refused(af.PlanError, lambda: wrong.schema, "bucket_by_sequence_length: ", "'row'")
    long = ds.bucket_by_sequence_length("tokens", [2], [3, 2], padded_shapes={"tokens": 3})
    refused(af.DataError, lambda: list(long), "bucket_by_sequence_length: ", "'tokens'")
    unknown = ds.map(lambda batch: batch).bucket_by_sequence_length(
        "tokens", [2], [3, 2], lengths={"row": "n"}
    )
    refused(af.PlanError, lambda: list(unknown), "bucket_by_sequence_length: ", "'row'")
    assert "padded_batch" not in wrong.__class__.__name__


@pytest.mark.parametrize("lag", [8_000, 65_536])
def test_a_budget_has_room_for_what_one_row_of_a_rare_length_keeps(lag: int) -> None:
    vectors = pa.array([[0.0] * 256] * 500, pa.list_(pa.float32(), 256))
    schema = pa.schema([("x", pa.string()), ("v", vectors.type)])

    def chunks() -> Iterator[pa.RecordBatch]:
        for number in range(20):
            first = "long" if number == 0 else ""
            yield pa.record_batch([pa.array([first, *[""] * 499]), vectors], schema=schema)

    def make(rows: int) -> af.Dataset:
        ds = af.from_generator(chunks, schema=schema)
        return ds.bucket_by_sequence_length("x", [1], [32, 32], max_lag_rows=rows)

    small = af.Options(ram_budget="3MiB")
    refused(
        af.BudgetError,
        lambda: list(make(lag).with_options(small)),
        "bucket_by_sequence_length",
        "max_lag_rows",
    )
    assert sum(batch.num_rows for batch in make(1_000).with_options(small)) == 10_000


def test_the_column_has_to_have_lengths() -> None:
    ds = af.from_arrow(TABLE)
    refused(
        af.PlanError,
        lambda: ds.bucket_by_sequence_length("token", [2], [1, 1]).schema,
        "did you mean 'tokens'",
    )
    refused(af.PlanError, lambda: ds.bucket_by_sequence_length("row", [2], [1, 1]).schema, "'row'", "int64")
