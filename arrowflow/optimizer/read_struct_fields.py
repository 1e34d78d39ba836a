"""Structs of which an expression reads single fields are read without the other fields."""

from __future__ import annotations

import pyarrow as pa

from arrowflow.ops.columns.column_program import ColumnOperator
from arrowflow.ops.sources.files.read import Read
from arrowflow.plan.node import Node
from arrowflow.plan.walk import rebuild


def read_struct_fields(plan: Node) -> Node:
    """Tells sources which fields of structs the column operators right after them read."""
    return rebuild(plan, _tell)


def _tell(node: Node) -> Node:
    if not isinstance(node, ColumnOperator) or node.inputs[0].schema is None:
        return node
    schema = node.inputs[0].schema
    found = node.program(schema).struct_fields if any(map(pa.types.is_struct, schema.types)) else {}
    fields = {name: wanted for name, wanted in found.items() if _may_be_cut(schema.field(name).type, wanted)}
    source = node.inputs[0]
    told = source.with_struct_fields(fields) if fields and isinstance(source, Read) else None
    return node if told is None else node.on(told)


def _may_be_cut(type: pa.DataType, wanted: frozenset[str]) -> bool:
    """Whether a type has these fields and others. A dot in a name also separates the names in a path of Parquet."""
    names = {field.name for field in type.fields} if pa.types.is_struct(type) else set()
    return wanted < names and not any("." in name for name in names)
