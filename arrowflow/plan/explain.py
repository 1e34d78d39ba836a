"""How plans are shown: one line per operator, sources first, inputs indented before the operator that joins them."""

from __future__ import annotations

from arrowflow.plan.node import Node


def render_plan(node: Node) -> list[str]:
    """Returns one line per operator, in the order in which rows go through them.

    Examples:
        >>> from arrowflow.ops.sources.range import Range
        >>> from arrowflow.ops.rows.take import Take
        >>> render_plan(Take(inputs=(Range(start=0, stop=9, step=1),), count=3))
        ['range(start=0, stop=9, step=1)', 'take(count=3)']
    """
    if len(node.inputs) <= 1:
        before = [line for child in node.inputs for line in render_plan(child)]
    else:
        before = [
            ("- " if number == 0 else "  ") + line
            for child in node.inputs
            for number, line in enumerate(render_plan(child))
        ]
    return [*before, node.describe()]
