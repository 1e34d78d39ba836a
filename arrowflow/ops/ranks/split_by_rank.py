"""`split_by_rank`: each of several processes delivers its part of the same batches.

When a plan is bound, the operator decides between two ways to run it. The plan without it is the truth for both.

* **In parts**, where every operator before the batches is local. The plan runs in lanes: `parts.py`.
* **Whole**, for every other plan: each process runs all of it, and takes its rows of each batch: `whole.py`.

In both cases the operator moves down to the `batch` that makes the global batches: columns can be computed and batches
padded for the rows that a process delivers, to the same result.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Self, get_args

from arrowflow.errors import PlanError, shown
from arrowflow.ops.ranks.coordinator import coordinator_of
from arrowflow.ops.ranks.lane_count import batch_rows, checked_lanes, lanes_of_plan
from arrowflow.ops.ranks.parts import How, SplitInParts
from arrowflow.ops.ranks.rank import found_rank
from arrowflow.ops.ranks.steps import check_equal_steps
from arrowflow.ops.ranks.whole import ShareOfBatches, share_of_batches
from arrowflow.plan.lane import Obstacle
from arrowflow.plan.node import BindContext, Node
from arrowflow.plan.row_ranges import push_row_ranges
from arrowflow.plan.walk import post_order


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitByRank(SplitInParts):
    """The part of the global batches that belongs to one of several processes, as written. See `SplitInParts`."""

    name: ClassVar[str] = "split_by_rank"

    @classmethod
    def of(
        cls,
        below: Node,
        rank: int | None,
        world_size: int | None,
        *,
        how: Any = None,
        lanes: int | None = None,
        equal_steps: Any = None,
        coordinator: Any = None,
    ) -> Self:
        """Returns the node, with arguments as users write them."""
        if not below.batched:
            raise PlanError(
                "split_by_rank: it comes last, after the batches of all processes together; write "
                ".batch(global_batch_size).split_by_rank()"
            )
        if any(isinstance(node, cls) for node in post_order(below)):
            raise PlanError("split_by_rank: the plan is split by rank already; leave one of the two out")
        if how is not None and how not in get_args(How):
            raise PlanError(f"split_by_rank: how is 'parts', 'whole' or None, got {shown(how)}")
        found = found_rank(rank, world_size)
        if lanes is not None:
            if how == "whole":
                raise PlanError(
                    'split_by_rank: lanes= is for a plan that runs in parts; leave it or how="whole" out'
                )
            checked_lanes(lanes, batch_rows(below), found.world_size)
        return cls(
            inputs=(below,),
            rank=found.rank,
            world_size=found.world_size,
            local_world_size=found.local_world_size,
            how=how,
            lanes=lanes,
            equal_steps=check_equal_steps(equal_steps),
            coordinator=coordinator_of(coordinator, found.world_size),
        )

    def settings(self) -> dict[str, Any]:
        """Returns the arguments of a node like it, also of one that runs its lanes in another way."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(SplitInParts) if each.init}

    # ------------------------------------------------------------------ binding

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Decides how the plan runs, and moves down to the operator that makes the batches."""
        plan = push_row_ranges(inputs[0])
        lanes: int | Obstacle | None = None
        if self.how != "whole":
            is_asked = self.how == "parts"
            lanes = lanes_of_plan(plan, self.lanes, self.world_size, small_windows=is_asked)
        if lanes is None or isinstance(lanes, Obstacle):
            return self._whole(plan, lanes)
        return dataclasses.replace(self, how="parts", lanes=lanes)._before(plan)

    def _whole(self, plan: Node, obstacle: Obstacle | None) -> Node:
        if self.how == "parts":
            raise PlanError(
                f'split_by_rank: how="parts" would change what the plan means: {obstacle}; leave how= out, and each process '
                "runs the whole plan"
            )
        return share_of_batches(plan, self._share(obstacle))

    def _share(self, obstacle: Obstacle | None) -> ShareOfBatches:
        """Returns the operator that takes the rows of this rank of each batch of a whole plan."""
        return ShareOfBatches(
            rank=self.rank,
            world_size=self.world_size,
            local_world_size=self.local_world_size,
            because=obstacle,
            coordinator=self.coordinator,
        )
