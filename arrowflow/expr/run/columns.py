"""Arrow columns as NumPy arrays and back: reads are views, and writes go to memory of Arrow's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from arrowflow.expr.run.numpy_kernels import Valid
from arrowflow.recycler import Recycler
from arrowflow.types import Array


@dataclass(slots=True)
class RowBlock:
    """Rows `start` to `stop` of a batch. `rows`, counted from `start`, are the rows that pass (None: all)."""

    start: int
    stop: int
    rows: Array | None
    _stepped: tuple[int, Array] | None = None

    def __len__(self) -> int:
        return self.stop - self.start if self.rows is None else len(self.rows)

    def stepped(self, step: int) -> Array:
        """Returns `rows` for arrays in which one row takes `step` places; made once for all columns."""
        if self._stepped is None or self._stepped[0] != step:
            assert self.rows is not None
            self._stepped = step, self.rows * step
        return self._stepped[1]


@dataclass(frozen=True, slots=True)
class Source:
    """An input column, read in blocks.

    Attributes:
        values: The stored values from row 0 on; for booleans the bytes that hold the bits.
        step: The number of `values` for one row: 2 for a decimal, of which only the low word is read.
        valid: The bytes of the validity bitmap, None when no row is null.
        offset: The bit of row 0 in bitmaps.
        bits: Whether `values` are bits.
    """

    values: Array
    step: int
    valid: Array | None
    offset: int
    bits: bool

    def read(self, block: RowBlock, out: Array | None) -> tuple[Array, Valid]:
        """Returns values and validity of the rows of `block` that pass.

        The values are written to `out`. `out` may be None if all rows of the block pass; the values may then be a view.
        """
        start, stop, rows = block.start, block.stop, block.rows
        valid = None if self.valid is None else self._unpack(self.valid, start, stop)
        if valid is not None and rows is not None:
            valid = valid[rows]
        if self.bits:
            values = self._unpack(self.values, start, stop)
        elif self.step == 1:
            values = self.values[start:stop]
        else:
            values = self.values[start * self.step : stop * self.step]
            if rows is not None:
                rows = block.stepped(self.step)
            else:
                values = values[:: self.step]
        if rows is not None:
            # Rows are in range. "wrap" is the fastest mode, and like "clip" writes straight to `out`.
            values.take(rows, out=out, mode="wrap")
        elif out is None:
            return values, valid
        else:
            np.copyto(out, values)
        assert out is not None
        return out, valid

    def _unpack(self, bitmap: Array, start: int, stop: int) -> Array:
        first = self.offset + start
        chunk = bitmap[first >> 3 : (self.offset + stop + 7) >> 3]
        bits = np.unpackbits(chunk, bitorder="little")[first & 7 : (first & 7) + stop - start]
        return bits.view(np.bool_)


def source(array: pa.Array, dtype: np.dtype[Any]) -> Source:
    """Returns a reader of `array` as values of `dtype`, without a copy."""
    validity, data = array.buffers()[:2]
    valid = None if validity is None or array.null_count == 0 else np.frombuffer(validity, np.uint8)
    if dtype == np.bool_:
        return Source(_bytes(data, np.dtype(np.uint8)), 1, valid, array.offset, True)
    step = array.type.bit_width // 8 // dtype.itemsize
    values = _bytes(data, dtype)[array.offset * step : (array.offset + len(array)) * step]
    return Source(values, step, valid, array.offset, False)


def _bytes(data: pa.Buffer | None, dtype: np.dtype[Any]) -> Array:
    if data is None or data.size == 0:
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype, count=data.size // dtype.itemsize)


def allocate(rows: int, dtype: np.dtype[Any], recycler: Recycler | None = None) -> tuple[pa.Buffer, Array]:
    """Returns `rows` uninitialised values of `dtype` in Arrow's memory pool, as a buffer and as an array."""
    num_bytes = rows * dtype.itemsize
    buffer = pa.allocate_buffer(num_bytes) if recycler is None else recycler.allocate(num_bytes)
    return buffer, np.frombuffer(buffer, dtype) if rows else np.empty(0, dtype)


def bitmap(flags: Array) -> pa.Buffer:
    """Returns the booleans `flags` as an Arrow bitmap in Arrow's memory pool."""
    buffer, target = allocate((len(flags) + 7) >> 3, np.dtype(np.uint8))
    target[:] = np.packbits(flags, bitorder="little")
    return buffer


def retyped(array: pa.Array, type: pa.DataType) -> pa.Array:
    """Returns `array` with the same buffers under another type of the same width."""
    if array.type.equals(type):
        return array
    buffers = array.buffers()
    return pa.Array.from_buffers(type, len(array), buffers, array.null_count, array.offset)


def bool_array(flags: Array) -> pa.Array:
    """Returns the booleans `flags` as an Arrow array."""
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, bitmap(flags)], 0)
