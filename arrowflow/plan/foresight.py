"""Foresight: unknown columns are noticed where a plan is written, if the names of columns are known there.

The names are known after a source in memory or with `schema=`, and of a plan that was bound before. Nothing is read to
know them. Files may have changed since a plan was bound. So before an error is raised, binding has to find it, too.
"""

from __future__ import annotations

from arrowflow.errors import ArrowflowError, PlanError
from arrowflow.plan.bind import bind, options_of
from arrowflow.plan.node import Node


def fault_of(plan: Node) -> PlanError | None:
    """Returns the error in the last operator of a new plan; if there is none, notes the names of its columns.

    A method may have added two operators, as `padded_batch` does.
    """
    faults = (_fault_of(node) for node in (*plan.inputs, plan))
    return next((fault for fault in faults if fault is not None), None)


def _fault_of(plan: Node) -> PlanError | None:
    names = [child.foreseen for child in plan.inputs]
    known = [found for found in names if found is not None]
    if plan.foreseen is not None or len(known) < len(names):
        return None
    try:
        _note(plan, plan.foresee(known))
    except PlanError:
        return _found_by_binding(plan)
    return None


def note_bound(plan: Node, bound: Node) -> None:
    """Notes the names of columns in a plan as written, once it is bound."""
    while type(plan) is type(bound) and bound.schema is not None:
        _note(plan, tuple(bound.schema.names))
        if len(plan.inputs) != 1 or len(bound.inputs) != 1:
            return
        (plan,), (bound,) = plan.inputs, bound.inputs


def _note(plan: Node, names: tuple[str, ...] | None) -> None:
    object.__setattr__(plan, "foreseen", names)  # no part of the plan's identity


def _found_by_binding(plan: Node) -> PlanError | None:
    try:
        bind(plan, options_of(plan))
    except PlanError as error:
        return error
    except ArrowflowError:  # told when the plan runs
        return None
    return None
