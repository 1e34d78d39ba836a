"""Slices that Arrow misreads, and batches in a form that Polars reads correctly."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from arrowflow.errors import SchemaError
from arrowflow.workarounds.forks import check_polars


def rebased(array: pa.Array) -> pa.Array:
    """Returns an array from which Arrow takes and filters the right rows.

    Arrow misreads nested lists of fixed size (pyarrow 22 to 26). If such an array is a slice, or holds a slice inside,
    `take` and `filter` read the first rows of the whole instead. Such an array is copied; others are returned
    unchanged.

    Examples:
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
    """Whether an array or an array inside it begins after the first value of its buffers."""
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
    """Returns a batch that Polars reads correctly.

    For lists of fixed size with nulls, Polars reads the validity of a slice as the validity of the whole, and fails
    (Polars 2.1). Such columns are copied; others are returned unchanged.

    Raises:
        ForkError: Polars cannot read anything in this process.

    Examples:
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


def polars_frame(batch: pa.RecordBatch, *, rechunk: bool = True) -> pl.DataFrame:
    """Returns a batch as a data frame with the same names; `pl.from_arrow` calls the column "" `column_0`.

    Raises:
        SchemaError: Polars lacks the type of a column, such as a time in a zone that it does not know.
        ForkError: Polars cannot read anything in this process.

    Examples:
        >>> polars_frame(pa.record_batch({"": [1], "column_0": [2]})).columns
        ['', 'column_0']
    """
    names = batch.schema.names
    if "" in names:
        batch = batch.rename_columns([str(index) for index in range(len(names))])
    try:
        frame = pl.from_arrow(readable(batch), rechunk=rechunk)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:  # it panics at lists of size 0
        raise SchemaError(
            f"Polars cannot hold these columns: {str(error).splitlines()[0]}; cast the column to another type, or leave it out"
        ) from error
    assert isinstance(frame, pl.DataFrame)
    if "" in names:
        frame.columns = names
    return frame


def _holds_masked_slice(array: pa.Array) -> bool:
    """Whether an array is a slice of lists of fixed size with nulls, or holds such a slice inside."""
    type = array.type
    if isinstance(type, pa.BaseExtensionType):
        return _holds_masked_slice(array.storage)
    if pa.types.is_fixed_size_list(type):
        # Nulls of the slice itself say nothing of nulls in the whole array, which Polars gets.
        masked = array.buffers()[0] is not None and len(array.values) != len(array) * type.list_size
        return masked or _holds_masked_slice(array.values)
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return _holds_masked_slice(array.values)
    if pa.types.is_map(type):
        return _holds_masked_slice(array.items)
    if pa.types.is_struct(type):
        return any(_holds_masked_slice(array.field(index)) for index in range(type.num_fields))
    return False


def concatenable(array: pa.Array) -> pa.Array:
    """Returns an array of Polars in a form that Arrow can append to another array.

    For an empty slice inside a list, Polars hands over its start but no bytes, and `concat_arrays` reads after their
    end (Polars 2.1). Such an array is made anew; others are returned unchanged.

    Examples:
        >>> nothing = pa.array([1, 2]).slice(2)
        >>> concatenable(pa.ListArray.from_arrays([0, 0], nothing)).values.offset
        0
    """
    type = array.type
    if not len(array) and array.offset:
        return pa.nulls(0, type)
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type):
        inside = [array.values]
    elif pa.types.is_struct(type) and not array.offset:
        inside = [array.field(index) for index in range(type.num_fields)]
    else:
        return array
    children = [concatenable(child) for child in inside]
    if all(child is old for child, old in zip(children, inside, strict=True)):
        return array
    buffers = array.buffers()[: type.num_buffers]
    return pa.Array.from_buffers(type, len(array), buffers, array.null_count, array.offset, children)
