"""The conversion of each Arrow type to a NumPy array, which the loaders of all frameworks share.

`converted.py` decides once per column and returns a kernel for the column. A kernel runs once per batch, on the
consumer's thread. Kernels read buffers directly: `Array.to_numpy` would import pandas.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.errors import DataError, counted
from arrowflow.types import FIXED, is_string

NumpyArray = npt.NDArray[Any]
Exported = tuple[Any, Any]
"""An array, or a `Ragged` of arrays, and before it the Arrow buffer that it views, or None for a copy."""

Kernel = Callable[[Any], Exported]


class Ragged(NamedTuple):
    """Lists of different length in one array: list `i` is `values[offsets[i]:offsets[i + 1]]`.

    Attributes:
        values: The values of all lists.
        offsets: One offset more than there are lists; the first is 0.
    """

    values: Any
    offsets: Any


def is_ragged(kind: Any) -> bool:
    """Returns whether values of this type are lists of any length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_text(kind: Any) -> bool:
    """Returns whether values of this type are strings or binaries of any length."""
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


_NULLS_IN_LOADERS: Final = '; a loader also takes null="nan", null="mask" or a value'
_NULL_TEXTS_IN_LOADERS: Final = '; a loader also takes null="mask" or a text'
_NULL_LISTS_IN_LOADERS: Final = ', or ask the loader for lists="padded" and null="mask"'
_LISTS_IN_LOADERS: Final = (
    ', or ask the loader for lists="padded" or lists="ragged"; batches of Arrow (iterate the dataset) and Polars '
    "(to_polars) have lists"
)
"""Advice at the end of errors, for those who ask a loader."""

_REMEDIES: Final[tuple[tuple[Callable[[Any], bool], str], ...]] = (
    (
        pa.types.is_decimal,
        'convert it before with cast({"NAME": pa.float64()}), or in a loader with dtypes={"NAME": "float64"}',
    ),
    (lambda kind: str(kind).endswith("_view"), 'convert it before with cast({"NAME": pa.string()})'),
    (
        is_ragged,
        "lists of numbers make an array, where all rows of a batch have one length; convert what they hold with map, "
        "or take batches of Arrow (iterate the dataset) or Polars (to_polars)",
    ),
    (pa.types.is_struct, 'take its fields out before with with_columns(x=pl.col("NAME").struct.field("x"))'),
    (
        pa.types.is_date32,
        'convert it before with cast({"NAME": pa.int32()}), or take its days with dtypes={"NAME": "int64"}',
    ),
    (
        lambda kind: pa.types.is_temporal(kind) and not pa.types.is_interval(kind),
        'convert it before with cast({"NAME": pa.int64()}), or take its units with dtypes={"NAME": "int64"}',
    ),
    (
        is_text,
        'drop it, or turn it into numbers before: cast({"NAME": pl.Enum([...])}) makes codes, with_columns and map what '
        "you like",
    ),
    (pa.types.is_null, "a column of nothing but nulls has no dtype: drop it, or cast it and fill_null"),
)

_REMEDIES_OF_LISTS: Final[tuple[tuple[Callable[[Any], bool], str], ...]] = (
    (pa.types.is_decimal, 'take its values in a loader with dtypes={"NAME": "float64"}'),
    (pa.types.is_date32, 'take its days in a loader with dtypes={"NAME": "int64"}'),
    (
        lambda kind: pa.types.is_temporal(kind) and not pa.types.is_interval(kind),
        'take its units in a loader with dtypes={"NAME": "int64"}',
    ),
)
"""Advice for lists, by the type of their values."""


@dataclass(frozen=True, slots=True)
class ColumnExport:
    """The export of one column.

    Attributes:
        name: Name of the column.
        type: Its Arrow type.
        dtype: Dtype of the array.
        row_shape: Shape of one row of the array: `()` for flat columns; None in place of a length that each batch
            decides.
        copied: The reason why the array is a copy, or None if it is a view of Arrow's memory.
        kernel: Makes the array of a column; raises `DataError` for nulls.
        note: The cases in which a view is a copy after all, for `explain`.
        flat: Whether the array is exactly the values in the column's one data buffer.
        by_slice: Whether slices of a chunk are converted one by one: the array's rows are not the column's rows, or
            cost too much to hold them all.
    """

    name: str
    type: Any
    dtype: np.dtype[Any]
    row_shape: tuple[int | None, ...]
    copied: str | None
    kernel: Kernel
    note: str = ""
    flat: bool = False
    by_slice: bool = False

    def describe(self, fate: str) -> str:
        """Returns the line of this column in `explain(copies=True)`."""
        shape = "".join("[n]" if size is None else f"[{size}]" for size in self.row_shape)
        return f"{self.name}: {self.type} -> {self.dtype}{shape}: {fate}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a row's values: `sizes` of the nested lists, `shape` in memory, `order` of the axes.

    A size is None if the lists of each batch decide it.
    """

    value: Any
    sizes: tuple[int | None, ...] = ()
    shape: tuple[int | None, ...] = ()
    order: tuple[int, ...] = ()
    extension: bool = False

    @property
    def width(self) -> tuple[int | None, ...]:
        """The shape of one value: a binary of fixed width is an array of bytes."""
        return () if self.extension else self.shape[len(self.sizes) :]

    @property
    def row_shape(self) -> tuple[int | None, ...]:
        """The shape of one row."""
        return tuple(self.shape[axis] for axis in self.order) if self.order else self.shape


def layout_of(kind: Any) -> Layout:
    """Returns the layout of the values of a type."""
    if isinstance(kind, pa.FixedShapeTensorType):
        shape = tuple(kind.shape)
        order = tuple(kind.permutation or ())
        return Layout(kind.value_type, (math.prod(shape),), shape, order, extension=True)
    sizes: tuple[int | None, ...] = ()
    while is_ragged(kind) or pa.types.is_fixed_size_list(kind):
        sizes += (None if is_ragged(kind) else kind.list_size,)
        kind = kind.value_type
    width = (kind.byte_width,) if pa.types.is_fixed_size_binary(kind) else ()
    return Layout(kind, sizes, sizes + width)


def dtype_of_values(kind: Any) -> np.dtype[Any] | None:
    """Returns the dtype of flat values of this type, or None; an enum has the dtype of its codes."""
    if is_text(kind):
        return np.dtype(object)
    if pa.types.is_dictionary(kind):
        kind = kind.index_type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return FIXED[kind.id]
    if pa.types.is_timestamp(kind):
        return np.dtype(f"datetime64[{kind.unit}]")
    if pa.types.is_duration(kind):
        return np.dtype(f"timedelta64[{kind.unit}]")
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return np.dtype(np.uint8)
    if pa.types.is_date(kind):
        return np.dtype("datetime64[D]" if kind == pa.date32() else "datetime64[ms]")
    return np.dtype(f"int{kind.bit_width}") if pa.types.is_time(kind) else None


def refusal(name: str, kind: Any, framework: str) -> str:
    """Returns the message that `framework` has no counterpart for this type, and advice."""
    value = layout_of(kind).value
    found = [text for matches, text in _REMEDIES_OF_LISTS if value != kind and matches(value)]
    found += [text for matches, text in _REMEDIES if matches(kind)]
    remedy = found[0] if found else "drop it, or convert it with map"
    return f"column {name!r} has type {kind}, which {framework} cannot hold; {remedy.replace('NAME', name)}"


def for_functions(text: str) -> str:
    """Returns the text of an error for a function that is given arrays, without the advice on arguments of loaders."""
    for advice in (_NULLS_IN_LOADERS, _NULL_TEXTS_IN_LOADERS, _NULL_LISTS_IN_LOADERS, _LISTS_IN_LOADERS):
        text = text.removesuffix(advice)
    return text


def offsets_of(lists: Any) -> NumpyArray:
    """Returns the offsets of lists, as a view of Arrow's memory."""
    kind = np.dtype(np.int64 if pa.types.is_large_list(lists.type) else np.int32)
    if not len(lists):
        return np.zeros(1, kind)
    return np.frombuffer(lists.buffers()[1], kind, len(lists) + 1, lists.offset * kind.itemsize)


def rectangle(name: str, lists: Any) -> tuple[int, int]:
    """Returns the start of the values of lists without nulls, and the length that all these lists have."""
    rows = len(lists)
    if not rows:
        return 0, 0
    offsets = offsets_of(lists)
    lengths = offsets[1:] - offsets[:-1]
    size = int(lengths[0])
    if (lengths != size).any():
        raise DataError(
            f"column {name!r} has lists of {lengths.min():,} to {lengths.max():,} values in one batch, and rows of "
            f"different length make no array: pad them with padded_batch{_LISTS_IN_LOADERS}"
        )
    return int(offsets[0]), size


def flat_kernel(name: str, dtype: np.dtype[Any]) -> Kernel:
    """Returns the kernel of the commonest case, with the checks in line: 0.6 µs a column."""
    item_bytes = dtype.itemsize
    frombuffer = np.frombuffer

    def kernel(column: Any) -> Exported:
        if column.null_count:
            refuse_nulls(name, column)
        buffer = column.buffers()[1]
        if buffer is None:
            return None, np.empty(0, dtype)
        return buffer, frombuffer(buffer, dtype, len(column), column.offset * item_bytes)

    return kernel


def refuse_nulls(name: str, values: Any) -> None:
    """Raises `DataError` if there are nulls."""
    if num_nulls := values.null_count:
        in_loaders = _NULL_TEXTS_IN_LOADERS if is_string(values.type) else _NULLS_IN_LOADERS
        raise DataError(
            f"column {name!r} has {counted(num_nulls, 'null')} among {len(values)} values, which "
            f"an array or tensor cannot hold; fill them before with fill_null, or drop the rows with filter{in_loaders}"
        )


def refuse_null_lists(name: str, lists: Any) -> None:
    """Raises `DataError` if there are nulls among lists of any length: no value can take their place."""
    if num_nulls := lists.null_count:
        raise DataError(
            f"column {name!r} has {counted(num_nulls, 'null')} among {len(lists)} lists, and a null has no "
            f'length: drop the rows with filter(pl.col("{name}").is_not_null()){_NULL_LISTS_IN_LOADERS}'
        )


def leaf_of(kind: Any, dtype: np.dtype[Any]) -> tuple[Kernel, str | None]:
    """Returns the function that makes a flat array of values without nulls, and the reason if that is a copy."""
    if is_text(kind):
        return _objects, "dtype: Python objects"
    if pa.types.is_boolean(kind):
        return unpacked_bits, "bit-packed in Arrow"
    if kind == pa.date32():
        return _widened_days, "dtype: days are 32 bits in Arrow, 64 in NumPy"
    return partial(viewed, dtype=dtype, item_values=kind.bit_width // 8 // dtype.itemsize), None


def viewed(values: Any, *, dtype: np.dtype[Any], item_values: int = 1) -> Exported:
    """Returns a view of values that lie one after the other, of which each is `item_values` of the dtype."""
    buffer = values.buffers()[1]
    if buffer is None:
        return None, np.empty(0, dtype)
    start = values.offset * item_values * dtype.itemsize
    return buffer, np.frombuffer(buffer, dtype, len(values) * item_values, start)


def unpacked_bits(values: Any) -> Exported:
    """Returns booleans as one byte each."""
    buffer = values.buffers()[1]
    if not buffer:
        return None, np.empty(0, np.bool_)
    first, skipped = divmod(values.offset, 8)
    stop = skipped + len(values)
    packed = np.frombuffer(buffer, np.uint8, (stop + 7) // 8, first)
    return None, np.unpackbits(packed, count=stop, bitorder="little")[skipped:].view(np.bool_)


def _widened_days(values: Any) -> Exported:
    _, days = viewed(values, dtype=np.dtype(np.int32))
    return None, days.astype(np.int64).view("datetime64[D]")


def _objects(values: Any) -> Exported:
    """Python strings in an object array: 0.3 ms for 8192, half the price of NumPy's StringDType."""
    objects = np.empty(len(values), np.object_)
    objects[:] = values.to_pylist()
    return None, objects
