"""`window`: several rows as one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.testing import batches_of, check_dataset, check_owned, chunked, cut
from tests.ops.tables import NUMBERS, numbers, refused, rows_of

pytestmark = pytest.mark.any_version


def naive(rows: list[Any], size: int, shift: int, stride: int, drop: bool) -> list[list[Any]]:
    starts = range(0, len(rows), shift)
    windows = [rows[start : start + (size - 1) * stride + 1 : stride] for start in starts]
    if drop:
        return [window for window in windows if len(window) == size]
    return [window + [None] * (size - len(window)) for window in windows]


def test_operators_around_it() -> None:
    """Its rows are rows: they may be counted, shuffled and batched; and it may follow a shuffle."""

    def make() -> af.Dataset:
        ds = numbers(7, 0, 9, 5).shuffle(8, seed=1).repeat(2).window(3, shift=2)
        return ds.skip(1).take(15).shuffle(4, seed=2).batch(2)

    check_dataset(make, epochs_differ=True)
    assert make().num_rows == 15


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_what_a_function_above_it_sees_does_not_depend_on_chunks(drop_remainder: bool) -> None:
    def count(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"rows": pa.array([batch.num_rows], pa.int64())})

    total = pa.record_batch({"row": pa.array(range(23), pa.int64())})
    seen = []
    for first in ([10], [1], [3, 0, 4], [7, 3, 0]):
        chunks = [cut(total.slice(0, 10), first), cut(total.slice(10), [5, 8])]
        ds = chunked(chunks, total.schema).window(4, shift=3, drop_remainder=drop_remainder)
        seen.append(rows_of(ds.map(count, schema=pa.schema([("rows", pa.int64())])), "rows"))
    assert seen == [seen[0]] * 4


def noisy(ds: af.Dataset) -> list[float]:
    def noise(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
        return pa.record_batch({"noise": rng.random(batch.num_rows)})

    return rows_of(ds.map(noise, seed=3), "noise")


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_splits_without_rows_change_nothing(drop_remainder: bool, tmp_path: Path) -> None:
    """Rules leave them out, and what is random above it depends on the split."""
    rows = pa.record_batch({"row": pa.array(range(7), pa.int64())})
    found = []
    for splits in ([[rows]], [[rows], [rows.slice(7)]], [[rows, rows.slice(7)], [], [rows.slice(7)]]):
        ds = chunked(splits, rows.schema)
        found.append(noisy(ds.window(3, shift=1, drop_remainder=drop_remainder)))
    assert found == [found[0]] * 3

    pq.write_table(pa.table({"x": range(20)}), tmp_path / "a.parquet", row_group_size=5)
    found = []
    for rules in ([], ["prune_row_groups"]):
        scan = af.read_parquet(tmp_path / "a.parquet").with_options(af.Options(disabled_rules=rules))
        found.append(noisy(scan.filter(pl.col("x") < 7).window(3, shift=1, drop_remainder=drop_remainder)))
    assert found[0] == found[1]


def test_windows_side_by_side_are_the_rows_themselves() -> None:
    table = NUMBERS.select(["row"]).combine_chunks()
    start = table.column("row").chunk(0).buffers()[1].address
    (batch,) = batches_of(af.from_arrow(table).window(4))
    assert batch.num_rows == 4
    assert batch.column("row").flatten().buffers()[1].address == start


def test_loaders_hand_out_matrices() -> None:
    ds = af.range(9).with_columns(x=pl.col("id") / 2).window(3, shift=2).batch(4)
    (batch,) = ds.to_numpy()
    np.testing.assert_array_equal(batch["id"], [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8]])
    assert batch["x"].shape == (4, 3)


@pytest.mark.parametrize(
    ("arguments", "owns"),
    [({"size": 4}, False), ({"size": 4, "shift": 2}, True), ({"size": 4, "by": "key"}, True)],
)
def test_windows_side_by_side_are_rows_of_the_input(arguments: dict[str, Any], owns: bool) -> None:
    table = pa.table({"key": [n // 6 for n in range(12)], "x": range(12)})
    check_owned(lambda ds: ds.window(**arguments), table)
    batches = list(af.from_arrow(table).window(**arguments).to_numpy())
    assert {batch["x"].flags.writeable for batch in batches} == {owns}


def test_it_is_refused_above_batch() -> None:
    refused(af.PlanError, lambda: af.range(9).batch(2).window(3), "write .window(3).batch(2)")


@pytest.mark.parametrize("name", ["size", "shift", "stride"])
def test_bad_arguments(name: str) -> None:
    for value in (0, -1, 1.0, True, "3", 1 << 63):
        given: dict[str, Any] = {"size": 2} | {name: value}
        refused(af.PlanError, partial(af.range(3).window, **given), "window", name)


def test_lists_of_fixed_size_have_at_most_so_many_values() -> None:
    refused(af.PlanError, lambda: af.range(3).window(1 << 31), "window: size is at most 2,147,483,647")
