"""A plan on a cluster: `split_by_rank` with lanes that run elsewhere, and their rows as the consumer's run sees them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import pyarrow as pa

from arrowflow.cluster.engine import RayEngine
from arrowflow.cluster.lane_worker import Piece
from arrowflow.cluster.parts import Joined
from arrowflow.cluster.session import Asked, Session
from arrowflow.errors import PlanError
from arrowflow.executor.processes.wire import unpack_error
from arrowflow.kernels.context import Context
from arrowflow.kernels.items import Made, Origin, Task
from arrowflow.kernels.kinds import SourceKernel
from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.ops.order.shuffle import Shuffle
from arrowflow.ops.ranks.rank import Rank
from arrowflow.ops.ranks.split_by_rank import SplitByRank
from arrowflow.ops.ranks.steps import Steps
from arrowflow.ops.ranks.whole import ShareOfBatches
from arrowflow.options import ResolvedOptions
from arrowflow.physical.planner import plan_chain
from arrowflow.plan.lane import InLanes, Obstacle
from arrowflow.plan.node import BindContext, Node
from arrowflow.plan.position import Position
from arrowflow.plan.traits import Borders, Resume, Traits
from arrowflow.plan.walk import post_order, rewritten

_LOGGER: Final = logging.getLogger("arrowflow")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnCluster(SplitByRank):
    """The batches of `split_by_rank`, of lanes in the workers of a cluster. See `SplitByRank`.

    Attributes:
        session: The workers; of each bound plan its own.
    """

    session: Session = field(compare=False, repr=False)

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
            return cls(**node.settings(), session=Session(engine)) if isinstance(node, SplitByRank) else node

        return rewritten(plan, change)

    def describe(self) -> str:
        return f"{SplitByRank.describe(self)} on {self.session.engine}"

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Moves down as `split_by_rank` does, with workers of its own."""
        own = dataclasses.replace(self, session=Session(self.session.engine))
        return SplitByRank.bind(own, inputs, context)

    def let_go(self) -> None:
        self.session.let_go()

    def _share(self, obstacle: Obstacle | None) -> ShareOfBatches:
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
        # A worker gets the same lanes without a cluster. All ranks send the same, so that they find each other's workers.
        work = SplitByRank(**self.settings() | {"process": Rank(0, 1, 1), "coordinator": None})
        schema = self.lane_plan(self.own_lanes[0]).schema
        lane = RemoteLane(number=0, own=self.own_lanes, session=self.session, schema=schema).on(work)
        return tuple(dataclasses.replace(lane, number=number) for number in self.own_lanes)

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
        # All lanes have the same stages in the workers.
        shape = tuple(plan_chain(self.lane_plan(self.own_lanes[0]), options).shape())
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLane(Operator, InLanes):
    """The rows of one lane of a split, or of a whole plan, which a worker of a cluster runs: its input.

    Row order: the lane's. Memory: a piece, and one on its way. Resume: the lane's positions.

    Attributes:
        number: Number of the lane; a whole plan is the only one.
        own: The lanes of its consumer.
        session: The workers.
        why: Why a worker runs a whole plan, for `explain`.
    """

    name: ClassVar[str] = "ray"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, resume=Resume.SEEK)

    number: int
    own: Sequence[int]
    why: tuple[str, ...] = ()
    session: Session = field(compare=False, repr=False)

    def arguments(self) -> Mapping[str, Any]:
        return {"lane": self.number}

    @property
    def planned_inputs(self) -> tuple[Node, ...]:
        """None: the worker plans its input."""
        return ()

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema | None:
        return self.schema

    def owns_buffers(self, inputs: Sequence[bool]) -> bool:
        """The rows lie in the object store, which nobody may write."""
        return False

    def let_go(self) -> None:
        self.session.let_go()

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        if not options.deterministic:
            raise PlanError(
                "RayEngine: rows come in one exact order; leave deterministic=False out, or run the plan without an engine"
            )
        shape = tuple(plan_chain(self.inputs[0], options).shape()) if self.why else ()
        return KernelSpec(
            "source",
            lambda context: RemoteKernel(self, options, context),
            phase="transfer",
            engine="ray",
            max_calls=1,
            cost="waits",
            has_position=False,
            runs_last=shape,  # type: ignore[arg-type]  # names, and lists of them
            facts=lambda: self.why,
        )


class RemoteKernel(SourceKernel):
    """One task: the pieces of a lane, one after the other. The positions are the lane's own."""

    def __init__(self, node: RemoteLane, options: ResolvedOptions, context: Context) -> None:
        self._node = node
        self._options = options
        self._context = context

    def tasks(self, position: Position) -> Iterator[Task]:
        yield Task(position, Origin(0), streams=True)

    def read(self, task: Task) -> Iterator[Made]:
        """Yields what the lane's worker sends, and goes on in another worker where one dies."""
        node, context, position = self._node, self._context, task.payload
        session, lane = node.session, node.number
        asked: Asked | None = None
        try:
            session.connect(node.inputs[0], node.own, self._options)
            joined = Joined(session.kept)
            if not session.await_workers(context):
                return
            asked = session.ask(lane, position, None, context)
            while asked is not None:
                began = context.now()
                piece = session.take(asked, context)
                if piece is None:
                    if not context.wait(0.0):
                        return
                    context.retried("a worker of the cluster died")
                    asked = session.ask(lane, position, asked, context)
                    continue
                self._tell(asked, piece, context.now() - began)
                if asked.is_first:  # a batch of which the run before sent only parts comes anew
                    joined = Joined(session.kept)
                batches = joined.add(piece.parts)
                error, ends = piece.error, piece.ended or piece.error is not None
                del piece  # the store is to free what was copied, before the next piece needs room
                if batches:
                    position = batches[-1][1]
                # The next piece is made while the executor takes this one.
                asked = None if ends else session.ask(lane, position, asked, context)
                batches.reverse()
                while batches:
                    batch, after = batches.pop()
                    yield Made(batch, after, more=bool(batches))
                    del batch
                if error is not None:
                    raise unpack_error(error)
        finally:
            session.leave(asked)

    def _tell(self, asked: Asked, piece: Piece, waited_seconds: float) -> None:
        """Hands on what a piece tells of the worker's side of the run."""
        context, lane, remote, work = self._context, self._node.number, asked.remote, piece.work
        context.elsewhere.add(dataclasses.replace(work, waited_seconds=waited_seconds))
        for operator, place, found in piece.bad_rows:
            context.elsewhere.leave_out(operator, (lane, place), found)
        if piece.spans and context.spans is not None:
            place = f"worker {remote.number} on {work.node} (process {work.process}), lane {lane}"
            context.spans.merge(piece.spans, place, remote.ahead_seconds)
