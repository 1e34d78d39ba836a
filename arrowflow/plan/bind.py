"""Binding: what turns a plan as written into one with schemas, seeds and files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from arrowflow.errors import ArrowflowError
from arrowflow.options import Options, ResolvedOptions
from arrowflow.plan.lane import InLanes
from arrowflow.plan.node import BindContext, Node
from arrowflow.plan.walk import fold, post_order, reading


@dataclass(frozen=True, slots=True, kw_only=True)
class SetsOptions(Node):
    """An operator that sets options of the whole pipeline, which are asked before binding."""

    options: Options


def options_of(plan: Node) -> ResolvedOptions:
    """Returns the options of a plan: of several settings of one field the most downstream one wins, and the environment last."""
    merged, processes = Options.of_environment(), 1
    for node in post_order(plan):
        if isinstance(node, SetsOptions):
            merged = merged.merged(node.options)
        elif isinstance(node, InLanes):
            processes = max(processes, node.processes)
    return merged.resolved(processes)


def bind(plan: Node, options: ResolvedOptions, first_place: int = 0, *, services: Any = None) -> Node:
    """Returns the plan with schemas, seeds and files: the only planning step that does I/O.

    Places, which tell operators apart in the keys of everything random, are counted from `first_place`. Without
    `services` reads come one after the other, and none is tried again.

    Raises:
        PlanError: An operator does not fit its inputs.
        SourceError: A source cannot be found or opened.
    """
    places = count(first_place)

    def combine(node: Node, inputs: Sequence[Node]) -> Node:
        place = next(places)
        if node.bound:  # it is bound again among more operators, and its random values stay
            place = getattr(node, "place", place)
        try:
            return node.bind(tuple(inputs), BindContext(options=options, place=place, services=services))
        except ArrowflowError as error:
            error.locate(operator=node.name)
            raise

    return _asked_for(fold(plan, combine), 0, None, options)


def _asked_for(node: Node, again: int | None, rows: int | None, options: ResolvedOptions) -> Node:
    """Returns a bound plan whose nodes know what the operators after them ask for: see `Node.asked_for`."""
    below = None if again is None else node.rows_again(again), node.rows_wanted(rows)
    node = reading(node, [_asked_for(child, *below, options) for child in node.inputs])
    return node.asked_for(again, rows, options)
