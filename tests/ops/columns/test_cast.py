"""`cast`: other types for columns."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.testing import batches_of, check_operator
from tests.ops.tables import NUMBERS, Apply, refused

pytestmark = pytest.mark.any_version

CASES: dict[str, Apply] = {
    "pyarrow": lambda ds: ds.cast({"n": pa.float32(), "b": pa.int8()}),
    "polars": lambda ds: ds.cast({"n": pl.Int64, "x": pl.Float32, "row": pl.String()}),
}


@pytest.mark.parametrize("case", CASES)
def test_contracts(case: str) -> None:
    check_operator(CASES[case], NUMBERS, ordered_by="row" if case == "pyarrow" else None)


def test_values_nulls_and_places_are_kept() -> None:
    table = af.from_arrow(NUMBERS).cast({"n": pa.float32(), "row": pa.string()}).to_table()
    assert table.schema.names == NUMBERS.schema.names
    assert table.column("n").to_pylist() == NUMBERS.column("n").to_pylist()
    assert table.column("row").to_pylist() == [str(row) for row in range(17)]


def test_views_and_large_types_are_the_plain_ones() -> None:
    ds = af.from_arrow(NUMBERS).cast({"s": pa.large_string()})
    assert ds.schema.field("s").type == pa.string()


def test_an_enum_yields_codes() -> None:
    """The one way to get a dictionary: its values do not depend on the data."""
    texts = pa.table({"s": ["b", None, "a", "b"]})
    ds = af.from_arrow(texts).cast({"s": pl.Enum(["a", "b"])})
    (batch,) = batches_of(ds)
    assert pa.types.is_dictionary(ds.schema.field("s").type)
    assert batch.schema.equals(ds.schema)
    assert batch.column("s").indices.to_pylist() == [1, None, 0, 1]
    assert batch.column("s").dictionary.to_pylist() == ["a", "b"]


@pytest.mark.parametrize("type", [pa.int32(), pl.UInt8, "float32"])
def test_an_enum_is_no_number(type: Any) -> None:
    ds = af.from_arrow(pl.DataFrame({"s": pl.Series(["b"], dtype=pl.Enum(["a", "b"]))}))
    refused(af.PlanError, lambda: ds.cast({"s": type}).schema, "'s' is an enum", "to_physical()")
    codes = ds.with_columns(pl.col("s").to_physical()).to_table()
    assert codes["s"].to_pylist() == [1]


def test_a_float_that_is_too_large_becomes_infinite() -> None:
    ds = af.from_arrow(pa.table({"x": [1e300]})).cast({"x": pa.float32()})
    assert ds.to_table()["x"].to_pylist() == [float("inf")]


@pytest.mark.parametrize(
    ("values", "type"),
    [([1, 300], pa.int8()), ([1.5], pa.int32()), (["x"], pa.int64()), ([-1], pa.uint8())],
    ids=str,
)
def test_what_does_not_fit_is_an_error_that_names_the_column(values: list[Any], type: pa.DataType) -> None:
    ds = af.from_arrow(pa.table({"v": values})).cast({"v": type})
    refused(af.DataError, ds.to_table, "cast", "v")


@pytest.mark.parametrize("types", [None, pa.int8(), {"row": int}, {"row": "int32x"}, {"row": None}])
def test_bad_arguments(types: Any) -> None:
    ds = af.from_arrow(NUMBERS)
    refused(af.PlanError, lambda: ds.cast(types).schema, "cast")
    refused(af.PlanError, lambda: ds.cast({"roww": pa.int8()}), "cast", "did you mean 'row'?")


def test_a_cast_that_does_not_exist_is_refused_before_it_runs() -> None:
    ds = af.from_arrow(pa.table({"v": [[1], [2]]})).cast({"v": pa.date32()})
    refused(af.PlanError, lambda: ds.schema, "cast", "v")


@pytest.mark.parametrize("name", ["*", "^a$", "", "x"])
def test_a_name_means_its_column_alone(name: str) -> None:
    table = pa.table({name: ["b", "a"], "a": ["a", "a"]})
    found = af.from_arrow(table).cast({name: pl.Enum(["a", "b"])}).to_table()
    assert found[name].to_pylist() == ["b", "a"]
    assert found["a"].type == pa.string()
