"""The bytes of values: of texts, bytes and lists what they hold, whatever lies around them in memory.

Null takes nothing where a value has no fixed size, and as much as any value where it has one. Neither validity nor
offsets count. So arrays of equal values have equal bytes, however they were made, sliced or padded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.plan.widths import is_fixed, type_bits

Ends = npt.NDArray[Any]
"""Bytes before each value and before the end of an array: one number more than there are values, and not falling."""


def value_ends(array: pa.Array) -> Ends:
    """Returns the bytes before each value of an array, perhaps all of them more by the same number.

    Takes NumPy calls of a fixed number for each type inside the array's.

    Examples:
        >>> value_ends(pa.array(["a", None, "bcd"]))
        array([0, 1, 1, 4])
        >>> value_ends(pa.array([["ab"], ["c", "d"]])).tolist()
        [0, 2, 4]
    """
    type = array.type
    if isinstance(type, pa.BaseExtensionType):
        return value_ends(array.storage)
    if is_fixed(type):
        return np.arange(len(array) + 1, dtype=np.int64) * type_bits(type) // 8
    if pa.types.is_struct(type):
        fields = [value_ends(array.field(index)) for index in range(type.num_fields)]
        return _without_nulls(array, np.sum([ends - ends[0] for ends in fields], axis=0))
    if pa.types.is_fixed_size_list(type):
        size = type.list_size
        values = array.values.slice(array.offset * size, len(array) * size)
        return _without_nulls(array, value_ends(values)[np.arange(len(array) + 1) * size])
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_map(type):
        offsets = _offsets(array)
        first, last = int(offsets[0]), int(offsets[-1])
        inside = _inside(array).slice(first, last - first)
        return _without_nulls(array, value_ends(inside)[offsets - first])
    if type.num_buffers == 3:  # texts and bytes
        return _without_nulls(array, _offsets(array))
    return np.zeros(len(array) + 1, np.int64)  # unions: their bytes are not worth the code


def _offsets(array: pa.Array) -> Ends:
    type = array.type
    is_large = (
        pa.types.is_large_list(type) or pa.types.is_large_string(type) or pa.types.is_large_binary(type)
    )
    buffer = array.buffers()[1]
    if buffer is None or not buffer.size:  # an empty array need not have any
        return np.zeros(1, np.int64)
    found = np.frombuffer(buffer, np.int64 if is_large else np.int32)
    return found[array.offset : array.offset + len(array) + 1]


def _inside(array: pa.Array) -> pa.Array:
    if not pa.types.is_map(array.type):
        return array.values
    names = ["key", "value"]
    return pa.StructArray.from_arrays([array.keys, array.items], names=names)


def _without_nulls(array: pa.Array, ends: Ends) -> Ends:
    """Returns the ends of an array whose nulls take nothing, of those of its memory."""
    if not array.null_count:
        return ends
    first, before = array.offset // 8, (array.offset + len(array) + 7) // 8
    bits = np.unpackbits(np.frombuffer(array.buffers()[0], np.uint8)[first:before], bitorder="little")
    lengths = np.diff(ends).astype(np.int64)
    lengths *= bits[array.offset % 8 :][: len(array)]
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
