"""`fill_null`: a value in place of nulls."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.testing import assert_same_values, check_operator
from arrowflow.types import temporal_array
from tests.ops.tables import ALL_TYPES, NUMBERS, Apply, refused

pytestmark = pytest.mark.any_version

CASES: dict[str, Apply] = {
    "a number everywhere": lambda ds: ds.fill_null(0),
    "by column": lambda ds: ds.fill_null({"x": -1.0, "s": "none"}),
}


@pytest.mark.parametrize("case", CASES)
def test_contracts(case: str) -> None:
    check_operator(CASES[case], NUMBERS, ordered_by="row")


@pytest.mark.parametrize(
    ("value", "filled"),
    [
        (0, ["x", "n"]),
        (0.5, ["x"]),  # and NaN is not null
        ("?", ["s"]),
        (False, ["b"]),
        ({"n": 7}, ["n"]),
    ],
    ids=str,
)
def test_what_can_hold_the_value_is_filled_and_nothing_else(value: Any, filled: list[str]) -> None:
    table = af.from_arrow(NUMBERS).fill_null(value).to_table()
    assert table.schema.equals(NUMBERS.schema)
    for name in NUMBERS.column_names:
        fill = value.get(name) if isinstance(value, dict) else value
        expected = [
            fill if old is None and name in filled else old for old in NUMBERS.column(name).to_pylist()
        ]
        assert_same_values(
            table.column(name).combine_chunks(), pa.array(expected, NUMBERS.schema.field(name).type)
        )


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("decimal", decimal.Decimal("1.25")),
        ("date", datetime.date(2000, 1, 2)),
        ("time", datetime.datetime(2000, 1, 2, tzinfo=datetime.UTC)),
        ("duration", datetime.timedelta(seconds=2)),
        ("half", 0.5),
        ("view", "?"),
        ("bytes", b"?"),
        ("fixed", b"abc"),
        ("dictionary", "?"),
    ],
)
def test_every_flat_type_can_be_filled(column: str, value: Any) -> None:
    table = af.from_arrow(ALL_TYPES).fill_null({column: value}).select(column).to_table()
    expected = [value if old is None else old for old in ALL_TYPES.column(column).to_pylist()]
    assert table.column(column).to_pylist() == expected


@pytest.mark.parametrize(
    "value", [None, {"s": 3}, {"n": 0.5}, {"n": "x"}, {"n": 1 << 40}, {"x": None}, object(), b"x"]
)
def test_a_value_that_fits_nowhere_is_refused(value: Any) -> None:
    ds = af.from_arrow(NUMBERS)
    refused(af.PlanError, lambda: ds.fill_null(value).schema, "fill_null")
    refused(af.PlanError, lambda: ds.fill_null({"roww": 1}), "fill_null", "did you mean 'row'?")


def test_a_text_with_large_offsets_takes_no_number() -> None:
    ds = af.from_arrow(NUMBERS).cast({"s": pa.large_string()})
    refused(af.PlanError, lambda: ds.fill_null({"s": 3}).schema, "column 's' holds texts")


@pytest.mark.parametrize(
    ("type", "stored"),
    [
        (pa.timestamp("ns"), 1),
        (pa.timestamp("s"), 2**40),
        (pa.timestamp("us", "UTC"), 2**62),
        (pa.duration("ns"), 1),
        (pa.time64("ns"), 1),
        (pa.date32(), 2**30),
    ],
    ids=str,
)
def test_scalars_of_arrow_reach_further_than_times_of_python(type: pa.DataType, stored: int) -> None:
    value = temporal_array(stored, type)
    dataset = af.from_arrow(pa.table({"x": pa.nulls(2, type), "y": pa.nulls(2, pa.int8())}))
    expected = pa.concat_arrays([value, value])
    for found in (dataset.fill_null(value[0]), dataset.fill_null({"x": value[0]})):
        assert found.to_table()["x"].combine_chunks().equals(expected)
        assert str(stored) in found.explain()
        assert found.to_table()["y"].null_count == 2


def test_scalars_of_other_types_are_values() -> None:
    dataset = af.from_arrow(pa.table({"x": pa.nulls(1, pa.int8()), "t": pa.nulls(1, pa.timestamp("ns"))}))
    assert dataset.fill_null({"x": pa.scalar(5)}).to_table()["x"].to_pylist() == [5]
    with pytest.raises(af.PlanError, match="fill_null: 1099511627776 cannot be a value of type timestamp"):
        _ = dataset.fill_null({"t": temporal_array(2**40, pa.timestamp("s"))[0]}).schema


def test_an_enum_is_filled_with_one_of_its_values() -> None:
    levels = pl.Enum(["low", "mid", "high"])
    column = pl.Series(["high", "low", None, "mid", None], dtype=levels)
    ds = af.from_arrow(pl.DataFrame({"level": column}))
    for filled in (ds.fill_null({"level": "mid"}), ds.fill_null("mid")):
        assert filled.schema == ds.schema
        for size in (1, 3, 5):
            codes = [code for batch in filled.batch(size).to_numpy() for code in batch["level"].tolist()]
            assert codes == [2, 0, 1, 1, 1]
    refused(af.PlanError, lambda: ds.fill_null({"level": "top"}).schema, "none of its values", "'low'")
    refused(af.PlanError, lambda: ds.fill_null("top").schema, "no column can hold")
