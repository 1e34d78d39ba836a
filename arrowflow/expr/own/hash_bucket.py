"""`hash_bucket`: the bucket of a text or a whole number by its hash, today and after any release of any library."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.expr.own import xxh64
from arrowflow.types import VIEWS, Array, numpy_dtype


@dataclass(frozen=True, slots=True)
class HashBucket:
    """The remainder of a value's XXH64 by the number of buckets, as int64; null for null.

    The hash is that of UTF-8, or of 8 bytes of a whole number, the least significant byte first. So a number has the same bucket in
    all types, and a text has it as an enum, too.

    Attributes:
        buckets: The number of buckets.
    """

    buckets: int

    @classmethod
    def of(cls, buckets: int, words: pl.Series | None, type: pa.DataType) -> HashBucket:
        """Returns the function for a column of `type`.

        Raises:
            PlanError: The column holds neither texts, bytes nor whole numbers.
        """
        kept = type.value_type if pa.types.is_dictionary(type) else type
        if not (kept.id in VIEWS or pa.types.is_integer(kept)):
            raise PlanError(
                f"hash_bucket takes texts, bytes or whole numbers, got {type}; `cast` the column to one of these"
            )
        return cls(buckets)

    def __call__(self, array: pa.Array) -> pa.Array:
        buckets = (hashes(array) % np.uint64(self.buckets)).view(np.int64)
        return with_nulls_of(array, buckets, pa.int64())


def with_nulls_of(array: pa.Array, values: Array, type: pa.DataType) -> pa.Array:
    """Returns the values as an array of `type` with the nulls of another array."""
    valid = array.is_valid().buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(type, len(array), [valid, pa.py_buffer(values)])


def offsets_of(array: pa.Array) -> Array:
    """Returns where each text or binary begins, and where the last one ends."""
    _, type = VIEWS[array.type.id]
    return np.frombuffer(array.buffers()[1] or b"\0" * 8, type)[array.offset :][: len(array) + 1]


def hashes(array: pa.Array) -> Array:
    """Returns the XXH64 of each value of a column of texts, bytes or whole numbers; that of a null is arbitrary."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_integer(array.type):
        numbers = np.frombuffer(array.buffers()[1] or b"", numpy_dtype(array.type))
        taken = numbers[array.offset : array.offset + len(array)]
        return xxh64.of_words(taken.astype(np.int64).view(np.uint64))
    data, offsets = array.buffers()[2], offsets_of(array)
    first, last = int(offsets[0]), int(offsets[-1])
    texts = np.frombuffer(data or b"", np.uint8)[first:last]
    starts = offsets[:-1].astype(np.int64) - first
    return xxh64.of_texts(texts, starts, np.diff(offsets).astype(np.int64))
