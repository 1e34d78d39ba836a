"""`select`: just these columns, in this order."""

from __future__ import annotations

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowflow as af
from arrowflow.testing import check_operator
from tests.ops.tables import NUMBERS, Apply, refused, stands_for_all

pytestmark = pytest.mark.any_version

CASES: dict[str, Apply] = {
    "names": lambda ds: ds.select("s", "row"),
    "lists": lambda ds: ds.select(["row", "x"], "b"),
    "polars": lambda ds: ds.select("row", pl.col("x") * 2, big=pl.col("n") > 3),
    "pyarrow": lambda ds: ds.select("row", kind=pc.field("s"), sum=pc.add(pc.field("n"), 1)),
    "mixed": lambda ds: ds.select("row", a=pl.col("n") + 1, b=pc.field("n") + pc.scalar(1)),
    "selectors": lambda ds: ds.select(cs.numeric(), pl.col("^s$")),
}


@pytest.mark.parametrize("case", CASES)
def test_contracts(case: str) -> None:
    check_operator(CASES[case], NUMBERS, ordered_by="row", in_full=stands_for_all(case, CASES))


def test_columns_come_in_the_given_order() -> None:
    ds = af.from_arrow(NUMBERS).select("s", twice=pl.col("row") * 2)
    assert ds.schema == pa.schema([("s", pa.string()), ("twice", pa.int64())])
    assert ds.to_table().column("twice").to_pylist() == [2 * row for row in range(17)]


def test_unknown_columns_are_refused_with_the_closest_names() -> None:
    ds = af.from_arrow(pa.table({"price": [1.0], "tax": [2.0]}))
    refused(af.PlanError, lambda: ds.select("pricee").schema, "select", "'pricee'", "did you mean 'price'?")
    refused(af.PlanError, lambda: ds.select(x=pl.col("taxx") + 1).schema, "select", "did you mean 'tax'?")
    refused(af.PlanError, lambda: ds.select(x=pc.field("taxx")).to_table(), "select", "did you mean 'tax'?")


@pytest.mark.parametrize(
    "expr",
    [
        pl.col("row") - pl.col("row").mean(),
        pl.col("row").sort(),
        pl.col("row").cum_sum(),
        pl.len(),
        pl.col("row").shift(),
    ],
    ids=str,
)
def test_what_is_not_element_wise_is_refused(expr: pl.Expr) -> None:
    """A chunk is not the column: the result would depend on the borders."""
    refused(af.PlanError, lambda: af.from_arrow(NUMBERS).select(expr), "select", "map")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda ds: ds.select(), "at least one"),
        (lambda ds: ds.select("row", "row").schema, "'row'"),
        (lambda ds: ds.select("row", row=pl.col("x")).schema, "'row'"),
        (lambda ds: ds.select(pc.add(pc.field("n"), 1)).schema, "name"),
        (lambda ds: ds.select(one=cs.numeric()).schema, "columns"),
        (lambda ds: ds.select(3), "select"),
    ],
)
def test_bad_arguments(call: Apply, text: str) -> None:
    refused(af.PlanError, lambda: call(af.from_arrow(NUMBERS)), text)
