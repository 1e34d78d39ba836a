"""Columns that nothing needs are not read, and not carried along."""

from __future__ import annotations

import pyarrow as pa

from arrowflow.expr import Keep, Project
from arrowflow.ops.columns.column_program import Columns
from arrowflow.plan.node import Columns as ColumnNames
from arrowflow.plan.node import Node
from arrowflow.plan.walk import with_inputs
from arrowflow.plan.widths import type_bits


def prune_columns(plan: Node) -> Node:
    """Asks from the consumer down to the sources which columns are needed, and leaves the others out."""
    return _prune(plan, None)


def _prune(node: Node, wanted: ColumnNames) -> Node:
    """Returns the plan with at least the wanted columns; after a source or a user function exactly these."""
    if node.schema is not None:
        names = frozenset(node.schema.names)
        wanted = names if wanted is None else wanted & names or _cheapest(node.schema)
        node = node.narrow(wanted)
    inputs = tuple(
        _prune(child, needed) for child, needed in zip(node.inputs, node.columns_needed(wanted), strict=True)
    )
    node = with_inputs(node, inputs)
    ends_here = not node.inputs or node.traits.opaque
    if ends_here and wanted is not None and node.schema is not None and len(wanted) < len(node.schema):
        keep = Project(tuple((name, Keep(name)) for name in node.schema.names if name in wanted))
        return Columns(listed=(keep,), operators=("select",)).on(node)
    return node


def _cheapest(schema: pa.Schema) -> frozenset[str]:
    """Returns the narrowest column, if there is one: what is read when only the number of rows is wanted."""
    return frozenset(field.name for field in sorted(schema, key=lambda field: type_bits(field.type))[:1])
