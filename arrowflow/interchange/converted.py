"""The exports of columns, plain or as a user asked for them: another dtype, no nulls, ragged or padded lists.

Each kernel finds the values inside all levels of lists, and the validity of these values. A column without nulls that
keeps its dtype is a view. A column whose nulls are replaced is a copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from arrowflow.errors import SchemaError
from arrowflow.interchange.dtypes import Conversion, conversion, empty_text, fill_value, is_float, is_policy
from arrowflow.interchange.to_numpy import (
    ColumnExport,
    Exported,
    Kernel,
    NumpyArray,
    Ragged,
    dtype_of_values,
    flat_kernel,
    is_ragged,
    is_text,
    layout_of,
    leaf_of,
    offsets_of,
    rectangle,
    refusal,
    refuse_null_lists,
    refuse_nulls,
    unpacked_bits,
    viewed,
)

ListLayout = Literal["dense", "ragged", "padded"]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class ColumnRequest:
    """The request of a user for one column.

    Attributes:
        dtype: Dtype of its array, or None for its own dtype.
        null: `"error"`, `"nan"`, `"mask"`, or a value.
        lists: The layout for lists of any length.
    """

    dtype: np.dtype[Any] | None = None
    null: Any = "error"
    lists: ListLayout = "dense"

    @property
    def keeps_nulls(self) -> bool:
        """Whether nulls are replaced, instead of being an error."""
        return not is_policy(self.null, "error")


_PLAIN: Final = ColumnRequest()


def converted_export(name: str, kind: Any, request: ColumnRequest = _PLAIN) -> ColumnExport:
    """Returns the export of a column as the user requests it.

    Raises:
        SchemaError: The request is impossible; the message names a way out.

    Examples:
        >>> export = converted_export("x", pa.int32(), ColumnRequest(null="nan"))
        >>> export.dtype
        dtype('float64')
    """
    values = _Values(name, kind, request)
    if (
        request.dtype is None
        and not request.keeps_nulls
        and values.copied is None
        and not values.layout.shape
    ):
        return ColumnExport(name, kind, values.dtype, (), None, flat_kernel(name, values.dtype), flat=True)
    copied = "dtype: padded" if request.lists == "padded" and is_ragged(kind) else values.copied
    return _export(name, kind, values, request.lists, copied, values.note)


def column_exports(schema: Any) -> tuple[ColumnExport, ...]:
    """Returns the exports of all columns of a schema, as nobody requests anything.

    Raises:
        SchemaError: A type has no array; the message names a way out.
    """
    return tuple(converted_export(field.name, field.type) for field in schema)


def arrays_of(batch: Any, exports: Iterable[ColumnExport]) -> dict[str, NumpyArray]:
    """Returns a record batch as arrays by column: read-only views of Arrow's memory, or copies.

    Raises:
        DataError: A column has nulls.

    Examples:
        >>> batch = pa.RecordBatch.from_pydict({"x": [1, 2]})
        >>> arrays_of(batch, column_exports(batch.schema))
        {'x': array([1, 2])}
    """
    arrays = {}
    for export, column in zip(exports, batch.columns, strict=True):
        buffer, array = export.kernel(column)
        if buffer is not None:
            array.setflags(write=False)
        arrays[export.name] = array
    return arrays


def mask_export(name: str, kind: Any, lists: ListLayout) -> ColumnExport:
    """Returns the export of a column's mask: True for a value, False for a null.

    The mask has the shape of the array, but a binary of fixed width counts as one value.
    """
    return _export(f"{name}_mask", kind, _Masks(name, kind), lists, "bit-packed in Arrow")


def _export(
    name: str, kind: Any, leaves: _Values | _Masks, lists: ListLayout, copied: str | None, note: str = ""
) -> ColumnExport:
    layout = leaves.layout
    shape = layout.row_shape if layout.extension else (*layout.shape[: len(layout.sizes)], *leaves.width)
    by_list = lists != "dense" and is_ragged(kind)
    if by_list and None in layout.sizes[1:]:
        raise SchemaError(
            f"column {name!r} has type {kind}: of lists of lists only the outermost may be of any length where "
            f'lists={lists!r}; use padded_batch before, or take lists="dense" where all have one length'
        )
    make = _dense if not by_list else _ragged if lists == "ragged" else _padded
    by_slice = by_list or leaves.dtype.kind in "OT"
    return ColumnExport(name, kind, leaves.dtype, shape, copied, make(leaves), note, by_slice=by_slice)


def validity(values: Any) -> Mask | None:
    """Returns the mask of valid values, or None if all values are valid.

    Examples:
        >>> validity(pa.array([1, None])).tolist()
        [True, False]
    """
    if not values.null_count:
        return None
    if pa.types.is_null(values.type):
        return np.zeros(len(values), np.bool_)
    bits = pa.Array.from_buffers(pa.bool_(), len(values), [None, values.buffers()[0]], offset=values.offset)
    found: Mask = unpacked_bits(bits)[1]
    return found


class _Masks:
    """The validity of a column's values inside all its lists."""

    def __init__(self, name: str, kind: Any) -> None:
        self.name = name
        self.layout = layout_of(kind)
        self.width = ()
        self.dtype = np.dtype(np.bool_)

    def read(self, values: Any, valid: Mask | None) -> Exported:
        """Returns the validity of the values as a flat array."""
        return None, np.ones(len(values), np.bool_) if valid is None else valid

    def refuse_nulls(self, values: Any) -> None:
        """Accepts nulls: a mask shows them."""


class _Values:
    """The values of a column inside all its lists, in the requested form."""

    def __init__(self, name: str, kind: Any, request: ColumnRequest) -> None:
        self.name = name
        self.layout = layout = layout_of(kind)
        self.request = request
        self.leaf: Kernel
        self.copied: str | None
        if pa.types.is_decimal(layout.value) and request.dtype is not None and is_float(request.dtype):
            own, self.leaf, self.copied = np.dtype(np.float64), _decimals, "dtype"
        elif (found := dtype_of_values(layout.value)) is None:
            raise SchemaError(refusal(name, kind, "an array or tensor"))
        else:
            own, (self.leaf, self.copied) = found, leaf_of(layout.value, found)
        self.width: tuple[Any, ...] = layout.width
        self.convert: Conversion | None = None
        target = request.dtype
        if target is not None and self.width and target != own:
            if not _is_bits(layout.value, target):
                raise SchemaError(
                    f"column {name!r} has type {kind}, whose values are bytes and no {target}; cast or map it before"
                )
            self.width = ()
            own = target
        elif target is None and is_policy(request.null, "nan") and own.kind in "iu":
            target = np.dtype(np.float64)
        self.own = own
        self.dtype = own if target is None else target
        if self.dtype.kind == "T" and is_text(layout.value) and empty_text(layout.value) == b"":
            raise SchemaError(f"column {name!r} has type {kind}, and StringDType holds texts; cast it before")
        if self.dtype != own:
            self.convert = conversion(name, own, self.dtype)
            self.copied = "dtype"
        self.fill = fill_value(name, layout.value, self.dtype, request.null) if request.keeps_nulls else None
        self.note = " unless there are nulls" if request.keeps_nulls and self.copied is None else ""

    def read(self, values: Any, valid: Mask | None) -> Exported:
        """Returns values as a flat array of the requested dtype, with the fill value for nulls."""
        if valid is not None and not valid.any():
            # All values are null, and the memory under nulls need not exist.
            return None, np.full((len(values), *self.width), self.fill, self.dtype)
        buffer, flat = self.leaf(values)
        if self.width:
            flat = flat.reshape(-1, *self.width)
        elif flat.dtype != self.own:  # bytes that are the stored values of a dtype
            flat = flat.view(self.own)
        if valid is None:
            return (buffer, flat) if self.convert is None else (None, self.convert(flat))
        missing = ~valid
        if self.convert is not None:
            safe = flat.copy()
            # The memory under a null is no value, and need not fit.
            safe[missing] = self.fill if flat.dtype == object else np.zeros((), flat.dtype)
            flat = self.convert(safe)
        elif buffer is not None:
            flat = flat.copy()
        flat[missing] = self.fill
        return None, flat

    def refuse_nulls(self, values: Any) -> None:
        if values.null_count and not self.request.keeps_nulls:
            refuse_nulls(self.name, values)


def _decimals(values: Any) -> Exported:
    _, array = viewed(values.cast(pa.float64()), dtype=np.dtype(np.float64))
    return None, array if array.flags.writeable else array.copy()


def _is_bits(kind: Any, target: np.dtype[Any]) -> bool:
    """Whether binaries of fixed width are the stored values of that dtype, as for bfloat16."""
    return (
        pa.types.is_fixed_size_binary(kind)
        and not pa.types.is_decimal(kind)
        and target.itemsize == kind.byte_width
        and (target.kind in "biufc" or is_float(target))
    )


def _read(leaves: _Values | _Masks, inside: Any, valid: Mask | None, sizes: Iterable[int | None]) -> Any:
    """Returns the values inside lists of these sizes as a flat array, its buffer, and the sizes that were found."""
    found = []
    for given in sizes:
        if given is None:
            refuse_null_lists(leaves.name, inside)
            first, size = rectangle(leaves.name, inside)
        else:
            first, size = inside.offset * given, given
        inside = inside.values.slice(first, len(inside) * size)
        own, above = validity(inside), None if valid is None else np.repeat(valid, size)
        valid = own if above is None else above if own is None else above & own
        found.append(size)
        leaves.refuse_nulls(inside)
    return *leaves.read(inside, valid), found


def _dense(leaves: _Values | _Masks) -> Kernel:
    """Lists that all have one length: the same or a given length."""
    layout = leaves.layout
    axes = (0, *(axis + 1 for axis in layout.order)) if layout.order else None

    def kernel(column: Any) -> Exported:
        if layout.sizes[:1] == (None,):
            refuse_null_lists(leaves.name, column)
        leaves.refuse_nulls(column)
        inside = column.storage if layout.extension else column
        buffer, flat, sizes = _read(leaves, inside, validity(inside), layout.sizes)
        shape = (len(column), *(layout.shape if layout.extension else (*sizes, *leaves.width)))
        array = flat.reshape(shape)
        return buffer, array if axes is None else array.transpose(axes)

    return kernel


def _ragged(leaves: _Values | _Masks) -> Kernel:
    """All values of a batch one after the other, and the start of each list."""

    def kernel(column: Any) -> Exported:
        refuse_null_lists(leaves.name, column)
        return _inside(leaves, column)

    return kernel


def _inside(leaves: _Values | _Masks, lists: Any) -> tuple[Any, Ragged]:
    """Returns the values inside lists of any length, including values in null lists."""
    offsets = offsets_of(lists)
    first = int(offsets[0])
    inside = lists.values.slice(first, int(offsets[-1]) - first)
    leaves.refuse_nulls(inside)
    buffer, flat, sizes = _read(leaves, inside, validity(inside), leaves.layout.sizes[1:])
    return buffer, Ragged(flat.reshape(len(inside), *sizes, *leaves.width), offsets - first)


def _padded(leaves: _Values | _Masks) -> Kernel:
    """Lists as long as the longest list of the batch, padded with zeros or empty texts; a null list has the value of nulls."""

    def kernel(column: Any) -> Exported:
        leaves.refuse_nulls(column)
        _, (flat, offsets) = _inside(leaves, column)
        lengths = offsets[1:] - offsets[:-1]
        present = validity(column)
        if present is not None:
            flat = flat[np.repeat(present, lengths)]
            lengths = lengths * present
        longest = int(lengths.max()) if len(lengths) else 0
        array = np.zeros((len(lengths), longest, *flat.shape[1:]), leaves.dtype)
        if array.dtype == object:
            array.fill(empty_text(leaves.layout.value))
        array[np.arange(longest) < lengths[:, None]] = flat
        if present is not None and isinstance(leaves, _Values) and leaves.fill is not None:
            array[~present] = leaves.fill
        return None, array

    return kernel
