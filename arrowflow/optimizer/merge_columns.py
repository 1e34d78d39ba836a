"""Neighbouring column operators and filters as one program: one pass over each chunk, no column made in vain."""

from __future__ import annotations

from arrowflow.ops.columns.column_program import ColumnOperator, Columns
from arrowflow.plan.node import Node
from arrowflow.plan.walk import with_inputs


def merge_columns(plan: Node) -> Node:
    """Replaces each run of column operators by one `Columns`; the topmost operator of a run takes the others in."""
    node = plan
    if isinstance(plan, ColumnOperator) and plan.inputs[0].schema is not None:
        alone = isinstance(plan, Columns) and not isinstance(plan.inputs[0], ColumnOperator)
        node = plan if alone else plan.merged()
    return with_inputs(node, tuple(merge_columns(child) for child in node.inputs))
