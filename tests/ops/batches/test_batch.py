"""`batch`: batches of an exact number of rows; and what its borders mean to the operators after it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.testing import assert_same_batches, batches_of, check_dataset, check_operator, chunked, cut
from tests.ops.tables import (
    ALL_TYPES,
    BATCHED_ALLOWED,
    BATCHED_REFUSED,
    NUMBERS,
    OPERATORS,
    numbers,
    refused,
    rows_of,
    sizes,
)

pytestmark = pytest.mark.any_version


@pytest.mark.parametrize(
    ("size", "how"),
    [
        (4, {}),
        (4, {"drop_remainder": True}),  # seventeen rows leave one
        (1, {"drop_remainder": True}),
        (18, {"drop_remainder": True}),
        (17, {"num_parallel_calls": 1}),
        (4, {"num_parallel_calls": 2}),
        (4, {"num_parallel_calls": af.AUTOTUNE}),
        (4, {"pad_remainder": True}),
        (17, {"pad_remainder": True}),
        (18, {"pad_remainder": True, "num_parallel_calls": 2}),
    ],
)
def test_contracts(size: int, how: dict[str, Any]) -> None:
    ordered_by = None if "drop_remainder" in how or "pad_remainder" in how else "row"
    check_operator(
        lambda ds: ds.batch(size, **how),
        NUMBERS,
        ordered_by=ordered_by,
        in_full=size == 4 and "num_parallel_calls" not in how,
    )


def test_parallel_joins_give_the_same_batches() -> None:
    ds = numbers(4, 0, 1, 1, 6, *[2] * 40)
    for drop_remainder in (False, True):
        one, other = (
            ds.batch(5, drop_remainder=drop_remainder, num_parallel_calls=calls) for calls in (None, 3)
        )
        assert_same_batches(batches_of(one), batches_of(other))
        assert len(one.to_polars()) == len(other.to_polars())
    with iter(ds.batch(5)) as before, iter(ds.batch(5, num_parallel_calls=2)) as after:
        next(before)
        after.load_state_dict(before.state_dict())
        assert next(after)["row"].to_pylist() == [5, 6, 7, 8, 9]


def test_lists_of_different_length_stay_lists() -> None:
    """Also across the borders of chunks; as an array only a batch comes whose rows have one length."""
    rows = [[1], [2, 3], [4, 5], [], None, [6, 7]]
    batch = pa.record_batch({"x": pa.array(rows, pa.list_(pa.int32()))})
    ds = chunked([cut(batch, [1, 2])], batch.schema).batch(2)
    assert rows_of(ds, "x") == rows
    loader = iter(chunked([cut(batch.slice(1), [1, 2])], batch.schema).batch(2).to_numpy())
    assert next(loader)["x"].tolist() == [[2, 3], [4, 5]]
    refused(af.DataError, lambda: next(loader), "to_numpy", "'x'", "null")
    refused(af.DataError, lambda: next(iter(ds.to_numpy())), "'x'", "1 to 2 values", "padded_batch")


@pytest.mark.parametrize("size", [1, 2, 4, 5, 6, 11, 12, 13])
def test_batches_are_exact_across_all_borders(size: int) -> None:
    ds = numbers(4, 0, 1, 1, 6)
    whole, rest = divmod(12, size)
    assert sizes(ds.batch(size)) == [size] * whole + [rest] * bool(rest)
    assert sizes(ds.batch(size, drop_remainder=True)) == [size] * whole
    assert rows_of(ds.batch(size)) == list(range(12))


def test_another_batch_cuts_anew() -> None:
    assert sizes(numbers(5, 5).batch(3).batch(4)) == [4, 4, 2]
    assert sizes(numbers(5, 5).batch(3, drop_remainder=True).batch(4)) == [4, 4, 1]


def test_borders_are_kept_by_what_may_follow() -> None:
    ds = numbers(7, 4).batch(3).with_columns(y=pl.col("row") + 1).prefetch(2).select("y").repeat(2)
    assert sizes(ds) == [3, 3, 3, 2] * 2
    assert len(ds.to_polars()) == 8


@pytest.mark.parametrize("name", BATCHED_ALLOWED)
def test_what_takes_batches_is_allowed_after_it(name: str) -> None:
    ds = af.from_arrow(ALL_TYPES).batch(4)
    once, in_threes, in_twos = [4, 4, 3], [3, 3, 3, 2], [2, 2, 2, 2, 2, 1]
    others = {
        "repeat": once * 2,
        "batch": in_threes,
        "unbatch": in_threes,
        "padded_batch": in_threes,
        "bucket_by_sequence_length": in_twos,
        "group_by_window": in_twos,
        "pack_sequences": [6],
    }
    assert sizes(OPERATORS[name](ds)) == others.get(name, once)


BATCHED = af.from_arrow(ALL_TYPES).batch(4)


@pytest.mark.parametrize("between", ["", *sorted({*BATCHED_ALLOWED} - {"unbatch"})])
def test_what_needs_rows_is_refused_after_it(between: str) -> None:
    """Also through all that keeps batches; the message gives the spelling."""
    batched = OPERATORS[between](BATCHED) if between else BATCHED
    for name in BATCHED_REFUSED:
        spelling = "leave ." if name in ("zip", "choose_from_datasets") else f"write .{name}("
        refused(af.PlanError, partial(OPERATORS[name], batched), name, "after `", spelling)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(OPERATORS) - {"apply"}))
def test_contracts_on_top_of_every_operator(name: str) -> None:
    """Nested, dictionary, decimal, null, view columns and all: through an operator, into batches."""
    check_dataset(
        lambda: OPERATORS[name](af.from_arrow(ALL_TYPES)).batch(2),
        epochs_differ=name in {"shuffle", "sample", "sample_from_datasets", "split_by_rank"},
        in_full=False,
    )


def test_a_batch_of_one_chunk_is_a_view_of_it() -> None:
    """Slicing costs nothing; only a batch across a border is new memory."""
    table = NUMBERS.select(["row"]).combine_chunks()
    start = table.column("row").chunk(0).buffers()[1].address
    for batch in batches_of(af.from_arrow(table).batch(5)):
        assert batch.column("row").buffers()[1].address == start


@pytest.mark.parametrize(
    ("name", "values"),
    [("batch_size", [0, -1, 1.0, True, "3", None]), ("num_parallel_calls", [0, -2, 1.5, True])],
)
def test_bad_arguments(name: str, values: list[Any]) -> None:
    for value in values:
        given: dict[str, Any] = {"batch_size": 2} | {name: value}
        refused(af.PlanError, partial(af.range(3).batch, **given), "batch", name)


@pytest.mark.parametrize("calls", [None, 2])
def test_a_batch_beyond_what_lists_can_hold_says_what_to_do(calls: int | None) -> None:
    offsets = pa.array([0, (1 << 31) - 1], pa.int32())
    chunk = pa.record_batch({"x": pa.ListArray.from_arrays(offsets, pa.nulls((1 << 31) - 1))})
    ds = chunked([[chunk, chunk]], chunk.schema).batch(2, num_parallel_calls=calls)
    refused(af.DataError, lambda: list(ds), "batch: a batch of 2 rows", "2 GiB", "use a smaller batch_size")


@pytest.mark.parametrize("size", [1, 4, 5, 12, 13])
def test_a_filled_batch_says_which_rows_are_real(size: int) -> None:
    ds = numbers(4, 0, 1, 1, 6).batch(size, pad_remainder=True)
    table = ds.to_table()
    num_batches = -(-12 // size)
    assert sizes(ds) == [size] * num_batches
    assert ds.num_rows == table.num_rows == num_batches * size
    assert len(ds.to_numpy()) == num_batches
    assert table.filter(table["mask"])["row"].to_pylist() == list(range(12))
    assert table["mask"].to_pylist() == [True] * 12 + [False] * (table.num_rows - 12)
    assert table["row"].to_pylist()[12:] == [11] * (table.num_rows - 12)


def test_a_filled_batch_keeps_all_types() -> None:
    ds = af.from_arrow(ALL_TYPES).batch(4, pad_remainder=True)
    *_, last = batches_of(ds)
    plain = batches_of(af.from_arrow(ALL_TYPES).batch(4))[-1]
    assert last.schema == ds.schema == plain.schema.append(pa.field("mask", pa.bool_()))
    assert last["mask"].to_pylist() == [True] * 3 + [False]
    assert repr(last.drop_columns(["mask"]).to_pylist()) == repr([*plain.to_pylist(), plain.to_pylist()[-1]])


def test_the_mask_can_be_named_and_left_out() -> None:
    ds = af.range(3).batch(2, pad_remainder=True, mask="real")
    assert ds.select("real").to_table().to_pydict() == {"real": [True, True, True, False]}
    assert ds.select("id").to_table().to_pydict() == {"id": [0, 1, 2, 2]}
    assert not batches_of(af.range(0).batch(2, pad_remainder=True))


def test_bad_arguments_of_filled_batches() -> None:
    ds = af.range(3)
    refused(
        af.PlanError,
        lambda: ds.batch(2, drop_remainder=True, pad_remainder=True),
        "batch",
        "drop_remainder",
        "pad_remainder",
    )
    refused(af.PlanError, lambda: ds.batch(2, pad_remainder=True, mask="id").schema, "'id'", "mask='id_2'")
    refused(af.PlanError, lambda: ds.batch(2, pad_remainder=True, mask=3), "mask")  # type: ignore[arg-type]


def test_a_filled_batch_needs_no_copy_for_numbers() -> None:
    ds = af.from_numpy({"x": np.arange(4)}).batch(2, pad_remainder=True).select("x")
    assert [batch["x"].tolist() for batch in ds.to_numpy(strict_zero_copy=True)] == [[0, 1], [2, 3]]
