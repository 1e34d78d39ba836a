"""Types that differ in the width of their offsets alone: texts, bytes and lists, whose writers choose it as they like."""

from __future__ import annotations

import pyarrow as pa


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
