"""Bytes that a row takes, as its schema tells: what byte budgets are checked against before anything is read."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

UNTOLD_BYTES = 64
"""Assumed size of a text or a list of which only the type is known."""


def row_bytes(schema: pa.Schema | None) -> int:
    """Returns the bytes of one row that its schema alone tells; of texts and lists only the offsets count.

    Examples:
        >>> row_bytes(pa.schema({"x": pa.float32(), "y": pa.list_(pa.int64(), 3), "s": pa.string()}))
        32
    """
    return 0 if schema is None else -(-sum(type_bits(type) for type in schema.types) // 8)


class RowWidth(NamedTuple):
    """Bytes of a row of the plan as written, by which outputs are cut: what rules leave out must not move a border.

    Attributes:
        num_bytes: By the schema; 0 where that is unknown.
        exact: Whether all columns have a fixed width. Else rows that turn out to be wider count as what they are.
    """

    num_bytes: int = 0
    exact: bool = False

    def rows_in(self, num_bytes: int, measured_bytes: int, measured_rows: int) -> int:
        """Returns how many rows take so many bytes, at least 1, given what some of them took.

        Examples:
            >>> RowWidth(8, exact=True).rows_in(800, 1600, 100), RowWidth(8).rows_in(800, 1600, 100)
            (100, 50)
        """
        width = self.num_bytes if self.exact else max(self.num_bytes, -(-measured_bytes // measured_rows))
        return max(1, num_bytes // max(1, width))


def row_width(schema: pa.Schema | None) -> RowWidth:
    """Returns what a row of a schema takes.

    Examples:
        >>> row_width(pa.schema({"x": pa.float32(), "s": pa.string()}))
        RowWidth(num_bytes=72, exact=False)
    """
    if schema is None:
        return RowWidth()
    untold = sum(not is_fixed(type) for type in schema.types)
    return RowWidth(row_bytes(schema) + untold * UNTOLD_BYTES, exact=not untold)


def is_fixed(type: pa.DataType) -> bool:
    """Returns whether all values of a type take as many bytes."""
    if isinstance(type, pa.BaseExtensionType):
        return is_fixed(type.storage_type)
    if pa.types.is_fixed_size_list(type) or pa.types.is_struct(type):
        return all(is_fixed(type.field(index).type) for index in range(type.num_fields))
    try:
        return type.bit_width >= 0
    except ValueError:
        return False


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


def holds_bytes(type: pa.DataType) -> bool:
    """Returns whether values of a type are bytes, or hold some.

    Examples:
        >>> holds_bytes(pa.struct({"bytes": pa.binary(), "path": pa.string()})), holds_bytes(pa.string())
        (True, False)
    """
    if isinstance(type, pa.BaseExtensionType):
        return holds_bytes(type.storage_type)
    inside = (type.field(index).type for index in range(type.num_fields))
    return pa.types.is_binary(type) or pa.types.is_large_binary(type) or any(map(holds_bytes, inside))
