"""The types that engines convert between, and the values at the edges of each and around the edges of the others."""

from __future__ import annotations

import decimal
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa

from arrowflow.types import numpy_dtype

UNITS: Final = ("s", "ms", "us", "ns")
INTEGERS: Final = tuple(getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64))
FLOATS: Final = (pa.float16(), pa.float32(), pa.float64())
DECIMALS: Final = (pa.decimal128(5, 2), pa.decimal128(15, 3), pa.decimal128(18, 6), pa.decimal128(38, 10))
TEMPORAL: Final = (
    pa.date32(),
    pa.date64(),
    *(pa.time32(unit) for unit in UNITS[:2]),
    *(pa.time64(unit) for unit in UNITS[2:]),
    *(pa.timestamp(unit) for unit in UNITS),
    pa.timestamp("us", "UTC"),
    *(pa.duration(unit) for unit in UNITS),
)
NUMBERS: Final = (*INTEGERS, *FLOATS, *DECIMALS, pa.bool_())
TYPES: Final = (*NUMBERS, *TEMPORAL, pa.string())

_DAY: Final = 86_400
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_POWERS: Final = (7, 8, 15, 16, 24, 31, 32, 53, 62, 63)
_TEXTS: Final = ["", "1", "-1", "300", "1e39", "1.5", "nan", "x", "true", "2001-01-01", str(2**64), None]


def edges(type: pa.DataType) -> pa.Array:
    """Returns the smallest and the largest value of `type`, those around powers of two, special ones, and null."""
    if pa.types.is_boolean(type):
        return pa.array([True, False, None])
    if pa.types.is_string(type):
        return pa.array(_TEXTS, type)
    if pa.types.is_decimal(type):
        return _decimals(type)
    values = _floats(type) if pa.types.is_floating(type) else _stored(type)
    valid = np.packbits([*[1] * len(values), 0], bitorder="little")
    buffers = [pa.py_buffer(valid), pa.py_buffer(np.append(values, values[:1]))]
    return pa.Array.from_buffers(type, len(values) + 1, buffers)


def _floats(type: pa.DataType) -> np.ndarray:
    dtype = np.dtype(f"f{type.bit_width // 8}")
    limits = np.finfo(dtype)
    special = [0.0, -0.0, 0.5, -1.5, 2.5, 0.1, 1e39, np.nan, np.inf, -np.inf]
    own = [limits.max, limits.min, limits.tiny, limits.smallest_subnormal]
    around = [sign * float(2**power + step) for power in _POWERS for step in (-1, 0, 1) for sign in (1, -1)]
    with np.errstate(over="ignore"):
        return np.array([*special, *own, *around, 1.0, -1.0], np.float64).astype(dtype)


def _stored(type: pa.DataType) -> np.ndarray:
    dtype = numpy_dtype(type)
    assert dtype is not None
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if pa.types.is_time(type):
        low, high = 0, _DAY * _PER_SECOND[type.unit] - 1
    if getattr(type, "unit", None) == "s" and not pa.types.is_time(type):
        # Polars counts in milliseconds.
        low, high = -(2**63 // 1000), 2**63 // 1000
    near = [0, 1, -1, 2, 7, 100, _DAY, -_DAY, _DAY * 1000, -_DAY * 1000 - 1]
    around = [sign * 2**power + step for power in (*_POWERS, 64) for step in (-1, 0, 1) for sign in (1, -1)]
    found = {low, low + 1, high - 1, high, *near, *around}
    return np.array(sorted(value for value in found if low <= value <= high), dtype)


def _decimals(type: pa.DataType) -> pa.Array:
    one, top = 10**type.scale, 10**type.precision - 1
    digits = [0, 1, one, 15, 25, 55, 127 * one, 128 * one, 2**24 + 1]
    digits += [2**31 * one, 2**53 + 1, 2**63 * one, top]
    with decimal.localcontext(prec=60):
        found = [
            Decimal(sign * part).scaleb(-type.scale) for part in digits if part <= top for sign in (1, -1)
        ]
    return pa.array([*found, None], type)
