"""NumPy arrays as Arrow arrays: views of NumPy's memory if the layouts agree."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow.errors import SchemaError, said
from arrowflow.types import convert, normalise

_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_TYPES = {np.dtype(name): pa.from_numpy_dtype(name) for name in (*_INTEGERS, "float16", "float32", "float64")}


def column_from_array(array: np.ndarray[Any, Any], type: pa.DataType | None = None) -> pa.Array:
    """Returns an array as a column, one row for each entry of its first dimension.

    Arrays of numbers, dates and durations become views. Further dimensions become nested `fixed_size_list`, or a
    `fixed_shape_tensor` if `type` is a tensor of that shape and type; no other type counts. Booleans are packed. NaT and
    masked values become null. Texts and Python objects are copied.

    Raises:
        SchemaError: The array has no Arrow type.

    Examples:
        >>> column_from_array(np.zeros((2, 3), np.float32)).type
        FixedSizeListType(fixed_size_list<item: float>[3])
    """
    try:
        made = _tensors(array, type) if isinstance(type, pa.FixedShapeTensorType) else None
        return _nested(array) if made is None else made
    except (pa.ArrowException, pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
        raise SchemaError(f"an array of {array.dtype} has no Arrow type ({said(error)})") from error


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
    if pl.Object in pl.datatypes.unpack_dtypes(series.dtype):
        # Polars would hand out the addresses of the Python objects.
        raise TypeError("Polars knows its values only as Python objects")
    result = series.to_arrow()
    return convert(result, normalise(result.type))


def _validity(mask: np.ndarray[Any, Any] | None) -> pa.Buffer | None:
    return None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little"))
