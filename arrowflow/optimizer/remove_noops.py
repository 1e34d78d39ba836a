"""Leaves out what changes nothing: options, `skip(0)`, `repeat(1)`, `shard(1, 0)`, `prefetch(0)`."""

from __future__ import annotations

from arrowflow.plan.node import Node
from arrowflow.plan.walk import rebuild


def remove_noops(plan: Node) -> Node:
    """Replaces each operator that says it is a no-op by its input."""
    return rebuild(plan, lambda node: node.inputs[0] if node.noop else node)
