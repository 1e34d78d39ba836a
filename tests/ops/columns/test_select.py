"""`select`: just these columns, in this order."""

from __future__ import annotations

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowflow as af
from arrowflow.testing import check_operator
from tests.ops.tables import NUMBERS, Apply, refused

pytestmark = pytest.mark.any_version

CASES: dict[str, Apply] = {
    "names": lambda ds: ds.select(["row", "x"], "b"),
    "polars": lambda ds: ds.select("row", pl.col("x") * 2, big=pl.col("n") > 3),
    "pyarrow": lambda ds: ds.select("row", kind=pc.field("s"), sum=pc.add(pc.field("n"), 1)),
    "mixed": lambda ds: ds.select("row", a=pl.col("n") + 1, b=pc.field("n") + pc.scalar(1)),
    "selectors": lambda ds: ds.select(cs.numeric(), pl.col("^s$")),
}


@pytest.mark.parametrize("case", CASES)
def test_contracts(case: str) -> None:
    check_operator(CASES[case], NUMBERS, ordered_by="row")


def test_columns_come_in_the_given_order() -> None:
    ds = af.from_arrow(NUMBERS).select("s", twice=pl.col("row") * 2)
    assert ds.schema == pa.schema([("s", pa.string()), ("twice", pa.int64())])
    assert ds.to_table().column("twice").to_pylist() == [2 * row for row in range(17)]


NOT_ELEMENT_WISE = [
    pl.col("row") - pl.col("row").mean(),
    pl.col("row").sort(),
    pl.col("row").cum_sum(),
    pl.len(),
    pl.col("row").shift(),
]
"""A chunk is not the column: the result would depend on the borders."""


@pytest.mark.parametrize(
    ("call", "texts"),
    [
        *[(lambda ds, expr=expr: ds.select(expr), ["select", "map"]) for expr in NOT_ELEMENT_WISE],
        (lambda ds: ds.select("roww").schema, ["select", "'roww'", "did you mean 'row'?"]),
        (lambda ds: ds.select(x=pl.col("roww") + 1).schema, ["select", "did you mean 'row'?"]),
        (lambda ds: ds.select(x=pc.field("roww")).to_table(), ["select", "did you mean 'row'?"]),
        (lambda ds: ds.select(), ["at least one"]),
        (lambda ds: ds.select("row", "row").schema, ["'row'"]),
        (lambda ds: ds.select("row", row=pl.col("x")).schema, ["'row'"]),
        (lambda ds: ds.select(pc.add(pc.field("n"), 1)).schema, ["name"]),
        (lambda ds: ds.select(one=cs.numeric()).schema, ["columns"]),
        (lambda ds: ds.select(3), ["select"]),
    ],
)
def test_bad_arguments(call: Apply, texts: list[str]) -> None:
    refused(af.PlanError, lambda: call(af.from_arrow(NUMBERS)), *texts)
