"""`take_while`: the rows before the first one for which a predicate is not true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowflow as af
from arrowflow.testing import Fault, check_operator, raising
from tests.ops.tables import NUMBERS, ids, numbers, refused, rows_of

pytestmark = pytest.mark.any_version


@pytest.mark.parametrize("limit", [0, 8, 17])
def test_contracts(limit: int) -> None:
    check_operator(lambda ds: ds.take_while(pl.col("row") < limit), NUMBERS, in_full=limit == 8)


def before_eight(batch: pa.RecordBatch) -> pa.Array:
    return pc.less(batch["row"], 8)


def test_contracts_of_functions() -> None:
    check_operator(lambda ds: ds.take_while(before_eight), NUMBERS)


PREDICATES: list[Callable[[int], Any]] = [
    lambda limit: pl.col("row") != limit,
    lambda limit: pc.field("row") != limit,
    lambda limit: lambda batch: pc.not_equal(batch["row"], limit),
]


@pytest.mark.parametrize("make", PREDICATES)
def test_the_rows_before_the_end_come_whatever_the_splits(make: Callable[[int], Any]) -> None:
    for limit in (0, 3, 4, 5, 9, 10, 11):
        ds = numbers(4, 0, 1, 5).take_while(make(limit))
        assert ds.num_rows is None
        assert rows_of(ds) == list(range(min(limit, 10)))


def test_rows_after_the_end_do_not_come_back() -> None:
    assert rows_of(numbers(4, 6).take_while(pl.col("row") % 4 != 2)) == [0, 1]


def test_null_and_nan_are_not_true() -> None:
    table = pa.table({"x": [1.0, 2.0, None, 3.0]})
    assert rows_of(af.from_arrow(table).take_while(pl.col("x") > 0), "x") == [1.0, 2.0]
    booleans = pa.table({"x": [True, None, True]})
    assert rows_of(af.from_arrow(booleans).take_while(lambda batch: batch["x"]), "x") == [True]
    assert rows_of(af.from_arrow(booleans).take_while(pl.col("x")), "x") == [True]


def test_an_expression_of_several_columns_is_true_where_all_are() -> None:
    table = pa.table({"x": [1, 2, 3, 4], "y": [1, 1, 0, 1]})
    assert rows_of(af.from_arrow(table).take_while(pl.all() > 0), "x") == [1, 2]


def test_endless_datasets_end() -> None:
    ds = af.range(3).repeat().enumerate()
    assert ids(ds.take_while(pl.col("index") < 5)) == [0, 1, 2, 0, 1]
    assert ids(ds.take_while(lambda arrays: arrays["index"] < 5, format="numpy")) == [0, 1, 2, 0, 1]


def test_it_begins_anew_in_each_repetition() -> None:
    assert ids(af.range(5).take_while(pl.col("id") < 2).repeat(2)) == [0, 1, 0, 1]


def test_what_comes_later_is_never_looked_at() -> None:
    fault = Fault(raising(ValueError("never seen")), when=lambda batch: batch.column("row")[0].as_py() >= 10)
    assert rows_of(numbers(*[5] * 8).map(fault).take_while(pl.col("row") < 8)) == list(range(8))


def test_a_function_is_not_called_after_the_end() -> None:
    seen: list[int] = []

    def first_eight(arrays: dict[str, Any]) -> Any:
        seen.extend(arrays["row"].tolist())
        return arrays["row"] < 8

    assert rows_of(numbers(*[5] * 8).take_while(first_eight, format="numpy")) == list(range(8))
    assert seen == list(range(10))


def test_a_class_is_instantiated() -> None:
    class Below:
        def __call__(self, arrays: dict[str, Any]) -> Any:
            return arrays["row"] < 3

    assert rows_of(numbers(2, 4).take_while(Below, format="numpy", columns=["row"])) == [0, 1, 2]


def test_a_shuffle_after_it_does_not_change_which_rows_come() -> None:
    ds = numbers(4, 4, 4).take_while(pl.col("row") < 6).shuffle(20, seed=1)
    assert all(sorted(rows_of(ds, epoch=epoch)) == list(range(6)) for epoch in range(3))


def test_the_columns_of_the_predicate_are_read() -> None:
    assert rows_of(af.from_arrow(NUMBERS).take_while(pl.col("row") < 3).select("n"), "n") == [-20, -17, None]


def test_bad_arguments() -> None:
    ds = af.range(3)
    refused(af.PlanError, lambda: ds.take_while(3), "take_while")
    refused(af.PlanError, lambda: ds.take_while("id"), "take_while")
    refused(af.PlanError, lambda: ds.take_while(pl.col("id")).schema, "take_while", "int64", "boolean")
    refused(af.PlanError, lambda: ds.take_while(pl.col("idd") > 1).schema, "take_while", "idd")
    refused(af.PlanError, lambda: ds.take_while(pl.col("id") > 1, columns=["id"]), "take_while", "columns=")
    refused(
        af.FunctionError,
        lambda: list(ds.take_while(lambda arrays: np.ones(2, bool), format="numpy")),
        "take_while",
        "2 entries for 3 rows",
    )


def test_a_function_takes_columns_by_selectors() -> None:
    ds = af.range(9).with_columns(text=pl.lit("a"))
    taken = ds.take_while(lambda batch: batch.column(0).to_numpy() < 3, columns=[cs.integer()])  # type: ignore[list-item]
    assert ids(taken) == [0, 1, 2]
