"""`group_by_window`: batches of rows with equal keys."""

from __future__ import annotations

import datetime
import json
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import hypothesis
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.kernels.gather import gathered
from arrowflow.ops.batches import groups, row_selection
from arrowflow.testing import batches_of, check_dataset, check_operator, check_resume, chunked, cut
from tests.effort import scaled
from tests.ops.tables import ALL_TYPES, NUMBERS, numbers, refused, sizes

pytestmark = pytest.mark.any_version

DAYS = [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)]


def naive(
    keys: Sequence[Hashable], size: int, max_groups: int, lag: int, most_keys: int = 1 << 30
) -> list[list[int]]:
    """Returns the rows of each batch, one row after the other."""
    held: dict[Hashable, list[int]] = {}
    last: dict[Hashable, int] = {}
    batches = []

    def emit(key: Hashable) -> None:
        batches.append(held.pop(key))
        last[key] = batches[-1][-1]

    def oldest() -> Hashable:
        return min(held, key=lambda key: held[key][0])

    for row, key in enumerate(keys):
        while held:
            many = sum(one >= held[oldest()][0] for one in last.values()) > most_keys
            late = held[oldest()][0] + lag <= row
            full = key not in held and len(held) >= max_groups
            if not (many or late or full):
                break
            emit(oldest())
        held.setdefault(key, []).append(row)
        if len(held[key]) == size:
            emit(key)
    while held:
        emit(oldest())
    return batches


def of_keys(keys: Sequence[Any], sizes: list[int], type: pa.DataType | None = None) -> af.Dataset:
    batch = pa.record_batch(
        {"row": pa.array(range(len(keys)), pa.int64()), "key": pa.array(keys, type or pa.int64())}
    )
    return chunked([cut(batch, sizes)], batch.schema)


def row_lists(dataset: af.Dataset) -> list[list[int]]:
    return [batch.column("row").to_pylist() for batch in batches_of(dataset)]


@pytest.mark.parametrize(
    ("size", "max_groups", "lag"), [(1, 1, 1), (3, 2, 100), (4, 100, 3), (100, 100, 100)]
)
def test_contracts(size: int, max_groups: int, lag: int) -> None:
    def apply(ds: af.Dataset) -> af.Dataset:
        return ds.group_by_window(pl.col("row") * 5 % 7 % 3, size, max_groups=max_groups, max_lag_rows=lag)

    check_operator(apply, NUMBERS, in_full=size == 3)


def test_contracts_of_other_keys() -> None:
    """With null among them."""
    check_operator(lambda ds: ds.group_by_window("s", 2, max_lag_rows=9), NUMBERS, in_full=False)


def test_contracts_of_what_may_stand_around_it() -> None:
    def make() -> af.Dataset:
        ds = numbers(7, 0, 9, 5).shuffle(8, seed=1).repeat(2)
        return ds.group_by_window(pl.col("row") % 4, 3, max_groups=3).repeat(2).batch(4)

    check_dataset(make, epochs_differ=True)


def test_contracts_on_all_types() -> None:
    check_dataset(lambda: af.from_arrow(ALL_TYPES).group_by_window(pl.col("row") % 3, 2))


@hypothesis.settings(
    max_examples=scaled(150), suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(
    keys=st.lists(st.none() | st.integers(0, 5), max_size=30),
    size=st.integers(1, 5),
    max_groups=st.integers(1, 6),
    lag=st.integers(1, 12) | st.just(1000),
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=3).filter(any),
    most_keys=st.integers(0, 3) | st.just(groups.MAX_EMITTED_KEYS),
)
@hypothesis.example(
    keys=[0, 1, 2, None, None, 2, 1, 0], size=2, max_groups=2, lag=1000, sizes=[3], most_keys=9
)
@hypothesis.example(keys=[5, 0, 0, 1, 1, 2, 2, 5], size=2, max_groups=6, lag=1000, sizes=[1], most_keys=2)
@hypothesis.example(keys=[0, 1, 1, 2, 0, 2, 2, 2], size=2, max_groups=6, lag=4, sizes=[8], most_keys=9)
def test_batches_are_those_of_the_definition(
    monkeypatch: pytest.MonkeyPatch,
    keys: list[int | None],
    size: int,
    max_groups: int,
    lag: int,
    sizes: list[int],
    most_keys: int,
) -> None:
    """Also where a state has room for few keys; and a resume goes on from each."""
    with monkeypatch.context() as patched:
        patched.setattr(groups, "MAX_EMITTED_KEYS", most_keys)

        def make() -> af.Dataset:
            ds = of_keys(keys, sizes)
            return ds.group_by_window("key", size, max_groups=max_groups, max_lag_rows=lag)

        assert row_lists(make()) == naive(keys, size, max_groups, lag, most_keys)
        check_resume(make)


def test_a_key_is_remembered_as_long_as_its_last_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MAX_EMITTED_KEYS", 0)
    found = groups.Groups(2, max_groups=9, max_lag_rows=100)
    assert len(list(found.add(np.array([0, 0, 1, 1, 2, 2]), ["a", "b", "c"], 0))) == 3
    assert found.emitted(5) == [5]
    assert len(list(found.add(np.array([0, 0]), ["c"], 6))) == 1
    assert found.emitted(5) == [7]  # the next group of a key takes the place of the one before


def test_a_state_stays_small_with_very_many_keys() -> None:
    keys = [-1, *(number // 2 for number in range(10_000))]
    ds = of_keys(keys, [4096]).group_by_window("key", 2, max_groups=1000)
    found = []
    with iter(ds) as iterator:
        for batch in iterator:
            found.append(batch.column("row").to_pylist())
            if len(found) % 512 == 0:
                assert len(json.dumps(iterator.state_dict())) < 40_000
    assert found == naive_many(keys)


def test_a_state_stays_small_at_the_end() -> None:
    """Each group that is left is emitted there, and its key counts, too: 4,096 numbers have room for 13 digits."""
    held, full = range(groups.MAX_GROUPS - 1), range(10_000, 10_000 + groups.MAX_EMITTED_KEYS)
    keys = [*held, *(key for key in full for _ in range(3)), *held]
    ds = of_keys(keys, [4096]).group_by_window("key", 3, max_groups=groups.MAX_GROUPS)
    largest = 0
    with iter(ds) as iterator:
        for number, _ in enumerate(iterator):
            if number % 64 == 0 or number >= len(held) + len(full) - 3:
                largest = max(largest, json.dumps(iterator.state_dict()).count(","))
    assert 4000 < largest < 4200


@pytest.mark.parametrize("lag", [8_000, 65_536])
def test_a_budget_has_room_for_what_one_row_of_a_rare_key_keeps(lag: int) -> None:
    """As far as the schema tells how large rows are, and no more rows than there are."""
    vectors = pa.FixedSizeListArray.from_arrays(pa.nulls(500 * 256, pa.float32()), 256)
    schema = pa.schema([("key", pa.int64()), ("v", vectors.type)])
    batch = pa.record_batch([pa.array([9, *[0] * 499]), vectors], schema=schema)

    def make(rows: int, batches: int) -> af.Dataset:
        ds = af.from_generator(lambda: iter([batch] * batches), schema=schema)
        return ds.group_by_window("key", 32, max_lag_rows=rows).with_options(af.Options(ram_budget="3MiB"))

    refused(af.BudgetError, lambda: list(make(lag, 20)), "group_by_window", "max_lag_rows")
    assert sum(batch.num_rows for batch in make(1_000, 20)) == 10_000
    known = chunked([[batch]], schema).group_by_window("key", 32, max_lag_rows=lag)
    assert sum(sizes(known.with_options(af.Options(ram_budget="3MiB")))) == 500


def naive_many(keys: list[int]) -> list[list[int]]:
    """The first row waits until more keys came than a state may hold; pairs come at once."""
    pairs = [[row, row + 1] for row in range(1, len(keys), 2)]
    return [*pairs[: groups.MAX_EMITTED_KEYS + 1], [0], *pairs[groups.MAX_EMITTED_KEYS + 1 :]]


def test_limits_emit_short_groups() -> None:
    keys = [0, 1, 0, 2, 1, 3, 0]
    assert row_lists(of_keys(keys, [9]).group_by_window("key", 3)) == [[0, 2, 6], [1, 4], [3], [5]]
    two = of_keys(keys, [9]).group_by_window("key", 3, max_groups=2)
    assert row_lists(two) == [[0, 2], [1, 4], [3], [5], [6]]
    late = of_keys(keys, [9]).group_by_window("key", 3, max_lag_rows=4)
    assert row_lists(late) == [[0, 2], [1, 4], [3], [5], [6]]


def test_map_above_is_the_reduction() -> None:
    def total(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.column("row").to_pylist()
        return pa.record_batch({"sum": pa.array([sum(rows)], pa.int64())})

    ds = numbers(4, 3).group_by_window(pl.col("row") % 2, 2).map(total)
    assert ds.to_table().to_pydict() == {"sum": [2, 4, 10, 5]}


@pytest.mark.parametrize(
    ("values", "type"),
    [
        (["a", "b", None, "a"], pa.string()),
        ([b"a", b"b", None, b"a"], pa.binary()),
        ([True, False, None, True], pa.bool_()),
        ([DAYS[0], DAYS[1], None, DAYS[0]], pa.date32()),
        ([1 << 63, 2, None, 1 << 63], pa.uint64()),
        (["a", "b", None, "a"], pa.large_string()),
        ([b"a", b"b", None, b"a"], pa.large_binary()),
    ],
)
def test_types_of_keys(values: list[Any], type: pa.DataType) -> None:
    ds = of_keys(values, [3, 1], type).group_by_window("key", 2)
    assert row_lists(ds) == [[0, 3], [1], [2]]
    assert ds.schema.names == ["row", "key"]


def test_a_column_called_key_is_no_other_key() -> None:
    ds = of_keys([5, 6, 7, 8], [4]).group_by_window(pl.col("row") % 2, 2).select("key")
    assert [batch.to_pydict() for batch in batches_of(ds)] == [{"key": [5, 7]}, {"key": [6, 8]}]


def test_the_input_may_have_no_known_schema() -> None:
    ds = numbers(4, 3).map(lambda batch: batch).group_by_window("row", 1)
    assert sizes(ds) == [1] * 7
    refused(af.PlanError, lambda: batches_of(numbers(2).map(lambda one: one).group_by_window("x", 1)), "'x'")


def test_what_is_no_key() -> None:
    ds = af.from_arrow(NUMBERS)
    refused(af.PlanError, lambda: ds.group_by_window("x", 2).schema, "group_by_window", "double", "cast")
    refused(af.PlanError, lambda: ds.group_by_window("rows", 2).schema, "did you mean 'row'")
    refused(af.PlanError, lambda: ds.group_by_window(pl.col("n", "row"), 2).schema, "2 columns")
    refused(
        af.PlanError, lambda: ds.group_by_window(pl.col("n").rank(), 2), "group_by_window", "element-wise"
    )
    refused(af.PlanError, lambda: ds.group_by_window(len, 2), "group_by_window", "name of a column")
    most = "group_by_window: max_groups is at most 2,048, got 2049"  # as many as a state has room for
    refused(af.PlanError, lambda: ds.group_by_window("n", 2, max_groups=2049), most)


@pytest.mark.parametrize("name", ["window_size", "max_groups", "max_lag_rows"])
def test_bad_arguments(name: str) -> None:
    for value in (0, -1, 1.0, True, "3", None, 1 << 63):
        arguments: dict[str, Any] = {"key": "id", "window_size": 2} | {name: value}
        refused(af.PlanError, partial(af.range(3).group_by_window, **arguments), "group_by_window", name)


def test_an_enum_is_grouped_by_its_values() -> None:
    levels = pl.Series("e", ["b", "a", None, "b", "a", None], dtype=pl.Enum(["a", "b"]))
    ds = af.from_arrow(pa.Table.from_batches(levels.to_frame().to_arrow().to_batches(max_chunksize=4)))
    found = [batch["e"].to_pylist() for batch in ds.group_by_window("e", 2)]
    assert sorted(found, key=str) == [["a", "a"], ["b", "b"], [None, None]]


def test_chunks_without_a_row_of_a_batch_are_not_gathered_from(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def noted(chunk: pa.RecordBatch, places: Any) -> pa.RecordBatch:
        taken.append(len(places))
        return gathered(chunk, places)

    monkeypatch.setattr(row_selection, "gathered", noted)
    table = pa.concat_tables([pa.table({"id": [first, first + 1]}) for first in (0, 2, 4)])
    ds = af.from_arrow(table).group_by_window(pl.col("id") // 2 == 1, 4)
    assert sorted(batch["id"].to_pylist() for batch in ds) == [[0, 1, 4, 5], [2, 3]]
    assert taken == [2, 2, 2]
