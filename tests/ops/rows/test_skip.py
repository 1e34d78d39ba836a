"""`skip`: all but the first rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.testing import check_operator, check_resume
from tests.ops.tables import NUMBERS, ids, numbers, refused, rows_of

pytestmark = pytest.mark.any_version


@pytest.mark.parametrize("count", [0, 8, 17])
def test_contracts(count: int) -> None:
    check_operator(lambda ds: ds.skip(count), NUMBERS, in_full=count == 8)


@pytest.mark.parametrize("count", range(12))
def test_the_last_rows_come_whatever_the_splits(count: int) -> None:
    ds = numbers(4, 0, 1, 5).skip(count)
    assert rows_of(ds) == list(range(count, 10))
    assert ds.num_rows == max(0, 10 - count)


def test_skip_and_take_cut_a_range_out() -> None:
    assert ids(af.range(20).skip(5).take(3)) == ids(af.range(20).take(8).skip(5)) == [5, 6, 7]
    assert ids(af.range(10).filter(pl.col("id") % 2 == 1).skip(3)) == [7, 9]


BEGUN: dict[str, Callable[[], af.Dataset]] = {
    "numbers": lambda: af.range(70_000),
    "numbers in blocks": lambda: af.range(9_000).shuffle(3_000, seed=1),
    "all numbers": lambda: af.range(9_000).shuffle(seed=1),
    "numbers with columns": lambda: af.range(70_000).select(pl.col("id") + 1).prefetch(2),
    "memory": lambda: af.from_arrow(pa.concat_tables([pa.table({"id": range(3_000)})] * 3)),
    "memory in blocks": lambda: af.from_arrow(pa.table({"id": range(9_000)})).shuffle(3_000, seed=1),
    "rows in place": lambda: af.from_arrow(pa.table({"id": range(9_000)})).skip(20).shuffle(seed=1),
}


@pytest.mark.parametrize("name", BEGUN)
def test_it_begins_near_its_first_row(name: str) -> None:
    rows = ids(BEGUN[name](), epoch=2)
    for count in (1, 2_999, 3_000, 8_999, len(rows) - 1, len(rows), len(rows) + 70_000):
        assert ids(BEGUN[name]().skip(count), epoch=2) == rows[count:], count
    check_resume(lambda: BEGUN[name]().skip(5_500).batch(1_000), in_full=False)


@pytest.mark.parametrize("name", ["numbers", "numbers with columns", "memory", "memory in blocks"])
def test_without_an_order_it_leaves_out_as_many_rows(name: str) -> None:
    def rows(count: int) -> list[int]:
        return ids(BEGUN[name]().skip(count).with_options(af.Options(deterministic=False)))

    every = rows(0)
    for count in (1, 3_000, 8_999):
        left = rows(count)
        assert len(left) == len(every) - count
        assert not Counter(left) - Counter(every)


@pytest.mark.parametrize("count", [-1, 1.0, True, "3", None])
def test_bad_arguments(count: Any) -> None:
    refused(af.PlanError, lambda: af.range(3).skip(count), "skip", "count")
