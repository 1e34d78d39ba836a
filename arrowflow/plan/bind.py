"""Binding: what turns a plan as written into one with schemas, seeds and files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import count
from typing import Any

from arrowflow.errors import ArrowflowError
from arrowflow.options import Options, ResolvedOptions
from arrowflow.plan.node import BindContext, Node
from arrowflow.plan.walk import fold, post_order


def options_of(plan: Node) -> ResolvedOptions:
    """Returns the options of a plan: of several settings of one field the most downstream one wins."""
    merged = Options()
    for node in post_order(plan):
        found = node.sets()
        merged = merged if found is None else merged.merged(found)
    return merged.resolved(max(node.processes for node in post_order(plan)))


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

    return _cut(_asked_again(fold(plan, combine), 0), None, options)


def _asked_again(node: Node, rows: int | None) -> Node:
    """Returns a bound plan whose nodes know how many of their rows are asked for again, as far as that can be told."""
    wanted = None if rows is None else node.rows_again(rows)
    inputs = tuple(_asked_again(child, wanted) for child in node.inputs)
    if any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
        node = dataclasses.replace(node, inputs=inputs)
    return node if rows is None else node.asked_again(rows)


def _cut(node: Node, rows: int | None, options: ResolvedOptions) -> Node:
    """Returns a bound plan whose nodes know where to cut their inputs for functions, of which so many rows are wanted."""
    wanted = node.rows_wanted(rows)
    inputs = tuple(_cut(child, wanted, options) for child in node.inputs)
    if any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
        node = dataclasses.replace(node, inputs=inputs)
    return node.cut_for(rows, options)
