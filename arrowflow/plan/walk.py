"""Walks over plans: bottom-up rebuilding and folding, and plans as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import is_
from typing import TypeVar

from arrowflow.plan.node import Count, Node

T = TypeVar("T")


def post_order(node: Node) -> Iterator[Node]:
    """Yields all nodes, inputs before the node that reads them: the numbering of places in a plan."""
    for child in node.inputs:
        yield from post_order(child)
    yield node


def fold(node: Node, combine: Callable[[Node, Sequence[T]], T]) -> T:
    """Returns `combine(node, results of its inputs)`, computed from the sources up."""
    return combine(node, [fold(child, combine) for child in node.inputs])


def rebuild(node: Node, change: Callable[[Node], Node]) -> Node:
    """Returns the bound plan with `change` applied to every node, from the sources up.

    A node whose inputs changed is bound again on them. Where nothing changes, the very same tree comes back. A rule
    tells by this that it did nothing.
    """
    return change(with_inputs(node, tuple(rebuild(child, change) for child in node.inputs)))


def rewritten(plan: Node, change: Callable[[Node], Node]) -> Node:
    """Returns a plan as written with other nodes; nodes whose inputs stay the same stay the same."""
    return change(reading(plan, [rewritten(child, change) for child in plan.inputs]))


def reading(node: Node, inputs: Sequence[Node]) -> Node:
    """Returns a node with other inputs, and not bound anew: itself where they are the very same."""
    return node if all(map(is_, inputs, node.inputs)) else replace(node, inputs=tuple(inputs))


def with_inputs(node: Node, inputs: tuple[Node, ...]) -> Node:
    """Returns a bound node on other bound inputs: itself where they are the very same."""
    return node if all(map(is_, inputs, node.inputs)) else node.on(*inputs)


def repeatable(plan: Node) -> bool:
    """Returns whether a plan yields the same again, from any position on, as long as its identity is the same."""
    return all(node.traits.repeatable for node in post_order(plan))


def count(plan: Node) -> tuple[Count, Count]:
    """Returns the rows of one epoch of a bound plan and, of a plan that ends in batches, the batches; None if unknown."""

    def combine(node: Node, inputs: Sequence[tuple[Count, Count]]) -> tuple[Count, Count]:
        rows = [child[0] for child in inputs]
        return node.count_rows(rows), node.count_batches(rows, [child[1] for child in inputs])

    return fold(plan, combine)


def rows_in_lanes(plan: Node) -> Count:
    """Returns the rows of one epoch of a bound plan, where lanes have equal parts of them; None where only a run tells.

    Operators that keep each row have as many in each lane as their input, whatever they have learnt of all rows together.
    """

    def combine(node: Node, inputs: Sequence[Count]) -> Count:
        return inputs[0] if inputs and node.traits.one_to_one else node.count_rows(inputs)

    return fold(plan, combine)


def render_plan(node: Node) -> list[str]:
    """Returns one line per operator, sources first, inputs indented before the operator that joins them.

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
