"""Types that the first values of a file do not tell: there were none, or only empty ones."""

from __future__ import annotations

import pyarrow as pa


def is_unknown(type: pa.DataType) -> bool:
    """Returns whether values tell nothing of a type, or of a part of it: there were none, or only empty ones.

    Examples:
        >>> is_unknown(pa.list_(pa.null())), is_unknown(pa.struct([])), is_unknown(pa.list_(pa.int8()))
        (True, True, False)
    """
    if pa.types.is_struct(type):
        return type.num_fields == 0 or any(is_unknown(each.type) for each in type.fields)
    return pa.types.is_null(type) or (pa.types.is_list(type) and is_unknown(type.value_type))


def with_known(schema: pa.Schema, found: pa.Schema) -> pa.Schema:
    """Returns a schema with the types of others in place of those that are unknown.

    Examples:
        >>> known = with_known(pa.schema({"a": pa.list_(pa.null()), "b": pa.int8()}), pa.schema({"a": pa.list_(pa.bool_())}))
        >>> print(known.field("a").type)
        list<item: bool>
    """
    types = dict(zip(found.names, found.types, strict=True))
    return pa.schema([each.with_type(_known(each.type, types.get(each.name, each.type))) for each in schema])


def _known(type: pa.DataType, found: pa.DataType) -> pa.DataType:
    if pa.types.is_null(type) or type == pa.struct([]):
        return found
    if pa.types.is_struct(type) and pa.types.is_struct(found):
        known = with_known(pa.schema(type.fields), pa.schema(found.fields))
        return pa.struct(list(known))
    if pa.types.is_list(type) and pa.types.is_list(found):
        return pa.list_(_known(type.value_type, found.value_type))
    return type
