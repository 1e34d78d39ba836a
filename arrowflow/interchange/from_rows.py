"""Rows of Python values as Arrow columns: dicts of numbers, texts, bytes, lists, dicts and arrays, one dict a row."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow.errors import SchemaError, said
from arrowflow.interchange.enums import as_enum, enum_values
from arrowflow.interchange.from_numpy import column_from_array, is_masked
from arrowflow.interchange.kept_values import check_kept, in_unit, leaf_type
from arrowflow.interchange.nested_lists import Values, holds_shaped, nested_lists
from arrowflow.lazy import compute as pc
from arrowflow.types import convert, is_list, is_number, normalise

_COMMON: frozenset[type] = frozenset((NoneType, bool, int, float, str, bytes))
"""The classes that Polars reads as pyarrow does, where there is but one beside None."""
_MADE = frozenset((pl.Null, pl.Boolean, pl.Int64, pl.Float64, pl.String, pl.Binary))
"""The types that Polars gives them. Integers that need more bits become something else, for which pyarrow is asked."""
_FAILURES = (pa.ArrowException, SchemaError, TypeError, ValueError, OverflowError)


def batch_from_rows(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], schema: pa.Schema | None, what: str
) -> pa.RecordBatch:
    """Returns rows as a record batch with the columns `names`, which every row has.

    The types are those of `schema`. Without it they follow from the values: a list, or an array of one dimension, is a
    list of any length; an array of more dimensions is a nested `fixed_size_list` of its shape. Values are copied. There is
    at least one row; errors name `what` as the source of the rows.

    Raises:
        SchemaError: The values of a column do not have one type, or not the type of the schema.
        DataError: A text is not among the values of its enum.

    Examples:
        >>> batch_from_rows([{"x": [1, 2], "y": 0}, {"x": [], "y": 1}], ["x", "y"], None, "fn").to_pydict()
        {'x': [[1, 2], []], 'y': [0, 1]}
    """
    return batch_from_values({name: [row[name] for row in rows] for name in names}, schema, what)


def batch_from_values(
    columns: Mapping[str, Sequence[Any]], schema: pa.Schema | None, what: str
) -> pa.RecordBatch:
    """Returns values by column as a record batch; see `batch_from_rows`.

    Examples:
        >>> batch_from_values({"x": [[1, 2], []], "y": [0, 1]}, None, "fn").to_pydict()
        {'x': [[1, 2], []], 'y': [0, 1]}
    """
    made = []
    for name, values in columns.items():
        field = None if schema is None else schema.field(name)
        try:
            if field is not None and enum_values(field) is not None:
                made.append(as_enum(column_from_values(name, values, pa.string()), field))
            else:
                made.append(column_from_values(name, values, None if field is None else field.type))
        except SchemaError as error:
            raise SchemaError(f"{what}: {error}") from error
    return pa.RecordBatch.from_arrays(made, names=list(columns))


def column_from_values(name: str, values: Values, type: pa.DataType | None) -> pa.Array:
    """Returns values as a column of a type; see `batch_from_rows`.

    Args:
        values: One for each row: also an array of objects, or one of several dimensions, which holds the arrays of rows.

    Raises:
        SchemaError: The values do not have one type, or not this type.

    Examples:
        >>> column_from_values("x", np.ones((2, 1)), pa.list_(pa.float64())).to_pylist()
        [[1.0], [1.0]]
    """
    try:
        if isinstance(values, np.ndarray) and (is_masked(values) or values.dtype.kind == "O"):
            values = values.tolist()  # None where it is masked
        if isinstance(values, np.ndarray) or not (classes := set(map(builtins.type, values))) <= _COMMON:
            column = _from_nested(values, type)
        else:
            column = _array(values, type, classes)
    except _FAILURES as error:
        raise _refused(name, type, values, error) from error
    return convert(column, normalise(column.type))


def _array(
    values: Sequence[Any], type: pa.DataType | None, classes: set[builtins.type] | None = None
) -> pa.Array:
    """Returns values as `pa.array` does, which imports pandas where it is installed: not for what Polars makes alike."""
    found = _classes(values) if classes is None else classes
    column = _by_polars(values) if found <= _COMMON and len(found - {NoneType}) <= 1 else None
    if column is not None and (type is None or column.type == type):
        return column
    if column is not None and _is_widened(column.type, type):
        column = column.cast(type)
        if pa.types.is_floating(leaf_type(type)) and _has_infinity(column):
            check_kept(values, column)
        return column
    column = pa.array(values) if type is None else pa.array(values, type)
    check_kept(values, column)
    return column


def _by_polars(values: Sequence[Any]) -> pa.Array | None:
    try:
        series = pl.Series(values, strict=True)
    except (pl.exceptions.PolarsError, TypeError, OverflowError):  # as of integers beside floats
        return None
    if not pl.datatypes.unpack_dtypes(series.dtype) <= _MADE:
        return None
    column = series.to_arrow()
    return convert(column, normalise(column.type))


def _is_widened(type: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast without loss gives what `pa.array` would make of the values."""
    if pa.types.is_list(type) and pa.types.is_list(wanted):
        return _is_widened(type.value_type, wanted.value_type)
    return bool(type == wanted or pa.types.is_null(type) or (is_number(type) and is_number(wanted)))


def _has_infinity(column: pa.Array) -> bool:
    while hasattr(column.type, "value_type"):
        column = column.flatten()
    return bool(pc.any(pc.is_inf(column)).as_py())


def _classes(values: Sequence[Any]) -> set[type]:
    """Returns the classes of values, in lists too."""
    found = set(map(type, values))
    if list in found:
        found.remove(list)
        for value in values:
            if value.__class__ is list:
                found |= _classes(value)
    return found


def _plain(value: Any, type: pa.DataType | None) -> Any:
    """Returns a value that Arrow reads: tensors of other libraries as arrays, and arrays without a dimension as scalars."""
    if hasattr(value, "__array__") and not isinstance(value, np.ndarray | np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "mM" and type is not None:
        value = in_unit(value, type)
    if is_masked(value):
        return value.tolist()  # None where it is masked
    if isinstance(value, np.ndarray) and not value.dtype.isnative:  # pyarrow reads no other byte order
        value = value.astype(value.dtype.newbyteorder("="))
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _has_no_type(value: Any) -> bool:
    try:
        pa.array([value])
    except _FAILURES:
        return not holds_shaped(value)
    return False


def _from_nested(values: Values, type: pa.DataType | None) -> pa.Array:
    """Returns values as a column; arrays of several dimensions, in lists and dicts too, are nested lists."""
    if not isinstance(values, np.ndarray):
        values = [_plain(value, type) for value in values]
    if isinstance(type, pa.FixedShapeTensorType):
        return _tensors(values, type)
    if isinstance(values, np.ndarray):
        return nested_lists(values, type, _from_nested) if values.ndim > 1 else _flat(values, type)
    if (lists := _type_of_arrays(values, type)) is not None:
        return nested_lists(values, lists, _from_nested)
    return nested_lists(values, type, _from_nested) if holds_shaped(values) else _array(values, type)


def _type_of_arrays(values: Values, type: pa.DataType | None) -> pa.DataType | None:
    """Returns the type of a column of arrays of one dimension and one dtype, each a list of numbers or times; else None.

    `pa.array` makes such a column, too, but an object for each number.
    """
    arrays = [value for value in values if value is not None]
    if not all(isinstance(array, np.ndarray) and array.ndim == 1 for array in arrays):
        return None
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) != 1 or next(iter(dtypes)).kind not in "iufmM":
        return None
    if type is None:
        return pa.list_(column_from_array(arrays[0][:0]).type)
    return type if is_list(type) else None


def _flat(array: np.ndarray[Any, Any], type: pa.DataType | None) -> pa.Array:
    """Returns the values of an array of one dimension as a column."""
    if array.dtype.kind in "mM" and type is not None:
        made = in_unit(array, type)
        if isinstance(made, list):
            return _array(made, type)
        array = made
    column = column_from_array(array)
    return column if type is None or column.type == type else _array(array.tolist(), type)


def _tensors(values: Values, type: pa.FixedShapeTensorType) -> pa.Array:
    dtype = np.dtype(type.value_type.to_pandas_dtype())
    arrays = [np.asarray(value) for value in values if value is not None]
    for array in arrays:
        is_integers = {array.dtype.kind, dtype.kind} == {"i", "u"}
        if not is_integers and not np.can_cast(array.dtype, dtype, "same_kind"):
            raise TypeError(f"an array of {array.dtype}")
        if dtype.kind != "f" and (array.astype(dtype) != array).any():
            raise ValueError(f"an array with values that are no {dtype}")
    if not arrays:
        return pa.nulls(len(values), type)
    stacked = np.stack(arrays).astype(dtype, copy=False)
    column = column_from_array(stacked, type)
    if column.type != type:
        raise ValueError(f"an array of the shape {list(stacked.shape[1:])}")
    if len(arrays) == len(values):
        return column
    numbers = iter(range(len(arrays)))
    places = pa.array([None if value is None else next(numbers) for value in values], pa.int64())
    return pa.ExtensionArray.from_storage(type, column.storage.take(places))


def _refused(name: str, type: pa.DataType | None, values: Values, error: Exception) -> SchemaError:
    reason = said(error)
    if type is not None:
        text = f"a value that is no {type} ({reason})"
    elif any(map(_has_no_type, values)):
        text = f"a value for which Arrow has no type ({reason}); convert it to a number, a text or bytes where it is made"
    else:
        text = f"values that do not have one type ({reason}); declare types with schema="
    return SchemaError(f"column {name!r} holds {text}")


def with_names(row: Any) -> Any:
    """Returns a named tuple as a dict, since its names say its columns; any other row as it is.

    Examples:
        >>> import collections
        >>> with_names(collections.namedtuple("Row", "x y")(1, 2)), with_names((1, 2))
        ({'x': 1, 'y': 2}, (1, 2))
    """
    return dict(row._asdict()) if isinstance(row, tuple) and hasattr(row, "_asdict") else row
