"""Selection of the rows of a batch that pass a predicate, and of these rows in columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from arrowflow.expr.run.columns import RowBlock, bool_array
from arrowflow.types import Array
from arrowflow.workarounds.slices import rebased

# Rows that are computed together: few enough that intermediate values stay in the cache, and enough to make up for the
# cost of NumPy's calls. Measured on the TPC-H stream and a wide table, in ns a row, with 1 MiB of L2 a core:
# 8,192 rows took 13.2 and 74; 16,384 took 10.9 and 69; 32,768 took 10.4 and 64; 65,536 took 9.4 and 60. More rows gain
# nothing.
BLOCK_ROWS: Final = 131_072

_FEW_ROWS: Final = 8_192
_MANY_COLUMNS: Final = 32


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
    flags = bool_array(mask)
    readable = [rebased(array) for array in arrays]
    if not fit_one_call(len(mask), len(arrays)):
        return [array.filter(flags) for array in readable]
    batch = pa.RecordBatch.from_arrays(readable, [""] * len(readable))
    return list(batch.filter(flags).columns)
