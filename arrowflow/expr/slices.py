"""Slices that Arrow misreads."""

from __future__ import annotations

import pyarrow as pa

from arrowflow.expr.forks import check_polars


def rebased(array: pa.Array) -> pa.Array:
    """Returns an array of which Arrow takes and filters the right rows.

    Of lists of fixed size inside of each other, `take` and `filter` read the first rows of the whole instead where the
    array is a slice, or holds one inside (pyarrow 22 to 26). It is copied; all others are returned as they are.

    Example:
        >>> inner = pa.array([[0], [1], [2]], pa.list_(pa.int8(), 1))
        >>> whole = pa.FixedSizeListArray.from_arrays(inner.slice(1), 1)
        >>> rebased(whole).take(pa.array([0])).to_pylist()
        [[[1]]]
    """
    return pa.concat_arrays([array]) if is_misread(array.type) and _is_slice(array) else array


def is_misread(type: pa.DataType) -> bool:
    """Whether Arrow misreads slices of arrays of this type."""
    if isinstance(type, pa.BaseExtensionType):
        return is_misread(type.storage_type)
    if not type.num_fields:
        return False
    if pa.types.is_fixed_size_list(type) and pa.types.is_fixed_size_list(type.value_type):
        return True
    return any(is_misread(type.field(index).type) for index in range(type.num_fields))


def _is_slice(array: pa.Array) -> bool:
    """Whether an array or one inside it begins behind the first value of its buffers."""
    type = array.type
    if array.offset:
        return True
    if isinstance(type, pa.BaseExtensionType):
        return _is_slice(array.storage)
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type):
        return _is_slice(array.values)
    if pa.types.is_struct(type):
        return any(_is_slice(array.field(index)) for index in range(type.num_fields))
    # Maps and unions of such lists are too rare to look inside: they are copied.
    return bool(pa.types.is_nested(type))


def readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns a batch that Polars reads right.

    Of lists of fixed size with nulls it reads the validity of a slice as if it were that of the whole, and fails
    (Polars 2.1). Such columns are copied; all others are returned as they are.

    Raises:
        ForkError: Polars cannot read anything in this process.

    Example:
        >>> import polars as pl
        >>> batch = pa.record_batch({"x": pa.array([[0], None, [2]], pa.list_(pa.int8(), 1))})
        >>> pl.DataFrame(readable(batch.slice(1)))["x"].to_list()
        [None, [2]]
    """
    check_polars()
    for index, column in enumerate(batch.columns):
        if _holds_masked_slice(column):
            batch = batch.set_column(index, batch.schema.field(index), pa.concat_arrays([column]))
    return batch


def _holds_masked_slice(array: pa.Array) -> bool:
    """Whether an array is, or has inside it, a slice of lists of fixed size with nulls."""
    type = array.type
    if isinstance(type, pa.BaseExtensionType):
        return _holds_masked_slice(array.storage)
    if pa.types.is_fixed_size_list(type):
        # Whether it has nulls itself says nothing of the array that it is handed over as a slice of.
        masked = array.buffers()[0] is not None and len(array.values) != len(array) * type.list_size
        return masked or _holds_masked_slice(array.values)
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return _holds_masked_slice(array.values)
    if pa.types.is_map(type):
        return _holds_masked_slice(array.items)
    if pa.types.is_struct(type):
        return any(_holds_masked_slice(array.field(index)) for index in range(type.num_fields))
    return False
