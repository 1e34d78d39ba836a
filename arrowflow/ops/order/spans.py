"""Columns of fixed width as one span of memory from which any rows are copied in one call, whatever their chunks.

Measured on 10 M rows of 64 bytes in 153 record batches of a mapped file: 50 ns a row. Sorting rows by record batch,
taking from each batch, and reordering the rows takes 75 ns. The time of a span does not grow with the record batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Places = npt.NDArray[np.int64]

_NUMBER_BYTES = (1, 2, 4, 8)
"""Bytes of items that NumPy copies as numbers; it copies other items byte by byte."""


class Span:
    """The values of one column in all chunks, seen as one array from the lowest to the highest address.

    The memory between the chunks belongs to others and is never read. The chunks have to outlive the span.

    Args:
        type: The column's type.
        addresses: Address of the first value of each chunk.
        starts: Number of each chunk's first row.
        counts: Rows of each chunk.
    """

    __slots__ = ("_items", "_offsets", "_scale", "_type")

    def __init__(self, type: pa.DataType, addresses: Places, starts: Places, counts: Places) -> None:
        width = width_of(type)
        assert width is not None
        low = int(addresses.min())
        num_bytes = int((addresses + counts * width).max()) - low
        # As numbers, NumPy first copies a span that is not aligned: all of it, with the memory of others.
        number = width in _NUMBER_BYTES and low % width == 0
        # Chunks need not lie a whole number of values apart, so items may start at any multiple of this.
        step = math.gcd(width, *(addresses - low).tolist())
        self._type = type
        self._scale = width // step
        self._offsets: Places = (addresses - low) // step - starts * self._scale
        self._items: npt.NDArray[Any] = np.ndarray(
            ((num_bytes - width) // step + 1,),
            f"u{width}" if number else f"V{width}",
            pa.foreign_buffer(low, num_bytes),
            strides=(step,),
        )

    def gather(self, numbers: Places, owners: Places) -> pa.Array:
        """Returns the values of rows, by the number of each row and by its chunk."""
        items = self._offsets.take(owners)
        items += numbers if self._scale == 1 else numbers * self._scale
        if self._scale != 1:  # `take` would first copy a span whose items overlap
            return array_of(self._type, len(numbers), pa.py_buffer(self._items[items].view(np.uint8)))
        # Arrow's pool hands out pages that were touched before: new pages take 10 ns for each row of 64 bytes.
        buffer = pa.allocate_buffer(len(items) * self._items.itemsize)
        out: npt.NDArray[Any] = np.frombuffer(buffer, self._items.dtype)
        self._items.take(items, out=out, mode="clip")  # "raise" would make another copy first
        return array_of(self._type, len(numbers), buffer)


def spans(chunks: Sequence[pa.RecordBatch], starts: Places) -> dict[str, Span]:
    """Returns the columns that have a span: of fixed width, and without a null anywhere."""
    counts = np.array([chunk.num_rows for chunk in chunks], np.int64)
    found = {}
    for index, field in enumerate(chunks[0].schema):
        if width_of(field.type) is not None and (addresses := addresses_of(chunks, index)) is not None:
            found[field.name] = Span(field.type, np.array(addresses, np.int64), starts, counts)
    return found


def addresses_of(chunks: Sequence[pa.RecordBatch], index: int) -> list[int] | None:
    """Returns where the values of a column of fixed width begin in each chunk, or None if there are nulls."""
    found = []
    for chunk in chunks:
        address = _address(chunk.column(index))
        if address is None:
            return None
        found.append(address)
    return found


def width_of(type: pa.DataType) -> int | None:
    """Returns the bytes of a value, or None where that number is not fixed."""
    if isinstance(type, pa.BaseExtensionType):
        return width_of(type.storage_type)
    if pa.types.is_fixed_size_list(type):
        inner = width_of(type.value_type)
        return inner * int(type.list_size) or None if inner is not None else None
    if pa.types.is_fixed_size_binary(type) or pa.types.is_decimal(type) or pa.types.is_primitive(type):
        return type.bit_width // 8 or None if type.bit_width % 8 == 0 else None
    return None


def _address(array: pa.Array) -> int | None:
    """Returns the address of the first value, or None if there are nulls."""
    if isinstance(array, pa.ExtensionArray):
        return _address(array.storage)
    if array.null_count:
        return None
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        return _address(array.values.slice(array.offset * size, len(array) * size))
    values = array.buffers()[1]
    return None if values is None else int(values.address) + array.offset * array.type.bit_width // 8


def array_of(type: pa.DataType, num_rows: int, values: pa.Buffer) -> pa.Array:
    """Returns a column of fixed width without nulls, whose values lie side by side."""
    if isinstance(type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type, array_of(type.storage_type, num_rows, values))
    if pa.types.is_fixed_size_list(type):
        inner = array_of(type.value_type, num_rows * int(type.list_size), values)
        return pa.Array.from_buffers(type, num_rows, [None], null_count=0, children=[inner])
    return pa.Array.from_buffers(type, num_rows, [None, values], null_count=0)
