"""Keys of rows: values of one or several columns that are compared as a whole, as words of 64 bits.

Whole numbers and times are words as they are. All other keys become 128 bits of hash, whatever their types: null equals
null, NaN NaN, and -0.0 0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.workarounds.slices import readable

Words = npt.NDArray[np.uint64]

SEEDS: Final = (0x9E3779B9, 0x85EBCA6B)
"""Seeds of a hash's two halves. Hashes differ between Polars releases; nothing that outlives a run depends on them."""


def check_keys(names: Sequence[str], schema: pa.Schema, advice: str) -> None:
    """Raises `PlanError` for the first column whose type cannot be a key."""
    for name in names:
        type = schema.field(name).type
        if not _can_be_key(type):
            raise PlanError(f"column {name!r} is {type}, which cannot be a key; {advice}")


def _can_be_key(type: pa.DataType, *, inside: bool = False) -> bool:
    """Whether Polars hashes values of this type."""
    if pa.types.is_dictionary(type):
        return not inside and _can_be_key(type.value_type)
    if pa.types.is_fixed_size_list(type):
        return not inside and _can_be_key(type.value_type, inside=True)
    unknown = (
        pa.types.is_map(type)
        or pa.types.is_fixed_size_binary(type)
        or pa.types.is_float16(type)
        or pa.types.is_decimal256(type)
        or pa.types.is_interval(type)
        or pa.types.is_union(type)
        or isinstance(type, pa.BaseExtensionType)
    )
    parts = [] if unknown else [type.field(number).type for number in range(type.num_fields)]
    return not unknown and all(_can_be_key(part, inside=True) for part in parts)


def hashes(keys: pa.RecordBatch) -> tuple[Words, Words]:
    """Returns the two halves of the hash of each row's key."""
    arrays = list(map(_plain, keys.columns))
    plain = pa.RecordBatch.from_arrays(arrays, names=list(map(str, range(len(arrays)))))
    frame = pl.DataFrame(readable(plain))
    # 65,536 texts take 0.78 ms as a series, and 0.94 ms as a frame. Lists need a frame (Polars 1.35).
    is_one = len(arrays) == 1 and not arrays[0].type.num_fields
    hashed = frame.to_series().hash if is_one else frame.hash_rows
    first, second = (hashed(seed).to_numpy() for seed in SEEDS)
    return first, second


def words(keys: pa.RecordBatch) -> tuple[Words, ...]:
    """Returns the words of each row's key; where a column is null, they mean nothing.

    Examples:
        >>> words(pa.record_batch({"x": pa.array([7, 8], pa.int8())}))
        (array([7, 8], dtype=uint64),)
    """
    if all(map(_is_number, keys.schema.types)):
        return tuple(map(_numbers, keys.columns))
    return hashes(keys)


def num_words(types: Sequence[pa.DataType]) -> int:
    """Returns how many words a key of these types has."""
    return len(types) if all(map(_is_number, types)) else 2


def present(keys: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
    """Returns which rows have no null in their key; None where all are such rows."""
    found: npt.NDArray[np.bool_] | None = None
    for column in map(_plain, keys.columns):
        if column.null_count:
            bits = np.frombuffer(column.is_valid().buffers()[1], np.uint8)
            valid = np.unpackbits(bits, count=len(column), bitorder="little").view(np.bool_)
            found = valid if found is None else found & valid
    return found


def _is_number(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or (pa.types.is_temporal(type) and not pa.types.is_interval(type)))


def _numbers(array: pa.Array) -> Words:
    if not len(array):
        return np.empty(0, np.uint64)
    width = array.type.bit_width
    kind = f"u{width // 8}" if pa.types.is_unsigned_integer(array.type) else f"i{width // 8}"
    values = np.frombuffer(array.buffers()[1], kind, len(array), array.offset * width // 8)
    return values.astype(np.int64, copy=False).view(np.uint64)


def _plain(array: pa.Array) -> pa.Array:
    """Returns a column as Polars hashes it."""
    type = array.type
    if pa.types.is_dictionary(type):
        return array.dictionary_decode()  # two chunks may have other codes for one value
    if pa.types.is_fixed_size_list(type):
        return array.cast(pa.large_list(type.value_field))
    return array
