"""`Stream`: the running stages of one pass over one chain; and the `Context` that its kernels are made with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, cast

from arrowflow.executor.limits import MAX_CALLS_BESIDE, WAIT_STEP_SECONDS
from arrowflow.executor.processes.kernel import RemoteKernel
from arrowflow.executor.stages.arrivals import Arrivals
from arrowflow.executor.stages.base import Host, Stage
from arrowflow.executor.stages.boundary import BoundaryStage
from arrowflow.executor.stages.elsewhere import Elsewhere
from arrowflow.executor.stages.parallel import ParallelStage
from arrowflow.executor.stages.serial import SerialStage
from arrowflow.executor.stages.unordered import UnorderedStage
from arrowflow.executor.workers.together import hedged, together
from arrowflow.kernels.context import StreamHandle, SubPlan
from arrowflow.kernels.instances import Instances
from arrowflow.kernels.items import Claim
from arrowflow.kernels.kinds import (
    BoundaryKernel,
    Kernel,
    ReaderKernel,
    SerialKernel,
    SourceKernel,
    StatelessKernel,
)
from arrowflow.kernels.operator import KernelSpec
from arrowflow.observe.timeline import Timeline
from arrowflow.physical.planner import inputs_share
from arrowflow.physical.positions import check_position
from arrowflow.physical.stage import ELEMENT, Chain, child_path
from arrowflow.physical.tuning import StageKey
from arrowflow.plan.node import Node
from arrowflow.plan.position import Position

_NEVER = threading.Event()


class StreamContext:
    """The services that the kernels of one stream may ask for."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.boundary: BoundaryStage | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the stream."""
        return self._stream.epoch

    def open(self, child: int | SubPlan, epoch: int, position: Position) -> StreamHandle:
        """Opens input number `child` of the stream's boundary, or a chain that `plan` made."""
        assert self.boundary is not None
        assert isinstance(child, int | Chain)
        own = self._stream
        chain = own.chain.children[child] if isinstance(child, int) else child
        counts_as_one = not isinstance(child, int) or own.chain.alike
        path = child_path(own.chain, own.path, ELEMENT if counts_as_one else cast(int, child))
        ordered = own.ordered or self.boundary.plan.kernels[0].pins_order
        if isinstance(child, Chain):  # a state could not be compared with it, since it was not known
            check_position(chain, position, ordered=ordered)
        share = own.share * inputs_share(own.chain)
        stream = Stream(own.host, chain, epoch, position, path, ordered=ordered, share=share)
        stream.last.downstream = stream.boundary = self.boundary
        self.boundary.streams[stream] = stream
        self.boundary.to_begin.add(stream)
        own.host.add(stream)
        return stream

    def plan(self, node: Node, first_place: int) -> Chain:
        """Makes the chain of a plan that was only known now."""
        plan = self._stream.host.plan
        assert plan is not None
        return plan(node, first_place)

    def keep(self, buffers: Mapping[int, int]) -> Claim:
        """Counts memory that outlives its items."""
        return self._stream.host.ledger.keep(buffers)

    @property
    def run_storage(self) -> dict[Any, Any]:
        """Things that kernels keep until the run ends, by owner."""
        return self._stream.host.run_storage

    def instances(self, owner: Hashable, make: Callable[[], Any], name: str) -> Instances:
        """Returns an owner's instances, each with a thread of its own."""
        return self._stream.host.lender.instances(owner, make, name)

    def close(self, stream: StreamHandle) -> None:
        """Drops a stream before its end."""
        assert self.boundary is not None
        self.boundary.close_stream(self.boundary.stream_of(stream))

    def now(self) -> float:
        """Returns the time of the run's clock."""
        return self._stream.host.clock.now()

    def wait(self, seconds: float) -> bool:
        """Waits in short steps, since nothing can wake a thread that is in a kernel."""
        host = self._stream.host
        until = host.clock.now() + seconds
        while not host.stopped and (left := until - host.clock.now()) > 0:
            _NEVER.wait(min(left, WAIT_STEP_SECONDS))
        return not host.stopped

    def retried(self, why: str) -> None:
        """Counts a read that is tried again."""
        self._stream.host.retried.append(why)  # one step, so that it needs no lock

    @property
    def elsewhere(self) -> Elsewhere:
        """Takes figures of other processes."""
        return self._stream.host.elsewhere

    @property
    def spans(self) -> Timeline | None:
        """Takes spans of other processes."""
        return self._stream.host.timeline

    def together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Makes calls beside each other."""
        return together(calls, MAX_CALLS_BESIDE)

    def hedged(self, call: Callable[[], Any], seconds: float) -> Any:
        """Makes a call, and once more beside it if it takes longer."""
        host = self._stream.host

        def told() -> None:
            self.retried("slow")

        return hedged(call, seconds, told, host.slow)


class Stream:
    """One pass over a chain. Made, used and dropped under the engine's lock.

    Attributes:
        host: The run.
        chain: The stages as planned.
        epoch: The pass's epoch: part of the key of all that is random in it.
        path: The beginning of the keys of its stages.
        ordered: Whether chunks come in order, whatever finishes first.
        share: Share of the byte budget up to which its stages may work ahead.
        boundary: The boundary that opened it, if any.
        stages: Its stages, upstream first.
        downstream_first: Its stages that workers run, in the order of looks for work.
        rank: Its place in the order of looks; None while it is not scheduled. This and the next two are the ready set's.
        noted: Whether it is noted for a look.
        tokenless: Whether it is noted for a look when there is a token.
    """

    def __init__(
        self,
        host: Host,
        chain: Chain,
        epoch: int,
        position: Position,
        path: StageKey = (),
        *,
        ordered: bool,
        share: float = 1.0,
    ) -> None:
        self.host = host
        self.chain = chain
        self.epoch = epoch
        self.path = path
        self.ordered = ordered
        self.share = share
        self.boundary: BoundaryStage | None = None
        self.context = StreamContext(self)
        self._arrivals: dict[int, Arrivals] = {}
        kernels = [[self._make(spec) for spec in stage.specs] for stage in chain.stages]
        position = self._open(kernels, position)
        self.stages: list[Stage] = []
        for index in range(len(chain.stages)):
            self.stages.append(self._stage(index, kernels[index], position))
        self.downstream_first = self.stages[::-1]
        self._last_to_wait = _last_to_wait(self.stages)
        self.rank: int | None = None
        self.noted = self.tokenless = False

    def _make(self, spec: KernelSpec) -> Kernel:
        assert spec.make is not None
        if spec.process:
            return RemoteKernel(self.host.processes, spec, self.epoch)
        return spec.make(self.context)

    def _open(self, kernels: list[list[Kernel]], position: Position) -> Position:
        """Unwraps the position from the most downstream stage that has a say in it to the source."""
        after: Arrivals | None = None  # those of the stage without an order that was looked at last
        for index, group in reversed(list(enumerate(kernels))):
            if not self.ordered and self.chain.takes_any_order(index):
                below = None if after is None or position is not None else after.start.below
                self._arrivals[index] = arrivals = Arrivals(
                    below.position() if below is not None else position
                )
                if after is not None:
                    after.start.below = arrivals.start
                after, position = arrivals, arrivals.before
            for kernel in group:
                if isinstance(kernel, SerialKernel):
                    position = kernel.open(position, self.epoch)
        return position

    def _stage(self, index: int, kernels: list[Kernel], position: Position) -> Stage:
        plan = self.chain.stages[index]
        upstream = self.stages[-1] if self.stages else None
        if plan.kind == "boundary":
            boundary = BoundaryStage(self, index, cast(BoundaryKernel, kernels[0]))
            self.context.boundary = boundary
            return boundary
        if plan.kind == "serial":
            return SerialStage(self, index, upstream, cast(SerialKernel, kernels[0]))
        head = cast(SourceKernel | ReaderKernel, kernels[0]) if plan.head is not None else None
        stateless = cast(list[StatelessKernel], kernels[1:] if head is not None else kernels)
        tasks = head.tasks(position) if isinstance(head, SourceKernel) else None
        if (arrivals := self._arrivals.get(index)) is not None:
            return UnorderedStage(self, index, upstream, head, stateless, tasks, arrivals)
        return ParallelStage(self, index, upstream, head, stateless, tasks)

    @property
    def holds_lock(self) -> bool:
        """Whether the calls of all its stages hold the interpreter lock."""
        return all(stage.holds_lock for stage in self.stages)

    @property
    def last(self) -> Stage:
        """The stage whose output is the stream's."""
        return self.stages[-1]

    @property
    def exhausted(self) -> bool:
        """Whether all its work has been started."""
        return self.last.exhausted

    @property
    def waits_no_more(self) -> bool:
        """Whether the next stream may wait while this one still computes: all its calls that wait were started.

        A stream without such calls has to have started all its work.
        """
        return self._last_to_wait.exhausted

    @property
    def to_begin(self) -> bool:
        """Whether its boundary has taken nothing from it so far."""
        return self.boundary is not None and self.boundary.has_to_begin(self)

    @property
    def ended(self) -> bool:
        """Whether nothing more comes, not even from its first stage."""
        return self.last.ended

    @property
    def allocates(self) -> bool:
        """Whether its chunks take memory that was not there before."""
        return any(isinstance(stage, BoundaryStage) or stage.allocates for stage in self.stages)

    @property
    def ready(self) -> bool:
        """Whether it has an item, or has ended."""
        return bool(self.last.out) or self.last.ended

    @property
    def ready_without_error(self) -> bool:
        """Whether it has an item, or has ended without an error."""
        return bool(self.last.out) or (self.last.ended and self.last.error is None)

    def drop(self) -> None:
        """Ends all stages."""
        for stage in self.stages:
            stage.drop()


def _last_to_wait(stages: Sequence[Stage]) -> Stage:
    """Returns the last stage whose calls wait, if only decoding and functions follow; else the last stage.

    A stage that collects rows would hold those of two streams. A number of calls that was asked for holds for both together.
    """
    for stage in reversed(stages):
        if stage.plan.cost == "waits":
            return stage
        if stage.plan.kind != "parallel" or stage.plan.max_calls:
            break
    return stages[-1]
