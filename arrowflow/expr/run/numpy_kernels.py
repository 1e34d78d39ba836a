"""The NumPy kernels: a kernel computes one operation of a graph on one block of values.

A kernel writes into a given array (`out`) and looks at no validity. The kernels in `VALIDITY` are the exception:
their nulls follow more than "null in, null out". NumPy releases the GIL in all kernels.

These kernels give what the engine gives, bit for bit, with four exceptions: `exp`, `log` (to any base), `log1p`, and
pyarrow's `power` with exponent 2. Their results are within two ulps (units in the last place) of the engine's. They may
differ between types of CPU, as NumPy and the C library choose their loops by CPU. On one machine a row's value depends
on nothing but the row. All other transcendental functions (`sin`, `log2` of pyarrow, `cbrt`, …) run on their engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from arrowflow.types import Array

Operand = Any  # an array of the block's length, or a NumPy scalar
Valid = Array | None  # True for a value, False for a null; None when there is no null
Kernel = Callable[[tuple[Operand, ...], Array], None]


def _ufunc(function: Callable[..., Any]) -> Kernel:
    return lambda args, out: function(*args, out=out)


def _in_float64(function: Callable[..., Any]) -> Kernel:
    """Computes in float64 and rounds once.

    NumPy's own float32 loops are up to 4 ulps (`log`) and 3 ulps (`exp`) from the engines if the CPU has AVX2.
    """
    return lambda args, out: function(args[0], out=out, dtype=np.float64, casting="unsafe")


def _convert(args: tuple[Operand, ...], out: Array) -> None:
    np.copyto(out, args[0], casting="unsafe")


def _quotient(args: tuple[Operand, ...], out: Array) -> None:
    # One call takes the interpreter lock once. Two calls are no faster alone, and wait twice for other threads.
    np.divide(args[0], args[1], out=out, dtype=np.float64, casting="unsafe")


def _square(args: tuple[Operand, ...], out: Array) -> None:
    np.multiply(args[0], args[0], out=out)


def _decimal_to_float32(args: tuple[Operand, ...], out: Array) -> None:
    """Pyarrow's own rule: one multiplication within 24 bits, else whole and fraction apart, all in float32."""
    digits, power = args
    scale = np.float32(1) / np.float32(power) if power > 1 else np.float32(1)
    if max(digits.max(), -digits.min()) < 1 << 24:
        np.copyto(out, digits, casting="unsafe")
        np.multiply(out, scale, out=out)
        return
    size = np.abs(digits)
    whole = np.floor(size / np.float64(power))
    np.multiply((size - whole * power).astype(np.float32), scale, out=out)
    np.add(whole.astype(np.float32), out, out=out)
    np.copyto(out, size.astype(np.float32) * scale, where=size < 1 << 24)
    np.negative(out, out=out, where=digits < 0)


KERNELS: Final[dict[str, Kernel]] = {
    "add": _ufunc(np.add),
    "subtract": _ufunc(np.subtract),
    "multiply": _ufunc(np.multiply),
    "divide": _ufunc(np.divide),
    "quotient": _quotient,
    "floor_divide": _ufunc(np.floor_divide),
    "modulo": _ufunc(np.remainder),
    "square": _square,
    "negate": _ufunc(np.negative),
    "abs": _ufunc(np.abs),
    "sqrt": _ufunc(np.sqrt),
    "exp": _in_float64(np.exp),
    "log": _in_float64(np.log),
    "log1p": _ufunc(np.log1p),
    "floor": _ufunc(np.floor),
    "ceil": _ufunc(np.ceil),
    "equal": _ufunc(np.equal),
    "not_equal": _ufunc(np.not_equal),
    "less": _ufunc(np.less),
    "less_equal": _ufunc(np.less_equal),
    "greater": _ufunc(np.greater),
    "greater_equal": _ufunc(np.greater_equal),
    "both": _ufunc(np.logical_and),
    "either": _ufunc(np.logical_or),
    "not": _ufunc(np.logical_not),
    "is_nan": _ufunc(np.isnan),
    "is_finite": _ufunc(np.isfinite),
    "is_infinite": _ufunc(np.isinf),
    "convert": _convert,
    "decimal_to_float32": _decimal_to_float32,
}

# Kernels that see validity get the values and validities of their arguments, and return the validity of their result.
ValidityKernel = Callable[[tuple[Operand, ...], tuple[Valid, ...], Array], Valid]


def _and(args: tuple[Operand, ...], valids: tuple[Valid, ...], out: Array) -> Valid:
    """Kleene's logic: false and null is false."""
    # The value under a null is arbitrary. It does not matter if the other side decides.
    np.logical_and(args[0], args[1], out=out)
    return _decided(args, valids, False)


def _or(args: tuple[Operand, ...], valids: tuple[Valid, ...], out: Array) -> Valid:
    """Kleene's logic: true or null is true."""
    np.logical_or(args[0], args[1], out=out)
    return _decided(args, valids, True)


def _decided(args: tuple[Operand, ...], valids: tuple[Valid, ...], deciding: bool) -> Valid:
    left, right = valids
    if left is None and right is None:
        return None
    known_left = np.True_ if left is None else left
    known_right = np.True_ if right is None else right
    decides_left = known_left & (args[0] == deciding)
    decides_right = known_right & (args[1] == deciding)
    valid: Array = (known_left & known_right) | decides_left | decides_right
    return valid


def _fill(args: tuple[Operand, ...], valids: tuple[Valid, ...], out: Array) -> Valid:
    value, other = args
    known, other_known = valids
    if known is None:
        np.copyto(out, value)
        return None
    if isinstance(other, np.generic) and isinstance(value, np.ndarray) and out.dtype.itemsize in _BITS:
        _fill_bits(value, known, other, out)
        return None
    np.copyto(out, value)
    np.copyto(out, other, where=~known)
    return None if other_known is None else known | other_known


_BITS: Final[dict[int, np.dtype[Any]]] = {2: np.dtype(np.int16), 4: np.dtype(np.int32), 8: np.dtype(np.int64)}


def _fill_bits(value: Array, known: Array, other: np.generic, out: Array) -> None:
    """Multiplies bits by the flag: 0.25 ns a value instead of 0.75 ns for a masked copy (float32, AVX-512)."""
    dtype = _BITS[out.dtype.itemsize]
    bits, target, constant = value.view(dtype), out.view(dtype), other.view(dtype)
    if constant == 0:
        np.multiply(bits, known, out=target)
        return
    np.bitwise_xor(bits, constant, out=target)
    np.multiply(target, known, out=target)
    np.bitwise_xor(target, constant, out=target)


def _is_null(args: tuple[Operand, ...], valids: tuple[Valid, ...], out: Array) -> Valid:
    if valids[0] is None:
        out[:] = False
    else:
        np.logical_not(valids[0], out=out)
    return None


def _is_not_null(args: tuple[Operand, ...], valids: tuple[Valid, ...], out: Array) -> Valid:
    np.copyto(out, True if valids[0] is None else valids[0])
    return None


def _if_else(args: tuple[Operand, ...], valids: tuple[Valid, ...], out: Array) -> Valid:
    """Polars' when/then/otherwise: a null condition is false."""
    condition, yes, no = args
    if valids[0] is not None:
        condition = condition & valids[0]
    np.copyto(out, no)
    np.copyto(out, yes, where=condition)
    if valids[1] is None and valids[2] is None:
        return None
    valid: Array = np.where(
        condition, np.True_ if valids[1] is None else valids[1], np.True_ if valids[2] is None else valids[2]
    )
    return np.broadcast_to(valid, out.shape)


def _if_else_null(args: tuple[Operand, ...], valids: tuple[Valid, ...], out: Array) -> Valid:
    """Pyarrow's if_else: a null condition gives null."""
    valid = _if_else(args, valids, out)
    return both(valids[0], valid)


def both(left: Valid, right: Valid) -> Valid:
    """Returns the validity of rows in which both sides have a value."""
    if left is None or left is right:
        return right
    return left if right is None else left & right


VALIDITY: Final[dict[str, ValidityKernel]] = {
    "and": _and,
    "or": _or,
    "fill": _fill,
    "is_null": _is_null,
    "is_not_null": _is_not_null,
    "if_else": _if_else,
    "if_else_null": _if_else_null,
}
