"""`assert_cardinality`: the declared number of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.testing import check_operator
from tests.ops.tables import NUMBERS, ids, refused

pytestmark = pytest.mark.any_version


def test_contracts() -> None:
    check_operator(lambda ds: ds.assert_cardinality(len(ds)), NUMBERS)


def test_the_number_is_known() -> None:
    odd = af.range(20).filter(pl.col("id") % 2 == 1)
    ds = odd.assert_cardinality(10)
    assert (odd.num_rows, ds.num_rows, len(ds), len(ds.batch(4).to_numpy())) == (None, 10, 10, 3)
    assert ids(ds) == list(range(1, 20, 2))


@pytest.mark.parametrize(
    ("count", "text"), [(9, "expected 9 rows, found more"), (11, "expected 11 rows, found 10")]
)
def test_another_number_is_an_error_behind_the_rows(count: int, text: str) -> None:
    found: list[int] = []
    ds = af.range(20).filter(pl.col("id") % 2 == 1).assert_cardinality(count).batch(1)
    with pytest.raises(af.DataError, match=f"assert_cardinality: {text}"):
        found.extend(row for batch in ds for row in batch["id"].to_pylist())
    assert found == list(range(1, 20, 2))[:count]


def test_take_after_it_asks_for_no_more() -> None:
    assert ids(af.range(20).assert_cardinality(30).take(5)) == list(range(5))


@pytest.mark.parametrize("count", [-1, 1.0, True, "3", None])
def test_bad_arguments(count: Any) -> None:
    refused(af.PlanError, lambda: af.range(3).assert_cardinality(count), "assert_cardinality", "count")


def test_a_shuffle_after_it_orders_the_files(tmp_path: Path) -> None:
    for number in range(6):
        pq.write_table(pa.table({"id": [number]}), tmp_path / f"{number}.parquet")
    files = af.read_parquet(tmp_path)
    plain, counted = (ds.shuffle(1, seed=3) for ds in (files, files.assert_cardinality(6)))
    assert ids(counted) == ids(plain) != list(range(6))
