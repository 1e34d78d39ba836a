"""Types at the scan: decoded types of a file's types, the types that `schema=` may give them, and conversions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow.errors import SchemaError
from arrowflow.formats.casting import cast_exactly, casts, check_scale, has_same_values
from arrowflow.interchange.enums import as_enum, enum_of
from arrowflow.lazy import compute as pc
from arrowflow.types import FIXED, WITHOUT_ARRAYS, is_string

_UNITS: Final = ("s", "ms", "us", "ns")
_MAX_OFFSET: Final = 2**31 - 1

_FLAT: Final = frozenset((*FIXED, pa.timestamp("s").id))
"""Types of fixed width that need no decoding. They come first, since files may have ten thousand columns."""


def decoded_type(type: pa.DataType) -> pa.DataType:
    """Returns the type that a column of `type` is read as.

    Views become the type that they view. Dictionaries and runs become their values, also inside of nested types. The
    children of nested types become nullable. Two files that differ in nothing else thus have the same type.

    Examples:
        >>> import pyarrow as pa
        >>> print(decoded_type(pa.dictionary(pa.int32(), pa.string_view())))
        string
        >>> print(decoded_type(pa.list_(pa.field("element", pa.binary_view(), nullable=False))))
        list<element: binary>
    """
    if type.id in _FLAT:
        return type
    if pa.types.is_string_view(type):
        return pa.string()
    if pa.types.is_binary_view(type):
        return pa.binary()
    if pa.types.is_dictionary(type) or pa.types.is_run_end_encoded(type):
        return decoded_type(type.value_type)
    if pa.types.is_decimal(type):
        check_scale(type)
    if pa.types.is_struct(type):
        return pa.struct([_decoded_field(field) for field in type.fields])
    if pa.types.is_map(type):
        return pa.map_(
            decoded_type(type.key_type), decoded_type(type.item_type), keys_sorted=type.keys_sorted
        )
    if pa.types.is_fixed_size_list(type):
        return pa.list_(_decoded_field(type.value_field), type.list_size)
    if pa.types.is_list(type) or pa.types.is_list_view(type):
        return pa.list_(_decoded_field(type.value_field))
    if pa.types.is_large_list(type) or pa.types.is_large_list_view(type):
        return pa.large_list(_decoded_field(type.value_field))
    return type


def decoded_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the schema that a file of `schema` is read as: decoded types, nullable, with no metadata but of enums."""
    return pa.schema([enum_of(field) or _decoded_field(field) for field in schema])


def _decoded_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, decoded_type(field.type))


def widens(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Returns whether every value of `found` is a value of `wanted`, whatever the data; times may overflow.

    Examples:
        >>> import pyarrow as pa
        >>> widens(pa.int32(), pa.int64()), widens(pa.int64(), pa.float64())
        (True, False)
    """
    if pa.types.is_dictionary(found) and found != wanted:  # an enum
        return widens(found.value_type, wanted)
    if found == wanted or pa.types.is_null(found):
        return True
    if any(rule(found, wanted) for rule in (_widens_number, _widens_decimal, _widens_time, _widens_offsets)):
        return True
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        pairs = zip(found.fields, wanted.fields, strict=False)
        return found.num_fields == wanted.num_fields and all(
            a.name == b.name and widens(a.type, b.type) for a, b in pairs
        )
    return False


def common(first: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Returns a type that both types widen to; None if there is none.

    Examples:
        >>> import pyarrow as pa
        >>> common(pa.int8(), pa.uint8())
        DataType(int16)
        >>> common(pa.uint8(), pa.list_(pa.uint8(), 4))
    """
    types = (first, other, *_unified(first, other))
    return next((type for type in types if widens(first, type) and widens(other, type)), None)


def _unified(first: pa.DataType, other: pa.DataType) -> list[pa.DataType]:
    schemas = [pa.schema({"both": type}) for type in (first, other)]
    try:
        return list(pa.unify_schemas(schemas, promote_options="permissive").types)
    except pa.ArrowException:
        return []


def common_cast(first: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Returns a type that values of both types can be cast to, if they lose nothing; None if there is none.

    Examples:
        >>> import pyarrow as pa
        >>> common_cast(pa.int64(), pa.float64())
        DataType(double)
    """
    candidates = [*_unified(first, other), first, other, pa.string()]
    return next((type for type in candidates if casts(first, type) and casts(other, type)), None)


def _widens_number(found: pa.DataType, wanted: pa.DataType) -> bool:
    if not all(pa.types.is_integer(type) or pa.types.is_floating(type) for type in (found, wanted)):
        return False
    is_rounded = found.bit_width == 64 and pa.types.is_integer(found) and pa.types.is_floating(wanted)
    return np.can_cast(FIXED[found.id], FIXED[wanted.id]) and not is_rounded  # NumPy lets float64 round


def _widens_decimal(found: pa.DataType, wanted: pa.DataType) -> bool:
    return (
        pa.types.is_decimal(found)
        and pa.types.is_decimal(wanted)
        and wanted.bit_width >= found.bit_width
        and wanted.scale >= found.scale
        and wanted.precision - wanted.scale >= found.precision - found.scale
    )


def _widens_time(found: pa.DataType, wanted: pa.DataType) -> bool:
    for same in (pa.types.is_timestamp, pa.types.is_duration, pa.types.is_time):
        if same(found) and same(wanted):
            zones = getattr(found, "tz", None) == getattr(wanted, "tz", None)
            return zones and _UNITS.index(found.unit) <= _UNITS.index(wanted.unit)
    return False


def _widens_offsets(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_string(found) or pa.types.is_binary(found):
        return bool(wanted == (pa.large_string() if pa.types.is_string(found) else pa.large_binary()))
    lists = (pa.types.is_list, pa.types.is_large_list)
    if any(a(found) for a in lists) and any(a(wanted) for a in lists):
        shrinks = pa.types.is_large_list(found) and pa.types.is_list(wanted)
        return not shrinks and widens(found.value_type, wanted.value_type)
    if pa.types.is_fixed_size_list(found) and pa.types.is_fixed_size_list(wanted):
        return bool(found.list_size == wanted.list_size) and widens(found.value_type, wanted.value_type)
    return False


def conform(batch: pa.RecordBatch, schema: pa.Schema, first_row: int = 0) -> Iterator[pa.RecordBatch]:
    """Yields the rows of `batch` with the columns and types of `schema`, null where a column is absent.

    The batch begins with row `first_row` of its split, as errors say.

    Yields one batch, without a copy of columns that already have the right type. If a decoded column would need offsets
    over 2 GiB, the rows are halved until they fit.

    Raises:
        SchemaError: A column has a type for which pyarrow has no arrays.
        DataError: A value loses something in the type that `schema` wants; names the column, the value and the row.
    """
    check_arrays(batch.schema)
    try:
        yield _conform(batch, schema, first_row)
        return
    except (pa.ArrowInvalid, pa.ArrowCapacityError):
        if batch.num_rows < 2 or not any(_has_offsets(type) for type in schema.types):
            raise
    half = batch.num_rows // 2
    for start, part in ((0, batch.slice(0, half)), (half, batch.slice(half))):
        # A cast of a sliced list converts all values of the whole list. A concatenated list has only its own values.
        columns = [pa.concat_arrays([column]) for column in part.columns]
        yield from conform(
            pa.RecordBatch.from_arrays(columns, schema=batch.schema), schema, first_row + start
        )


def _conform(batch: pa.RecordBatch, schema: pa.Schema, first_row: int) -> pa.RecordBatch:
    if not schema.names:
        return pa.RecordBatch.from_struct_array(pa.nulls(batch.num_rows, pa.struct([])))
    same = batch.schema.equals(schema, check_metadata=True)
    if same and not any(map(pa.types.is_dictionary, schema.types)):  # an enum's codes may have another order
        return batch
    found = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns = [
        _conform_column(found[field.name], field, first_row)
        if field.name in found
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _conform_column(array: pa.Array, field: pa.Field, first_row: int) -> pa.Array:
    type = field.type
    if pa.types.is_dictionary(type):
        return as_enum(array, field)
    if array.type == type:
        return array
    decoded = decoded_type(array.type)
    if has_same_values(decoded, type) or (widens(decoded, type) and not pa.types.is_temporal(type)):
        return _convert_checked(array, type)
    array = _convert_checked(array, decoded)
    return array if decoded == type else cast_exactly(field.name, array, type, first_row)


def _convert_checked(array: pa.Array, type: pa.DataType) -> pa.Array:
    if array.type != type and _text_bytes(array) > _MAX_OFFSET:
        raise pa.ArrowCapacityError(f"{len(array)} rows of {array.type} need offsets over 2 GiB as {type}")
    return convert(array, type)


def _text_bytes(array: pa.Array) -> int:
    """Returns an upper bound of the bytes that the texts of views and dictionaries in `array` decode to.

    This check comes first because Arrow decodes past 2 GiB without an error: views in pyarrow 26, dictionaries in 22.
    """
    type = array.type
    if pa.types.is_string_view(type) or pa.types.is_binary_view(type):
        views = np.frombuffer(array.buffers()[1], np.int32)[
            4 * array.offset : 4 * (array.offset + len(array)) : 4
        ]
        return int(np.maximum(views, 0).sum(dtype=np.int64))
    if pa.types.is_dictionary(type) or pa.types.is_run_end_encoded(type):
        values = array.dictionary if pa.types.is_dictionary(type) else array.values
        return len(array) * _longest(values)
    if pa.types.is_struct(type):
        return max((_text_bytes(child) for child in array.flatten()), default=0)
    if pa.types.is_map(type):
        return max(_text_bytes(array.keys), _text_bytes(array.items))
    return _text_bytes(array.flatten()) if pa.types.is_nested(type) and not pa.types.is_union(type) else 0


def _longest(values: pa.Array) -> int:
    if len(values) == 0:
        return 0
    if any(test(values.type) for test in (pa.types.is_string, pa.types.is_binary)):
        return int(pc.max(pc.binary_length(values)).as_py() or 0)
    return _text_bytes(values)


def convert(array: pa.Array, type: pa.DataType) -> pa.Array:
    """Returns `array` as `type`, which is its `decoded_type` or a type that widens it.

    Raises:
        pa.ArrowInvalid: The values need offsets that `type` does not have.
        pa.ArrowNotImplementedError: pyarrow cannot decode such a type inside of another one.
    """
    if array.type == type:
        return array
    if pa.types.is_dictionary(array.type):
        return pc.take(convert(array.dictionary, type), array.indices)  # no kernel takes from views
    if pa.types.is_run_end_encoded(array.type):
        return convert(pc.run_end_decode(array), type)
    if _is_list_view(array.type):
        return _gather_list_view(array, type)
    if has_list_view(array.type):
        raise pa.ArrowNotImplementedError(f"a list_view inside of another type: {array.type}")
    return array.cast(type)


def _is_list_view(type: pa.DataType) -> bool:
    return pa.types.is_list_view(type) or pa.types.is_large_list_view(type)


def has_list_view(type: pa.DataType) -> bool:
    """Returns whether a type is a list view, or has a list view inside."""
    return _is_list_view(type) or any(map(has_list_view, _children(type)))


def _children(type: pa.DataType) -> list[pa.DataType]:
    return [type.field(index).type for index in range(type.num_fields)]


def _gather_list_view(array: pa.Array, type: pa.DataType) -> pa.Array:
    """Copies the lists one after the other; `cast` makes lists that lack their last offset (pyarrow 22 to 26)."""
    lengths = pl.Series(pc.list_value_length(array))  # `pc.fill_null` with a number would import pandas
    width = np.int32 if pa.types.is_list(type) else np.int64
    counts = lengths.fill_null(0).to_numpy()
    total = int(counts.sum(dtype=np.int64))
    if total > np.iinfo(width).max:
        raise pa.ArrowCapacityError(f"{len(array)} lists of {total} values need offsets over 2 GiB")
    offsets = np.zeros(len(array) + 1, width)
    np.cumsum(counts, out=offsets[1:])
    buffers = [array.is_valid().buffers()[1], pa.py_buffer(offsets)]
    values = convert(array.flatten(), type.value_type)
    return pa.Array.from_buffers(type, len(array), buffers, array.null_count, children=[values])


def check_arrays(schema: pa.Schema) -> None:
    """Raises `SchemaError` for a type without arrays in pyarrow, whose own message is only `KeyError: 21`."""
    for name, type in zip(schema.names, schema.types, strict=True):
        if any(leaf.id in WITHOUT_ARRAYS for leaf in leaf_types(type)):
            raise SchemaError(
                f"column {name!r} has type {type}, of which pyarrow has no arrays; leave it out (`drop`, `select`), or "
                "write it anew as a duration or month_day_nano_interval"
            )


def check_texts(batch: pa.RecordBatch) -> None:
    """Raises `pa.ArrowInvalid` for a text that is no UTF-8.

    Polars trusts texts, and pyarrow's readers do not check them. The check costs 0.4 ms a MiB, a fifth of the time to
    decode the text from Parquet.
    """
    for index, type in enumerate(batch.schema.types):
        if type.id not in _FLAT and any(is_string(leaf) for leaf in leaf_types(type)):
            batch.column(index).validate(full=True)


def _has_offsets(type: pa.DataType) -> bool:
    """Returns whether a column of `type` has 32-bit offsets: a smaller batch then needs smaller offsets."""
    if any(
        test(type) for test in (pa.types.is_string, pa.types.is_binary, pa.types.is_list, pa.types.is_map)
    ):
        return True
    return any(_has_offsets(child) for child in _children(type))


def leaf_types(type: pa.DataType) -> list[pa.DataType]:
    """Returns the types of the leaves of a column, in Parquet's order.

    Examples:
        >>> import pyarrow as pa
        >>> leaf_types(pa.map_(pa.string(), pa.list_(pa.int8())))
        [DataType(string), DataType(int8)]
    """
    if type.id in _FLAT:
        return [type]
    if isinstance(type, pa.BaseExtensionType):
        return leaf_types(type.storage_type)
    if pa.types.is_map(type):
        return leaf_types(type.key_type) + leaf_types(type.item_type)
    if pa.types.is_struct(type):
        return [leaf for field in type.fields for leaf in leaf_types(field.type)]
    if pa.types.is_nested(type) and not pa.types.is_union(type):
        return leaf_types(type.value_type)
    return [type]


def width_bits(type: pa.DataType, validity_bits: int = 1) -> int | None:
    """Returns the bits that one value takes, with its validity bit, or None if that depends on the value.

    Files need not store validity bits: with `validity_bits=0` these are the bits that are there in any case.
    """
    if type.id in _FLAT:
        return int(type.bit_width) + validity_bits
    if isinstance(type, pa.BaseExtensionType):
        return width_bits(type.storage_type, validity_bits)
    if pa.types.is_null(type):
        return 0
    if pa.types.is_fixed_size_list(type):
        inner = width_bits(type.value_type, validity_bits)
        return None if inner is None else inner * int(type.list_size) + validity_bits
    if pa.types.is_struct(type):
        fields: list[Any] = [width_bits(field.type, validity_bits) for field in type.fields]
        return None if None in fields else sum(fields) + validity_bits
    is_packed = pa.types.is_fixed_size_binary(type) or pa.types.is_decimal(type)
    return int(type.bit_width) + validity_bits if pa.types.is_primitive(type) or is_packed else None
