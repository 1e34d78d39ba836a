"""`apply`: parts of pipelines with a name."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import arrowflow as af
from tests.ops.tables import NUMBERS, refused


def features(ds: af.Dataset) -> af.Dataset:
    return ds.filter(pl.col("row") > 2).with_columns(y=pl.col("x") * 2)


def test_it_is_the_same_plan_as_written_out() -> None:
    ds = af.from_arrow(NUMBERS)
    assert ds.apply(features) == features(ds)


@pytest.mark.parametrize("result", [None, [1], "x"], ids=repr)
def test_a_function_that_returns_something_else_is_refused(result: Any) -> None:
    refused(af.PlanError, lambda: af.range(3).apply(lambda ds: result), "apply", type(result).__name__)
