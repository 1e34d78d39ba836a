"""The one table of types: the arrowflow type of a column from an engine or a file.

Engines disagree about the width of offsets and about views (Polars writes every text as `large_string`). So their
results are normalised to one spelling. Columns that no expression writes are never touched.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeGuard

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from arrowflow.errors import DataError, PlanError, SchemaError, shown
from arrowflow.lazy import compute as pc
from arrowflow.workarounds.codes import has_dictionary, masked

Array = npt.NDArray[Any]

# The keys are ids: the hash of a type is the hash of its text, made anew each time.
_FLAT: Final[dict[int, pa.DataType]] = {
    pa.string_view().id: pa.string(),
    pa.large_string().id: pa.string(),
    pa.binary_view().id: pa.binary(),
    pa.large_binary().id: pa.binary(),
}

WITHOUT_ARRAYS: Final = (pa.lib.Type_INTERVAL_MONTHS, pa.lib.Type_INTERVAL_DAY_TIME)
"""The ids of types for which pyarrow has no arrays; pyarrow itself only says `KeyError: 21`."""

_INTEGERS: Final = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FIXED: Final[dict[int, np.dtype[Any]]] = {
    **{getattr(pa, name)().id: np.dtype(name) for name in (*_INTEGERS, "float16", "float32", "float64")},
    pa.bool_().id: np.dtype(np.bool_),
    pa.date32().id: np.dtype(np.int32),
    pa.date64().id: np.dtype(np.int64),
}

VIEWS: Final[Mapping[int, tuple[pa.DataType, type[np.generic]]]] = {
    pa.string().id: (pa.string_view(), np.int32),
    pa.binary().id: (pa.binary_view(), np.int32),
    pa.large_string().id: (pa.string_view(), np.int64),
    pa.large_binary().id: (pa.binary_view(), np.int64),
}
"""For the number of each type of texts its type of views, and the type of its offsets; types of users have no hash."""

_UNTYPED: Final = {b"arrowflow.untyped": b""}


class UntypedError(Exception):
    """A question for types was asked of columns whose names alone are known."""


def untyped(names: Sequence[str]) -> pa.Schema:
    """Returns a schema of columns whose types are not known."""
    return pa.schema([(name, pa.null()) for name in names], metadata=_UNTYPED)


def is_untyped(schema: pa.Schema) -> bool:
    """Returns whether only the names of the columns are known, so that a check of their types has to wait."""
    return bool(schema.metadata == _UNTYPED)


def normalise(type: pa.DataType) -> pa.DataType:
    """Returns the type that a column of `type` has inside a pipeline.

    Views and large offsets become the plain `string`, `binary` and `list`. Dictionaries and run-end encoded columns
    become their values. Nested types are normalised inside. Every other type stays.

    Examples:
        >>> import pyarrow as pa
        >>> print(normalise(pa.large_list(pa.string_view())))
        list<item: string>
        >>> print(normalise(pa.dictionary(pa.int8(), pa.large_string())))
        string
    """
    if isinstance(type, pa.BaseExtensionType):
        return type
    flat = _FLAT.get(type.id)
    if flat is not None:
        return flat
    if pa.types.is_dictionary(type) or pa.types.is_run_end_encoded(type):
        return normalise(type.value_type)
    if pa.types.is_nested(type):
        return _normalise_nested(type)
    return type


def _normalise_nested(type: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_list(type):
        return pa.list_(_normalise_field(type.value_field), type.list_size)
    if pa.types.is_struct(type):
        return pa.struct([_normalise_field(field) for field in type.fields])
    if pa.types.is_map(type):
        return pa.map_(normalise(type.key_type), normalise(type.item_type))
    if pa.types.is_union(type):
        return type
    return pa.list_(_normalise_field(type.value_field))


def _normalise_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, normalise(field.type))


ENUM_VALUES: Final = b"enum_values"
"""Key in the metadata of a field under which the values of an enum lie, as a JSON list: code i stands for the i-th."""

POLARS_VALUES: Final = b"_PL_ENUM_VALUES2"
"""Polars' key for the same values: each comes as the number of its bytes, a semicolon and its bytes."""


def declared_values(field: pa.Field) -> list[str] | None:
    """Returns the values of an enum inside a pipeline; None for other fields."""
    text = (field.metadata or {}).get(ENUM_VALUES)
    found: list[str] | None = None if text is None else json.loads(text)
    return found


def enum_field(name: str, values: Sequence[str]) -> pa.Field:
    """Returns the field of an enum of these values, which Polars reads as its own Enum."""
    fits = (type for type in (pa.uint8(), pa.uint16()) if len(values) < 1 << type.bit_width)  # as in Polars
    metadata = {
        ENUM_VALUES: json.dumps(list(values), ensure_ascii=False),
        POLARS_VALUES: b"".join(b"%d;%s" % (len(value), value) for value in map(str.encode, values)),
    }
    return pa.field(name, pa.dictionary(next(fits, pa.uint32()), pa.string()), metadata=metadata)


def arrow_type(value: object, *, operator: str) -> pa.DataType | pl.Enum:
    """Returns a type of pyarrow or of Polars as the type that columns have here; an Enum stays an Enum.

    Raises:
        PlanError: `value` is no such type, or its codes would depend on the data.

    Examples:
        >>> import polars as pl, pyarrow as pa
        >>> arrow_type(pl.Float32, operator="cast"), arrow_type(pa.string_view(), operator="cast")
        (DataType(float), DataType(string))
    """
    if isinstance(value, pl.Enum):
        return value
    if isinstance(value, pa.DataType) and not pa.types.is_dictionary(value):
        return normalise(value)
    if isinstance(value, pa.DataType) or value is pl.Enum or _is_categorical(value):
        raise PlanError(
            f"{operator}: the codes of {value} would depend on the data; take pl.Enum([…]), which lists its values"
        )
    if is_polars_type(value):
        return normalise(pl.Series([], dtype=value).to_arrow().type)
    dtype = _as_dtype(value)
    if dtype is not None:
        return normalise(pa.from_numpy_dtype(dtype))
    raise PlanError(
        f'{operator}: expected a type of pyarrow, Polars or NumPy, such as pa.float32(), pl.Float32 or "float32", got '
        f"{shown(value)}"
    )


def is_polars_type(value: object) -> TypeGuard[pl.DataType | type[pl.DataType]]:
    """Returns whether a value is a type of Polars, or a class of such types."""
    return isinstance(value, pl.DataType) or (isinstance(value, type) and issubclass(value, pl.DataType))


def _is_categorical(value: object) -> bool:
    return value is pl.Categorical or isinstance(value, pl.Categorical)


def _as_dtype(value: Any) -> np.dtype[Any] | None:
    """Returns the number dtype that a value names, or None; `"float"` has 32 bits in Arrow and 64 in NumPy."""
    if isinstance(value, np.dtype):
        found: np.dtype[Any] | None = value
    elif isinstance(value, type) and issubclass(value, np.generic):
        found = np.dtype(value)
    elif not isinstance(value, str):  # an expression would make an expression of `==`
        found = None
    else:
        codes = np.typecodes["AllInteger"] + "?efd"
        found = next((np.dtype(code) for code in codes if np.dtype(code).name == value), None)
    return found if found is not None and found.kind in "biuf" and found.itemsize <= 8 else None


def convert(array: pa.Array, type: pa.DataType) -> pa.Array:
    """Returns `array` as `type`, which is the result of `normalise` for the array's own type.

    Raises:
        DataError: The values need offsets that `type` does not have (2 GiB of text in one array), or codes lie
            outside of their dictionary.
        SchemaError: Arrow cannot decode such a type inside of another type.
    """
    if array.type.equals(type):
        return array
    try:
        try:
            return _convert(array, type)
        except pa.ArrowIndexError:
            return _convert(masked(array), type)
    except (pa.ArrowInvalid, pa.ArrowIndexError) as error:
        raise DataError(
            f"{array.type} does not fit {type} in one chunk of {len(array)} rows: {error}"
        ) from error
    except pa.ArrowNotImplementedError as error:
        raise SchemaError(f"cannot take {array.type} as {type} ({error}); cast the column first") from error


def _convert(array: pa.Array, type: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(array.type) and not pa.types.is_dictionary(type):
        # `dictionary_decode` cannot take from views, which Polars makes.
        array = convert(array.dictionary, type).take(array.indices)
    elif pa.types.is_run_end_encoded(array.type):
        if has_dictionary(array.type):  # a type that Arrow cannot repeat
            values = convert(array.values, normalise(array.type.value_type))
            runs = pa.RunEndEncodedArray.from_arrays(array.run_ends, values)
            array = runs.slice(array.offset, len(array))
        array = pc.run_end_decode(array)
    return array if array.type.equals(type) else array.cast(type)


def numpy_dtype(type: pa.DataType) -> np.dtype[Any] | None:
    """Returns the NumPy type of one stored value of `type`, or None if its values have no fixed width.

    Temporal types give their stored integer type. Decimals of up to 18 digits give the type of their low 64 bits.
    """
    dtype = FIXED.get(type.id)
    if dtype is not None or isinstance(type, pa.BaseExtensionType):
        return dtype
    if pa.types.is_temporal(type) and type.bit_width in (32, 64) and not pa.types.is_interval(type):
        return np.dtype(np.int32 if type.bit_width == 32 else np.int64)
    if pa.types.is_decimal128(type) and type.precision <= 18:
        return np.dtype(np.int64)
    return None


def is_string(type: pa.DataType) -> bool:
    """Returns whether values of a type are texts, whatever the width of their offsets."""
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type))


def is_list(type: pa.DataType) -> bool:
    """Returns whether a type is one of lists, of any length or of a fixed size."""
    return bool(pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type))


def is_number(type: pa.DataType) -> bool:
    """Returns whether `type` is an integer or floating-point type that NumPy and both engines compute with."""
    return bool(pa.types.is_integer(type) or type in (pa.float32(), pa.float64()))


def scalar(value: Any, type: pa.DataType, given: pa.DataType | None = None) -> pa.Scalar:
    """Returns `value` as an Arrow scalar of `type`, without the import of pandas that `pa.scalar` makes.

    With a temporal type `given`, `value` is the stored integer.

    Raises:
        PlanError: `type` cannot hold `value`.
    """
    if given is None and isinstance(value, int | float | str):  # for ten thousand columns it is one value
        return _remembered_scalar(_Value(repr(value), value, type))
    return _scalar(value, type, given)


@dataclass(frozen=True, slots=True)
class _Value:
    """A value, by its text: 0, 0.0, -0.0 and False are equal, but not the same."""

    text: str
    value: object = field(compare=False)
    type: pa.DataType = field(hash=False)  # types that users write in Python have no hash


@lru_cache(maxsize=64)
def _remembered_scalar(wanted: _Value) -> pa.Scalar:
    return _scalar(wanted.value, wanted.type, None)


def _scalar(value: Any, type: pa.DataType, given: pa.DataType | None) -> pa.Scalar:
    if pa.types.is_decimal(type) and isinstance(value, int):
        value = decimal.Decimal(value)  # pyarrow refuses to make a small decimal of a 64-bit integer
    try:
        if given is not None and pa.types.is_temporal(given):
            return temporal_array(value, given).cast(type)[0]
        series = pl.Series("", [value], strict=True)
        if series.dtype == pl.Null and value is not None:
            raise TypeError(f"no column can hold it: {shown(value)}")
        found = convert(series.to_arrow(), normalise(series.to_arrow().type)).cast(type)[0]
        if _loses(value, found):
            raise ValueError(f"it would become {found}")
        return found
    except (
        TypeError,
        ValueError,
        OverflowError,
        RuntimeError,
        pa.ArrowException,
        pl.exceptions.PolarsError,
    ) as error:
        raise PlanError(f"{shown(value)} cannot be a value of type {type}: {error}") from error


def _loses(value: Any, found: pa.Scalar) -> bool:
    """Returns whether `found` has lost a part of `value`: neither Polars nor pyarrow reports such a loss."""
    if pa.types.is_floating(found.type) and found.is_valid:
        number = value if isinstance(value, int | float | decimal.Decimal) else 0
        return math.isinf(found.as_py()) and not math.isinf(number)
    if isinstance(value, datetime.datetime) and pa.types.is_date(found.type):
        return value.time() != datetime.time()
    # Pandas' moments and spans are subclasses of Python's, whose fields hold no nanoseconds.
    return bool(getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0))


def exact_values(array: pa.Array) -> list[Any]:
    """Returns the values as Python objects that hold them exactly: times as their stored integers.

    Python's own times end with the year 9999 and at microseconds, and times in nanoseconds would import pandas. Text
    that is not UTF-8 is returned as bytes.

    Examples:
        >>> import pyarrow as pa
        >>> exact_values(pa.array([2**40, None]).cast(pa.timestamp("s")))
        [1099511627776, None]
    """
    type = array.type
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return [exact_values(item.values) if item.is_valid else None for item in array]
    if pa.types.is_temporal(type) and not pa.types.is_interval(type):
        array = array.view(pa.int32() if type.bit_width == 32 else pa.int64())
    try:
        found: list[Any] = array.to_pylist()
    except UnicodeDecodeError:
        found = array.cast(pa.binary()).to_pylist()
    return found


def temporal_array(value: int, type: pa.DataType) -> pa.Array:
    """Returns an array of the one value of the temporal `type` that is stored as the integer `value`."""
    return pa.Array.from_buffers(type, 1, [None, pa.py_buffer(np.array([value], numpy_dtype(type)))])


_ORDERED: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_decimal128,
    pa.types.is_date32,
    pa.types.is_timestamp,
)


def is_ordered(type: pa.DataType) -> bool:
    """Returns whether bounds of a column of `type` rule values out, by the order of all engines."""
    return any(test(type) for test in _ORDERED)


_READABLE: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_duration,
    pa.types.is_time,
    pa.types.is_decimal128,
    pa.types.is_null,
)


def polars_reads(type: pa.DataType) -> bool:
    """Returns whether Polars can take a column of `type`; for other types Polars panics instead of raising."""
    if isinstance(type, pa.BaseExtensionType):
        return False
    if pa.types.is_dictionary(type):
        return polars_reads(type.value_type)
    if pa.types.is_struct(type):
        return all(polars_reads(field.type) for field in type.fields)
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type):
        return polars_reads(type.value_type)
    return any(reads(type) for reads in _READABLE)
