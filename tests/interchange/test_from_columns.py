"""A column that a function returns is the column that its rows would make, however its values are held."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.errors import FunctionError, SchemaError
from arrowflow.interchange.from_columns import batch_from_arrays
from arrowflow.interchange.from_rows import batch_from_rows
from tests.effort import scaled

FLOATS = pa.float64()
HOLDERS = ["list", "tuple", "objects"]


def held(rows: list[Any], how: str) -> Any:
    if how != "objects":
        return list(rows) if how == "list" else tuple(rows)
    objects = np.empty(len(rows), object)
    objects[:] = rows
    return objects


@settings(max_examples=scaled(200))
@given(
    sizes=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    fixed=st.sampled_from([None, 1, 2]),
    nested=st.booleans(),
    missing=st.booleans(),
    how=st.sampled_from(HOLDERS),
    dtype=st.sampled_from(["f8", "f4", "i2", ">i4"]),
)
def test_rows_of_arrays_are_lists_of_the_declared_type(
    sizes: list[int], fixed: int | None, nested: bool, missing: bool, how: str, dtype: str
) -> None:
    sizes = sizes if fixed is None else [fixed] * len(sizes)
    numbers = itertools.count()
    shapes = [(size, 2) if nested else (size,) for size in sizes]
    rows: list[Any] = [
        np.array([next(numbers) for _ in range(math.prod(shape))]).astype(dtype).reshape(shape)
        for shape in shapes
    ]
    inner = pa.list_(FLOATS, 2) if nested else FLOATS
    type = pa.list_(inner) if fixed is None else pa.list_(inner, fixed)
    rows = [*rows, None] if missing else rows
    column = batch_from_arrays({"x": held(rows, how)}, pa.schema({"x": type})).column(0)
    column.validate(full=True)
    assert column.type == type
    assert column.to_pylist() == [None if row is None else row.tolist() for row in rows]


@pytest.mark.parametrize("shape", [(3, 2), (0, 2), (3, 0), (4, 3, 2), (2, 0, 2), (2, 3, 0)])
def test_an_array_of_several_dimensions_fits_lists_of_any_length(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    type: pa.DataType = pa.int32()
    for _ in shape[1:]:
        type = pa.list_(type)
    column = batch_from_arrays({"x": array}, pa.schema({"x": type})).column(0)
    assert (column.type, column.to_pylist()) == (type, array.tolist())


def test_an_array_of_the_declared_shape_stays_a_view() -> None:
    array = np.zeros((3, 2, 2), np.float32)
    schema = pa.schema({"x": pa.list_(pa.list_(pa.float32(), 2), 2)})
    values = batch_from_arrays({"x": array}, schema).column(0).flatten().flatten()
    assert values.buffers()[1].address == array.ctypes.data


def test_masked_entries_and_dicts_of_arrays_are_values_too() -> None:
    masked = np.ma.array([[1, 2], [3, 4]], mask=[[False, True], [False, False]])
    assert batch_from_arrays({"x": masked}, pa.schema({"x": pa.list_(pa.int64())})).to_pydict() == {
        "x": [[1, None], [3, 4]]
    }
    dicts = [{"box": np.zeros((2, 2)), "class": 1}, None]
    type = pa.struct({"box": pa.list_(pa.list_(FLOATS, 2)), "class": pa.int8()})
    found = batch_from_arrays({"x": dicts}, pa.schema({"x": type}))
    assert found.to_pydict() == {"x": [{"box": [[0, 0], [0, 0]], "class": 1}, None]}


MASKED = np.ma.array([1, 2], mask=[False, True])
SQUARE = np.zeros((2, 2))
WHOLE, SQUARES = pa.list_(pa.int64()), pa.list_(pa.list_(FLOATS))


@pytest.mark.parametrize("type", [None, WHOLE, pa.list_(pa.int64(), 2)])
def test_a_list_of_masked_arrays_keeps_their_masks(type: pa.DataType | None) -> None:
    schema = None if type is None else pa.schema({"x": type})
    assert batch_from_arrays({"x": [MASKED, MASKED]}, schema).to_pydict() == {"x": [[1, None]] * 2}


@pytest.mark.parametrize(
    ("value", "type"),
    [
        ({"a": MASKED, "b": SQUARE}, pa.struct({"a": WHOLE, "b": SQUARES})),
        ({"a": MASKED, "b": SQUARE}, None),
        ([{"a": MASKED, "b": SQUARE}], pa.list_(pa.struct({"a": WHOLE, "b": SQUARES}))),
    ],
)
def test_masks_beside_arrays_of_several_dimensions_are_kept(value: Any, type: pa.DataType | None) -> None:
    schema = None if type is None else pa.schema({"x": type})
    found = batch_from_rows([{"x": value}], ["x"], schema, "fn").column(0).to_pylist()
    first = found[0][0] if isinstance(value, list) else found[0]
    assert first == {"a": [1, None], "b": SQUARE.tolist()}


@pytest.mark.parametrize(
    ("value", "type"),
    [
        ({"a": [MASKED], "b": SQUARE}, pa.struct({"a": pa.list_(WHOLE), "b": SQUARES})),
        ([MASKED], None),
        (MASKED, pa.fixed_shape_tensor(pa.int64(), [2])),
    ],
)
def test_masks_that_cannot_be_kept_are_refused(value: Any, type: pa.DataType | None) -> None:
    schema = None if type is None else pa.schema({"x": type})
    with pytest.raises(SchemaError, match="column 'x'"):
        batch_from_rows([{"x": value}], ["x"], schema, "fn")


@pytest.mark.parametrize("how", HOLDERS)
def test_values_that_are_not_of_the_type_are_refused_with_their_column(how: str) -> None:
    rows = held([np.zeros((2, 2)), np.full((1, 2), 0.5)], how)
    schema = pa.schema({"x": pa.list_(pa.list_(pa.int64(), 2))})
    with pytest.raises(SchemaError, match="column 'x' holds a value that is no list"):
        batch_from_arrays({"x": rows}, schema)


@pytest.mark.parametrize("how", HOLDERS)
def test_map_takes_the_boxes_of_images(how: str) -> None:
    schema = pa.schema({"boxes": pa.list_(pa.list_(FLOATS, 4))})

    def boxes(columns: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        return {"boxes": held([np.full((number % 3, 4), number) for number in columns["id"]], how)}

    (batch,) = af.range(7).map(boxes, format="numpy", schema=schema).batch(7)
    assert batch.column("boxes").to_pylist() == [[[number] * 4] * (number % 3) for number in range(7)]


def test_an_array_that_is_filled_again_is_copied() -> None:
    kept = np.zeros((4, 2, 2))

    def fill(columns: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        kept[:] = columns["id"][0]
        return {"x": kept}

    schema = pa.schema({"x": pa.list_(pa.list_(FLOATS))})
    plan = af.range(12).batch(4).map(fill, format="numpy", schema=schema, num_parallel_calls=1)
    batches = list(plan)
    found = [batch.column("x").to_pylist() for batch in batches]
    assert found == [np.full((4, 2, 2), first).tolist() for first in (0, 4, 8)]


def test_without_a_type_rows_of_several_shapes_name_the_way() -> None:
    def ragged(columns: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        return {"x": [np.zeros(number) for number in columns["id"]]}

    with pytest.raises(FunctionError, match="declare the type where there is a schema="):
        list(af.range(3).map(ragged, format="numpy"))


def native(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns an array in the byte order that pyarrow reads."""
    return array.astype(array.dtype.newbyteorder("="))


@pytest.mark.parametrize("dtype", ["f8", "f2", "u1", ">i4", "M8[D]", "U3", "?"])
def test_arrays_of_one_dimension_are_the_lists_that_pyarrow_makes(dtype: str) -> None:
    rows = [np.arange(size).astype(dtype) for size in (2, 0, 3)]
    found = batch_from_rows([{"x": row} for row in [*rows, None]], ["x"], None, "fn").column(0)
    expected = pa.array([*(row.tolist() for row in rows), None], pa.list_(pa.array(native(rows[0])).type))
    assert (found.type, found.to_pylist()) == (expected.type, expected.to_pylist())
