"""Dtypes that users ask for: their names, the conversion of arrays to them, and their values in place of nulls.

An impossible conversion is refused when the dtype is requested, and a value that does not fit is refused when it
arrives. Nothing wraps around, and no number becomes infinite. Floats are rounded to the precision of their dtype.
Fractions do not become whole numbers here, since nobody says how to round them: a `cast` does that.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow.errors import DataError, PlanError, SchemaError, shown
from arrowflow.interchange.to_numpy import NumpyArray, is_text
from arrowflow.types import is_polars_type

Conversion = Callable[[NumpyArray], NumpyArray]

_NUMBERS = "biuf"
_BFLOAT16_MAX = 3.3895313892515355e38
_BFLOAT16_INFINITE = np.float32(3.3961776e38)
"""From this number on, half a step above the largest bfloat16, rounding gives an infinity."""


def dtype_named(value: Any) -> np.dtype[Any]:
    """Returns a dtype, a scalar type or a name as a dtype of NumPy; ml_dtypes has bfloat16.

    Raises:
        PlanError: `value` names no dtype.

    Examples:
        >>> dtype_named("float32"), dtype_named(np.int8), dtype_named(pl.Int16)
        (dtype('float32'), dtype('int8'), dtype('int16'))
    """
    if value is None:
        raise PlanError("expected a dtype, got None")
    if isinstance(value, str) and value == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise PlanError("bfloat16 in NumPy needs the package ml_dtypes, which comes with JAX") from None
        value = ml_dtypes.bfloat16
    try:
        if is_polars_type(value):
            value = pl.Series([], dtype=value).to_numpy().dtype
        return np.dtype(value)
    except (TypeError, ValueError) as error:
        raise PlanError(f"expected a dtype such as np.float32 or 'float32', got {shown(value)}") from error


def is_float(dtype: np.dtype[Any]) -> bool:
    """Returns whether values have fractions and NaN; bfloat16 counts."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def conversion(name: str, source: np.dtype[Any], target: np.dtype[Any]) -> Conversion | None:
    """Returns a function that converts arrays of one dtype to another, in new memory; None if the dtypes are equal.

    Raises:
        SchemaError: There is no such conversion; the message names another way.

    Examples:
        >>> convert = conversion("x", np.dtype("int64"), np.dtype("int8"))
        >>> convert(np.array([1, 2])).dtype
        dtype('int8')
    """
    if source == target:
        return None
    if source.kind in _NUMBERS and (is_float(target) or target.kind == "c"):
        return _to_float(name, source, target)
    if source.kind in "biu" and target.kind in "iu":
        return _to_integers(name, source, target)
    if source.kind in "mM" and target.kind in "iu":
        to_integers = _to_integers(name, np.dtype(np.int64), target)
        return lambda array: to_integers(array.view(np.int64))
    if source.kind in "mM" and source.kind == target.kind and np.can_cast(source, target):
        return _to_finer_unit(name, target)
    if source.kind == "O" and target.kind == "T":
        return lambda array: array.astype(target)
    remedy = "cast it before, which says what becomes of values that do not fit"
    if source.kind == "O":
        remedy = "an array of texts is of objects or of NumPy's StringDType; cast or map it before"
    raise SchemaError(f"column {name!r} makes an array of {source}, which cannot become {target}; {remedy}")


def _refusal(name: str, value: Any, target: object) -> DataError:
    return DataError(
        f"column {name!r} has the value {value}, which {target} cannot hold; take a wider dtype, or clip it before with "
        "with_columns"
    )


def _to_float(name: str, source: np.dtype[Any], target: np.dtype[Any]) -> Conversion:
    if _largest(source) <= _largest(target):
        return lambda array: array.astype(target)

    def convert(array: NumpyArray) -> NumpyArray:
        with np.errstate(over="ignore"):
            found = array.astype(target)
        _check_finite(name, array, np.isinf(found), target)
        return found

    return convert


def _check_finite(name: str, source: NumpyArray, infinite: NumpyArray, target: object) -> None:
    """Raises `DataError` for the first finite number that becomes infinite in another dtype."""
    if infinite.any():
        became = infinite & np.isfinite(source)
        if became.any():
            raise _refusal(name, source[became][0], target)


def check_bfloat16(name: str, array: NumpyArray) -> None:
    """Raises `DataError` for the first float32 of an array that becomes infinite in bfloat16."""
    _check_finite(name, array, np.abs(array) >= _BFLOAT16_INFINITE, "bfloat16")


def _largest(dtype: np.dtype[Any]) -> float:
    """Returns the largest number that a dtype can hold, as a float."""
    if dtype.kind == "b":
        return 1.0
    if dtype.kind in "iu":
        return float(np.iinfo(dtype).max)
    return _BFLOAT16_MAX if dtype.name == "bfloat16" else float(np.finfo(dtype).max)


def in_unit(value: Any, target: np.dtype[Any]) -> Any:
    """Returns dates or times in another unit, or None if that changes a value.

    Examples:
        >>> in_unit(np.datetime64("3000-01-01"), np.dtype("datetime64[ns]")) is None  # after the year 2262
        True
    """
    given = np.asarray(value)
    if given.dtype == object:
        given = np.asarray(value, f"{target.kind}8")  # in the unit that holds the exact value
    try:
        found = given.astype(target)
    except OverflowError:  # raised by NumPy 2.5; earlier releases wrap around
        return None
    same = (found.astype(given.dtype) == given) | np.isnat(given)
    return found if same.all() else None


def _to_finer_unit(name: str, target: np.dtype[Any]) -> Conversion:
    def convert(array: NumpyArray) -> NumpyArray:
        found = in_unit(array, target)
        if found is None:
            furthest = np.abs(array.view(np.int64)).argmax()  # NaT gives a negative number
            raise _refusal(name, array.flat[furthest], target)
        return np.asarray(found)

    return convert


def _to_integers(name: str, source: np.dtype[Any], target: np.dtype[Any]) -> Conversion:
    if np.can_cast(source, target):
        return lambda array: array.astype(target)
    least, most = np.iinfo(target).min, np.iinfo(target).max

    def convert(array: NumpyArray) -> NumpyArray:
        if array.size:
            low, high = int(array.min()), int(array.max())
            if low < least or high > most:
                raise _refusal(name, low if low < least else high, target)
        return array.astype(target)

    return convert


def is_policy(null: Any, policy: str) -> bool:
    """Returns whether the user's choice for nulls is this policy, and no value."""
    return isinstance(null, str) and null == policy


def empty_text(kind: Any) -> str | bytes:
    """Returns the empty string, or the empty binary if this type is a binary."""
    return "" if "string" in str(kind) else b""


def fill_value(name: str, kind: Any, dtype: np.dtype[Any], null: Any) -> Any:
    """Returns the value that an array of `dtype` has for a null of a column of `kind`.

    `null` is `"nan"`, `"mask"` (a zero) or a value.

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
