"""Bad rows of a block of JSON, told without decoding each line alone.

Most bad lines do not end in a brace: they are cut off, or no JSON. Others hold a value of another kind than their column;
after the first, all lines are looked through for what that one has behind the key. A loop over such lines alone decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from arrowflow.formats.text.sifting import Records
from arrowflow.lazy import compute as pc

_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
    "boolean": (bool,),
}
_CHANGED: Final = re.compile(r"Column\(/([^/()\[\]]+)\) changed from (\w+) to \w+ in row (\d+)")


def no_objects(records: Records) -> dict[int, str]:
    """Returns the lines that are no objects of JSON, as far as their first and last bytes give them away."""
    data, starts, ends = records.data, records.starts, records.stops - 1
    ends = np.where(data[ends] == ord("\n"), ends - 1, ends)
    doubtful = np.flatnonzero((data[starts] != ord("{")) | (data[np.maximum(ends, starts)] != ord("}")))
    return _refused(records, doubtful.tolist())


def other_kinds(records: Records, message: str) -> dict[int, str]:
    """Returns the lines that fail as the line does that a message of pyarrow's is about."""
    found = _CHANGED.search(message)
    if found is None or not 0 < int(found[3]) + 1 <= len(records):
        return {}
    key, kind, row = found[1], found[2], int(found[3])
    prefix = re.search(rb'"' + re.escape(key.encode()) + rb'"\s*:\s*[^\s]', records.row(row))
    if prefix is None or kind not in _KINDS:
        return {}
    borders = np.append(records.starts, records.stops[-1:]).astype(np.int32)
    lines = pa.Array.from_buffers(
        pa.binary(), len(records), [None, pa.py_buffer(borders), pa.py_buffer(records.data)]
    )
    has = pc.match_substring(lines, prefix[0])
    numbers = np.flatnonzero(has.to_numpy(zero_copy_only=False)).tolist()
    return _refused(records, numbers, key, kind)


def _refused(records: Records, numbers: Iterable[int], key: str = "", kind: str = "") -> dict[int, str]:
    """Returns those of some lines that are no objects, or have a value of another kind behind a key."""
    refused = {}
    for number in numbers:
        try:
            value: Any = json.loads(records.row(number))
        except RecursionError:
            continue  # pyarrow tells
        except ValueError as error:  # also for bytes that are no UTF-8
            refused[number] = f"expected an object of JSON: {error}"
            continue
        if not isinstance(value, dict):
            refused[number] = f"expected an object of JSON, found {_kind(value)}"
        elif key and value.get(key) is not None and _kind(value[key]) != kind:
            refused[number] = f"column {key!r}: expected {kind}, found {_kind(value[key])}"
    return refused


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    return next((kind for kind, types in _KINDS.items() if isinstance(value, types)), "null")
