"""Whether Python values are still what they were once they are Arrow values of a declared type.

`pa.array` with a type cuts off the fraction of a number, the time of a day, digits of a second, and keys of a dict that
the type does not have; integers beside floats are rounded; large floats become infinite. Here all of these are errors.
Only floats may be rounded to a shorter float: that is what users of float32 want.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

_TIMES = (datetime.date, datetime.time, datetime.timedelta)


def check_kept(values: Sequence[Any], column: pa.Array) -> None:
    """Raises `ValueError` if a value is not what the column, made of the values, holds in its place."""
    if has_nanoseconds(column.type):
        return  # Python has no such times; `in_unit` has seen to arrays
    for value, held in zip(values, column.to_pylist(), strict=True):
        if not _is_kept(value, held):
            raise ValueError(f"{value!r:.100} would become {held!r:.100}")


def in_unit(value: Any, type: pa.DataType) -> Any:
    """Returns NumPy's times in the unit of a type, or of the values of its lists.

    Raises:
        ValueError: A time has no such unit without loss.
    """
    type = leaf_type(type)
    unit = "D" if pa.types.is_date32(type) else getattr(type, "unit", None)
    if unit is None:
        return value
    made = value.astype(f"{value.dtype.kind}8[{unit}]")
    if (made.astype(value.dtype) != value)[~np.isnat(value)].any():
        raise ValueError(f"{value} has parts of a {unit}")
    if unit == "D":
        return made.tolist() if made.ndim else made.item()  # dates: `pa.array` does not read NumPy's
    return made


def has_nanoseconds(type: pa.DataType) -> bool:
    """Returns whether a type, or a part of it, holds times in nanoseconds, which Python's own times do not."""
    if isinstance(type, pa.BaseExtensionType):
        return has_nanoseconds(type.storage_type)
    if pa.types.is_timestamp(type) or pa.types.is_duration(type) or pa.types.is_time64(type):
        return bool(type.unit == "ns")
    return any(has_nanoseconds(type.field(index).type) for index in range(type.num_fields))


def leaf_type(type: pa.DataType) -> pa.DataType:
    """Returns the type of the values in lists, however deep; of other types the type itself."""
    while hasattr(type, "value_type"):
        type = type.value_type
    return type


def _is_kept(value: Any, held: Any) -> bool:
    if value is None or held is None:
        # NaT, and NaN as a date, stand for none, and differ from themselves.
        return value is held or (isinstance(value, np.generic | float) and bool(value != value))  # noqa: PLR0124
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return _is_kept_dict(value, held)
    if isinstance(held, list):
        return len(value) == len(held) and all(map(_is_kept, value, held))
    if isinstance(held, dict):
        return False
    if isinstance(held, float):
        return _is_kept_float(value, held)
    if isinstance(held, bytes) and isinstance(value, str):
        return value.encode() == held
    if isinstance(held, str) and isinstance(value, bytes):
        return value == held.encode()
    if isinstance(value, int) and isinstance(held, _TIMES):
        return True  # it counts the units of the type
    if isinstance(value, datetime.datetime):
        return _is_kept_time(value, held)
    return bool(value == held)


def _is_kept_dict(value: Mapping[Any, Any], held: Any) -> bool:
    if isinstance(held, list):  # the pairs of a map
        return _is_kept([list(pair) for pair in value.items()], [list(pair) for pair in held])
    if not isinstance(held, dict) or value.keys() - held.keys():
        return False
    return all(_is_kept(value.get(key), kept) for key, kept in held.items())


def _is_kept_float(value: Any, held: float) -> bool:
    if isinstance(value, int):
        return value == held
    if isinstance(value, decimal.Decimal):
        return math.isfinite(held) or not value.is_finite()
    if math.isnan(value) or math.isnan(held):
        return math.isnan(value) and math.isnan(held)
    return math.isinf(value) == math.isinf(held)


def _is_kept_time(value: datetime.datetime, held: Any) -> bool:
    if isinstance(held, datetime.datetime):
        if value.tzinfo is None or held.tzinfo is None:  # a time without a zone is meant in UTC
            value = value.replace(tzinfo=None)
            held = held.astimezone(datetime.UTC).replace(tzinfo=None) if held.tzinfo else held
        return value == held
    if not isinstance(held, datetime.date):
        return False
    return value.replace(tzinfo=None) == datetime.datetime.combine(held, datetime.time())
