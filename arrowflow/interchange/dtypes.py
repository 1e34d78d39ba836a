"""Dtypes that users ask for: how they are named, and how arrays become arrays of them.

What a value cannot be is refused when the dtype is asked for, and a value that does not fit when it comes by: nothing
wraps around. Fractions do not become whole numbers here, since nobody says how: that is a `cast`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from arrowflow.errors import DataError, PlanError, SchemaError, shown
from arrowflow.interchange.to_numpy import NumpyArray

Conversion = Callable[[NumpyArray], NumpyArray]

_NUMBERS = "biuf"


def dtype_named(value: Any) -> np.dtype[Any]:
    """Returns a dtype, a scalar type or a name as a dtype of NumPy; bfloat16 is that of ml_dtypes.

    Raises:
        PlanError: It names none.

    Example:
        >>> dtype_named("float32"), dtype_named(np.int8)
        (dtype('float32'), dtype('int8'))
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
        return np.dtype(value)
    except TypeError as error:
        raise PlanError(f"expected a dtype such as np.float32 or 'float32', got {shown(value)}") from error


def is_float(dtype: np.dtype[Any]) -> bool:
    """Returns whether values have fractions and NaN; bfloat16 counts."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def conversion(name: str, source: np.dtype[Any], target: np.dtype[Any]) -> Conversion | None:
    """Returns what makes arrays of one dtype arrays of another, in new memory; None where they are the same.

    Raises:
        SchemaError: There is no such conversion; the message names another way.

    Example:
        >>> convert = conversion("x", np.dtype("int64"), np.dtype("int8"))
        >>> convert(np.array([1, 2])).dtype
        dtype('int8')
    """
    if source == target:
        return None
    if source.kind in _NUMBERS and (is_float(target) or target.kind == "c"):
        return lambda array: _to_float(array, target)
    if source.kind in "biu" and target.kind in "iu":
        return _to_integers(name, source, target)
    if source.kind in "mM" and target.kind in "iu":
        return _chained(lambda array: array.view(np.int64), _to_integers(name, np.dtype(np.int64), target))
    if source.kind in "mM" and source.kind == target.kind and np.can_cast(source, target):
        return lambda array: array.astype(target)
    if source.kind == "O" and target.kind == "T":
        return lambda array: array.astype(target)
    remedy = "cast it below, which says what becomes of values that do not fit"
    if source.kind == "O":
        remedy = "an array of texts is of objects or of NumPy's StringDType; cast or map it below"
    raise SchemaError(f"column {name!r} makes an array of {source}, which cannot become {target}; {remedy}")


def _chained(first: Conversion, second: Conversion) -> Conversion:
    return lambda array: second(first(array))


def _to_float(array: NumpyArray, target: np.dtype[Any]) -> NumpyArray:
    with np.errstate(over="ignore"):  # beyond the largest is infinite, as in a cast
        return array.astype(target)


def _to_integers(name: str, source: np.dtype[Any], target: np.dtype[Any]) -> Conversion:
    if np.can_cast(source, target):
        return lambda array: array.astype(target)
    least, most = np.iinfo(target).min, np.iinfo(target).max

    def convert(array: NumpyArray) -> NumpyArray:
        if array.size:
            low, high = int(array.min()), int(array.max())
            if low < least or high > most:
                raise DataError(
                    f"column {name!r} has the value {low if low < least else high}, which {target} cannot hold; take "
                    "a wider dtype, or clip it below with with_columns"
                )
        return array.astype(target)

    return convert
