"""`OnCluster`: `split_by_rank` with lanes that run elsewhere."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from arrowflow.cluster.engine import RayEngine
from arrowflow.cluster.remote_lane import RemoteLane
from arrowflow.cluster.session import Session
from arrowflow.errors import PlanError
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.order.shuffle import Shuffle
from arrowflow.ops.ranks.rank import Rank
from arrowflow.ops.ranks.split_by_rank import SplitByRank
from arrowflow.ops.ranks.steps import Steps
from arrowflow.ops.ranks.whole import ShareOfBatches
from arrowflow.options import ResolvedOptions
from arrowflow.physical.planner import plan_chain
from arrowflow.plan.lane import Obstacle
from arrowflow.plan.node import BindContext, Node
from arrowflow.plan.walk import post_order, rewritten

_LOGGER: Final = logging.getLogger("arrowflow")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnCluster(SplitByRank):
    """The batches of `split_by_rank`, of lanes in the workers of a cluster. See `SplitByRank`.

    Attributes:
        engine: The user's request.
        session: The workers; of each bound plan its own.
    """

    engine: RayEngine = field(compare=False)
    session: Session | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of_plan(cls, plan: Node, engine: RayEngine) -> Node:
        """Returns a plan with its lanes on a cluster.

        Raises:
            PlanError: It has no lanes, or the engine's lanes contradict its own.
        """
        if not any(isinstance(node, SplitByRank) for node in post_order(plan)):
            plan = SplitByRank.of(plan, 0, 1, lanes=engine.lanes)
        elif engine.lanes is not None:
            raise PlanError("RayEngine: split_by_rank tells the number of lanes; leave lanes= out here")

        def change(node: Node) -> Node:
            return cls(**node.settings(), engine=engine) if isinstance(node, SplitByRank) else node

        return rewritten(plan, change)

    def describe(self) -> str:
        return f"{SplitByRank.describe(self)} on {self.engine}"

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Moves down as `split_by_rank` does, with workers of its own."""
        return SplitByRank.bind(dataclasses.replace(self, session=Session(self.engine)), inputs, context)

    def let_go(self) -> None:
        if self.session is not None:
            self.session.let_go()

    def _share(self, obstacle: Obstacle | None) -> ShareOfBatches:
        assert self.session is not None
        return ShareOnCluster(
            process=self.process, because=obstacle, coordinator=self.coordinator, session=self.session
        )

    @property
    def _shuffles(self) -> tuple[Shuffle, ...]:
        """None: a `shuffle` that lanes end in runs in the workers."""
        return ()

    @property
    def planned_inputs(self) -> tuple[Node, ...]:
        """The lanes, as they come from the workers."""
        assert self.session is not None
        lane = RemoteLane(
            number=0,
            own=self.own_lanes,
            inputs=(self._lanes_only,),
            session=self.session,
            bound=True,
            schema=self._first_lane.schema,
        )
        return tuple(dataclasses.replace(lane, number=number) for number in self.own_lanes)

    @property
    def _first_lane(self) -> Node:
        """The plan of one of its lanes, as a worker runs it: all have the same columns and the same stages."""
        (plan,) = self.lane_plans(self.own_lanes[:1])
        return plan

    @property
    def _lanes_only(self) -> SplitByRank:
        """The same lanes without a cluster: what a worker gets."""
        # All ranks send the same, so that they find each other's workers.
        whole = {"process": Rank(0, 1, 1), "coordinator": None}
        return SplitByRank(**self.settings() | whole)

    def steps(self) -> Steps:
        """See `SplitByRank`; names the operator that a plan with an engine need not have."""
        try:
            return SplitByRank.steps(self)
        except PlanError as error:
            raise PlanError(
                f"{error}; with an engine write .split_by_rank(equal_steps=…) behind batch"
            ) from None

    def owns_buffers(self, inputs: Sequence[bool]) -> bool:
        """Merged rows are new memory; what passes lies in the object store, which nobody may write."""
        return self._joins and len(self.own_lanes) > 1

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        boundary, *rest = SplitByRank.lower(self, options)
        shape = tuple(plan_chain(self._first_lane, options).shape())
        return (dataclasses.replace(boundary, runs_last=shape), *rest)  # type: ignore[arg-type]  # names, and lists of them


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOnCluster(ShareOfBatches):
    """The rows of a rank of each batch of a plan that one worker of a cluster runs. See `ShareOfBatches`."""

    session: Session = field(compare=False, repr=False)

    def at_end(self, plan: Node) -> Node:
        """Moves the whole plan to a worker. Called once for each plan that is prepared: writes the line of the log."""
        why = f"one worker runs the whole plan: {self.why}"
        _LOGGER.warning("RayEngine: %s", why)
        lane = RemoteLane(number=0, own=range(1), session=self.session, why=(why,), schema=plan.schema)
        return ShareOfBatches.at_end(self, lane.on(plan))
