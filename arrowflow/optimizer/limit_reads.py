"""`take` and `skip` by footers: what they leave out is not read."""

from __future__ import annotations

from arrowflow.plan.file_source import push_row_ranges
from arrowflow.plan.node import Node


def limit_reads(plan: Node) -> Node:
    """Moves row ranges into the source, where only one-to-one operators lie between."""
    return push_row_ranges(plan)
