"""`take` and `skip` by footers: what they leave out is not read."""

from __future__ import annotations

from arrowflow.plan.node import Node
from arrowflow.plan.walk import rebuild


def limit_reads(plan: Node) -> Node:
    """Moves row ranges into the source, where only one-to-one operators lie between."""
    return rebuild(plan, _limit)


def _limit(node: Node) -> Node:
    if node.row_range is None:
        return node
    start, stop = node.row_range
    return _ranged(node.inputs[0], start, stop) or node


def _ranged(node: Node, start: int, stop: int | None) -> Node | None:
    if not node.inputs:
        return node.with_row_range(start, stop)
    if node.traits.one_to_one and not node.traits.opaque:
        child = _ranged(node.inputs[0], start, stop)
        return None if child is None else node.on(child)
    return None
