"""`Steps`: how much each lane delivers in an epoch, so that all ranks make equally many steps of equal size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from arrowflow.errors import DataError, PlanError
from arrowflow.plan.node import Count

EqualSteps = Literal["drop"]


@dataclass(frozen=True, slots=True)
class Steps:
    """How many rows, or batches, each lane delivers.

    Attributes:
        size: Those of a lane in a whole step.
        drops: Whether a short last step is left out.
        most: The number, the same for all lanes; None where lanes deliver until the first of them ends.
        least: The number that each lane has without repeats; 0 where only a run tells.
        lost: Rows, or batches, that are left out.
        added: Rows that fill up the last step: there lanes repeat their last row.
    """

    size: int
    drops: bool
    most: int | None = None
    least: int = 0
    lost: int = 0
    added: int = 0

    @property
    def filled_from(self) -> int | None:
        """Rows of each lane before the step that is filled up; None where there is none."""
        return None if self.most is None or not self.added else self.most - self.size

    @property
    def repeats_from(self) -> int | None:
        """The same, if a lane has no row in that step, and repeats one of the step before; None if all have one."""
        return self.least if self.least == self.filled_from else None

    def facts(self, *, of_rows: bool) -> tuple[str, ...]:
        """Returns what equal steps cost, for `explain`."""
        what = "rows" if of_rows else "batches"
        if self.lost:
            return (f"equal steps leave out {self.lost:,} {what} of an epoch",)
        if self.added:
            return (f"equal steps add {self.added:,} repeated {what} to an epoch",)
        return ()


def steps_of(
    total: Count, lanes: int, size: int, *, pads: bool, drops: bool, given: EqualSteps | None, alone: bool
) -> Steps:
    """Returns what each of the lanes of all ranks delivers, which have `total` rows or batches, equally many up to one.

    Args:
        total: None where only a run tells.
        pads: Whether the last step is filled up.
        given: The choice of the user.
        alone: Whether this process sees itself where the lanes end, or agrees on it with the others.

    Raises:
        PlanError: The lanes may end at different steps, and nothing tells all ranks when.
    """
    if not isinstance(total, int):
        endless = total == math.inf
        unknown = "split_by_rank: how many rows reach its batches is only known when they have come"
        if given is None and not endless:
            raise PlanError(
                f'{unknown}, and the lanes in which the plan runs may end at different steps; write how="whole", with which '
                'each process runs the whole plan, or say with equal_steps="drop" that they end with the first lane'
            )
        if not (alone or endless):
            raise PlanError(
                f"{unknown}, so that the processes could end at different steps and wait for each other for ever; write "
                'how="whole", with which each process runs the whole plan, count them once, by '
                '.assert_cardinality(af.count_rows(dataset)) after the filter, use equal_steps="drop" with a coordinator=, or '
                "declare with map(…, keeps_rows=True) that a function keeps the number of rows"
            )
        return Steps(size, drops)
    least, rest = divmod(total, lanes)
    if not pads:
        return Steps(size, drops, least, least, lost=rest)
    most = -(-total // (lanes * size)) * size
    return Steps(size, drops, most, least, added=most * lanes - total)


def no_step(why: str, *, is_whole: bool = False) -> DataError:
    """Returns the error of an epoch that has rows and no step, of a plan that runs in parts or whole."""
    last = "" if is_whole else ', or how="whole"'
    return DataError(
        f"an epoch has rows, but equal steps leave all of them out: {why}; use fewer processes, a smaller batch size, "
        f"{'or ' if is_whole else ''}batch(…, pad_remainder=True){last}"
    )
