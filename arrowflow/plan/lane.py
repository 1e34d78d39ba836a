"""`Lane`: one of the equal parts that `split_by_rank` runs a plan in, so that many processes deliver one stream.

The plan as written describes the *global* stream, and its batches are the global ones. It runs as `count` lanes that do
not see each other. Each lane is the whole plan on its part of the source's rows. A step of the global stream takes
equally many rows of each lane, lane after lane. The number of lanes belongs to the plan, the number of processes does
not: what a lane delivers depends on its own number alone. So the same batches come, whoever runs which lanes.

The rows of an epoch are dealt once, for all lanes: each lane gets rows that follow each other in the epoch's order. Its
operators are those of the plan, with three differences. Sizes that count rows of a buffer are divided by `count`. Seeds
get the number of the lane. And an operator that would need to know the rows of other lanes is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from arrowflow.random import LANE_SEEDS, philox


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane.

    Attributes:
        number: Its number, from 0.
        count: How many lanes there are.
        step_rows: Rows that each lane gives to a step; 0 where that is no fixed number.
    """

    number: int
    count: int
    step_rows: int = 0

    def rows(self, num_rows: int) -> tuple[int, int]:
        """Returns its part of so many rows, as (first, before). No lane has fewer rows than a later one.

        Example:
            >>> [Lane(number, 3).rows(8) for number in range(3)]
            [(0, 3), (3, 6), (6, 8)]
        """
        share, more = divmod(num_rows, self.count)
        start = self.number * share + min(self.number, more)
        return start, start + share + (self.number < more)

    def size(self, rows: int) -> int:
        """Returns its part of a buffer of so many rows, at least one row."""
        return max(1, rows // self.count)

    def seed(self, seed: int) -> int:
        """Returns its own seed in place of the plan's; a lane alone has the plan's."""
        return seed if self.count == 1 else int(philox((seed, LANE_SEEDS, self.number)).random_raw())
