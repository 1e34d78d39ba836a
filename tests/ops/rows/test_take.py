"""`take`: the first rows."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import arrowflow as af
from arrowflow.testing import Fault, batches_of, check_operator, raising
from tests.ops.tables import NUMBERS, ids, numbers, refused, rows_of

pytestmark = pytest.mark.any_version


@pytest.mark.parametrize("count", [0, 8, 17])
def test_contracts(count: int) -> None:
    check_operator(lambda ds: ds.take(count), NUMBERS, in_full=count == 8)


@pytest.mark.parametrize("count", range(12))
def test_the_first_rows_come_whatever_the_splits(count: int) -> None:
    ds = numbers(4, 0, 1, 5).take(count)
    assert rows_of(ds) == list(range(min(count, 10)))
    assert ds.num_rows == min(count, 10)


def test_what_comes_later_is_never_looked_at() -> None:
    """An error behind a satisfied `take` is hidden, and for no rows nothing runs."""
    fault = Fault(raising(ValueError("never seen")), when=lambda batch: batch.column("row")[0].as_py() >= 10)
    assert rows_of(numbers(*[5] * 8).map(fault).take(10)) == list(range(10))
    fault = Fault(raising(ValueError("never called")), at=0)
    assert not batches_of(numbers(3, 3).map(fault).take(0))
    assert fault.calls == 0


def test_it_counts_the_rows_of_its_own_input() -> None:
    assert ids(af.range(20).filter(pl.col("id") % 2 == 1).take(3)) == [1, 3, 5]
    assert ids(af.range(20).take(3).filter(pl.col("id") % 2 == 1)) == [1]
    assert ids(af.range(9).take(5).take(7)) == ids(af.range(9).take(7).take(5)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count", [-1, 1.0, True, "3", None])
def test_bad_arguments(count: Any) -> None:
    refused(af.PlanError, lambda: af.range(3).take(count), "take", "count")
