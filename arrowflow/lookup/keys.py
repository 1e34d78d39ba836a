"""Keys of rows: values of one or several columns that are compared as a whole, as one or two words of 64 bits.

* One or two whole numbers or times are words as they are.
* A text or binary of up to 12 bytes is Arrow's view of it: 16 bytes with its length. A view takes 2.5 ns, and two hashes 18.
* All other keys become 128 bits of hash, whatever their types: null equals null, NaN NaN, and -0.0 0.0.

Two words are one `complex128`, as NumPy gathers values of 16 bytes in the time of one word. They are compared as words only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.types import VIEWS
from arrowflow.workarounds.slices import readable

Words = npt.NDArray[np.uint64]
Keys = npt.NDArray[Any]
"""One word each, as uint64; or two, as complex128."""
MOST_WORDS: Final = 2

MOST_INLINE: Final = 12
"""Bytes of a text that its view holds itself. The view of a longer one refers to memory."""
_IS_LONG: Final = np.uint64(1 << 31)
"""The sign of a view's length, which no view has: it marks the hash of a longer text."""
_MOST_BYTES: Final = (1 << 31) - 1
"""Bytes of memory to which a view can refer."""

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


def words(keys: pa.RecordBatch) -> Keys:
    """Returns the words of each row's key; where a column is null, they mean nothing.

    Examples:
        >>> words(pa.record_batch({"x": pa.array([7, 8], pa.int8())}))
        array([7, 8], dtype=uint64)
    """
    types = keys.schema.types
    if len(types) <= MOST_WORDS and all(map(_is_number, types)):
        columns = list(map(_numbers, keys.columns))
        return columns[0] if len(columns) == 1 else _joined(*columns)
    if len(types) == 1 and (column := _plain(keys.column(0))).type.id in VIEWS:
        return text_words(column)
    return _joined(*hashes(keys))


def text_words(texts: pa.Array, most_bytes: int = _MOST_BYTES) -> Keys:
    """Returns the two words of each text or binary; where one is null, they mean nothing.

    Args:
        texts: Texts or binaries with offsets.
        most_bytes: Bytes of values that become views at once.

    Examples:
        >>> 1 + (ord("a") << 32)  # its length, and its bytes from the fifth on
        416611827713
        >>> text_words(pa.array(["", "a"])).view(np.uint64).tolist()
        [0, 0, 416611827713, 0]
    """
    rows, (_, offsets, values) = len(texts), texts.buffers()
    if not rows:
        return np.empty(0, np.complex128)
    if values is not None and values.size > most_bytes and rows > 1:
        half = (rows + 1) // 2
        parts = (texts.slice(start, half) for start in (0, half))
        copies = [taken(part, np.arange(len(part))) for part in parts]
        return np.concatenate([text_words(copy, most_bytes) for copy in copies])
    type, offset_type = VIEWS[texts.type.id]
    # Arrow would make views of the rows before a slice, too.
    own = pa.py_buffer(np.frombuffer(offsets, offset_type)[texts.offset : texts.offset + rows + 1])
    views = pa.Array.from_buffers(texts.type, rows, [None, own, values]).cast(type).buffers()[1]
    found = np.frombuffer(views, np.complex128)
    long = np.flatnonzero(np.frombuffer(views, np.uint32)[::4] > MOST_INLINE)
    if not len(long):
        return found
    few = 4 * len(long) < rows  # to take texts takes longer than to hash as many that lie one after the other
    first, second = hashes(pa.RecordBatch.from_arrays([taken(texts, long) if few else texts], names=["text"]))
    hashed = _joined(first | _IS_LONG, second)
    if len(long) == rows:
        return hashed
    found = found.copy()
    found[long] = hashed if few else hashed[long]
    return found


def _joined(first: Words, second: Words) -> Keys:
    both = np.empty((len(first), MOST_WORDS), np.uint64)
    both[:, 0], both[:, 1] = first, second
    return both.view(np.complex128)[:, 0]


def taken(array: pa.Array, rows: npt.NDArray[np.int64]) -> pa.Array:
    """Returns the values of some rows, in their order."""
    return array.take(pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)]))


def num_words(types: Sequence[pa.DataType]) -> int:
    """Returns how many words a key of these types has."""
    return 1 if len(types) == 1 and _is_number(types[0]) else MOST_WORDS


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
