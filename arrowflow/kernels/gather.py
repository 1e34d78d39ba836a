"""Rows of a chunk, gathered into new memory: the one way in which operators take and filter rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.errors import DataError
from arrowflow.kernels.held import join
from arrowflow.workarounds.slices import is_misread, rebased

_INDEX_TYPES = {np.dtype(np.int64): pa.int64(), np.dtype(np.uint32): pa.uint32()}


def gathered(
    chunk: pa.RecordBatch, places: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None = None
) -> pa.RecordBatch:
    """Returns the rows at these places, int64 or uint32, in their order; null where none is present.

    Raises:
        pyarrow.ArrowInvalid: Texts or lists of the result would take more than 2 GiB a column.

    Example:
        >>> gathered(pa.record_batch({"x": [4, 5, 6]}), np.array([2, 0])).to_pydict()
        {'x': [6, 4]}
    """
    return _readable(chunk).take(_indices(places, present))


def taken(array: pa.Array, places: npt.NDArray[Any]) -> pa.Array:
    """Returns the values at these places, int64 or uint32, in their order.

    Example:
        >>> taken(pa.array([4, 5, 6]), np.array([2, 0])).to_pylist()
        [6, 4]
    """
    return rebased(array).take(_indices(places))


def kept(chunk: pa.RecordBatch, mask: pa.Array) -> pa.RecordBatch:
    """Returns the rows where `mask` is true, in their order."""
    return _readable(chunk).filter(mask)


def joined_batch(parts: list[pa.RecordBatch], setting: str) -> pa.RecordBatch:
    """Returns the parts of a batch as one; `setting` is what to make smaller where it holds too much.

    Raises:
        DataError: Texts or lists of the batch would take more than 2 GiB a column.
    """
    try:
        return join(parts)
    except pa.ArrowInvalid as error:
        rows = sum(part.num_rows for part in parts)
        raise DataError(
            f"a batch of {rows:,} rows cannot be joined ({error}); texts or lists of one batch may hold 2 GiB a "
            f"column: use a smaller {setting}"
        ) from error


def _indices(places: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    validity = None
    if present is not None and not present.all():
        validity = pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(_INDEX_TYPES[places.dtype], len(places), [validity, pa.py_buffer(places)])


def _readable(chunk: pa.RecordBatch) -> pa.RecordBatch:
    if not any(map(is_misread, chunk.schema.types)):
        return chunk
    return pa.RecordBatch.from_arrays([rebased(column) for column in chunk.columns], schema=chunk.schema)
