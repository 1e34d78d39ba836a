"""Codes of dictionaries beneath nulls, which may lie outside of their dictionary."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from arrowflow.workarounds.slices import rebased


def has_dictionary(type: pa.DataType) -> bool:
    """Returns whether a type is a dictionary, or has one inside.

    Examples:
        >>> has_dictionary(pa.list_(pa.dictionary(pa.int8(), pa.string())))
        True
    """
    if isinstance(type, pa.BaseExtensionType):
        return has_dictionary(type.storage_type)
    if pa.types.is_dictionary(type):
        return True
    if pa.types.is_run_end_encoded(type):
        return has_dictionary(type.value_type)
    return any(has_dictionary(type.field(index).type) for index in range(type.num_fields))


def masked(array: pa.Array) -> pa.Array:
    """Returns an array whose codes are null wherever a struct or list of fixed size around them is null.

    pyarrow puts code 0 beneath a null, even for an empty dictionary. It can then neither decode nor validate its own
    array (pyarrow 22 to 26). Codes that are out of range and not beneath a null stay.

    Examples:
        >>> rows = pa.array([None], pa.struct([("x", pa.dictionary(pa.int8(), pa.string()))]))
        >>> masked(rows).field(0).indices.to_pylist()
        [None]
    """
    type = array.type
    if not has_dictionary(type):
        return array
    if isinstance(type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type, masked(array.storage))
    if pa.types.is_dictionary(type):
        values = masked(array.dictionary)
        return pa.DictionaryArray.from_arrays(array.indices, values, ordered=type.ordered, safe=False)
    if pa.types.is_struct(type):
        children = [masked(child) for child in array.flatten()]
        return pa.StructArray.from_arrays(children, fields=list(type), mask=array.is_null())
    if pa.types.is_fixed_size_list(type):
        values = masked(_beneath(array))
        return pa.FixedSizeListArray.from_arrays(values, type=type, mask=array.is_null())
    if pa.types.is_map(type):
        fields = [type.key_field, type.item_field]
        return _around(
            array, pa.StructArray.from_arrays([masked(array.keys), masked(array.items)], fields=fields)
        )
    if pa.types.is_run_end_encoded(type) or pa.types.is_union(type):
        return array  # no null surrounds their values
    return _around(array, masked(array.values))


def _around(array: pa.Array, values: pa.Array) -> pa.Array:
    """Returns lists or a map with other values."""
    own = array.buffers()[: 3 if _is_view(array.type) else 2]
    return pa.Array.from_buffers(array.type, len(array), own, array.null_count, array.offset, [values])


def _is_view(type: pa.DataType) -> bool:
    return pa.types.is_list_view(type) or pa.types.is_large_list_view(type)


def _beneath(array: pa.Array) -> pa.Array:
    """Returns the values of lists of fixed size, null where the lists are null."""
    size = array.type.list_size
    values = array.values.slice(array.offset * size, len(array) * size)
    if not array.null_count:
        return values
    valid = np.frombuffer(array.is_valid().cast(pa.uint8()).buffers()[1], np.uint8, len(array))
    valid = np.repeat(valid, size)
    places = [pa.py_buffer(np.packbits(valid, bitorder="little")), pa.py_buffer(np.arange(len(values)))]
    return rebased(values).take(pa.Array.from_buffers(pa.int64(), len(values), places))
