"""The table of types, and conversion to it."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrowflow.errors import DataError, PlanError, SchemaError
from arrowflow.expr import convert, normalise
from arrowflow.types import arrow_type, numpy_dtype, polars_reads, scalar

text = pa.string()


@pytest.mark.parametrize(
    ("type", "expected"),
    [
        (pa.int32(), pa.int32()),
        (pa.string_view(), text),
        (pa.large_string(), text),
        (pa.binary_view(), pa.binary()),
        (pa.large_binary(), pa.binary()),
        (pa.large_list(pa.large_string()), pa.list_(text)),
        (pa.list_view(pa.int8()), pa.list_(pa.int8())),
        (pa.large_list_view(pa.string_view()), pa.list_(text)),
        (pa.list_(pa.string_view(), 2), pa.list_(text, 2)),
        (pa.struct([("x", pa.large_string())]), pa.struct([("x", text)])),
        (pa.map_(pa.string_view(), pa.large_string()), pa.map_(text, text)),
        (pa.dictionary(pa.int8(), pa.large_string()), text),
        (pa.run_end_encoded(pa.int32(), pa.int8()), pa.int8()),
        (pa.dense_union([pa.field("a", pa.int8())]), pa.dense_union([pa.field("a", pa.int8())])),
        (pa.null(), pa.null()),
        (pa.fixed_shape_tensor(pa.int8(), (2,)), pa.fixed_shape_tensor(pa.int8(), (2,))),
    ],
)
def test_normalise(type: pa.DataType, expected: pa.DataType) -> None:
    assert normalise(type) == expected
    assert normalise(expected) == expected


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["a", None, "bc"], pa.string_view()),
        pa.array(["a", None, "bc"], pa.large_string()),
        pa.array(["a", None, "bc"]).dictionary_encode(),
        pa.array([["a"], None, []], pa.large_list(pa.string_view())),
        pc.run_end_encode(pa.array([1, 1, 2])),
        pa.RunEndEncodedArray.from_arrays(
            pa.array([2, 3, 9], pa.int32()), pa.array(["a", None, "b"]).dictionary_encode()
        ).slice(1, 5),
        pa.array([{"x": "a"}, None], pa.struct([("x", pa.large_string())])),
        pa.array([1, 2]),
    ],
)
def test_convert(array: pa.Array) -> None:
    found = convert(array, normalise(array.type))
    assert found.type == normalise(array.type)
    assert found.to_pylist() == array.to_pylist()


def test_convert_refuses_what_does_not_fit() -> None:
    with pytest.raises(DataError, match="does not fit"):
        convert(pa.array([300]), pa.int8())


def test_convert_refuses_what_arrow_cannot_decode() -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["a"]))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), runs)
    with pytest.raises(SchemaError, match="cast the column first"):
        convert(lists, normalise(lists.type))


def test_arrow_type() -> None:
    enum = pl.Enum(["a"])
    assert arrow_type(enum, operator="cast") is enum
    assert arrow_type(pl.List(pl.String), operator="cast") == pa.list_(text)
    for value in (pa.dictionary(pa.int8(), text), pl.Categorical, pl.Categorical(), pl.Enum):
        with pytest.raises(PlanError, match=r"depend on the data.*pl\.Enum"):
            arrow_type(value, operator="cast")
    for same in ("float32", np.float32, np.dtype("float32")):
        assert arrow_type(same, operator="cast") == pa.float32()
    for value in ("int", "float", "int8x", int, float, object, np.complex64, np.longdouble, np.object_, None):
        with pytest.raises(PlanError, match="expected a type"):
            arrow_type(value, operator="cast")


@pytest.mark.parametrize(
    ("value", "type"),
    [
        (1, pa.int8()),
        (1, pa.float32()),
        (2, pa.decimal128(5, 2)),
        (Decimal("1.5"), pa.decimal128(5, 2)),
        ("x", text),
        (b"x", pa.binary()),
        (True, pa.bool_()),
        (datetime.date(2001, 1, 1), pa.date32()),
        (datetime.timedelta(1), pa.duration("ns")),
        (datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC), pa.timestamp("us", "UTC")),
        ([1], pa.list_(pa.int8())),
        (None, pa.int8()),
    ],
)
def test_scalar(value: Any, type: pa.DataType) -> None:
    found = scalar(value, type)
    assert found.type == type
    assert found == pa.scalar(value, type)


@pytest.mark.parametrize(
    ("value", "type"),
    [
        (1e39, pa.float32()),
        (100_000, pa.float16()),
        (Decimal(10) ** 39, pa.float32()),
        (datetime.datetime(2001, 1, 1, 5), pa.date32()),
        (300, pa.int8()),
        (-1, pa.uint64()),
        (1.5, pa.int8()),
    ],
)
def test_scalars_lose_nothing(value: Any, type: pa.DataType) -> None:
    with pytest.raises(PlanError, match="cannot be a value of type"):
        scalar(value, type)


def test_stored_types() -> None:
    assert numpy_dtype(pa.timestamp("us")) == np.int64
    assert numpy_dtype(pa.time32("s")) == np.int32
    assert numpy_dtype(pa.decimal128(18, 2)) == np.int64
    assert numpy_dtype(pa.decimal128(19, 2)) is None
    assert numpy_dtype(text) is None
    assert numpy_dtype(pa.month_day_nano_interval()) is None


def test_what_polars_reads() -> None:
    for type in (
        text,
        pa.list_(text),
        pa.struct([("a", pa.int8())]),
        pa.dictionary(pa.int8(), text),
        pa.null(),
    ):
        assert polars_reads(type)
    for type in (
        pa.decimal256(50, 1),
        pa.list_(pa.decimal256(50, 1)),
        pa.fixed_shape_tensor(pa.int8(), (2,)),
    ):
        assert not polars_reads(type)


def test_equal_values_make_scalars_of_their_own() -> None:
    assert str(scalar(0.0, pa.float64())) == "0.0"
    assert str(scalar(-0.0, pa.float64())) == "-0.0"
    assert scalar(1, pa.string()) == pa.scalar("1")
    assert scalar(True, pa.string()) == pa.scalar("true")
