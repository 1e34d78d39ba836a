"""Cheaper ways to rows: by their order, by their numbers, or from a position on, for operators after a source.

`shuffle` orders the source before it, or gathers rows from it; `skip`, lanes and `locate` begin in the middle. Operators
that keep each row hand such questions on to their input. Those that answer them derive from `RowAccess`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from arrowflow.plan.node import Node
from arrowflow.plan.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOrder:
    """How a `shuffle` after it wants its source ordered: a pure function of (seed, epoch).

    Attributes:
        seed: The shuffle's seed.
        reshuffle: Whether each epoch has an order of its own.
        window: Rows that the shuffle permutes together. A source that heeds it says so in a field of its own.
    """

    seed: int
    reshuffle: bool
    window: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAccess(Node):
    """An operator that knows a cheaper way to its rows than to run it: the base beside its other one."""

    def with_source_order(self, order: SourceOrder) -> Node:
        """See `with_source_order`."""
        return self

    def random_access(self) -> Node | None:
        """Returns itself as a source that a global `shuffle` gathers rows from; None if it has none to find by number.

        Its items are then `ops.order.random_access.Rows` instead of chunks, unless its rows stay in memory anyway.

        Raises:
            PlanError: It cannot, and there is more to say about it than that.
        """
        return None

    def position_behind(self, rows: int, epoch: int | None = None) -> tuple[Any, int] | None:
        """See `position_behind`."""
        return None

    def position_at(self, step: int, epoch: int) -> Position:
        """See `position_at`."""
        return None


def with_source_order(node: Node, order: SourceOrder) -> Node:
    """Returns a plan with the source before it ordered by `order`, where nothing in between forbids it."""
    traits = node.traits
    if isinstance(node, RowAccess):
        return node.with_source_order(order)
    if (traits.one_to_one or traits.drops_rows) and not traits.opaque and len(node.inputs) == 1:
        return replace(node, inputs=(with_source_order(node.inputs[0], order),))
    return node


def position_behind(node: Node, rows: int, epoch: int | None = None) -> tuple[Any, int] | None:
    """Returns a position in an epoch that has at most so many rows in front of it, and how many it has.

    None where that cannot be told without running. A `skip` right after it begins there in every epoch, and a lane
    in one: `epoch` is None if the position has to hold for all.
    """
    found = _answering(node)
    return None if found is None else found.position_behind(rows, epoch)


def position_at(node: Node, step: int, epoch: int) -> Position:
    """Returns the position of a batch of an epoch; None where that cannot be told without running."""
    found = _answering(node)
    return None if found is None else found.position_at(step, epoch)


def _answering(node: Node) -> RowAccess | None:
    """Returns the operator whose positions come out at the end of a plan, as far as one-to-one operators hand them on."""
    while not isinstance(node, RowAccess):
        traits = node.traits
        if not traits.one_to_one or traits.opaque or traits.cuts_input or len(node.inputs) != 1:
            return None
        (node,) = node.inputs
    return node
