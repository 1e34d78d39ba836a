"""The position of an operator that mixes the rows of several inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from arrowflow.plan.position import Mark
from arrowflow.plan.shape import Inputs, Shape, below, fitting, parts


class MixPosition(NamedTuple):
    """Position of a `MixKernel`.

    Attributes:
        marks: The place in each input.
        cursor: The place from which the draws of the block are made again.
        block: Number of the block.
        row: Rows of the block that are done.
        most: Rows of the next part, at most.
        dropped: Inputs that have run out.
    """

    marks: tuple[Mark, ...]
    cursor: Any
    block: int
    row: int
    most: int
    dropped: tuple[int, ...]


def mix_shape(num_inputs: int, block_rows: int, cursor: Any, wrong: Callable[[Any], str | None]) -> Shape:
    """Returns the shape of its positions.

    Args:
        num_inputs: How many inputs rows come from.
        block_rows: The most rows of a block.
        cursor: The type of the cursor. Positions in it are those of further inputs.
        wrong: Returns what is wrong with a cursor of this type; None for nothing.
    """

    def wrong_at(at: MixPosition) -> str | None:
        return (
            parts("marks", at.marks, num_inputs)
            or below("row", at.row, block_rows + 1)
            or (None if at.most else "most is 0, expected rows of a part")
            or below("dropped", max(at.dropped, default=0), num_inputs)
            or wrong(fitting(at.cursor, cursor, "cursor", []))
        )

    def inputs(at: MixPosition) -> Inputs:
        found = [mark.before for mark in at.marks]
        fitting(at.cursor, cursor, "cursor", found)
        return enumerate(found)

    return Shape(MixPosition, wrong_at, inputs)
