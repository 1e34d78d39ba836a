"""`NumpyExport`: record batches as dicts of NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

from arrowflow.errors import DataError, SchemaError
from arrowflow.interchange.to_numpy import ColumnExport, Exported, Kernel, NumpyArray, column_exports, refusal

Slicer = Callable[[int, int], dict[str, NumpyArray]]
"""Gives the arrays of the rows from `start` to before `stop` of a converted chunk."""


class NumpyExport:
    """Turns record batches of one schema into dicts of NumPy arrays.

    Arrays are views of Arrow's memory and keep it alive, except where `explain` names a reason to copy.

    - Fixed-size lists and fixed-shape tensors become `(B, ...)`, fixed-size binaries `(B, width)` bytes.
    - Lists become `(B, L)` where all rows of the batch have one length, as `padded_batch` makes them.
    - Dates, timestamps (in UTC) and durations keep their unit; times become integers in theirs.
    - Strings and binaries become Python objects.

    A view is writable only if the batch alone owns its memory, that is with `owned` and where Arrow's buffer
    is writable and belongs to no second column. Copies are writable always.

    Example:
        >>> import pyarrow as pa
        >>> export = NumpyExport(pa.schema({"x": pa.float32(), "up": pa.bool_()}), owned=False)
        >>> export.explain()
        ['x: float -> float32: zero-copy, read-only', 'up: bool -> bool: copied: bit-packed in Arrow']
    """

    __slots__ = ("_kernels", "_names", "_objects", "_owned", "columns")

    columns: tuple[ColumnExport, ...]

    def __init__(self, schema: Any, *, owned: bool) -> None:
        """Decides on every column of `schema`.

        Args:
            schema: Schema of all batches to come.
            owned: Whether nothing else (no cache, file map, source or other batch) shares the rows of a
                batch to come, so that its arrays may be written to.

        Raises:
            SchemaError: A column has a type that no array has; the message names a way out.
        """
        self.columns = column_exports(schema)
        self._names = [column.name for column in self.columns]
        self._kernels = [column.kernel for column in self.columns]
        self._objects = {column.name for column in self.columns if column.dtype == object}
        self._owned = owned

    def __call__(self, batch: Any) -> dict[str, NumpyArray]:
        """Returns the arrays of a batch.

        Raises:
            DataError: A column has nulls.
        """
        return self._convert(zip(self._names, self._kernels, batch.columns, strict=True))

    def chunk(self, batch: Any) -> Slicer:
        """Converts a large batch once, for cutting batches without common rows out of it.

        Python objects are made slice by slice, and so is everything where there are nulls: the error belongs
        to the slice that has them.
        """
        columns = list(zip(self._names, self._kernels, batch.columns, strict=True))
        try:
            arrays = self._convert(column for column in columns if column[0] not in self._objects)
        except DataError:
            return lambda start, stop: self(batch.slice(start, stop - start))
        if not self._objects:
            items = tuple(arrays.items())
            return lambda start, stop: {name: array[start:stop] for name, array in items}

        def mixed(start: int, stop: int) -> dict[str, NumpyArray]:
            return {
                name: arrays[name][start:stop]
                if name in arrays
                else kernel(column.slice(start, stop - start))[1]
                for name, kernel, column in columns
            }

        return mixed

    def _convert(self, columns: Iterable[tuple[str, Kernel, Any]]) -> dict[str, NumpyArray]:
        arrays: dict[str, NumpyArray] = {}
        views: list[Exported] = []
        owned = self._owned
        for name, kernel, column in columns:
            exported = kernel(column)
            buffer, array = exported
            arrays[name] = array
            if buffer is None:
                continue
            if owned:
                views.append(exported)
            elif buffer.is_mutable:
                array.setflags(write=False)
        if len(views) > 1:
            _lock_aliases(views)
        return arrays

    def require(self, kinds: str, framework: str) -> None:
        """Raises `SchemaError` for a column whose dtype is of none of these kinds, as in `dtype.kind`."""
        for column in self.columns:
            if column.dtype.kind not in kinds:
                raise SchemaError(refusal(column.name, column.type, framework))

    def explain(self) -> list[str]:
        """Returns one line per column: zero-copy, or why not."""
        access = "writable unless a second column has the buffer" if self._owned else "read-only"
        return self.describe(f"zero-copy, {access}")

    def describe(self, views: str) -> list[str]:
        """Returns one line per column, with `views` for those that are views of Arrow's memory."""
        return [
            column.describe(f"copied: {column.copied}" if column.copied else views) for column in self.columns
        ]


def _lock_aliases(views: list[Exported]) -> None:
    """Makes the views of buffers that overlap read-only."""
    spans = [(buffer.address, buffer.size, view) for buffer, view in views]
    spans.sort(key=itemgetter(0))
    end, holder = 0, None
    for start, size, view in spans:
        if start < end and holder is not None:
            view.setflags(write=False)
            holder.setflags(write=False)
        if start + size > end:
            end, holder = start + size, view
