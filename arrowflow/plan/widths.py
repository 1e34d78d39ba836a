"""Bytes that a row takes at least: what byte budgets are checked against before anything is read."""

from __future__ import annotations

import pyarrow as pa


def row_bytes(schema: pa.Schema | None) -> int:
    """Returns the bytes of one row that its schema alone tells; of texts and lists only the offsets count.

    Example:
        >>> row_bytes(pa.schema({"x": pa.float32(), "y": pa.list_(pa.int64(), 3), "s": pa.string()}))
        32
    """
    return 0 if schema is None else -(-sum(type_bits(type) for type in schema.types) // 8)


def type_bits(type: pa.DataType) -> int:
    """Returns the bits of one value."""
    if isinstance(type, pa.ExtensionType):
        return type_bits(type.storage_type)
    if pa.types.is_fixed_size_list(type):
        return int(type.list_size) * type_bits(type.value_type)
    if pa.types.is_struct(type):
        return sum(type_bits(field.type) for field in type)
    try:
        return int(type.bit_width)
    except ValueError:
        return 64 if str(type).startswith("large_") else 32
