"""`is_in` with a long list of texts or binaries, of which Polars makes a set anew in each call: 0.2 µs a text.

Here one index is made, by the first call. A million texts take 0.13 s, and then 10 to 60 ns a row (AMD EPYC).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow.expr.own.hash_bucket import offsets_of, with_nulls_of
from arrowflow.expr.own.replaced import Once
from arrowflow.lazy import compute as pc
from arrowflow.lookup.key_index import MISSING, KeyIndex
from arrowflow.lookup.keys import MOST_INLINE, present, taken
from arrowflow.types import Array

MIN_KEYS: Final = 16_384
"""With fewer keys Polars is as fast: 65,536 texts of 20 bytes take it 3.2 ms with 16,384 keys, as they take an index. Of short texts
an index is faster from 1,000 keys on, but there is less than 1 ms a chunk to win (AMD EPYC)."""
_KEY: Final = "key"


class Members:
    """Whether each value of a column is in a set of texts or binaries, as `is_in` of Polars says it.

    Args:
        keys: The texts or binaries; nulls and values that come twice may be among them.
        nulls_equal: Whether a null is in the set if the set has a null. Otherwise the answer for a null is null.

    Attributes:
        dtype: The type of the keys.
    """

    def __init__(self, keys: pl.Series, *, nulls_equal: bool) -> None:
        self._keys, self.dtype = keys, keys.dtype
        self._nulls_equal = nulls_equal
        self._array: pa.Array = keys.to_arrow(compat_level=pl.CompatLevel.oldest())
        lengths = keys.bin.size() if keys.dtype == pl.Binary else keys.str.len_bytes()
        self._has_hashes = bool((lengths > MOST_INLINE).any())
        self._index = Once(self._made)

    def __call__(self, array: pa.Array) -> pa.Array:
        """Returns the answers for texts or binaries with offsets, as booleans."""
        index = self._index()
        batch = pa.RecordBatch.from_arrays([array], names=[_KEY])
        if index is None:
            values = pl.Series(_KEY, array).is_in(self._keys.implode(), nulls_equal=self._nulls_equal)
            return values.to_arrow()
        rows = index.find(batch)
        found = rows != MISSING
        if self._has_hashes:
            at = np.flatnonzero(found & (np.diff(offsets_of(array)) > MOST_INLINE))
            found[at] = self._equal(array, at, rows[at])
        valid = present(batch) if self._nulls_equal and self._keys.null_count() else None
        if valid is not None:
            found |= ~valid
        bits = np.packbits(found, bitorder="little")
        if self._nulls_equal:
            return pa.Array.from_buffers(pa.bool_(), len(array), [None, pa.py_buffer(bits)])
        return with_nulls_of(array, bits, pa.bool_())

    def _equal(self, array: pa.Array, at: Array, rows: Array) -> Array:
        """Returns which values equal the keys in these rows: an index compares only hashes of long texts."""
        keys = taken(self._array, rows.astype(np.int64)).cast(array.type)
        values = array if len(at) == len(array) else taken(array, at)
        bits = np.frombuffer(pc.equal(values, keys).buffers()[1], np.uint8)
        return np.unpackbits(bits, count=len(at), bitorder="little").view(np.bool_)

    def _made(self) -> KeyIndex | None:
        """Returns the index; None if two keys have one hash, so that the index lacks one of them."""
        batch = pa.RecordBatch.from_arrays([self._array], names=[_KEY])
        index = KeyIndex(batch)
        if index.again is None or not self._has_hashes:
            return index
        rows = index.find(batch)
        again = np.flatnonzero((rows != np.arange(len(rows))) & (rows != MISSING))
        return index if self._equal(self._array, again, rows[again]).all() else None
