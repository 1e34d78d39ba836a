"""`NumpyExport`: record batches as dicts of NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, Final

import numpy as np

from arrowflow.errors import DataError, SchemaError
from arrowflow.interchange.memory import Roots, lock, unlocked, writable_root
from arrowflow.interchange.to_numpy import ColumnExport, Exported, NumpyArray, Ragged, refusal
from arrowflow.loaders.wishes import Wishes, wished_exports

Arrays = dict[str, Any]
"""Arrays by column; a `Ragged` of two for lists that stay ragged."""

Given = tuple[ColumnExport, Any]
"""How a column is exported, and the column."""

ALIASED: Final = "shared: a second column, or somebody else, has the memory"
"""Why a column is copied for who can only have memory that nobody else writes."""

Slicer = Callable[[int, int], Arrays]
"""Gives the arrays of the rows from `start` to before `stop` of a converted chunk."""


class NumpyExport:
    """Turns record batches of one schema into dicts of NumPy arrays.

    Arrays are views of Arrow's memory and keep it alive, except where `explain` names a reason to copy.

    - Fixed-size lists and fixed-shape tensors become `(B, ...)`, fixed-size binaries `(B, width)` bytes.
    - Lists become `(B, L)` where all rows of the batch have one length, as `padded_batch` makes them; `Wishes.lists`
      names two other ways.
    - Dates, timestamps (in UTC) and durations keep their unit; times become integers in theirs.
    - Enums become their codes. Strings and binaries become Python objects.

    A view is writable only if the batch alone owns its memory, that is with `owned` and where that memory may be
    written at all and belongs to no second column. Copies are writable always.

    Example:
        >>> import pyarrow as pa
        >>> export = NumpyExport(pa.schema({"x": pa.float32(), "up": pa.bool_()}), owned=False)
        >>> export.explain()
        ['x: float -> float32: zero-copy, read-only', 'up: bool -> bool: copied: bit-packed in Arrow']
    """

    __slots__ = ("_by_slice", "_names", "_numbers", "_owned", "_strict", "columns")

    columns: tuple[ColumnExport, ...]

    def __init__(
        self,
        schema: Any,
        *,
        owned: bool,
        wishes: Wishes = Wishes(),  # noqa: B008  # immutable
        canonical: Callable[[np.dtype[Any]], np.dtype[Any]] | None = None,
    ) -> None:
        """Decides on every column of `schema`.

        Args:
            schema: Schema of all batches to come.
            owned: Whether nothing else (no cache, file map, source or other batch) shares the rows of a
                batch to come, so that its arrays may be written to.
            wishes: What the user asks for.
            canonical: Returns the dtype that a framework has in place of one.

        Raises:
            PlanError: A wish names a column that is not there.
            SchemaError: A column has a type that no array has, or not the wished one; the message names a way out.
        """
        exports = wished_exports(schema, wishes, canonical)
        self.columns = tuple(column for _, column in exports)
        self._numbers = [number for number, _ in exports]
        self._names = [column.name for column in self.columns]
        self._by_slice = any(column.by_slice for column in self.columns)
        self._owned = owned
        self._strict = wishes.strict_zero_copy
        if self._strict:
            for column in self.columns:
                if column.copied is not None:
                    raise SchemaError(copy_refusal(column.name, column.copied))

    def __call__(self, batch: Any) -> Arrays:
        """Returns the arrays of a batch.

        Raises:
            DataError: A column has nulls, values that do not fit, or lists of different length; or, where copies are
                an error, would be copied.
        """
        return self._convert(self._given(batch))

    def chunk(self, batch: Any) -> Slicer:
        """Converts a large batch once, for cutting batches without common rows out of it.

        Python objects are made slice by slice, and so is everything where there are nulls or lists of different
        length: the error belongs to the slice that has them.
        """
        columns = self._given(batch)
        arrays = self._whole(columns)
        if arrays is None:
            return lambda start, stop: self(batch.slice(start, stop - start))
        if not self._by_slice:
            items = tuple(arrays.items())
            return lambda start, stop: {name: array[start:stop] for name, array in items}
        rest = [given for given in columns if given[0].by_slice]

        def mixed(start: int, stop: int) -> Arrays:
            sliced = self._convert((export, column.slice(start, stop - start)) for export, column in rest)
            return {
                name: sliced[name] if name in sliced else arrays[name][start:stop] for name in self._names
            }

        return mixed

    def whole(self, batch: Any) -> Arrays | None:
        """Returns the arrays of a large batch, if batches are nothing but slices of them."""
        return None if self._by_slice else self._whole(self._given(batch))

    def _whole(self, columns: list[Given]) -> Arrays | None:
        try:
            return self._convert(given for given in columns if not given[0].by_slice)
        except DataError:
            return None

    def _given(self, batch: Any) -> list[Given]:
        columns = batch.columns
        return [(export, columns[number]) for export, number in zip(self.columns, self._numbers, strict=True)]

    def _convert(self, columns: Iterable[Given]) -> Arrays:
        arrays: Arrays = {}
        views: list[tuple[Any, Any]] = []
        roots = Roots()
        owned = self._owned
        for export, column in columns:
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

    def require(self, kinds: str, framework: str) -> None:
        """Raises `SchemaError` for a column whose dtype is of none of these kinds, as in `dtype.kind`."""
        for column in self.columns:
            dtype = column.dtype
            if dtype.kind not in kinds:
                raise SchemaError(refusal(column.name, column.type, framework))
            if not dtype.isnative or dtype.itemsize > (16 if dtype.kind == "c" else 8):
                raise SchemaError(
                    f"column {column.name!r} makes an array of {dtype.str}, which {framework} cannot hold; name another dtype"
                )

    def explain(self) -> list[str]:
        """Returns one line per column: zero-copy, or why not."""
        access = "writable unless a second column has the buffer" if self._owned else "read-only"
        return self.describe(f"zero-copy, {access}")

    def describe(self, views: str) -> list[str]:
        """Returns one line per column, with `views` for those that are views of Arrow's memory."""
        notes = not views.startswith("copied")
        return [
            column.describe(f"copied: {column.copied}" if column.copied else views + column.note * notes)
            for column in self.columns
        ]


def _sliced(export: ColumnExport, column: Any, roots: Roots) -> Exported:
    """Returns a flat column, if it lies in a slice of memory that may be written as a view that may be written, too."""
    buffer = column.buffers()[1]
    if column.null_count or buffer is None or buffer.is_mutable:
        return export.kernel(column)
    root = writable_root(buffer)
    if root is None:
        return export.kernel(column)
    address = buffer.address + column.offset * export.dtype.itemsize
    return buffer, roots.array(root, address, len(column), export.dtype)


def copy_refusal(name: str, reason: str) -> str:
    """Returns the message for a column that is copied where that is an error."""
    return (
        f"column {name!r} would be copied ({reason}), and strict_zero_copy=True refuses copies; explain(copies=True) "
        "lists them all"
    )


def map_arrays(arrays: Arrays, make: Callable[[str, NumpyArray], Any]) -> Arrays:
    """Returns what `make` makes of each array, those in a `Ragged` too."""
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
