"""Which rows of a batch pass a predicate, and columns of only those rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from arrowflow.expr.run.columns import Block, bool_array
from arrowflow.types import Array
from arrowflow.workarounds.slices import rebased

# Rows that are computed together, so that what is in between stays in the cache while NumPy's calls cost little.
# TPC-H stream and wide table in ns a row (1 MiB of L2 a core): 8,192 rows 13.2 and 74; 16,384 10.9 and 69; 32,768
# 10.4 and 64; 65,536 9.4 and 60; more gains nothing.
BLOCK_ROWS: Final = 131_072


def blocks(num_rows: int) -> Iterator[Block]:
    """Yields the blocks of a batch of which every row passes."""
    for start in range(0, num_rows, BLOCK_ROWS):
        yield Block(start, min(start + BLOCK_ROWS, num_rows), None)


def passing_blocks(mask: Array) -> list[Block]:
    """Returns the blocks of a batch of which the rows pass where `mask` is true."""
    found = []
    for block in blocks(len(mask)):
        rows = np.flatnonzero(mask[block.start : block.stop])
        if len(rows):
            found.append(Block(block.start, block.stop, rows if len(rows) < len(block) else None))
    return found


def filter_arrays(arrays: list[pa.Array], mask: Array) -> list[pa.Array]:
    """Returns `arrays` with only the rows where `mask` is true, by Arrow's own kernel, for every type."""
    flags = bool_array(mask)
    return [rebased(array).filter(flags) for array in arrays]
