"""Rows of Python values get the columns that `pa.array` makes, without pandas for common ones."""

from __future__ import annotations

import datetime
import decimal
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrowflow.errors import SchemaError
from arrowflow.interchange.from_rows import batch_from_rows
from arrowflow.types import convert, normalise
from tests.effort import scaled

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 64), 1 << 64),
    st.integers(-300, 300),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.dates(),
    st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-9, max_value=9),
)
ALIKE = st.sampled_from(
    [st.integers(-300, 300), st.floats(), st.text(max_size=3), st.binary(max_size=3), st.booleans(), SCALARS]
)
COLUMNS = ALIKE.flatmap(
    lambda values: st.one_of(
        st.lists(st.none() | values, min_size=1, max_size=4),
        st.lists(st.none() | st.lists(st.none() | values, max_size=3), min_size=1, max_size=4),
        st.lists(st.lists(st.lists(values, max_size=2), max_size=2), min_size=1, max_size=3),
    )
)
TYPES: list[pa.DataType | None] = [
    None,
    pa.int8(),
    pa.int64(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
]
TYPES += [
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.list_(pa.int16()),
    pa.list_(pa.float32()),
    pa.list_(pa.string()),
]
TYPES += [pa.list_(pa.list_(pa.int64())), pa.list_(pa.int64(), 2)]


def is_whole(type: pa.DataType) -> bool:
    return is_whole(type.value_type) if hasattr(type, "value_type") else pa.types.is_integer(type)


def has_fraction(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(has_fraction, value))
    return isinstance(value, float) and not value.is_integer()


@settings(max_examples=scaled(300))
@given(values=COLUMNS, type=st.sampled_from(TYPES))
def test_values_become_what_pyarrow_makes_of_them(values: list[Any], type: pa.DataType | None) -> None:
    schema = None if type is None else pa.schema({"x": type})
    rows = [{"x": value} for value in values]
    try:
        if type is not None and is_whole(type) and has_fraction(values):
            raise ValueError("pa.array cuts it off for short types, and refuses it for int64")
        expected = pa.array(values) if type is None else pa.array(values, type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        with pytest.raises(SchemaError, match="column 'x'"):
            batch_from_rows(rows, ["x"], schema, "fn")
        return
    try:
        found = batch_from_rows(rows, ["x"], schema, "fn").column(0)
    except SchemaError:
        assert expected.to_pylist() != values, "only what would lose something is refused"
        return
    expected = convert(expected, normalise(expected.type))
    assert found.type == expected.type
    assert str(found) == str(expected)


def test_arrays_are_values() -> None:
    rows = [{"x": np.arange(2, dtype=np.int16), "y": np.float32(0.5), "z": np.array(3)} for _ in range(2)]
    batch = batch_from_rows(rows, ["x", "y", "z"], None, "fn")
    assert batch.schema.types == [pa.list_(pa.int16()), pa.float32(), pa.int64()]
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    batch = batch_from_rows([{"x": image}, {"x": image}], ["x"], None, "fn")
    assert batch.column(0).to_pylist() == [image.tolist()] * 2
    tensor = pa.fixed_shape_tensor(pa.uint8(), [2, 2, 3])
    batch = batch_from_rows([{"x": image}, {"x": None}], ["x"], pa.schema({"x": tensor}), "fn")
    assert batch.column(0).is_null().to_pylist() == [False, True]


def test_what_is_no_value_of_a_type_is_refused_with_its_column() -> None:
    moment = datetime.datetime(2024, 1, 1)
    integers = [(value, pa.int8()) for value in (0.5, np.float32(0.5), 300, float("nan"))]
    lists = [(value, pa.list_(pa.int16())) for value in (np.array([0.5]), [1, 0.5], 3)]
    for value, type in (*integers, *lists, (1.5, pa.int64()), ("3", pa.int64()), (moment, pa.int64())):
        with pytest.raises(SchemaError, match=re.escape(f"fn: column 'x' holds a value that is no {type}")):
            batch_from_rows([{"x": value}], ["x"], pa.schema({"x": type}), "fn")
    with pytest.raises(SchemaError, match="declare types with schema="):
        batch_from_rows([{"x": 1}, {"x": "a"}], ["x"], None, "fn")
    tensor = pa.fixed_shape_tensor(pa.uint8(), [2, 2])
    with pytest.raises(SchemaError, match="column 'x'"):
        batch_from_rows([{"x": np.zeros((2, 3), np.uint8)}], ["x"], pa.schema({"x": tensor}), "fn")


SHAPES = st.integers(0, 3)


@settings(max_examples=scaled(200))
@given(
    shapes=st.lists(st.none() | st.tuples(SHAPES, SHAPES, st.just(2)), min_size=1, max_size=4),
    dtype=st.sampled_from(["u1", "i4", "f4", "f8", ">i2", "M8[s]", "M8[D]", "U2", "?"]),
    depth=st.sampled_from(["array", "list", "dict"]),
)
def test_nested_arrays_are_what_nested_lists_are(
    shapes: list[tuple[int, ...] | None], dtype: str, depth: str
) -> None:
    def values(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        made: np.ndarray[Any, Any] = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
        return made

    leaf = pa.array(np.zeros(1, np.dtype(dtype).newbyteorder("="))).type
    type = pa.list_(pa.list_(pa.list_(leaf, 2)))
    arrays: list[Any] = [None if shape is None else values(shape) for shape in shapes]
    lists: list[Any] = [None if array is None else array.tolist() for array in arrays]
    if depth == "list":
        type = pa.list_(type)
        arrays, lists = ([[value, None, value] for value in given] for given in (arrays, lists))
    elif depth == "dict":
        type = pa.struct({"a": type, "b": pa.int8()})
        arrays, lists = ([{"a": value, "b": 1} for value in given] for given in (arrays, lists))
    found = batch_from_rows([{"x": value} for value in arrays], ["x"], pa.schema({"x": type}), "fn").column(0)
    found.validate(full=True)
    assert found.type == type
    assert found.to_pylist() == pa.array(lists, type).to_pylist()


def test_arrays_without_a_type_are_lists_of_their_shape() -> None:
    image = np.arange(6, dtype=np.uint8).reshape(2, 3)
    fixed = pa.list_(pa.list_(pa.uint8(), 3), 2)
    cases: list[tuple[list[Any], pa.DataType]] = [
        ([image, None], fixed),
        ([[image], [], [image, image]], pa.list_(fixed)),
        ([{"a": image}, None], pa.struct({"a": fixed})),
        ([image[:0], None], pa.list_(pa.list_(pa.uint8(), 3), 0)),
        ([image[:, :0]], pa.list_(pa.list_(pa.uint8(), 0), 2)),
        ([[image[:0]] * 2], pa.list_(pa.list_(pa.list_(pa.uint8(), 3), 0))),
    ]
    for values, type in cases:
        batch = batch_from_rows([{"x": value} for value in values], ["x"], None, "fn")
        assert batch.column(0).type == type
    with pytest.raises(SchemaError, match=r"arrays of several shapes.*schema="):
        batch_from_rows([{"x": image}, {"x": image[:1]}], ["x"], None, "fn")
    with pytest.raises(SchemaError, match=r"arrays of several shapes.*schema="):
        batch_from_rows([{"x": image[:0]}, {"x": image}], ["x"], None, "fn")


# ---------------------------------------------------------------- nothing is lost without a word


DAY, MOMENT = datetime.date(2024, 1, 2), datetime.datetime(2024, 1, 2, 3, 4, 5, 6)
TENSOR = pa.fixed_shape_tensor(pa.uint8(), [2, 3])
KEPT: dict[str, tuple[Any, pa.DataType, Any]] = {
    "seconds": (
        np.array(["2024-01-02"], "M8[s]"),
        pa.list_(pa.timestamp("us")),
        [datetime.datetime(2024, 1, 2)],
    ),
    "days": (np.array(["2024-01-02"], "M8[D]"), pa.list_(pa.date32()), [DAY]),
    "a day": (np.datetime64("2024-01-02"), pa.date32(), DAY),
    "a day as a time": (np.datetime64("2024-01-02"), pa.timestamp("us"), datetime.datetime(2024, 1, 2)),
    "durations": (np.array([3], "m8[s]"), pa.list_(pa.duration("us")), [datetime.timedelta(seconds=3)]),
    "midnight": (datetime.datetime(2024, 1, 2), pa.date32(), DAY),
    "a rounded float": (0.1, pa.float32(), float(np.float32(0.1))),
    "infinity": (float("inf"), pa.float32(), float("inf")),
    "a mask": (np.ma.array([1, 2], mask=[False, True]), pa.list_(pa.int64()), [1, None]),
    "fewer keys": ({"a": 1}, pa.struct({"a": pa.int64(), "b": pa.int64()}), {"a": 1, "b": None}),
    "bytes": (b"a", pa.string(), "a"),
    "a map": ({"k": 2}, pa.map_(pa.string(), pa.int8()), [("k", 2)]),
}
LOST: dict[str, tuple[Any, pa.DataType]] = {
    "nanoseconds": (np.array(["2024-01-02T00:00:00.000000001"], "M8[ns]"), pa.list_(pa.timestamp("us"))),
    "hours as days": (np.datetime64("2024-01-02T05"), pa.date32()),
    "time of day": (MOMENT, pa.date32()),
    "microseconds": (MOMENT, pa.timestamp("ms")),
    "parts of a duration": (datetime.timedelta(microseconds=3), pa.duration("ms")),
    "parts of a time": (MOMENT.time(), pa.time32("s")),
    "a fraction in an image": (np.full((1, 2), 1.9), pa.list_(pa.list_(pa.int64(), 2), 1)),
    "a fraction in a struct": ({"a": 1.9}, pa.struct({"a": pa.int64()})),
    "a fraction in a map": ({"k": 2.5}, pa.map_(pa.string(), pa.int8())),
    "a decimal": ([1, decimal.Decimal("2.5")], pa.list_(pa.int64())),
    "a key": ({"b": 2}, pa.struct({"a": pa.int64()})),
    "a large integer": ((1 << 53) + 1, pa.float64()),
    "a large float": (1e300, pa.float32()),
    "a large float in a list": ([0.5, 1e300], pa.list_(pa.float32())),
    "the shape of a tensor": (np.zeros((3, 2), np.uint8), TENSOR),
    "values of a tensor": (np.full((2, 3), 300), TENSOR),
    "fractions of a tensor": (np.full((2, 3), 0.5), TENSOR),
}


@pytest.mark.parametrize("name", KEPT)
def test_values_are_converted_to_the_declared_type(name: str) -> None:
    value, type, expected = KEPT[name]
    schema = pa.schema({"x": type})
    for rows in ([value], [value, None], [None, value, value]):
        found = batch_from_rows([{"x": row} for row in rows], ["x"], schema, "fn").column(0).to_pylist()
        assert found == [None if row is None else expected for row in rows]


@pytest.mark.parametrize("name", LOST)
def test_values_that_would_lose_something_are_refused(name: str) -> None:
    value, type = LOST[name]
    schema = pa.schema({"x": type})
    for rows in ([value], [value, None], [None, None, value]):
        with pytest.raises(SchemaError, match="column 'x' holds a value that is no"):
            batch_from_rows([{"x": row} for row in rows], ["x"], schema, "fn")


def test_an_integer_beside_floats_is_treated_as_alone() -> None:
    schema = pa.schema({"x": pa.float64()})
    with pytest.raises(SchemaError):
        batch_from_rows([{"x": 0.5}, {"x": (1 << 53) + 1}], ["x"], schema, "fn")
    batch = batch_from_rows([{"x": 0.5}, {"x": 1 << 53}], ["x"], schema, "fn")
    assert batch.column(0).to_pylist() == [0.5, 1 << 53]
