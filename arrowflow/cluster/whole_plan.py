"""`WholePlan`: a plan that has no lanes, and that one worker runs."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from arrowflow.cluster.remote_lane import RemoteLane, check_order
from arrowflow.cluster.session import Session
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.ops.ranks.whole import ShareOfBatches
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import Node

_LOGGER: Final = logging.getLogger("arrowflow")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOnCluster(ShareOfBatches):
    """The rows of a rank of each batch of a plan that one worker of a cluster runs. See `ShareOfBatches`."""

    session: Session | None = field(compare=False, repr=False)

    def let_go(self) -> None:
        """Ends the worker once no run uses it."""
        if self.session is not None:
            self.session.let_go()

    def at_end(self, plan: Node) -> Node:
        """Moves the whole plan to a worker."""
        assert self.session is not None
        moved = WholePlan(session=self.session, why=(f"one worker runs the whole plan: {self.why}",)).on(plan)
        return ShareOfBatches.at_end(self, moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholePlan(RowOperator):
    """A plan that one worker of a cluster runs: a plan of a single lane.

    Row order: its input's. Memory: a piece, and one on its way. Resume: its input's position.

    Attributes:
        session: The worker.
        why: Why it is a single worker, for `explain`.
    """

    name: ClassVar[str] = "ray"

    session: Session | None = field(compare=False, repr=False)
    why: tuple[str, ...] = ()

    def arguments(self) -> Mapping[str, Any]:
        """Returns nothing: it decides no row."""
        return {}

    def owns_buffers(self, inputs: Sequence[bool]) -> bool:
        """Rows lie in the object store, which nobody may write."""
        return False

    @property
    def own_lanes(self) -> range:
        """The one lane."""
        return range(1)

    def lane_plans(self, numbers: Sequence[int]) -> tuple[Node, ...]:
        """Returns the plan, for the worker."""
        return self.inputs

    @property
    def planned_inputs(self) -> tuple[Node, ...]:
        """The rows, as they come from the worker."""
        assert self.session is not None
        lane = RemoteLane(
            number=0,
            num_lanes=1,
            is_shared=False,
            decides=True,
            work=dataclasses.replace(self, session=None),
            session=self.session,
            why=self.why,
            bound=True,
            schema=self.schema,
        )
        return (lane,)

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        """Returns no kernel: it passes on what comes. Called once for each plan that is prepared: writes the line of the log."""
        check_order(options)
        _LOGGER.warning("RayEngine: %s", "; ".join(self.why))
        return ()
