"""Rows of chunks, gathered into new memory: the one way in which operators take and filter rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.errors import DataError
from arrowflow.kernels.held import join
from arrowflow.kernels.items import Origin, Payload
from arrowflow.kernels.kinds import StatelessKernel
from arrowflow.workarounds.slices import is_misread, rebased

T = TypeVar("T")

_INDEX_TYPES = {np.dtype(np.int64): pa.int64(), np.dtype(np.uint32): pa.uint32()}


class OfSchema(Generic[T]):
    """The result of a function of a schema, kept for the last schema that was asked for. Metadata does not count.

    Chunks that follow each other share their schema, and Arrow compares such schemas in no time. To look at 3,000 types anew
    takes 2 ms a chunk.

    Args:
        find: The function.
    """

    __slots__ = ("_find", "_last")

    def __init__(self, find: Callable[[pa.Schema], T]) -> None:
        self._find = find
        self._last: tuple[pa.Schema, T] | None = None

    def __call__(self, schema: pa.Schema) -> T:
        """Returns what the function finds."""
        last = self._last
        if last is None or not last[0].equals(schema):
            self._last = last = schema, self._find(schema)
        return last[1]


class GatherKernel(StatelessKernel):
    """Gathers rows into new memory: the base of kernels that follow a serial kernel, which says where the rows lie."""

    @abstractmethod
    def gather(self, chunk: Any, origin: Origin) -> Payload:
        """Returns the rows. As `apply`; may raise `pyarrow.ArrowInvalid` where they do not fit into one record batch."""

    def limit(self, chunk: Any) -> tuple[str, str, str]:
        """Returns the arguments of `too_large` where they do not fit."""
        return f"{chunk.num_rows:,} rows cannot be gathered together", "them", "use types with large offsets"

    def apply(self, chunk: Any, origin: Origin) -> Payload:
        """Returns the rows; raises `DataError` where they do not fit."""
        try:
            return self.gather(chunk, origin)
        except pa.ArrowInvalid as error:
            raise too_large(error, *self.limit(chunk)) from error


def too_large(error: pa.ArrowInvalid, what: str, holder: str, advice: str) -> DataError:
    """Returns the error of rows, `what`, that do not fit into one record batch; `holder` names these rows again."""
    return DataError(f"{what} ({error}); texts or lists of {holder} may hold 2 GiB a column: {advice}")


def gathered(
    chunk: pa.RecordBatch, places: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None = None
) -> pa.RecordBatch:
    """Returns the rows at these places, int64 or uint32, in their order; null where none is present.

    Raises:
        pyarrow.ArrowInvalid: Texts or lists of the result would take more than 2 GiB a column.

    Examples:
        >>> gathered(pa.record_batch({"x": [4, 5, 6]}), np.array([2, 0])).to_pydict()
        {'x': [6, 4]}
    """
    return _readable(chunk).take(_indices(places, present))


def chosen(chunk: pa.RecordBatch, rows: npt.NDArray[Any]) -> pa.RecordBatch:
    """Returns the rows with these numbers, each at most once and ascending; the chunk as it is where these are all."""
    return chunk if len(rows) == chunk.num_rows else gathered(chunk, rows)


def taken(array: pa.Array, places: npt.NDArray[Any]) -> pa.Array:
    """Returns the values at these places, int64 or uint32, in their order.

    Examples:
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
        what = f"a batch of {rows:,} rows cannot be joined"
        raise too_large(error, what, "one batch", f"use a smaller {setting}") from error


def _indices(places: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    validity = None
    if present is not None and not present.all():
        validity = pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(_INDEX_TYPES[places.dtype], len(places), [validity, pa.py_buffer(places)])


@OfSchema
def _holds_misread(schema: pa.Schema) -> bool:
    return any(map(is_misread, schema.types))


def _readable(chunk: pa.RecordBatch) -> pa.RecordBatch:
    if not _holds_misread(chunk.schema):
        return chunk
    return pa.RecordBatch.from_arrays([rebased(column) for column in chunk.columns], schema=chunk.schema)
