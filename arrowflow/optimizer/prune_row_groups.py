"""Row groups that provably hold no row for a filter are not read. The filter itself stays where it is."""

from __future__ import annotations

from arrowflow.ops.columns.column_program import ColumnOperator
from arrowflow.ops.sources.files.read import Read
from arrowflow.plan.node import Node
from arrowflow.plan.walk import rebuild


def prune_row_groups(plan: Node) -> Node:
    """Tells sources the predicates of the filters right after them."""
    return rebuild(plan, _push)


def _push(node: Node) -> Node:
    """Moves the predicates of one operator into its source.

    Only the first of a run of column operators comes right after the source. Where the operators were not merged, the
    predicates of the others are simply not used.
    """
    if not isinstance(node, ColumnOperator) or node.inputs[0].schema is None:
        return node
    predicates = node.source_predicates(node.inputs[0].schema)
    source = node.inputs[0]
    told = source.with_predicates(predicates) if predicates and isinstance(source, Read) else None
    return node if told is None else node.on(told)
