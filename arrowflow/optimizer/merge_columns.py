"""Neighbouring column operators and filters as one program: one pass over each chunk, no column made in vain."""

from __future__ import annotations

from arrowflow.ops.columns import ColumnOperator
from arrowflow.plan.node import Node


def merge_columns(plan: Node) -> Node:
    """Replaces each run of column operators by one `Columns`; the topmost operator of a run takes the others in."""
    if isinstance(plan, ColumnOperator) and plan.inputs[0].schema is not None:
        merged = plan.merged()
        inputs = tuple(merge_columns(child) for child in merged.inputs)
        return plan if merged == plan and inputs == plan.inputs else merged.on(*inputs)
    inputs = tuple(merge_columns(child) for child in plan.inputs)
    same = all(new is old for new, old in zip(inputs, plan.inputs, strict=True))
    return plan if same else plan.on(*inputs)
