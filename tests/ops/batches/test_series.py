"""`window`, with `by=` and without: windows within series, beside those of each series alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.expr import parse_expression
from arrowflow.kernels.items import Item, Origin
from arrowflow.ops.batches.group_by_window import key_program
from arrowflow.ops.batches.series import SeriesKernel, SeriesShape, SeriesWindowKernel
from arrowflow.testing import batches_of, check_dataset, check_operator, check_resume, chunked, cut
from tests.effort import scaled
from tests.ops.batches import test_window
from tests.ops.tables import ALL_TYPES, ALL_TYPES_INSIDE, NUMBERS, refused, rows_of

pytestmark = pytest.mark.any_version


def naive(keys: list[Any], size: int, shift: int, stride: int, drop: bool) -> list[list[int | None]]:
    """Returns the rows of each window: whole ones by their last rows, then those that the end cuts short by their first."""
    found = []
    for key in dict.fromkeys(keys):
        rows = [row for row, each in enumerate(keys) if each == key]
        found += test_window.naive(rows, size, shift, stride, drop)
    whole = sorted((window for window in found if None not in window), key=lambda window: window[-1])
    return whole + sorted((window for window in found if None in window), key=lambda window: window[0])


@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize(
    ("by", "size", "shift", "stride"),
    [
        (None, 3, 1, 1),
        (None, 2, 5, 1),
        (None, 2, 1, 7),
        (None, 18, 18, 1),
        ("b", 2, 1, 1),
        ("b", 3, 3, 1),
        ("b", 2, 3, 2),
    ],
)
def test_contracts(by: str | None, size: int, shift: int, stride: int, drop_remainder: bool) -> None:
    check_operator(
        lambda ds: ds.window(size, shift=shift, stride=stride, drop_remainder=drop_remainder, by=by),
        NUMBERS,
        in_full=shift == stride == 1 and (by is None or drop_remainder),
    )


@pytest.mark.parametrize(
    ("by", "size", "shift", "drop_remainder"),
    [
        (None, 3, 3, False),
        (None, 3, 1, True),
        (None, 2, 4, False),
        ("text", 2, 1, False),
        ("date", 2, 1, True),
        (pl.col("row") % 3, 2, 1, False),
        ("dictionary", 2, 1, True),
    ],
)
def test_all_types(by: Any, size: int, shift: int, drop_remainder: bool) -> None:
    """Nested columns, too; and the values are those of the rows."""

    def make() -> af.Dataset:
        return af.from_arrow(ALL_TYPES).window(size, shift=shift, drop_remainder=drop_remainder, by=by)

    check_dataset(make, in_full=False)
    keys = [0] * 11 if by is None else [row % 3 for row in range(11)]
    if isinstance(by, str):
        keys = ALL_TYPES_INSIDE[by].to_pylist()
    found = make().to_table().to_pydict()
    for name, column in ALL_TYPES_INSIDE.to_pydict().items():
        wanted = [
            [None if row is None else column[row] for row in window]
            for window in naive(keys, size, shift, 1, drop_remainder)
        ]
        assert repr(found[name]) == repr(wanted)


@hypothesis.settings(max_examples=scaled(160))
@hypothesis.given(
    keys=st.lists(st.sampled_from([*range(5), None]), max_size=40),
    by=st.sampled_from([None, "key"]),
    size=st.integers(1, 6),
    shift=st.none() | st.integers(1, 9),
    stride=st.integers(1, 4),
    drop=st.booleans(),
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=3).filter(any),
)
def test_windows_are_those_of_each_series_alone(
    keys: list[int | None],
    by: str | None,
    size: int,
    shift: int | None,
    stride: int,
    drop: bool,
    sizes: list[int],
) -> None:
    """Without `by` all rows are one series."""
    batch = pa.record_batch({"row": pa.array(range(len(keys)), pa.int64()), "key": pa.array(keys, pa.int8())})

    def make() -> af.Dataset:
        ds = chunked([cut(batch, sizes)], batch.schema)
        return ds.window(size, shift=shift, stride=stride, drop_remainder=drop, by=by)

    assert rows_of(make()) == naive(keys if by else [0] * len(keys), size, shift or size, stride, drop)
    check_resume(make)


@pytest.mark.parametrize(("by", "windows"), [(None, 2501), (pl.col("id") % 2, 2 * 1001)])
def test_much_overlap_is_gathered_in_parts(by: Any, windows: int) -> None:
    batches = batches_of(af.range(3000).window(500, shift=1, by=by))
    assert max(batch.num_rows for batch in batches) <= 65_536 // 500
    assert sum(batch.num_rows for batch in batches) == windows


def test_series_go_on_across_files_and_chunks(tmp_path: Path) -> None:
    rows = np.arange(20_000)
    table = pl.DataFrame({"series": rows * 7919 % 613, "t": rows})
    for number in range(2):
        half = table[number * 10_000 : (number + 1) * 10_000]
        pq.write_table(half.to_arrow(), tmp_path / f"{number}.parquet", row_group_size=999)
    windows = af.read_parquet(tmp_path).window(5, shift=2, by=pl.col("series"))
    found = {
        series: np.array(group["t"].to_list())
        for (series,), group in pl.DataFrame(windows.to_table()).group_by(
            pl.col("series").arr.first(), maintain_order=True
        )
    }
    assert len(found) == 613
    for (series,), group in table.group_by("series"):
        wanted = np.lib.stride_tricks.sliding_window_view(group["t"].to_numpy(), 5)[::2]
        np.testing.assert_array_equal(found[series], wanted)


def test_after_it_come_other_operators() -> None:
    def make() -> af.Dataset:
        ds = af.range(60).with_columns(key=pl.col("id") % 7).shuffle(9, seed=1).repeat(2)
        return ds.window(3, shift=2, by="key").shuffle(4, seed=2).batch(5).select("id")

    check_dataset(make, epochs_differ=True)
    (batch, *_) = make().to_numpy()
    assert batch["id"].shape == (5, 3) and (batch["id"] % 7 == batch["id"][:, :1] % 7).all()


def test_held_rows_are_at_most_twice_those_that_windows_need() -> None:
    """However long the stream is, and though old rows are forgotten only where parts are merged."""
    kernel = SeriesWindowKernel(SeriesShape(10, 10, 1, True), 100)
    ds = af.range(50_000).with_columns(key=pl.col("id") % 40)
    by = parse_expression("key", operator="window", allow_name=True)
    series = SeriesKernel(lambda schema: key_program("window", by, schema))
    (whole,) = ds.to_table().combine_chunks().to_batches()
    for start in range(0, 50_000, 77):
        origin = Origin(start)
        list(kernel.push(Item(series.apply(whole.slice(start, 77), origin), None, None, origin)))
        assert sum(part.batch.num_rows for part in kernel._held.parts) <= 2 * 40 * 9
    assert len(kernel._held.parts) < 8


def test_too_many_series() -> None:
    ds = af.range(9).window(2, by="id", max_keys=8)
    refused(af.BudgetError, ds.to_table, "window: there are more than max_keys=8 series", "raise max_keys")
    with pytest.raises(af.BudgetError, match=r"raise max_keys(?!, or)"):  # without `by` windows mix series
        ds.to_table()
    assert af.range(8).window(2, by="id", max_keys=8).to_table().num_rows == 0


def test_bad_arguments() -> None:
    ds = af.from_numpy({"x": np.zeros(2), "y": np.zeros(2, np.int8)})
    refused(af.PlanError, lambda: ds.window(2, by="z").schema, "window", "unknown column 'z'")
    refused(af.PlanError, lambda: ds.window(2, by="x").schema, "window", "double", "`cast` it")
    refused(af.PlanError, lambda: ds.window(2, by=3), "window", "3")
    refused(af.PlanError, lambda: ds.window(2, by="y", max_keys=0), "window", "max_keys")
    refused(af.PlanError, lambda: ds.batch(2).window(2, by="y"), "write .window(2)")
