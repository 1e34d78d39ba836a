"""How many lanes a plan runs in, which depends on the operator that makes its batches."""

from __future__ import annotations

from arrowflow.errors import PlanError
from arrowflow.ops.batches.batch import Batch
from arrowflow.options import check_size
from arrowflow.plan.node import Node
from arrowflow.plan.traits import Borders

DEFAULT_LANES = 16


def maker_of(plan: Node) -> Node:
    """Returns the operator that makes the batches that a plan ends in.

    Raises:
        PlanError: There are several.
    """
    while plan.traits.borders is Borders.KEEP:
        if len(plan.inputs) > 1:
            raise PlanError(
                f"split_by_rank: {plan.name} joins the batches of several datasets; put batch after {plan.name}"
            )
        (plan,) = plan.inputs
    return plan


def batch_rows(plan: Node) -> int | None:
    """Returns the rows of a global batch; None where batches are not made of rows of all lanes."""
    made_by = maker_of(plan)
    return made_by.size if isinstance(made_by, Batch) else None


def lane_count(lanes: int | None, size: int | None, world_size: int) -> int:
    """Returns the number of lanes, given or found.

    Raises:
        PlanError: It does not divide the batch, or the processes do not divide it.
    """
    fits = [count for count in range(1, (size or DEFAULT_LANES) + 1) if not (size or 0) % count]
    if lanes is None:
        count = max(count for count in fits if count <= DEFAULT_LANES)
    else:
        count = check_size("split_by_rank", "lanes", lanes)
    if size is not None and size % count:
        near = min(fits, key=lambda fit: abs(fit - count))
        raise PlanError(
            f"split_by_rank: each of {count} lanes gives equally many rows to a batch, and {size:,} rows cannot be divided "
            f"so; use lanes={near}, or a batch size that is a multiple of {count}"
        )
    if count % world_size:
        good = [fit for fit in fits if not fit % world_size]
        advice = f"use lanes={good[0]}" if good else f"use a batch size that is a multiple of {world_size}"
        raise PlanError(
            f"split_by_rank: {world_size} processes cannot share {count} lanes equally; {advice} in all of them"
        )
    return count
