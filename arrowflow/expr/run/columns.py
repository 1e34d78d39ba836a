"""Arrow columns as NumPy arrays and back, and their rows that pass: reads are views, and writes go to memory of Arrow's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from arrowflow.expr.run.numpy_kernels import Valid
from arrowflow.recycler import Recycler
from arrowflow.types import Array
from arrowflow.workarounds.slices import rebased

# Rows that are computed together: few enough that intermediate values stay in the cache, and enough to make up for the
# cost of NumPy's calls. Measured on the TPC-H stream and a wide table, in ns a row, with 1 MiB of L2 a core:
# 8,192 rows took 13.2 and 74; 16,384 took 10.9 and 69; 32,768 took 10.4 and 64; 65,536 took 9.4 and 60. More rows gain
# nothing.
BLOCK_ROWS: Final = 131_072

_FEW_ROWS: Final = 8_192
_MANY_COLUMNS: Final = 32


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


def allocate(
    rows: int, dtype: np.dtype[Any], recycler: Recycler | None = None
) -> tuple[pa.Buffer | None, Array]:
    """Returns `rows` uninitialised values of `dtype` in Arrow's memory pool, as a buffer and as an array.

    Booleans have no buffer. They are packed into bits at the end: blocks do not begin at whole bytes.
    """
    if dtype == np.bool_:
        return None, np.empty(rows, dtype)
    num_bytes = rows * dtype.itemsize
    buffer = pa.allocate_buffer(num_bytes) if recycler is None else recycler.allocate(num_bytes)
    return buffer, np.frombuffer(buffer, dtype) if rows else np.empty(0, dtype)


def bitmap(flags: Array) -> pa.Buffer:
    """Returns the booleans `flags` as an Arrow bitmap in Arrow's memory pool."""
    buffer, target = allocate((len(flags) + 7) >> 3, np.dtype(np.uint8))
    target[:] = np.packbits(flags, bitorder="little")
    return buffer


def fit_one_call(num_rows: int, num_columns: int) -> bool:
    """Whether Arrow filters columns faster in one call than NumPy or Arrow does column by column.

    Of half of 1,024 float32 rows, one call takes 6 µs a column and NumPy 11 if there are 3,000 columns, and 23 and 20 if there
    are 3. From 32,768 rows on, bits and columns with nulls take longer in one call.
    """
    return num_rows <= _FEW_ROWS and num_columns >= _MANY_COLUMNS


def blocks(num_rows: int) -> Iterator[RowBlock]:
    """Yields the blocks of a batch in which every row passes."""
    for start in range(0, num_rows, BLOCK_ROWS):
        yield RowBlock(start, min(start + BLOCK_ROWS, num_rows), None)


def passing_blocks(mask: Array) -> list[RowBlock]:
    """Returns the blocks of a batch in which rows pass where `mask` is true."""
    found = []
    for block in blocks(len(mask)):
        rows = np.flatnonzero(mask[block.start : block.stop])
        if len(rows):
            found.append(RowBlock(block.start, block.stop, rows if len(rows) < len(block) else None))
    return found


def filter_arrays(arrays: list[pa.Array], mask: Array) -> list[pa.Array]:
    """Returns `arrays` with only the rows for which `mask` is true. Arrow's own kernel does this for every type."""
    flags = pa.Array.from_buffers(pa.bool_(), len(mask), [None, bitmap(mask)], 0)
    readable = [rebased(array) for array in arrays]
    if not fit_one_call(len(mask), len(arrays)):
        return [array.filter(flags) for array in readable]
    batch = pa.RecordBatch.from_arrays(readable, [""] * len(readable))
    return list(batch.filter(flags).columns)
