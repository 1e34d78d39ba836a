"""Columns of bytes that are written where they will stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Memory = npt.NDArray[np.uint8]


def binary_column(sizes: Sequence[int]) -> tuple[pa.Array, list[Memory]]:
    """Returns a column of binary whose values have these sizes, and the memory of each.

    The caller fills the memory before anybody reads the column.

    Raises:
        pa.ArrowInvalid: The values do not fit one column.

    Examples:
        >>> column, memory = binary_column([2, 0, 1])
        >>> memory[0][:] = 97
        >>> memory[2][:] = 98
        >>> column.to_pylist()
        [b'aa', b'', b'b']
    """
    ends = np.cumsum([0, *sizes], dtype=np.int64)
    if ends[-1] > np.iinfo(np.int32).max:
        raise pa.ArrowInvalid(
            f"{len(sizes):,} values have {int(ends[-1]):,} bytes, and a column of binary holds 2 GiB"
        )
    values = pa.allocate_buffer(int(ends[-1]))
    column = pa.Array.from_buffers(
        pa.binary(), len(sizes), [None, pa.py_buffer(ends.astype(np.int32)), values]
    )
    return column, np.split(np.frombuffer(values, np.uint8), ends[1:-1])[: len(sizes)]
