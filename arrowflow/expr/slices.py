"""Slices that Arrow misreads."""

from __future__ import annotations

import pyarrow as pa


def rebased(array: pa.Array) -> pa.Array:
    """Returns an array of which Arrow takes and filters the right rows.

    Of a slice of lists of fixed size inside of each other, `take` and `filter` read the first rows of the whole instead
    (pyarrow 22 to 26). It is copied; all others are returned as they are.

    Example:
        >>> type = pa.list_(pa.list_(pa.int8(), 1), 1)
        >>> rebased(pa.array([[[0]], [[1]]], type).slice(1)).take(pa.array([0])).to_pylist()
        [[[1]]]
    """
    return pa.concat_arrays([array]) if array.offset and is_misread(array.type) else array


def is_misread(type: pa.DataType) -> bool:
    """Whether Arrow misreads slices of arrays of this type."""
    if isinstance(type, pa.BaseExtensionType):
        return is_misread(type.storage_type)
    if pa.types.is_fixed_size_list(type) and pa.types.is_fixed_size_list(type.value_type):
        return True
    return any(is_misread(type.field(index).type) for index in range(type.num_fields))
