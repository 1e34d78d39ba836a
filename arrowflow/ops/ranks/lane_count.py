"""In how many lanes a plan runs, or why it cannot run in lanes at all."""

from __future__ import annotations

from arrowflow.errors import PlanError
from arrowflow.ops.batches.batch import Batch
from arrowflow.ops.rows.repeat import Repeat
from arrowflow.options import check_size
from arrowflow.plan.lane import Obstacle, obstacle_of, too_few
from arrowflow.plan.node import Node
from arrowflow.plan.traits import Borders
from arrowflow.plan.walk import post_order, rows_in_lanes

DEFAULT_LANES = 16
FEWEST_LANES = 8
"""So many lanes are still shared by most numbers of processes. A plan that has room for fewer by itself runs whole."""


def maker_of(plan: Node) -> Node:
    """Returns the operator that makes the batches that a plan ends in, or one that joins the batches of several inputs."""
    while plan.traits.borders is Borders.KEEP and len(plan.inputs) == 1:
        (plan,) = plan.inputs
    return plan


def batch_rows(plan: Node) -> int | None:
    """Returns the rows of a global batch; None where batches are not made of rows of all lanes."""
    made_by = maker_of(plan)
    return made_by.size if isinstance(made_by, Batch) else None


def lanes_of_plan(plan: Node, given: int | None, world_size: int, *, small_windows: bool) -> int | Obstacle:
    """Returns the number of lanes, given or found, that a bound plan runs in; or why it means something else in lanes.

    Small windows of a `shuffle` are no obstacle to a user who wants parts: they mix fewer rows. By default there are 16, or
    down to 8 where windows of a `shuffle` are small, or the largest divisor of the batch size up to that.
    """
    maker = maker_of(plan)
    if maker.traits.borders is Borders.KEEP:
        return Obstacle(maker.name, "joins batches of several datasets", f"put batch after {maker.name}")
    size = batch_rows(plan)
    divisors = (count for count in range(DEFAULT_LANES, 0, -1) if not (size or 0) % count)
    while True:
        lanes = next(divisors) if given is None else given
        obstacle = obstacle_of(plan, lanes, 1)
        if small_windows and obstacle is not None and obstacle.most_lanes:
            obstacle = None
        of_batches = (
            _filled_by_all(plan),
            _cut_anew(maker),
            too_few(maker.name, rows_in_lanes(maker.inputs[0]), lanes, 1),
            _lasts_apart(plan, maker, lanes),
        )
        obstacle = obstacle or next(filter(None, of_batches), None)
        if obstacle is None:
            return checked_lanes(lanes, size, world_size)
        if given is not None or obstacle.most_lanes < FEWEST_LANES:
            return obstacle


def checked_lanes(lanes: int, size: int | None, world_size: int) -> int:
    """Returns a number of lanes that divides the batch, and that the processes divide.

    Raises:
        PlanError: It does not, or they do not.
    """
    check_size("split_by_rank", "lanes", lanes)
    fits = [count for count in range(1, (size or DEFAULT_LANES) + 1) if not (size or 0) % count]
    if size is not None and size % lanes:
        near = min(fits, key=lambda fit: abs(fit - lanes))
        raise PlanError(
            f"split_by_rank: each of {lanes} lanes gives equally many rows to a batch, and {size:,} rows cannot be divided "
            f"so; use lanes={near}, or a batch size that is a multiple of {lanes}"
        )
    if lanes % world_size:
        good = [fit for fit in fits if not fit % world_size]
        advice = f"lanes={good[0]}" if good else f"a batch size that is a multiple of {world_size}"
        raise PlanError(
            f"split_by_rank: the rows of each batch are dealt to {lanes} lanes, and {world_size} processes cannot have equally "
            f'many lanes each; use {advice}, the same in all processes, or how="whole"'
        )
    return lanes


def _cut_anew(maker: Node) -> Obstacle | None:
    """Returns the obstacle of batches that are cut anew, if it shows which rows they had: lanes have other ones."""
    for node in (node for child in maker.inputs for node in post_order(child)):
        if node.traits.opaque and node.batched:
            return Obstacle(node.name, f"sees batches that {maker.name} cuts anew")
        if isinstance(node, Batch) and node.mask is not None:
            why = f"fills up a batch that {maker.name} cuts anew"
            return Obstacle(node.name, why, "fill up the last batches")
    return None


def _filled_by_all(plan: Node) -> Obstacle | None:
    """Returns the obstacle of caches that are shuffled as a whole, but not read first: all lanes would fill them at once."""
    for node in (node for child in plan.inputs[1:] for node in post_order(child)):
        if node.traits.collects and any(each.name == "cache" for each in post_order(node)):
            advice = f"put it first in {plan.name}"
            return Obstacle(node.name, "reads a cache that is not the first input", advice)
    return _filled_by_all(plan.inputs[0]) if plan.inputs else None


def _lasts_apart(plan: Node, maker: Node, lanes: int) -> Obstacle | None:
    """Returns the obstacle of operators that treat the last batch in another way, which lanes do not end in together."""
    after = []
    while plan is not maker:
        after.append(plan)
        (plan,) = plan.inputs
    rows = rows_in_lanes(maker.inputs[0])
    is_uncounted, advice = rows is None or not isinstance(maker, Batch), f"put it before {maker.name}"
    repeats = next((node for node in after if isinstance(node, Repeat)), None)
    if repeats is not None and is_uncounted:
        return Obstacle(Repeat.name, f"comes after {maker.name}, and only a run counts its batches", advice)
    leaves_out = isinstance(maker, Batch) and maker.mask is None and not maker.drop_remainder
    ends = repeats is not None and repeats.count is not None
    if ends and leaves_out and isinstance(rows, int) and rows % lanes:
        why = f"comes after {maker.name}, and {rows:,} rows in {lanes} lanes would leave a remainder out each time"
        return Obstacle(Repeat.name, why, advice)
    if not isinstance(maker, Batch) or maker.mask is None:
        return None
    if is_uncounted:
        return Obstacle(maker.name, "fills up the last batch, and only a run counts its rows")
    function = next((node for node in after if node.traits.opaque), None)
    return None if function is None else Obstacle(function.name, "gets a last batch that is filled up")
