"""The replacement of a null, as a value of a dtype."""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
import pyarrow as pa

from arrowflow.errors import SchemaError, shown
from arrowflow.interchange.dtypes import in_unit, is_float
from arrowflow.interchange.to_numpy import is_text


def is_policy(null: Any, policy: str) -> bool:
    """Returns whether the user's choice for nulls is this policy, and no value."""
    return isinstance(null, str) and null == policy


def empty_text(kind: Any) -> str | bytes:
    """Returns the empty string, or the empty binary if this type is a binary."""
    return "" if "string" in str(kind) else b""


def fill_value(name: str, kind: Any, dtype: np.dtype[Any], null: Any) -> Any:
    """Returns the value that an array of `dtype` has for a null of a column of `kind`.

    Args:
        name: Name of the column.
        kind: Type of its values.
        dtype: Dtype of the array.
        null: `"nan"`, `"mask"` (a zero) or a value.

    Raises:
        SchemaError: The dtype has no NaN, or cannot hold the value.

    Examples:
        >>> fill_value("x", pa.float32(), np.dtype("float32"), "nan")
        nan
    """
    empty: Any = empty_text(kind) if is_text(kind) else np.zeros((), dtype)[()]
    if is_policy(null, "mask"):
        return empty
    if is_policy(null, "nan"):
        if dtype.kind in "mM":
            return np.array("NaT", dtype)[()]
        if is_float(dtype) and not pa.types.is_dictionary(kind):
            return float("nan")
        value = empty if is_text(kind) else empty.item()
        raise SchemaError(
            f"column {name!r} has type {kind}, which has no NaN as {dtype}; give a value instead, as in "
            f"null={{{name!r}: {value!r}}}, or take null={{{name!r}: 'mask'}}"
        )
    if not _holds(kind, dtype, null):
        raise SchemaError(
            f"column {name!r} has type {kind}, and {shown(null)} is no value of {dtype} for its nulls"
        )
    return in_unit(null, dtype)[()] if dtype.kind in "mM" else null


def _holds(kind: Any, dtype: np.dtype[Any], value: Any) -> bool:
    if is_text(kind):
        return isinstance(value, type(empty_text(kind)))
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return False
    if dtype.kind in "mM":
        times = {"M": (datetime.date, np.datetime64), "m": (datetime.timedelta, np.timedelta64)}
        return isinstance(value, times[dtype.kind]) and in_unit(value, dtype) is not None
    if isinstance(value, np.generic):
        value = value.item()
    if dtype.kind == "b" or isinstance(value, bool):
        return dtype.kind == "b" and isinstance(value, bool)
    if dtype.kind in "iu":
        return isinstance(value, int) and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
    if not isinstance(value, int | float) or not (is_float(dtype) or dtype.kind == "c"):
        return False
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.array(value, dtype))) or not math.isfinite(value)
    except OverflowError:  # an integer too large for any float
        return False
