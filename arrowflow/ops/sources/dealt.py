"""`DealtSource`: the base of sources whose rows have numbers, so that lanes can be dealt parts of them."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass
from typing import Self

from arrowflow.kernels.operator import Operator
from arrowflow.plan.access import RowAccess
from arrowflow.plan.lane import InLanes, Lane, Obstacle, too_few
from arrowflow.plan.node import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class DealtSource(Operator, InLanes, RowAccess):
    """A source that knows its rows by their numbers in the order of an epoch.

    Attributes:
        lane: The lane that reads its part of the rows, or None for all of them.
    """

    lane: Lane | None = None

    @property
    def in_memory(self) -> bool:
        """Its rows are there, or are counted."""
        return True

    def in_lane(self, lane: Lane) -> Self:
        """Takes the lane's part of the rows."""
        return dataclasses.replace(self, lane=lane)

    def obstacle(self, lanes: int, times: Count) -> Obstacle | None:
        """A lane without a single row would end before the others."""
        return too_few(self.name, self.count_rows(()), lanes, times)

    def of_epoch(self, epoch: int) -> Self:
        """Returns the source of those rows that its lane reads in an epoch."""
        if self.lane is None:
            return self
        rows = self.count_rows(())
        assert isinstance(rows, int)
        return dataclasses.replace(self.part(*self.lane.rows(rows, epoch)), lane=None)

    @abstractmethod
    def part(self, first: int, before: int) -> Self:
        """Returns the source of some of its rows, by their numbers."""
