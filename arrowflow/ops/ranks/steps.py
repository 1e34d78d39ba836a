"""`Steps`: how much each lane delivers in an epoch, so that all ranks make equally many steps of equal size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from arrowflow.errors import PlanError, shown
from arrowflow.plan.node import Count

EqualSteps = Literal["drop", "pad"]


def check_equal_steps(value: object) -> EqualSteps | None:
    """Returns the argument, or raises `PlanError`."""
    if value is not None and value not in get_args(EqualSteps):
        raise PlanError(f"split_by_rank: equal_steps is 'drop', 'pad' or None, got {shown(value)}")
    return value  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Steps:
    """How many rows, or batches, each lane delivers.

    Attributes:
        most: The number, the same for all lanes; None where lanes deliver until the first or the last of them ends.
        pads: Whether lanes go on with repeats of their last row, as long as any lane has rows.
        lost: Rows, or batches, that are left out; None where only a run tells.
        added: Those that are filled up; None where only a run tells.
    """

    most: int | None
    pads: bool
    lost: int | None = None
    added: int | None = None

    def facts(self, *, of_rows: bool) -> tuple[str, ...]:
        """Returns what equal steps cost, for `explain`."""
        what = "rows" if of_rows else "batches"
        if self.lost:
            return (f"equal steps leave out {self.lost:,} {what} of an epoch",)
        if self.added:
            return (f"equal steps add {self.added:,} repeated {what} to an epoch",)
        return ()


def steps_of(
    counts: Sequence[Count], size: int, *, pads: bool, given: EqualSteps | None, alone: bool
) -> Steps:
    """Returns what each lane delivers, given what each of all lanes has.

    Args:
        counts: Rows or batches of every lane of every rank; None where only a run tells.
        size: Rows of a lane in a whole step.
        pads: Whether short lanes are filled up.
        given: The choice of the user.
        alone: Whether this process sees itself where the lanes end, or agrees on it with the others.

    Raises:
        PlanError: The lanes may end at different steps, and nothing tells all ranks when.
    """
    known = [count for count in counts if isinstance(count, int)]
    if len(known) < len(counts):
        endless = all(count == math.inf for count in counts)
        if given is None and not endless:
            raise PlanError(
                "split_by_rank: how many rows reach its batches is only known when they have come, and lanes may end at "
                'different steps; say what happens then: equal_steps="drop" ends with the first lane, equal_steps="pad" '
                "goes on until the last one has ended"
            )
        if not (alone or endless):
            raise PlanError(
                "split_by_rank: how many rows reach its batches is only known when they have come, so that the processes "
                "could end at different steps and wait for each other for ever; count them once, by "
                '.assert_cardinality(af.count_rows(dataset)) after the filter, use equal_steps="drop" with a coordinator=, or '
                "declare with map(…, keeps_rows=True) that a function keeps the number of rows"
            )
        return Steps(None, pads)
    if not pads:
        most = min(known)
        return Steps(most, pads, lost=sum(known) - most * len(known), added=0)
    most = -(-max(known) // size) * size
    return Steps(most, pads, lost=0, added=most * len(known) - sum(known))
