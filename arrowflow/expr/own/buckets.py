"""`bucketize`: the number of the bucket of a number, between boundaries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.expr.own.hash_bucket import with_nulls_of
from arrowflow.types import Array, is_number, numpy_dtype

_FEW: Final = 127
"""Comparisons with so many boundaries, 0.2 ns a row each, are faster than a binary search, 32 ns a row; a byte counts them."""
_BLOCK_BYTES: Final = 2 << 20
"""Bytes of the comparisons of a block, one each, so that few boundaries need few calls."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """The number of boundaries that a value reaches, as int32: NaN reaches all of them, and null stays null.

    Attributes:
        type: The type as which values are compared.
        below: The number of boundaries that each value of the type reaches.
        boundaries: The others that values can reach, ascending.
    """

    type: pa.DataType
    below: int
    boundaries: Array

    @classmethod
    def of(cls, _: int, boundaries: pl.Series | None, type: pa.DataType) -> Buckets:
        """Returns the function for a column of `type`.

        Raises:
            PlanError: The column holds no numbers.
        """
        assert boundaries is not None
        if not (is_number(type) or pa.types.is_decimal(type)):
            raise PlanError(f"bucketize takes numbers, got {type}; `cast` the column")
        if pa.types.is_decimal(type):
            type = pa.float64()
        dtype = numpy_dtype(type)
        given = boundaries.to_list()
        if not pa.types.is_integer(type):
            return cls(type, 0, np.array(given, dtype))
        limits = np.iinfo(dtype)
        whole = [math.ceil(each) for each in given]
        kept = [each for each in whole if limits.min < each <= limits.max]
        return cls(type, sum(each <= limits.min for each in whole), np.array(kept, dtype))

    def __call__(self, array: pa.Array) -> pa.Array:
        numbers = array.cast(self.type)
        stored = np.frombuffer(numbers.buffers()[1] or b"", self.boundaries.dtype)
        values = stored[numbers.offset : numbers.offset + len(numbers)]
        if len(self.boundaries) <= _FEW:
            found = np.empty(len(values), np.int32)
            size = _BLOCK_BYTES // max(1, len(self.boundaries))
            for start in range(0, len(values), size):
                rows = slice(start, start + size)
                # Two calls for all boundaries: each call waits for Python's lock. NaN is not less.
                less = np.less(values[rows], self.boundaries[:, None])
                np.subtract(
                    np.int32(len(self.boundaries) + self.below), less.sum(0, np.uint8), out=found[rows]
                )
        else:
            found = (self.boundaries.searchsorted(values, side="right") + self.below).astype(np.int32)
        return with_nulls_of(array, found, pa.int32())
