"""Whether a position is one of a chain: each of its parts has the shape that the operator of this part declares."""

from __future__ import annotations

from arrowflow.physical.stage import Chain
from arrowflow.plan.position import Arrived, Position
from arrowflow.plan.shape import Shape, altered

_ARRIVED = Shape(Arrived)


def check_position(chain: Chain, position: Position, *, ordered: bool) -> None:
    """Checks a position from the last operator up to the sources, as `open` of the kernels unwraps it.

    The datasets that functions return are not known yet: their positions are checked when they are opened.

    Args:
        chain: The physical plan that goes on from there.
        position: The position.
        ordered: Whether all stages deliver in order.

    Raises:
        StateError: A part has another shape than its operator's; the message names both.
    """
    below: Position = None
    for index, stage in reversed(list(enumerate(chain.stages))):
        if not ordered and chain.takes_any_order(index):
            place = below if position is None else position
            if place is not None:
                _ARRIVED.inputs_of(place, stage.operators[-1])
                assert isinstance(place, Arrived)
                position, below = place.before, None if place.below is None else place.below.position()
        for spec in reversed(stage.specs):
            if position is None or spec.position is None:
                continue
            inputs = spec.position.inputs_of(position, spec.operator)
            if stage.kind == "boundary":
                for number, its in inputs:
                    check_position(chain.children[number], its, ordered=ordered or spec.pins_order)
                return
            position = inputs[0][1] if inputs else None
    if position is not None and chain.stages[0].specs[0].position is not None:
        raise altered(f"the position has {str(position)[:80]} for more operators than there are")
