"""Ranges of rows (`take` and `skip`) move into the source, where only one-to-one operators lie between."""

from __future__ import annotations

from arrowflow.plan.file_source import FileSource
from arrowflow.plan.node import Node
from arrowflow.plan.walk import rebuild


def push_row_ranges(plan: Node) -> Node:
    """Returns a bound plan whose sources do not read what `take` and `skip` leave out, where that is possible."""
    return rebuild(plan, _pushed)


def _pushed(node: Node) -> Node:
    if node.row_range is None:
        return node
    start, stop = node.row_range
    return _ranged(node.inputs[0], start, stop) or node


def _ranged(node: Node, start: int, stop: int | None) -> Node | None:
    if not node.inputs:
        return node.with_row_range(start, stop) if isinstance(node, FileSource) else None
    if node.traits.one_to_one and not node.traits.opaque:
        child = _ranged(node.inputs[0], start, stop)
        return None if child is None else node.on(child)
    return None
