"""Foresight: unknown columns are noticed where a plan is written, if the names of columns are known there.

The names are known after a source in memory or with `schema=`, and of a plan that was bound before. Nothing is read to
know them. Operators check and tell names by `Node.output_schema`, on columns without types (`arrowflow.types.untyped`).
Files may have changed since a plan was bound. So before an error is raised, binding has to find it, too.
"""

from __future__ import annotations

import pyarrow as pa

from arrowflow.errors import ArrowflowError, PlanError
from arrowflow.plan.bind import bind, options_of
from arrowflow.plan.node import Node
from arrowflow.types import UntypedError, is_untyped, untyped


def fault_of(plan: Node) -> PlanError | None:
    """Returns the error in the last operator of a new plan; if there is none, notes the names of its columns.

    A method may have added two operators, as `padded_batch` does.
    """
    return next(filter(None, map(_fault_of, (*plan.inputs, plan))), None)


def _fault_of(plan: Node) -> PlanError | None:
    inputs = [child.foreseen for child in plan.inputs]
    # Whether several inputs agree is told once they are bound.
    if plan.foreseen is not None or None in inputs or len(inputs) > 1:
        return None
    known = [schema for schema in inputs if schema is not None]
    try:
        names = [schema if is_untyped(schema) else untyped(schema.names) for schema in known]
        _note(plan, plan.output_schema(names))
    except UntypedError:
        pass
    except PlanError:
        try:
            bind(plan, options_of(plan))
        except PlanError as error:
            return error
        except ArrowflowError:  # told when the plan runs
            pass
    return None


def note_bound(plan: Node, bound: Node) -> None:
    """Notes the columns in a plan as written, once it is bound."""
    while type(plan) is type(bound) and bound.schema is not None:
        _note(plan, bound.schema)
        if len(plan.inputs) != 1 or len(bound.inputs) != 1:
            return
        (plan,), (bound,) = plan.inputs, bound.inputs


def _note(plan: Node, schema: pa.Schema | None) -> None:
    object.__setattr__(plan, "foreseen", schema)  # no part of the plan's identity
