"""The NumPy kernels: a kernel computes one operation of a graph on one block of values.

A kernel writes into a given array (`out`) and looks at no validity. The kernels in `VALIDITY` are the exception:
their nulls follow more than "null in, null out". NumPy releases the GIL in all kernels.

These kernels give what the engine gives, bit for bit, with four exceptions: `exp`, `log` (to any base), `log1p`, and
pyarrow's `power` with exponent 2. Their results are within two ulps (units in the last place) of the engine's. They may
differ between types of CPU, as NumPy and the C library choose their loops by CPU. On one machine a row's value depends
on nothing but the row. All other transcendental functions (`sin`, `cot`, `log2` of pyarrow, `cbrt`, …) run on their
engine, because NumPy gives other last bits for some values (`cbrt` of float64: one ulp with AVX-512, three without).

A kernel has to be faster than its engine, which `benchmarks/kernels.py` measures. The CPU time in ns a row, here and in
Polars, for 65,536 rows with nulls on 2 cores of an AMD EPYC with AVX-512: `add` 1.2 and 2.4, `exp` 1.5 and 5.2, decimal
to float64 1.1 and 8.0. Without AVX-512 `exp` takes 5.2 and 5.3, and the others as long as with it. There `log1p` takes
6.0 by way of `log`, 9.8 by its own loop, and 10.6 in Polars.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import numpy as np

from arrowflow.expr.parse.tree import COMPARISONS
from arrowflow.types import Array

_HAS_AVX512: Final = any(
    found
    for name, found in import_module("numpy._core._multiarray_umath").__cpu_features__.items()
    if name in {"AVX512_SKX", "X86_V4"}
)
"""Whether NumPy uses the loops for AVX-512; newer releases call them by the level of x86-64."""

Operand = Any  # an array of the block's length, or a NumPy scalar
Valid = Array | None  # True for a value, False for a null; None when there is no null
Kernel = Callable[[tuple[Operand, ...], Array], None]


def _ufunc(function: Callable[..., Any]) -> Kernel:
    return lambda args, out: function(*args, out=out)


def _in_float64(function: Callable[..., Any]) -> Kernel:
    """Computes in float64 and rounds once.

    NumPy's own float32 loops are up to 4 ulps (`log`) and 3 ulps (`exp`) from the engines if the CPU has AVX2.
    """
    return lambda args, out: function(*args, out=out, dtype=np.float64, casting="unsafe")


def _log1p(args: tuple[Operand, ...], out: Array) -> None:
    """`log(u)` of `u = 1 + x`, and what the rounding of `u` lost: (x - (u - 1)) / u, as in the GNU Scientific Library.

    Without AVX-512 NumPy has quick loops for `log` and none for `log1p`.
    """
    (x,) = args
    u = np.add(x, 1, dtype=np.float64)
    lost = np.subtract(u, 1)
    np.subtract(x, lost, out=lost)
    np.divide(lost, u, out=lost)
    np.log(u, out=u)
    np.add(u, lost, out=out, casting="unsafe")
    np.copysign(out, x, out=out)  # of -0.0
    if not (usual := np.isfinite(lost)).all():  # of -1, infinities and NaN
        np.log1p(x, out=out, where=~usual)


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
    **{name: _ufunc(getattr(np, name)) for name in COMPARISONS},
    **{name: _ufunc(getattr(np, name)) for name in ("add", "subtract", "multiply", "divide", "floor_divide")},
    **{name: _ufunc(getattr(np, name)) for name in ("abs", "square", "sqrt", "floor", "ceil")},
    # One call takes the interpreter lock once. Two calls are no faster alone, and wait twice for other threads.
    "quotient": _in_float64(np.divide),
    "modulo": _ufunc(np.remainder),
    "negate": _ufunc(np.negative),
    "exp": _in_float64(np.exp),
    "log": _in_float64(np.log),
    "log1p": _ufunc(np.log1p) if _HAS_AVX512 else _log1p,
    "both": _ufunc(np.logical_and),
    "either": _ufunc(np.logical_or),
    "not": _ufunc(np.logical_not),
    "is_nan": _ufunc(np.isnan),
    "is_finite": _ufunc(np.isfinite),
    "is_infinite": _ufunc(np.isinf),
    "convert": lambda args, out: np.copyto(out, args[0], casting="unsafe"),
    "decimal_to_float32": _decimal_to_float32,
}

# Kernels that see validity get the values and validities of their arguments, and return the validity of their result.
ValidityKernel = Callable[[tuple[Operand, ...], tuple[Valid, ...], Array], Valid]


def _kleene(function: Callable[..., Any], deciding: bool) -> ValidityKernel:
    """Kleene's logic: false and null is false, true or null is true."""

    def kernel(args: tuple[Operand, ...], valids: tuple[Valid, ...], out: Array) -> Valid:
        # The value under a null is arbitrary. It does not matter if the other side decides.
        function(*args, out=out)
        if valids[0] is None and valids[1] is None:
            return None
        left, right = (np.True_ if known is None else known for known in valids)
        valid: Array = (left & right) | (left & (args[0] == deciding)) | (right & (args[1] == deciding))
        return valid

    return kernel


def _choose(condition: Operand, yes: Operand, no: Operand, out: Array) -> None:
    """Writes `yes` where `condition` is true, else `no`, all bits of it.

    Bits times a flag are 0.9 ns a value for random flags. A masked copy is 4.4 ns, and `np.where` is 3.6 ns (float64,
    131,072 rows, 2 cores of an AMD EPYC with AVX-512).
    """
    bits = np.dtype(f"i{out.dtype.itemsize}")
    first, second, target = yes.view(bits), no.view(bits), out.view(bits)
    if isinstance(second, np.generic) and second == 0:
        np.multiply(first, condition, out=target)
        return
    np.bitwise_xor(first, second, out=target)
    np.multiply(target, condition, out=target)
    np.bitwise_xor(target, second, out=target)


def _fill(args: tuple[Operand, ...], valids: tuple[Valid, ...], out: Array) -> Valid:
    known, other_known = valids
    if known is None:
        np.copyto(out, args[0])
        return None
    _choose(known, args[0], args[1], out)
    return None if other_known is None else known | other_known


def _is_null(args: tuple[Operand, ...], valids: tuple[Valid, ...], out: Array) -> Valid:
    np.logical_not(True if valids[0] is None else valids[0], out=out)
    return None


def _is_not_null(args: tuple[Operand, ...], valids: tuple[Valid, ...], out: Array) -> Valid:
    np.copyto(out, True if valids[0] is None else valids[0])
    return None


def _if_else(args: tuple[Operand, ...], valids: tuple[Valid, ...], out: Array) -> Valid:
    """Polars' when/then/otherwise: a null condition is false."""
    condition, yes, no = args
    if valids[0] is not None:
        condition = condition & valids[0]
    _choose(condition, yes, no, out)
    if valids[1] is None and valids[2] is None:
        return None
    known_yes, known_no = (np.True_ if known is None else known for known in valids[1:])
    valid = np.empty(out.shape, np.bool_)
    _choose(condition, known_yes, known_no, valid)
    return valid


def _if_else_null(args: tuple[Operand, ...], valids: tuple[Valid, ...], out: Array) -> Valid:
    """Pyarrow's if_else: a null condition gives null."""
    return both(valids[0], _if_else(args, valids, out))


def both(left: Valid, right: Valid) -> Valid:
    """Returns the validity of rows in which both sides have a value."""
    if left is None or left is right:
        return right
    return left if right is None else left & right


VALIDITY: Final[dict[str, ValidityKernel]] = {
    "and": _kleene(np.logical_and, False),
    "or": _kleene(np.logical_or, True),
    "fill": _fill,
    "is_null": _is_null,
    "is_not_null": _is_not_null,
    "if_else": _if_else,
    "if_else_null": _if_else_null,
}
