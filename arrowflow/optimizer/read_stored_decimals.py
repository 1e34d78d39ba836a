"""Decimals that only arithmetic reads are decoded as the integers that the file stores, at half the bytes."""

from __future__ import annotations

from arrowflow.ops.columns.column_program import ColumnOperator
from arrowflow.ops.sources.files.read import Read
from arrowflow.plan.node import Node
from arrowflow.plan.walk import rebuild


def read_stored_decimals(plan: Node) -> Node:
    """Tells sources which decimals the column operators right after them do not need as decimals."""
    return rebuild(plan, _tell)


def _tell(node: Node) -> Node:
    if not isinstance(node, ColumnOperator) or node.inputs[0].schema is None:
        return node
    stored = node.stored_columns(node.inputs[0].schema)
    source = node.inputs[0]
    told = source.with_stored(stored) if stored and isinstance(source, Read) else None
    return node if told is None else node.on(told)
