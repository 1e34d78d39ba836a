"""`SplitByWorker`: the workers of a PyTorch `DataLoader` share the lanes of a rank.

Workers cannot join rows. So each lane makes whole batches, which come in turn: of lane 0, of lane 1, and so on. Worker i
of n runs lanes i, i + n, … of the rank. The `DataLoader` asks its workers in turn, too, so that the order of batches is the
same for every number of workers that divides the lanes, as long as all lanes have batches. Nothing is read twice.

Rows are dealt to lanes by whole batches, where a source tells their number: so only the last batch of all is short.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from arrowflow.errors import PlanError
from arrowflow.ops.batches.batch import Batch
from arrowflow.ops.ranks.lane_count import batch_rows
from arrowflow.ops.ranks.split_by_rank import SplitByRank
from arrowflow.ops.ranks.steps import Steps
from arrowflow.plan.lane import Lane
from arrowflow.plan.node import Count, Node
from arrowflow.plan.walk import count, post_order, rewritten


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitByWorker(SplitByRank):
    """The batches of one worker. See `SplitByRank`.

    Attributes:
        worker: Its number.
        workers: How many workers share the lanes of the rank.
    """

    name: ClassVar[str] = "split_by_worker"

    worker: int
    workers: int

    @classmethod
    def of_plan(cls, plan: Node, worker: int, workers: int, lanes: int | None) -> Node:
        """Returns a plan for one of the workers. All of its ranks' workers have to run the same number of lanes.

        Raises:
            PlanError: Workers cannot share the plan.
        """
        if not any(isinstance(node, SplitByRank) for node in post_order(plan)):
            plan = SplitByRank.of(plan, 0, 1, lanes=lanes)
        elif lanes is not None:
            raise PlanError(
                "to_torch_dataset: split_by_rank tells the number of lanes; leave lanes= out here"
            )

        def change(node: Node) -> Node:
            if not isinstance(node, SplitByRank):
                return node
            if node.equal_steps == "pad" and node.world_size > 1:
                raise PlanError(
                    'to_torch_dataset: lanes make whole batches, which equal_steps="pad" cannot fill up; use '
                    'equal_steps="drop", or to_torch()'
                )
            if workers > (most := len(node.own_lanes)):
                raise PlanError(
                    f"to_torch_dataset: {workers} workers cannot share {most} lanes; use num_workers={most} or fewer, or "
                    "more lanes"
                )
            return cls(**node.settings(), worker=worker, workers=workers)

        return rewritten(plan, change)

    def arguments(self) -> Mapping[str, Any]:
        """Returns what all ranks and workers have in common; batches have the size of those of a rank."""
        return {**SplitByRank.arguments(self), "world_size": self.world_size}

    def describe(self) -> str:
        """Returns the worker and its lanes as one line."""
        lanes = ", ".join(map(str, self.own_lanes))
        return f"split_by_worker(worker {self.worker} of {self.workers}: lanes {lanes} of {self.lanes})"

    @property
    def own_lanes(self) -> range:
        """The numbers of the lanes of this worker."""
        lanes = self.lanes // self.world_size
        return range(self.rank * lanes, (self.rank + 1) * lanes)[self.worker :: self.workers]

    @property
    def _batch(self) -> None:
        """No rows of several lanes are merged."""
        return

    @property
    def _joins(self) -> bool:
        return False

    def _lane(self, number: int) -> Node:
        rows = (batch_rows(self.inputs[0]) or 0) // self.world_size
        lane = self.inputs[0].in_lane(Lane(number, self.lanes or 1, rows))
        return self._rebatched(rows, lane) if rows else lane

    def _rebatched(self, rows: int, plan: Node) -> Node:
        """Returns a lane that makes batches of so many rows; where several ranks make them, all of one size."""
        if not isinstance(plan, Batch):
            return plan.on(self._rebatched(rows, plan.inputs[0]))
        drops = plan.drop_remainder or (self.world_size > 1 and plan.mask is None)
        return dataclasses.replace(plan, size=rows, drop_remainder=drops).on(*plan.inputs)

    def steps(self) -> Steps:
        """Returns how many batches each lane delivers: those of one rank need not be equal."""
        return Steps(None, pads=True) if self.world_size == 1 else SplitByRank.steps(self)

    def count_batches(self, rows: Sequence[Count], batches: Sequence[Count]) -> Count:
        """Returns the batches of this worker."""
        if self.world_size > 1:
            return SplitByRank.count_batches(self, rows, batches)
        counts = [count(self._lane(number))[1] for number in self.own_lanes]
        known = [each for each in counts if each is not None]
        return sum(known) if len(known) == len(counts) else None
