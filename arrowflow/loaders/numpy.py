"""`NumpyExport`: record batches as dicts of NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from arrowflow.errors import DataError, SchemaError
from arrowflow.interchange.handed_over import Roots, lock, unlocked, writable_root
from arrowflow.interchange.to_numpy import ColumnExport, Exported, NumpyArray, Ragged, refusal
from arrowflow.loaders.export_request import PLAIN, ExportRequest, requested_exports

Arrays = dict[str, Any]
"""Arrays by column; for lists that stay ragged a `Ragged` of two arrays."""


class NumpyExport:
    """Turns record batches of one schema into dicts of NumPy arrays.

    Arrays are views of Arrow's memory and keep it alive, except where `explain` names a reason to copy.

    - Fixed-size lists and fixed-shape tensors become `(B, ...)`, fixed-size binaries `(B, width)` bytes.
    - Lists become `(B, L)` if all rows of the batch have one length, as `padded_batch` makes them. `ExportRequest.lists` names
      two other layouts.
    - Dates, timestamps (in UTC) and durations keep their unit; times become integers in their unit.
    - Enums become their codes. Strings and binaries, and lists of them, become Python objects.

    A view is writable only if the batch alone owns its memory. That needs `owned`, and memory that may be written at
    all, and no second column with the same memory. Copies are always writable.

    Examples:
        >>> import pyarrow as pa
        >>> export = NumpyExport(pa.schema({"x": pa.float32(), "up": pa.bool_()}), owned=False)
        >>> export.explain()
        ['x: float -> float32: zero-copy, read-only', 'up: bool -> bool: copied: bit-packed in Arrow']
    """

    def __init__(self, schema: Any, *, owned: bool, request: ExportRequest = PLAIN) -> None:
        """Decides on every column of `schema`.

        Args:
            schema: Schema of all batches to come.
            owned: Whether each batch has its rows to itself, so that its arrays may be written to. No cache, file
                map, source or other batch then shares the rows.
            request: The user's requests.
        """
        self._exports = requested_exports(schema, request)
        self.columns = [column for _, column in self._exports]
        self._by_slice = [numbered for numbered in self._exports if numbered[1].by_slice]
        self._at_once = [numbered for numbered in self._exports if not numbered[1].by_slice]
        self._owned = owned
        self._strict = request.strict_zero_copy
        for column in self.columns:
            if self._strict and column.copied is not None:
                raise SchemaError(copy_refusal(column.name, column.copied))

    def __call__(self, batch: Any) -> Arrays:
        return self._convert(batch.columns, self._exports)

    def chunk(self, batch: Any) -> Callable[[int, int], Arrays]:
        """Converts a large batch once, to cut batches without common rows out of it.

        Python objects are made slice by slice. So are columns with nulls or with lists of different length: the error
        belongs to the slice that has them.
        """
        columns = batch.columns
        arrays = self._whole(columns)
        if arrays is None:
            return lambda start, stop: self._convert(batch.slice(start, stop - start).columns, self._exports)
        if not self._by_slice:
            items = tuple(arrays.items())
            return lambda start, stop: {name: array[start:stop] for name, array in items}

        def mixed(start: int, stop: int) -> Arrays:
            rest = {number: columns[number].slice(start, stop - start) for number, _ in self._by_slice}
            sliced = self._convert(rest, self._by_slice)
            names = (column.name for column in self.columns)
            return {name: sliced[name] if name in sliced else arrays[name][start:stop] for name in names}

        return mixed

    def _whole(self, columns: list[Any]) -> Arrays | None:
        """Returns the arrays of which those of batches are slices; None where some batches have errors instead."""
        try:
            return self._convert(columns, self._at_once)
        except DataError:
            return None

    def _convert(self, columns: Any, exports: list[tuple[int, ColumnExport]]) -> Arrays:
        """Returns the arrays of columns, which `columns` has by number."""
        arrays: Arrays = {}
        views: list[tuple[Any, Any]] = []
        roots = Roots()
        owned = self._owned
        for number, export in exports:
            column = columns[number]
            buffer, array = _sliced(export, column, roots) if owned and export.flat else export.kernel(column)
            if buffer is None:
                if self._strict and (array.values if array.__class__ is Ragged else array).size:
                    raise DataError(copy_refusal(export.name, "null: its nulls are replaced"))
            elif owned:
                if not (export.flat or buffer.is_mutable) and writable_root(buffer) is not None:
                    array = unlocked(array)
                views.append((buffer, array))
            elif buffer.is_mutable:
                lock(array)
            arrays[export.name] = array
        if len(views) > 1:
            _lock_aliases(views)
        return arrays

    def explain(self) -> list[str]:
        """Returns one line per column: zero-copy, or the reason for a copy."""
        reasons = [column.copied or self._copied(column) for column in self.columns]
        return [
            column.describe(f"copied: {why}" if why else self._fate(column) + column.note)
            for column, why in zip(self.columns, reasons, strict=True)
        ]

    def _copied(self, column: ColumnExport) -> str:
        """Returns why all arrays of a column are copied, although they are views; nothing if they are not."""
        return ""

    def _fate(self, column: ColumnExport) -> str:
        access = "writable unless a second column has the buffer" if self._owned else "read-only"
        return f"zero-copy, {access}"


class ArraysExport(NumpyExport):
    """Turns record batches into what a framework makes of their arrays: the base of other exports."""

    framework: ClassVar[str]
    """The framework's arrays, for errors."""
    kinds: ClassVar[str] = "biufc"
    """The kinds of dtypes that it has (`dtype.kind`), in the usual widths."""
    shared: ClassVar[str]
    """The reason to copy memory that somebody else has."""
    alignment: ClassVar[int] = 0
    """It takes memory as it is at a multiple of so many bytes; 0 where the dtype's alignment is enough."""

    def __init__(self, schema: Any, *, owned: bool, request: ExportRequest = PLAIN) -> None:
        super().__init__(schema, owned=owned, request=request)
        for column in self.columns:
            dtype = column.dtype
            if dtype.kind not in self.kinds:
                raise SchemaError(refusal(column.name, column.type, self.framework))
            if not dtype.isnative or dtype.itemsize > (16 if dtype.kind == "c" else 8):
                raise SchemaError(
                    f"column {column.name!r} makes an array of {dtype.str}, which {self.framework} cannot hold; name another dtype"
                )
            if self._strict and (why := self._copied(column)):
                raise SchemaError(copy_refusal(column.name, why))

    def __call__(self, batch: Any) -> Any:
        return self._made(super().__call__(batch))

    def chunk(self, batch: Any) -> Callable[[int, int], Any]:
        """Converts a large batch once; copies, if there are any, are made slice by slice."""
        slicer = super().chunk(batch)
        return lambda start, stop: self._made(slicer(start, stop))

    def _copied(self, column: ColumnExport) -> str:
        return "" if self._owned else self.shared

    def _fate(self, column: ColumnExport) -> str:
        misaligned = f" (not at a multiple of {self.alignment} bytes)" if self.alignment else ""
        return f"zero-copy unless misaligned{misaligned} or shared with a second column"

    def _own(self, name: str, array: NumpyArray) -> NumpyArray:
        """Returns an array in memory that nobody else has."""
        if self._strict and self.alignment and array.ctypes.data % self.alignment:
            why = f"misaligned: {self.framework} lies in memory aligned to {self.alignment} bytes"
            raise DataError(copy_refusal(name, why))
        if array.flags.behaved:
            return array
        if self._strict:
            why = "shared: a second column, or somebody else, has the memory"
            raise DataError(copy_refusal(name, why if array.flags.aligned else "misaligned"))
        if not self.alignment or array.dtype.kind == "O":
            return array.copy()
        # Arrow's memory is aligned to 64 bytes, which saves frameworks a second copy.
        copy: NumpyArray = np.ndarray(array.shape, array.dtype, pa.allocate_buffer(array.nbytes))
        copy[...] = array
        return copy

    def _made(self, arrays: Arrays) -> Any:
        """Returns what the framework makes of arrays; the default, arrays that nobody else has."""
        return map_arrays(arrays, self._own)


def _sliced(export: ColumnExport, column: Any, roots: Roots) -> Exported:
    """Returns a flat column that lies in a slice of writable memory as a writable view; any other unchanged."""
    buffer = column.buffers()[1]
    is_slice = not (column.null_count or buffer is None or buffer.is_mutable)
    if not is_slice or (root := writable_root(buffer)) is None:
        return export.kernel(column)
    address = buffer.address + column.offset * export.dtype.itemsize
    return buffer, roots.array(root, address, len(column), export.dtype)


def copy_refusal(name: str, reason: str) -> str:
    """Returns the message for a column that is copied although copies are an error."""
    return (
        f"column {name!r} would be copied ({reason}), and strict_zero_copy=True refuses copies; explain(copies=True) "
        "lists them all"
    )


def map_arrays(arrays: Arrays, make: Callable[[str, NumpyArray], Any]) -> Arrays:
    """Returns the results of `make` for each array, including arrays in a `Ragged`."""
    return {
        name: Ragged(make(name, array.values), make(name, array.offsets))
        if array.__class__ is Ragged
        else make(name, array)
        for name, array in arrays.items()
    }


def _lock_aliases(views: list[tuple[Any, Any]]) -> None:
    """Makes the views of buffers that overlap read-only."""
    spans = [(buffer.address, buffer.size, view) for buffer, view in views]
    spans.sort(key=itemgetter(0))
    end, holder = 0, None
    for start, size, view in spans:
        if start < end and holder is not None:
            lock(view)
            lock(holder)
        if start + size > end:
            end, holder = start + size, view
