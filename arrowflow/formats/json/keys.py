"""JSON with very many keys. pyarrow makes a value of each key in each object, also where an object lacks it.

So a file of 300 kB whose keys are numbers of users takes 5 GB to look at. Before pyarrow parses, objects and keys are
counted, and what would take too much is an error: then keys are values, and no names of columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa

from arrowflow.errors import BudgetError
from arrowflow.formats.text.scan import Bytes
from arrowflow.types import is_list

MOST_BYTES: Final = 512 << 20
"""The most bytes that looking at a sample may take, or decoding a block of lists of objects."""

KEY_BYTES: Final = 5 << 9
"""Bytes that pyarrow takes for a column, or a key of an object in it, besides its values."""

_VALUE_BYTES: Final = 18
"""Bytes of a number as it is parsed: its place, and its decoded value."""

_KEY: Final = re.compile(rb'(?<!\\)"((?:[^"\\]++|\\.)*+)"\s*:', re.DOTALL)
"""A text with a colon behind it, and not what looks like that within a text."""

_PART_BYTES: Final = 4 << 10
_PARTS: Final = 16
"""Each of so many parts is looked at first: all of a sample takes 15 ms."""

_CURE: Final = (
    "if keys are values, such as numbers of users, pass schema= with the columns to read: there pa.string() takes an object "
    "with all its keys as its JSON text"
)


def check_keys(data: Bytes) -> None:
    """Raises `BudgetError` if pyarrow would take too much memory to tell the types of this text."""
    objects = int(np.count_nonzero(data == ord("{")))
    starts = range(0, data.size, _PARTS * _PART_BYTES)
    seen = {key for start in starts for key in _KEY.findall(data[start : start + _PART_BYTES].data)}
    if _bytes(objects, _PARTS * len(seen)) <= MOST_BYTES:
        return
    keys = len(set(_KEY.findall(data.data)))
    if _bytes(objects, keys) > MOST_BYTES:
        raise BudgetError(
            f"the {data.size:,} bytes that tell the types have {objects:,} objects with {keys:,} different keys, and a value of "
            f"each key in each object would take {_bytes(objects, keys):,} bytes, more than {MOST_BYTES:,}: {_CURE}"
        )


def check_lists(data: Bytes, types: pa.Schema) -> None:
    """Raises `BudgetError` if lists of objects with few of their keys would take too much memory to decode.

    Objects that are rows are no concern here: blocks tell how many they are.
    """
    keys = sum(num_keys(type, of_lists=True) for type in types.types)
    if keys * data.size * _VALUE_BYTES <= MOST_BYTES:
        return
    objects = int(np.count_nonzero(data == ord("{")))
    if objects * keys * _VALUE_BYTES > MOST_BYTES:
        raise BudgetError(
            f"a block of {data.size:,} bytes has {objects:,} objects, and lists of objects with {keys:,} keys: a value of each "
            f"key in each object may take {objects * keys * _VALUE_BYTES:,} bytes, more than {MOST_BYTES:,}; lower "
            f"block_bytes=, or {_CURE}"
        )


def num_keys(type: pa.DataType, *, of_lists: bool = False) -> int:
    """Counts the keys of objects in a value; or only those of objects in lists."""
    if is_list(type):
        of_objects = pa.types.is_struct(type.value_type)
        return num_keys(type.value_type, of_lists=of_lists and not of_objects)
    if not pa.types.is_struct(type):
        return int(not of_lists)
    return sum(num_keys(each.type, of_lists=of_lists) for each in type.fields)


def wide_bytes(types: Iterable[pa.DataType]) -> int:
    """Estimates the memory that decoding very many keys takes, whatever they hold; nothing for few of them."""
    keys = sum(map(num_keys, types))
    return keys * KEY_BYTES if keys > 4096 else 0  # so few take 10 MB


def _bytes(objects: int, keys: int) -> int:
    return keys * (objects * _VALUE_BYTES + KEY_BYTES)
