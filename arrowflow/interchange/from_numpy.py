"""NumPy arrays as Arrow arrays: views of NumPy's memory if the layouts agree."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow.errors import SchemaError, said, shown
from arrowflow.interchange.handed_over import TakeOver
from arrowflow.types import convert, normalise

_TYPES = {
    np.dtype(name): getattr(pa, name)()
    for name in (
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
    )
} | {np.dtype("float64"): pa.float64()}


def batch_from_arrays(
    columns: Mapping[str, Any], schema: pa.Schema | None = None, take_over: TakeOver | None = None
) -> pa.RecordBatch:
    """Returns arrays of one length as a record batch.

    Arrays of numbers, dates and durations become views. Further dimensions become nested `fixed_size_list`, or a
    `fixed_shape_tensor` if `schema` has a tensor of that shape and type. Nothing else of `schema` counts. Booleans are
    packed. NaT and masked values become null. Texts and Python objects are copied. With `take_over`, memory that others
    may write is copied, too.

    Raises:
        SchemaError: Arrays differ in length, or an array has no Arrow type.

    Examples:
        >>> batch_from_arrays({"x": np.zeros((2, 3), np.float32)}).schema.field("x").type
        FixedSizeListType(fixed_size_list<item: float>[3])
    """
    if not columns:
        raise SchemaError("expected at least one column, since rows without columns cannot be counted")
    tensors = {field.name: field.type for field in schema or () if _is_tensor(field.type)}
    arrays = {
        str(name): _to_arrow(str(name), values, tensors.get(name), take_over)
        for name, values in columns.items()
    }
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise SchemaError(f"columns have one length, got {lengths}")
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _is_tensor(type: pa.DataType) -> bool:
    return isinstance(type, pa.FixedShapeTensorType)


def _to_arrow(
    name: str, values: Any, tensor: pa.FixedShapeTensorType | None, take_over: TakeOver | None
) -> pa.Array:
    if isinstance(values, pa.Array):
        column = convert(values, normalise(values.type))
        return column if take_over is None else take_over.column(column)
    try:
        array = values if is_masked(values) else np.asarray(values)
    except ValueError as error:
        raise SchemaError(
            f"column {name!r}: rows of different shapes make no array ({said(error)}); for lists of any length give a pyarrow "
            "array, such as pa.array(rows, pa.list_(pa.int64()))"
        ) from error
    if array.ndim == 0:
        raise SchemaError(
            f"column {name!r}: expected an array with one entry a row, got the scalar {shown(values)}"
        )
    if take_over is not None:
        array = take_over.array(name, array)
    try:
        made = None if tensor is None else _tensors(array, tensor)
        return _nested(array) if made is None else made
    except (pa.ArrowException, pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
        raise SchemaError(
            f"column {name!r}: an array of {array.dtype} has no Arrow type ({said(error)})"
        ) from error


def _nested(array: np.ndarray[Any, Any]) -> pa.Array:
    if array.ndim == 1:
        return _flat(array)
    size = array.shape[1]
    child = _nested(array.reshape(array.shape[0] * size, *array.shape[2:]))
    return pa.Array.from_buffers(pa.list_(child.type, size), array.shape[0], [None], children=[child])


def _tensors(array: np.ndarray[Any, Any], type: pa.FixedShapeTensorType) -> pa.Array | None:
    """Returns one tensor a row, in the shape that loaders show; None if shape or type differ."""
    order = type.permutation or range(len(type.shape))
    if array.shape[1:] != tuple(type.shape[axis] for axis in order):
        return None
    stored = array.transpose(0, *(1 + np.argsort(order)))
    lists = _nested(stored.reshape(len(array), math.prod(type.shape)))
    return pa.ExtensionArray.from_storage(type, lists) if lists.type == type.storage_type else None


def is_masked(values: Any) -> bool:
    """Whether `values` is a masked array. NumPy's module of masked arrays is not imported here: that takes 15 ms."""
    return "numpy.ma" in sys.modules and isinstance(values, np.ma.MaskedArray)


def _flat(array: np.ndarray[Any, Any]) -> pa.Array:
    mask = None
    if array.__class__ is np.ndarray and array.dtype in _TYPES and array.flags.c_contiguous:
        return pa.Array.from_buffers(_TYPES[array.dtype], len(array), [None, pa.py_buffer(array)])
    if is_masked(array):
        mask, array = np.ma.getmaskarray(array), np.ma.getdata(array)
    if array.dtype.kind == "T":  # this dtype has no byte order
        return _objects(array, mask)
    dtype = array.dtype.newbyteorder("=")
    if dtype.kind == "b":
        packed = pa.py_buffer(np.packbits(array, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(array), [_validity(mask), packed])
    if dtype.kind in "mM":
        type, array = _temporal(array.astype(dtype, copy=False))
        missing = np.isnat(array) if array.dtype.kind in "mM" else array == np.iinfo(np.int32).min
        mask = missing if mask is None else mask | missing
        mask = mask if mask.any() else None
    elif dtype in _TYPES:
        type = _TYPES[dtype]
    else:
        return _objects(array, mask)
    values = np.ascontiguousarray(array, dtype=None if dtype.kind in "mM" else dtype)
    return pa.Array.from_buffers(type, len(values), [_validity(mask), pa.py_buffer(values.view(np.uint8))])


def _temporal(array: np.ndarray[Any, Any]) -> tuple[pa.DataType, np.ndarray[Any, Any]]:
    unit, count = np.datetime_data(array.dtype)
    if count != 1:  # for example weeks, as datetime64[7D]
        array = array.astype(f"{array.dtype.kind}8[{unit}]")
    if array.dtype.kind == "M" and unit == "D":
        days = np.where(np.isnat(array), np.iinfo(np.int32).min, array.view(np.int64))
        if days.size and not -(1 << 31) <= days.min() <= days.max() < 1 << 31:
            raise OverflowError("dates of more than 32 bits")
        return pa.date32(), days.astype(np.int32)
    make = pa.timestamp if array.dtype.kind == "M" else pa.duration
    if unit not in ("s", "ms", "us", "ns"):
        raise TypeError(f"unit {unit!r} is none of D, s, ms, us, ns")
    return make(unit), array


def _objects(array: np.ndarray[Any, Any], mask: np.ndarray[Any, Any] | None) -> pa.Array:
    if array.dtype.names:
        raise TypeError("each of its fields is a column: give them one by one")
    values = array.tolist()
    if mask is not None:
        values = [None if gone else value for value, gone in zip(values, mask, strict=True)]
    series = pl.Series(values, strict=True)
    if _holds_objects(series.dtype):
        # Polars would hand out the addresses of the Python objects.
        raise TypeError("Polars knows its values only as Python objects")
    result = series.to_arrow()
    return convert(result, normalise(result.type))


def _holds_objects(dtype: Any) -> bool:
    inner = (
        [field.dtype for field in dtype.fields]
        if isinstance(dtype, pl.Struct)
        else [getattr(dtype, "inner", None)]
    )
    return dtype == pl.Object or any(_holds_objects(part) for part in inner if part is not None)


def _validity(mask: np.ndarray[Any, Any] | None) -> pa.Buffer | None:
    return None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little"))
