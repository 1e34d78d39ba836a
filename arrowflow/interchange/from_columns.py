"""Columns that user code hands over as a record batch: arrays of NumPy and Arrow, and rows of lists, dicts and arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from arrowflow.errors import SchemaError, said, shown
from arrowflow.interchange.from_numpy import column_from_array, is_masked
from arrowflow.interchange.from_rows import column_from_values
from arrowflow.interchange.handed_over import TakeOver
from arrowflow.types import convert, normalise


def batch_from_arrays(
    columns: Mapping[str, Any], schema: pa.Schema | None = None, take_over: TakeOver | None = None
) -> pa.RecordBatch:
    """Returns columns of one length as a record batch.

    An array is made a column by `column_from_array`. Only lists, dicts and tensors of `schema` count. Where it says lists
    or dicts, a list, an array of objects and an array of another shape hold values of that type, as in `batch_from_rows`.
    With `take_over`, memory that others may write is copied.

    Raises:
        SchemaError: Columns differ in length, or values have no Arrow type, or are not of the type of `schema`.

    Examples:
        >>> batch_from_arrays({"x": np.zeros((2, 3), np.float32)}).schema.field("x").type
        FixedSizeListType(fixed_size_list<item: float>[3])
        >>> boxes = [np.zeros((0, 4)), np.ones((2, 4))]
        >>> batch_from_arrays({"boxes": boxes}, pa.schema({"boxes": pa.list_(pa.list_(pa.float64(), 4))})).num_rows
        2
    """
    if not columns:
        raise SchemaError("expected at least one column, since rows without columns cannot be counted")
    types = {field.name: field.type for field in schema or ()}
    arrays = {
        str(name): _column(str(name), values, types.get(str(name)), take_over)
        for name, values in columns.items()
    }
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise SchemaError(f"columns have one length, got {lengths}")
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _column(name: str, values: Any, type: pa.DataType | None, take_over: TakeOver | None) -> pa.Array:
    if isinstance(values, pa.Array):
        column = convert(values, normalise(values.type))
        return column if take_over is None else take_over.column(column)
    by_rows = type is not None and pa.types.is_nested(type)
    try:
        array = _array(values)
    except ValueError as error:
        if by_rows and isinstance(values, list | tuple):
            return column_from_values(name, values, type)
        raise SchemaError(
            f"column {name!r}: rows of different shapes make no array ({said(error)}); for lists of any length give "
            "a pyarrow array, such as pa.array(rows, pa.list_(pa.int64())), or declare the type where there is a schema="
        ) from error
    except Exception as error:
        raise SchemaError(
            f"column {name!r}: of {values.__class__.__name__} NumPy makes no array: {said(error)}"
        ) from error
    if array.ndim == 0:
        raise SchemaError(
            f"column {name!r}: expected an array with one entry a row, got the scalar {shown(values)}"
        )
    if take_over is not None:
        array = take_over.array(name, array)
    if by_rows and not _has_layout(array, type, any_dtype=isinstance(values, np.ndarray)):
        return column_from_values(name, values if isinstance(values, list | tuple) else array, type)
    try:
        return column_from_array(array, type)
    except SchemaError as error:
        raise SchemaError(f"column {name!r}: {error}") from error


def _array(values: Any) -> Any:
    """Returns values as an array, with their masks: NumPy itself would forget those of the entries of a list."""
    if is_masked(values):
        return values
    is_list = isinstance(values, list | tuple)
    return np.ma.array(values) if is_list and any(map(is_masked, values)) else np.asarray(values)


def _has_layout(array: np.ndarray[Any, Any], type: pa.DataType | None, *, any_dtype: bool) -> bool:
    """Whether an array becomes a column of a type of lists: it has a dimension for each, of that size."""
    for size in array.shape[1:]:
        if type is None or not pa.types.is_fixed_size_list(type) or type.list_size != size:
            return False
        type = type.value_type
    return array.dtype.kind not in "OV" and (
        any_dtype or column_from_array(array[:0].reshape(0)).type == type
    )
