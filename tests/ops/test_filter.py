"""`filter`: the rows for which all predicates are true."""

from __future__ import annotations

from functools import partial
from typing import Any

import polars as pl
import pyarrow.compute as pc
import pytest

import arrowflow as af
from arrowflow.testing import check_operator
from tests.ops.tables import NUMBERS, Apply, refused, rows_of

CASES: dict[str, Apply] = {
    "polars": lambda ds: ds.filter(pl.col("x") > 1),
    "pyarrow": lambda ds: ds.filter(pc.field("x") > 1),
    "several": lambda ds: ds.filter(pl.col("n") > -10, pc.field("row") < 15, pl.col("s").is_not_null()),
    "a boolean column": lambda ds: ds.filter(pl.col("b")),
    "nothing left": lambda ds: ds.filter(pl.col("row") > 100),
    "everything left": lambda ds: ds.filter(pl.col("row") >= 0),
}


@pytest.mark.parametrize("case", CASES)
def test_contracts(case: str) -> None:
    check_operator(CASES[case], NUMBERS, ordered_by="row")


def test_null_is_not_true() -> None:
    null_rows = {row for row, x in enumerate(NUMBERS.column("x").to_pylist()) if x is None}
    for predicate in (pl.col("x") != 1000.0, pc.field("x") != 1000.0):
        assert set(rows_of(af.from_arrow(NUMBERS).filter(predicate))) == set(range(17)) - null_rows


def test_the_engine_that_owns_an_expression_decides_about_nan() -> None:
    """Polars holds NaN greater than every number, pyarrow holds it greater than none."""
    assert 7 in rows_of(af.from_arrow(NUMBERS).filter(pl.col("x") > 2))
    assert 7 not in rows_of(af.from_arrow(NUMBERS).filter(pc.field("x") > 2))


def test_rows_are_not_counted_before_they_are_there() -> None:
    assert af.from_arrow(NUMBERS).filter(pl.col("row") > 3).num_rows is None
    assert af.range(0).filter(pl.col("id") > 3).num_rows == 0


def test_unknown_columns_are_refused_with_the_closest_names() -> None:
    for predicate in (pl.col("roww") > 1, pc.field("roww") > 1):
        ds = af.from_arrow(NUMBERS).filter(predicate)
        refused(af.PlanError, partial(getattr, ds, "schema"), "filter", "'roww'", "did you mean 'row'?")


@pytest.mark.parametrize(
    "predicate",
    [None, "b", True, lambda batch: True, pl.col("x") > pl.col("x").mean(), pl.col("row").is_unique()],
    ids=repr,
)
def test_bad_arguments(predicate: Any) -> None:
    refused(af.PlanError, lambda: af.from_arrow(NUMBERS).filter(predicate).schema, "filter")


def test_a_predicate_is_boolean() -> None:
    for predicate in (pl.col("row") + 1, pc.field("s")):
        ds = af.from_arrow(NUMBERS).filter(predicate)
        refused(af.PlanError, partial(getattr, ds, "schema"), "filter", "bool")


def test_no_predicate_is_refused() -> None:
    refused(af.PlanError, lambda: af.range(3).filter(), "filter")
