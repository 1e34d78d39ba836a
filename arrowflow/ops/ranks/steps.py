"""`Steps`: how much each lane delivers in an epoch, so that all ranks make equally many steps of equal size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from arrowflow.errors import DataError, PlanError, shown
from arrowflow.plan.node import Count

EqualSteps = Literal["drop"]


def check_equal_steps(value: object) -> EqualSteps | None:
    """Returns the argument, or raises `PlanError`."""
    if value is not None and value not in get_args(EqualSteps):
        raise PlanError(
            f"split_by_rank: equal_steps is 'drop' or None, got {shown(value)}; to fill up the last batch write "
            "batch(…, pad_remainder=True)"
        )
    return value  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Steps:
    """How many rows, or batches, each lane delivers.

    Attributes:
        most: The number, the same for all lanes; None where lanes deliver until the first or the last of them ends.
        pads: Whether lanes go on with repeats of their last row, as long as any lane has rows.
        lost: Rows, or batches, that are left out; None where only a run tells.
        added: Those that are filled up; None where only a run tells.
        least: The number that each lane has without repeats; 0 where only a run tells.
    """

    most: int | None
    pads: bool
    lost: int | None = None
    added: int | None = None
    least: int = 0

    def facts(self, *, of_rows: bool) -> tuple[str, ...]:
        """Returns what equal steps cost, for `explain`."""
        what = "rows" if of_rows else "batches"
        if self.lost:
            return (f"equal steps leave out {self.lost:,} {what} of an epoch",)
        if self.added:
            return (f"equal steps add {self.added:,} repeated {what} to an epoch",)
        return ()


def steps_of(
    total: Count, lanes: int, size: int, *, pads: bool, given: EqualSteps | None, alone: bool
) -> Steps:
    """Returns what each lane delivers.

    Args:
        total: Rows or batches of all lanes, of which each has equally many, up to one; None where only a run tells.
        lanes: How many lanes there are, on all ranks.
        size: Rows of a lane in a whole step.
        pads: Whether short lanes are filled up.
        given: The choice of the user.
        alone: Whether this process sees itself where the lanes end, or agrees on it with the others.

    Raises:
        PlanError: The lanes may end at different steps, and nothing tells all ranks when.
    """
    if not isinstance(total, int):
        endless = total == math.inf
        if given is None and not endless:
            raise PlanError(
                "split_by_rank: how many rows reach its batches is only known when they have come, and the lanes in which the "
                'plan runs may end at different steps; write how="whole", with which each process runs the whole plan, or '
                'say with equal_steps="drop" that they end with the first lane'
            )
        if not (alone or endless):
            raise PlanError(
                "split_by_rank: how many rows reach its batches is only known when they have come, so that the processes "
                'could end at different steps and wait for each other for ever; write how="whole", with which each process '
                "runs the whole plan, count them once, by .assert_cardinality(af.count_rows(dataset)) after the filter, use "
                'equal_steps="drop" with a coordinator=, or declare with map(…, keeps_rows=True) that a function keeps the '
                "number of rows"
            )
        return Steps(None, pads)
    if not pads:
        most = total // lanes
        return Steps(most, pads, lost=total - most * lanes, added=0)
    most = -(-total // (lanes * size)) * size
    return Steps(most, pads, lost=0, added=most * lanes - total, least=total // lanes)


def no_step(why: str) -> DataError:
    """Returns the error of an epoch that has rows and no step."""
    return DataError(
        f"an epoch has rows, but equal steps leave all of them out: {why}; use fewer processes, a smaller batch size, "
        'batch(…, pad_remainder=True), or how="whole"'
    )
