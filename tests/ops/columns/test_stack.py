"""`stack`: several columns as one tensor column."""

from __future__ import annotations

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.testing import check_operator
from tests.ops.tables import NUMBERS, Apply, refused

pytestmark = pytest.mark.any_version

WHOLE = af.from_arrow(NUMBERS).fill_null(0).to_table()

CASES: dict[str, Apply] = {
    "two groups": lambda ds: ds.with_columns(m=pl.col("n") + 1, y=pl.col("x")).stack(
        a=["n", "m"], c=["y", "x"]
    ),
    "mixed types": lambda ds: ds.stack(all=cs.by_name("x", "n"), dtype=pa.float32()),
    "over nulls elsewhere": lambda ds: ds.fill_null({"x": 0.0, "n": 0}).stack(
        all=["x", "n"], dtype=pl.Float64
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_contracts(case: str) -> None:
    check_operator(CASES[case], NUMBERS if case == "over nulls elsewhere" else WHOLE, ordered_by="row")


def test_inputs_are_replaced_and_groups_come_behind() -> None:
    ds = af.from_arrow(WHOLE).stack(dense=["x", "n"], dtype=pa.float32())
    assert ds.schema == pa.schema(
        [("row", pa.int64()), ("s", pa.string()), ("b", pa.bool_()), ("dense", pa.list_(pa.float32(), 2))]
    )
    x, n = (WHOLE.column(name).to_pylist() for name in "xn")
    found = ds.to_table().column("dense").to_pylist()
    assert repr(found) == repr([[a, float(b)] for a, b in zip(x, n, strict=True)])


def test_a_null_is_an_error_that_names_fill_null() -> None:
    ds = af.from_arrow(NUMBERS).stack(dense=["row", "x"], dtype=pa.float64())
    refused(af.DataError, ds.to_table, "stack", "'x'", "fill_null")


def test_of_many_columns_with_nulls_the_error_names_some() -> None:
    names = [f"c{at}" for at in range(1_000)]
    rows = af.from_arrow(pa.table({name: [1, None] for name in names}))
    with pytest.raises(af.DataError, match=r"'c0' \(1\), .*'c19' \(1\), … 1000 columns in all: a stack"):
        list(rows.stack(x=names))


@pytest.mark.parametrize(
    ("call", "texts"),
    [
        (lambda ds: ds.stack(dense=["x", "n"]).schema, ["dtype"]),
        (lambda ds: ds.stack(d=["roww", "n"]).schema, ["mean 'row'?"]),
        (lambda ds: ds.stack(), []),
        (lambda ds: ds.stack(d=[]), []),
        (lambda ds: ds.stack(d=["row", 3]), []),
        (lambda ds: ds.stack(row=["x"]).schema, ["different names", "'row' more than once"]),
        (lambda ds: ds.stack(d=["x", "n"], dtype="float").schema, []),
        (lambda ds: ds.stack(d=["s", "s"]).schema, []),
    ],
)
def test_bad_arguments(call: Apply, texts: list[str]) -> None:
    refused(af.PlanError, lambda: call(af.from_arrow(WHOLE)), "stack", *texts)
