"""`apply`: parts of pipelines with a name."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import arrowflow as af
from arrowflow.ops.batches.batch import Batch
from arrowflow.testing import check_owned
from tests.ops.tables import NUMBERS, refused


def features(ds: af.Dataset) -> af.Dataset:
    return ds.filter(pl.col("row") > 2).with_columns(y=pl.col("x") * 2)


def test_it_is_the_same_plan_as_written_out() -> None:
    ds = af.from_arrow(NUMBERS)
    assert ds.apply(features) == features(ds)


@pytest.mark.parametrize("result", [None, [1], "x"], ids=repr)
def test_a_function_that_returns_something_else_is_refused(result: Any) -> None:
    refused(af.PlanError, lambda: af.range(3).apply(lambda ds: result), "apply", type(result).__name__)


def test_an_operator_that_gives_memory_of_its_input_as_its_own_fails_the_contract(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Batch, "owns_buffers", lambda self, inputs: True)
    refused(AssertionError, lambda: check_owned(lambda ds: ds.batch(5), NUMBERS), "says that it owns")
    check_owned(lambda ds: ds.shuffle(5, seed=0).batch(5), NUMBERS)
