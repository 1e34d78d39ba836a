"""`filter`: the rows for which all predicates are true."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowflow as af
from arrowflow.testing import Fault, batches_of, check_operator, raising, returning
from tests.ops.tables import NUMBERS, Apply, identity, numbers, refused, rows_of, sizes

pytestmark = pytest.mark.any_version

CASES: dict[str, Apply] = {
    "polars": lambda ds: ds.filter(pl.col("x") > 1),
    "pyarrow": lambda ds: ds.filter(pc.field("x") > 1),
    "several": lambda ds: ds.filter(pl.col("n") > -10, pc.field("row") < 15, pl.col("s").is_not_null()),
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


@pytest.mark.parametrize(
    ("predicates", "texts"),
    [
        ([pl.col("row") + 1], ["bool"]),
        ([pc.field("s")], ["bool"]),
        ([pl.col("x") > pl.col("x").mean()], []),
        ([pl.col("row").is_unique()], []),
        *[(predicates, []) for predicates in ([], [None], ["b"], [True])],
    ],
)
def test_bad_arguments(predicates: list[Any], texts: list[str]) -> None:
    ds = af.from_arrow(NUMBERS)
    refused(af.PlanError, lambda: ds.filter(*predicates).schema, "filter", *texts)
    for unknown in (pl.col("roww") > 1, pc.field("roww") > 1):
        refused(af.PlanError, partial(ds.filter, unknown), "filter", "'roww'", "did you mean 'row'?")


# ------------------------------------------------------------------------------------------ functions

SMALL = af.Options(max_chunk_rows=3)


class Positive:
    """Of `x`, with null where that is null."""

    def __call__(self, frame: pl.DataFrame) -> pl.Series:
        return frame["x"] > 0


def positive(batch: pa.RecordBatch) -> pa.Array:
    return pc.greater(batch["n"], 0)


def true(batch: pa.RecordBatch) -> pa.Array:
    return pc.equal(batch["b"], True)


def third(arrays: dict[str, Any]) -> Any:
    return arrays["row"] % 3 == 1


def first_two(batch: pa.RecordBatch) -> Any:
    return np.arange(batch.num_rows) < 2


FUNCTIONS: dict[str, Apply] = {
    "arrow": lambda ds: ds.filter(positive),
    "columns": lambda ds: ds.filter(true, columns=["b"]),
    "numpy": lambda ds: ds.filter(third, format="numpy", columns=["row"]),
    "a class": lambda ds: ds.filter(Positive, format="polars", num_parallel_calls=2),
    "batched above": lambda ds: ds.filter(positive).batch(2),
}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_contracts_of_functions(case: str) -> None:
    check_operator(FUNCTIONS[case], NUMBERS)


def test_contracts_of_a_function_that_sees_borders() -> None:
    check_operator(lambda ds: ds.with_options(SMALL).filter(first_two), NUMBERS, splits_matter=True)


def test_a_function_keeps_what_the_expression_keeps() -> None:
    ds = af.from_arrow(NUMBERS)
    expected = rows_of(ds.filter(pl.col("x") > 1))
    assert rows_of(ds.filter(lambda frame: frame["x"] > 1, format="polars")) == expected
    assert rows_of(ds.filter(lambda batch: pl.from_arrow(batch["x"]) > 1)) == expected


def test_it_sees_pieces() -> None:
    seen = []

    def fn(batch: pa.RecordBatch) -> pa.Array:
        seen.append(batch["row"].to_pylist())
        return pc.equal(batch["row"], 0)

    assert rows_of(numbers(4, 0, 2).with_options(SMALL).filter(fn, num_parallel_calls=1)) == [0]
    assert seen == [[0, 1, 2], [3], [4, 5]]


def test_null_is_not_true_in_an_array_either() -> None:
    masks: list[Any] = [
        pa.array([True, None, False]),
        pa.chunked_array([[True], [None, False]]),
        pl.Series([True, None, False]),
        np.ma.masked_array([True, True, False], [False, True, False]),
    ]
    for mask in masks:
        assert rows_of(numbers(3).filter(returning(mask))) == [0]


@pytest.mark.parametrize(
    ("result", "texts"),
    [
        (True, ("a bool",)),
        ([True, False, True], ("a list",)),
        (None, ("NoneType",)),
        (np.array([1, 0, 1]), ("array of int64",)),
        (np.array(["a", None, "c"], object), ("array of object",)),
        (np.ones((3, 1), np.bool_), ("array of bool",)),
        (pa.array([1, 0, 1]), ("Int64Array", "int64")),
        (pl.Series([1, 0, 1]), ("Series",)),
        (pl.DataFrame({"x": [True, False, True]}), ("DataFrame",)),
        (pa.array([True, False]), ("2 entries for 3 rows",)),
        (np.ones(4, np.bool_), ("4 entries for 3 rows",)),
    ],
)
def test_what_is_no_boolean_a_row_is_refused(result: Any, texts: tuple[str, ...]) -> None:
    refused(af.FunctionError, lambda: batches_of(numbers(3).filter(returning(result))), "filter", *texts)


def test_an_error_of_the_function_comes_in_order() -> None:
    broken = ValueError("bad")
    fault = Fault(raising(broken), when=lambda batch: batch["row"][0].as_py() == 4)

    def fn(batch: pa.RecordBatch) -> pa.Array:
        return pc.greater_equal(fault(batch)["row"], 0)

    with iter(numbers(2, 2, 2).filter(fn)) as iterator:
        assert [next(iterator).num_rows, next(iterator).num_rows] == [2, 2]
        with pytest.raises(af.FunctionError, match=r"filter: .*ValueError: bad") as caught:
            next(iterator)
    assert caught.value.__cause__ is broken


def test_nothing_moves_across_a_function() -> None:
    seen = []

    def fn(batch: pa.RecordBatch) -> pa.Array:
        seen.extend(batch["row"].to_pylist())
        return pc.less(batch["row"], 4)

    ds = numbers(6).filter(fn, num_parallel_calls=1).filter(pl.col("row") > 1).take(1)
    assert ds.num_rows is None
    assert rows_of(ds) == [2]
    assert seen == list(range(6))
    assert sizes(numbers(6).filter(fn)) == [4]


def test_functions_and_expressions_are_not_mixed() -> None:
    ds = numbers(3)
    refused(af.PlanError, lambda: ds.filter(identity, pl.col("row") > 1), "filter", "once for each")
    refused(af.PlanError, lambda: ds.filter(identity, identity), "filter", "once for each")
    refused(af.PlanError, lambda: ds.filter(pl.col("row") > 1, columns=["row"]), "filter", "columns=")
    refused(af.PlanError, lambda: ds.filter(pl.DataFrame), "filter", "__call__")
    refused(af.PlanError, lambda: ds.filter(identity, format="pandas"), "filter", "format")  # type: ignore[arg-type]
    refused(af.PlanError, lambda: ds.filter(identity, columns=["roww"]).schema, "filter", "'row'")
    refused(af.PlanError, lambda: ds.batch(2).filter(identity), "filter", "batch")
