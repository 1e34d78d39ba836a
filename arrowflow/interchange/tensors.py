"""Tensor columns of other libraries as `arrow.fixed_shape_tensor`: views, since all store values one after another.

`datasets` (`Array2D` and so on) stores nested lists, Ray Data one list; both have an extension type with a
`shape`.
"""

from __future__ import annotations

import math

import pyarrow as pa

from arrowflow.errors import DataError
from arrowflow.interchange.to_numpy import is_ragged


def tensor_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the schema of the result of `tensor_table` for a table with `schema`."""
    return pa.schema([pa.field(field.name, _tensor(field.type) or field.type) for field in schema])


def tensor_table(table: pa.Table) -> pa.Table:
    """Returns a table whose tensor columns have the type that every loader knows.

    Raises:
        DataError: A tensor is null, or has another number of values than its type says.
    """
    schema = tensor_schema(table.schema)
    columns = [
        column if column.type == field.type else _converted(field, column)
        for field, column in zip(schema, table.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _tensor(type: pa.DataType) -> pa.DataType | None:
    if not isinstance(type, pa.ExtensionType):  # an extension type that is written in Python
        return None
    shape = getattr(type, "shape", None)
    if not shape or not all(isinstance(size, int) and size > 0 for size in shape):
        return None
    values = type.storage_type
    while is_ragged(values):
        values = values.value_type
    return pa.fixed_shape_tensor(values, list(shape))


def _converted(field: pa.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    size = math.prod(field.type.shape)
    chunks = []
    for chunk in column.chunks:
        flat = chunk.storage
        while is_ragged(flat.type):
            flat = flat.flatten()
        if chunk.null_count or len(flat) != len(chunk) * size:
            raise DataError(
                f"column {field.name!r}: expected {len(chunk)} tensors of shape {tuple(field.type.shape)} without nulls, "
                f"found {len(flat)} values and {chunk.null_count} nulls; leave such rows out first"
            )
        storage = pa.FixedSizeListArray.from_arrays(flat, type=field.type.storage_type)
        chunks.append(pa.ExtensionArray.from_storage(field.type, storage))
    return pa.chunked_array(chunks, type=field.type)
