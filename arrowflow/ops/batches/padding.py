"""Padding of one list column of a batch: lists of different length become rectangular, for `padded_batch`.

Lists of lists become boxes: each level has one length. A level has B * L1 * ... slots, and a mask tells which slots
hold a value. The values are in order already. So one scatter by the mask fills the slots, at any depth.

A null list counts as an empty list, at every level, so all of its row is padding. A null value inside a list stays a
null: it is data, and padding must not hide it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.errors import DataError, PlanError, shown
from arrowflow.kernels.gather import taken
from arrowflow.types import is_string, scalar

Lengths = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MAX_OFFSET = (1 << 31) - 1


def is_list(type: pa.DataType) -> bool:
    """Whether values of this type are lists of any length."""
    return bool(pa.types.is_list(type) or pa.types.is_large_list(type))


def lengths_of(column: pa.Array) -> Lengths:
    """Returns the length of each list, string or binary, from offsets alone; a null has length 0.

    Examples:
        >>> import pyarrow as pa
        >>> lengths_of(pa.array([[1, 2], None, []], pa.list_(pa.int8()))).tolist()
        [2, 0, 0]
    """
    rows = len(column)
    validity, buffer = column.buffers()[:2]
    if not rows or not buffer:
        return np.zeros(rows, np.int64)
    width = 8 if str(column.type).startswith("large_") else 4
    offsets = np.frombuffer(buffer, f"i{width}", rows + 1, column.offset * width)
    lengths = np.subtract(offsets[1:], offsets[:-1], dtype=np.int64)
    if column.null_count:
        bits = np.frombuffer(validity, np.uint8)
        valid = np.unpackbits(bits, count=column.offset + rows, bitorder="little")[column.offset :]
        lengths *= valid
    return lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPadding:
    """The padding of one list column.

    Attributes:
        name: Its name.
        types: The type that each level of lists gets, the outermost first: of fixed size where a length is given, otherwise
            the input's, with rows of one length.
        sizes: Per level the length that was given, or None for the longest of a batch.
        multiple_of: The longest length is rounded up to a multiple of this number.
        steps: Ascending lengths; the longest row is rounded up to the next of them instead. Empty for none.
        truncate: Whether lists longer than a given length are cut off.
        value: An array of one value, the padding.
        item_bytes: Bytes of a value that NumPy may move, else 0.
    """

    name: str
    types: tuple[pa.DataType, ...]
    sizes: tuple[int | None, ...]
    multiple_of: int
    steps: tuple[int, ...]
    truncate: bool
    value: pa.Array
    item_bytes: int

    def pad(self, column: pa.Array) -> tuple[pa.Array, Lengths]:
        """Returns the column with rows of one length, and how many values each row has.

        Raises:
            DataError: A list is longer than the given length, or the result has more than 2**31 values.
        """
        rows = slots = len(column)
        filled: Mask | None = None  # None: every slot has a value
        first: Lengths | None = None
        shape: list[int] = []
        values = column
        for level, size in enumerate(self.sizes):
            values, lengths, length = self._level(values, size, self.steps if level == 0 else ())
            first = lengths if first is None else first
            if filled is not None:
                inside = np.zeros(slots, np.int64)
                inside[filled] = lengths
                lengths = inside
            slots *= length
            if slots > MAX_OFFSET:
                raise DataError(
                    f"column {self.name!r} padded to {length:,} values a row has {slots:,} of them in a batch, more "
                    "than an array of lists can hold; make the batch smaller, or bucket rows by their length"
                )
            filled = None if len(values) == slots else _mask(lengths, length)
            shape.append(length)
        assert first is not None
        if filled is not None:
            values = self._filled(values, filled)
        return self._wrapped(values, rows, shape), first

    def _level(
        self, lists: pa.Array, size: int | None, steps: Sequence[int]
    ) -> tuple[pa.Array, Lengths, int]:
        """Returns the values of the lists, the lists' lengths, and the one length that all lists get."""
        lengths = lengths_of(lists)
        values = lists.flatten()
        longest = int(lengths.max(initial=0))
        if size is None:
            return values, lengths, self._rounded(longest, steps)
        if longest > size:
            if not self.truncate:
                raise DataError(
                    f"column {self.name!r} has a list of {longest:,} values, longer than the {size:,} that its "
                    "length was set to; give it more, leave it out of padded_shapes, or cut lists with truncate=True"
                )
            within = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            values = taken(values, np.flatnonzero(within < size))
            lengths = np.minimum(lengths, size)
        return values, lengths, size

    def _rounded(self, longest: int, steps: Sequence[int]) -> int:
        if not steps:
            return -(-longest // self.multiple_of) * self.multiple_of
        if longest > steps[-1]:
            raise DataError(
                f"column {self.name!r} has a list of {longest:,} values, and pad_to_bucket_boundary has nothing to pad "
                f"it to: the last bucket boundary is {steps[-1] + 1:,}; add a higher one, or filter long lists out before"
            )
        return steps[bisect_left(steps, longest)]

    def _filled(self, values: pa.Array, filled: Mask) -> pa.Array:
        """Returns an array with the values where `filled` says so, and padding elsewhere."""
        slots = len(filled)
        if self.item_bytes and not values.null_count:
            dtype = np.dtype(f"u{self.item_bytes}")
            buffer = pa.allocate_buffer(slots * self.item_bytes)
            array = np.frombuffer(buffer, dtype)
            array.fill(_view(self.value, dtype)[0])
            array[filled] = _view(values, dtype)
            return pa.Array.from_buffers(values.type, slots, [None, buffer])
        indices = np.full(slots, len(values), np.int64)
        indices[filled] = np.arange(len(values))
        return taken(pa.concat_arrays([values, self.value]), indices)

    def _wrapped(self, values: pa.Array, rows: int, shape: Sequence[int]) -> pa.Array:
        """Returns the padded values as lists of lists of this shape."""
        counts = accumulate((rows, *shape), mul)
        for type, count, length in reversed(list(zip(self.types, counts, shape, strict=False))):
            buffers = [None]
            if is_list(type):
                width = np.int64 if pa.types.is_large_list(type) else np.int32
                offsets = np.arange(count + 1, dtype=width)
                offsets *= length
                buffers.append(pa.py_buffer(offsets))
            values = pa.Array.from_buffers(type, count, buffers, children=[values])
        return values


def column_padding(
    name: str,
    type: pa.DataType,
    sizes: Sequence[int | None],
    value: Any,
    *,
    multiple_of: int = 1,
    steps: tuple[int, ...] = (),
    truncate: bool = False,
) -> ColumnPadding:
    """Returns the padding of a column of lists.

    Further levels than `sizes` has get the longest length of a batch. The `value` None stands for 0, False or nothing.

    Raises:
        PlanError: There are more lengths than levels; or the value does not have this type.

    Examples:
        >>> import pyarrow as pa
        >>> padded, lengths = column_padding("x", pa.list_(pa.int8()), (), 7).pad(pa.array([[1, 2], []], pa.list_(pa.int8())))
        >>> padded.to_pylist(), lengths.tolist()
        ([[1, 2], [7, 7]], [2, 0])
    """
    given, leaf = list_levels(type)
    if len(sizes) > len(given):
        raise PlanError(
            f"padded_shapes has {len(sizes)} lengths for column {name!r}, which has {len(given)} level"
            f"{'s' * (len(given) > 1)} of lists ({type})"
        )
    all_sizes = (*sizes, *[None] * (len(given) - len(sizes)))
    types: list[pa.DataType] = []
    inner = leaf
    for level, size in zip(reversed(given), reversed(all_sizes), strict=True):
        field = pa.field(level.value_field.name, inner)
        large = pa.types.is_large_list(level)
        inner = pa.list_(field, size) if size else pa.large_list(field) if large else pa.list_(field)
        types.append(inner)
    flat = pa.types.is_primitive(leaf) and not pa.types.is_boolean(leaf)
    return ColumnPadding(
        name=name,
        types=tuple(reversed(types)),
        sizes=all_sizes,
        multiple_of=multiple_of,
        steps=steps,
        truncate=truncate,
        value=padding_value(name, leaf, value),
        item_bytes=leaf.bit_width // 8 if flat else 0,
    )


def list_levels(type: pa.DataType) -> tuple[list[pa.DataType], pa.DataType]:
    """Returns the types of nested lists, from the outermost, and the type of their innermost values."""
    levels = []
    while is_list(type):
        levels.append(type)
        type = type.value_type
    return levels, type


def _mask(lengths: Lengths, length: int) -> Mask:
    """Returns which of `length` slots a row hold values; comparing 16 bits takes a quarter of comparing 64."""
    dtype = np.int16 if length < 1 << 15 else np.int64
    mask: Mask = np.less(np.arange(length, dtype=dtype), lengths.astype(dtype)[:, None])
    return mask.reshape(-1)


def _view(values: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    buffer = values.buffers()[1]
    if not buffer:
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, len(values), values.offset * dtype.itemsize)


def padding_value(name: str, type: pa.DataType, value: Any) -> pa.Array:
    """Returns an array of one value to pad a column of `type` with; None stands for 0, False or nothing.

    Raises:
        PlanError: The value does not have this type, or the type has no padding.

    Examples:
        >>> import pyarrow as pa
        >>> padding_value("x", pa.string(), None).to_pylist()
        ['']
    """
    if value is None:
        zero = _zeros(type, 1)
        if zero is None:
            raise PlanError(
                f"column {name!r} has lists of {type}, for which there is no padding; drop it before, or convert it"
            )
        return zero
    if isinstance(value, str) is not is_string(type):
        # Arrow would write a number as a text, and read a text as a number.
        raise PlanError(f"column {name!r} has values of type {type}, and {shown(value)} is none")
    try:
        found = scalar(value, type)
    except PlanError as error:
        raise PlanError(f"column {name!r} cannot be padded: {error}") from error
    if pa.types.is_floating(type) and math.isinf(found.as_py()) and not math.isinf(value):
        raise PlanError(
            f"column {name!r} has values of type {type}, and {shown(value)} is beyond the largest one"
        )
    return pa.repeat(found, 1)


def plain(value: Any) -> Any:
    """Returns a NumPy number as a Python number, and any other value as it is.

    Examples:
        >>> plain(np.int64(3)), plain(np.bool_(True)), plain("x")
        (3, True, 'x')
    """
    return value.item() if isinstance(value, np.generic) and value.dtype.kind in "biuf" else value


def _zeros(type: pa.DataType, count: int) -> pa.Array | None:
    types = pa.types
    if types.is_fixed_size_list(type):
        values = _zeros(type.value_type, count * type.list_size)
        return None if values is None else pa.Array.from_buffers(type, count, [None], children=[values])
    if types.is_string(type) or types.is_binary(type):
        return pa.Array.from_buffers(
            type, count, [None, pa.py_buffer(bytes(4 * count + 4)), pa.py_buffer(b"")]
        )
    if types.is_primitive(type) or types.is_decimal(type) or types.is_fixed_size_binary(type):
        num_bytes = -(-cast(int, type.bit_width) * count // 8)
        return pa.Array.from_buffers(type, count, [None, pa.py_buffer(bytes(num_bytes))])
    return None
