"""Casts at the scan: `schema=` takes columns of other types, as long as no value loses anything.

Types that differ in the width of their offsets alone need none: texts, bytes and lists, whose writers choose it as they like.

pyarrow's safe cast alone lets some losses pass: `0.1` as float32, `5` as a boolean, a time as its day. So the values are
cast back and compared.
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from arrowflow.errors import DataError, SchemaError
from arrowflow.types import polars_reads

_REFUSALS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


def check_scale(type: pa.DataType) -> None:
    """Raises `SchemaError` for a scale that only a corrupt file has: pyarrow ends the process where it casts such numbers."""
    if abs(type.scale) > {32: 9, 64: 18, 128: 38, 256: 76}[type.bit_width]:  # digits by bits
        raise SchemaError(
            f"no decimal has the scale {type.scale} ({type}); the file is corrupt: write it anew"
        )


def casts(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Returns whether pyarrow casts values of `found` to `wanted` and back, if the values allow it.

    Examples:
        >>> import pyarrow as pa
        >>> casts(pa.float64(), pa.int32()), casts(pa.int32(), pa.list_(pa.int32()))
        (True, False)
    """
    are_decimals = pa.types.is_decimal(found) and pa.types.is_decimal(wanted)
    if are_decimals and abs(found.scale - wanted.scale) > 38:
        return False  # beyond so many powers of ten pyarrow casts to wrong decimals, without an error
    try:
        pa.nulls(0, found).cast(wanted).cast(found)
    except (*_REFUSALS, KeyError):  # pyarrow has no arrays of some types, and says `KeyError: 21`
        return False
    return True


def cast_exactly(name: str, array: pa.Array, type: pa.DataType, first_row: int = 0) -> pa.Array:
    """Returns the values of column `name` as `type`.

    Raises:
        DataError: A value cannot be of this type, or would lose something; names the first such value and its row,
            where the array begins with row `first_row`.

    Examples:
        >>> import pyarrow as pa
        >>> cast_exactly("x", pa.array([1.0, None]), pa.int64()).to_pylist()
        [1, None]
    """
    found = _exact(array, type)
    if found is not None:
        return found
    low, high = 0, len(array)  # the first of these rows that does not fit lies in low:high
    while high - low > 1:  # `bisect` would cast all rows from the first one on in each step
        middle = (low + high) // 2
        if _exact(array.slice(low, middle - low), type) is None:
            high = middle
        else:
            low = middle
    raise DataError(
        f"column {name!r}: {_text(array.slice(low, 1))} ({array.type}) in row {first_row + low} cannot be {type} without loss; give schema= "
        "a type that holds all values, or read this file by a dataset of its own and cast there"
    )


def _text(array: pa.Array) -> str:
    """Returns the only value of an array as text, without pandas where that is possible."""
    try:
        return str(array.cast(pa.string())[0])
    except _REFUSALS:
        return str(array[0])


def _exact(array: pa.Array, type: pa.DataType) -> pa.Array | None:
    """Returns the values as `type`, or None if one of them would lose something."""
    try:
        found = array.cast(type)
        back = found.cast(array.type)
    except _REFUSALS:
        return None
    # Of Polars alone NaN is equal to NaN.
    same = array.equals(back) or (polars_reads(array.type) and pl.Series(array).equals(pl.Series(back)))
    return found if same else None


def has_same_values(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Returns whether types differ in the width of offsets alone. Of values that need wide ones, batches hold fewer rows.

    Examples:
        >>> import pyarrow as pa
        >>> has_same_values(pa.large_list(pa.string()), pa.list_(pa.large_string())), has_same_values(pa.int8(), pa.int16())
        (True, False)
    """
    return found == wanted or bool(_narrow(found) == _narrow(wanted))


def _narrow(type: pa.DataType) -> pa.DataType:
    """Returns the type with narrow offsets."""
    if pa.types.is_large_string(type):
        return pa.string()
    if pa.types.is_large_binary(type):
        return pa.binary()
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return pa.list_(_narrow(type.value_type))
    if pa.types.is_fixed_size_list(type):
        return pa.list_(_narrow(type.value_type), type.list_size)
    if pa.types.is_struct(type):
        return pa.struct([(field.name, _narrow(field.type)) for field in type.fields])
    if pa.types.is_map(type):
        return pa.map_(_narrow(type.key_type), _narrow(type.item_type), keys_sorted=type.keys_sorted)
    return type
