"""Opens streams: makes the stages of a chain, and the `Context` of their kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

from arrowflow.executor.limits import MAX_CALLS_BESIDE, WAIT_STEP_SECONDS
from arrowflow.executor.processes.kernel import RemoteKernel
from arrowflow.executor.stages.arrivals import Arrivals
from arrowflow.executor.stages.base import Queue, Stream
from arrowflow.executor.stages.boundary import BoundaryQueue
from arrowflow.executor.stages.parallel import ParallelQueue
from arrowflow.executor.stages.serial import SerialQueue
from arrowflow.executor.stages.unordered import UnorderedQueue
from arrowflow.executor.workers.together import hedged, together
from arrowflow.kernels.context import StreamHandle, SubPlan
from arrowflow.kernels.kinds import BoundaryKernel, Kernel, SerialKernel
from arrowflow.kernels.operator import KernelSpec
from arrowflow.observe.timeline import Timeline
from arrowflow.physical.planner import inputs_share
from arrowflow.physical.stage import ELEMENT, Chain, check_position, child_path
from arrowflow.plan.node import Node
from arrowflow.plan.position import Position

_NEVER = threading.Event()


class StreamContext:
    """The services that the kernels of one stream may ask for."""

    boundary: BoundaryQueue

    def __init__(self, stream: Stream) -> None:
        run = stream.run
        self._stream = stream
        self.epoch = stream.epoch
        self.keeps = run.keeps
        self.run_storage = run.run_storage
        self.elsewhere = run.elsewhere
        self.keep = run.ledger.keep
        self.instances = run.lender.instances
        self.now = run.clock.now

    def open(self, child: int | SubPlan, epoch: int, position: Position) -> StreamHandle:
        """Opens input number `child` of the stream's boundary, or a chain that `plan` made."""
        assert isinstance(child, int | Chain)
        own = self._stream
        chain = own.chain.children[child] if isinstance(child, int) else child
        counts_as_one = not isinstance(child, int) or own.chain.alike
        path = child_path(own.chain, own.path, ELEMENT if counts_as_one else cast(int, child))
        ordered = own.ordered or self.boundary.plan.kernels[0].pins_order
        if isinstance(child, Chain):  # a state could not be compared with it, since it was not known
            check_position(chain, position, ordered=ordered)
        stream = Stream(own.run, chain, epoch, path, self.boundary, own.share * inputs_share(own.chain))
        stream.ordered = ordered
        open_stream(stream, position)
        self.boundary.streams[stream] = stream
        own.run.add(stream)
        return stream

    def plan(self, node: Node, first_place: int) -> Chain:
        """Makes the chain of a plan that was only known now."""
        plan = self._stream.run.plan
        assert plan is not None
        return plan(node, first_place)

    def close(self, stream: StreamHandle) -> None:
        """Drops a stream before its end."""
        self.boundary.close_stream(self.boundary.streams[stream])

    def wait(self, seconds: float) -> bool:
        """Waits in short steps, since nothing can wake a thread that is in a kernel."""
        run = self._stream.run
        until = run.clock.now() + seconds
        while not run.stopped and (left := until - run.clock.now()) > 0:
            _NEVER.wait(min(left, WAIT_STEP_SECONDS))
        return not run.stopped

    def retried(self, why: str) -> None:
        """Counts a read that is tried again."""
        self._stream.run.retried.append(why)  # one step, so that it needs no lock

    @property
    def spans(self) -> Timeline | None:
        """Takes spans of other processes."""
        return self._stream.run.timeline

    def together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Makes calls beside each other."""
        return together(calls, MAX_CALLS_BESIDE)

    def hedged(self, call: Callable[[], Any], seconds: float) -> Any:
        """Makes a call, and once more beside it if it takes longer."""
        return hedged(call, seconds, lambda: self.retried("slow"), self._stream.run.slow)


def open_stream(stream: Stream, position: Position) -> None:
    """Makes the stages of a stream, which begin at a position."""
    context = StreamContext(stream)
    kernels = [[_made(stream, spec, context) for spec in stage.specs] for stage in stream.chain.stages]
    position, arrivals = _opened(stream, kernels, position)
    for index, group in enumerate(kernels):
        stage = _stage(stream, index, group, position, arrivals.get(index))
        if isinstance(stage, BoundaryQueue):
            context.boundary = stage
        stream.stages.append(stage)
    stream.last = stream.stages[-1]
    stream.downstream_first = stream.stages[::-1]
    stream.last_to_wait = _last_to_wait(stream)


def _made(stream: Stream, spec: KernelSpec, context: StreamContext) -> Kernel:
    assert spec.make is not None
    if spec.process:
        return RemoteKernel(stream.run.processes, spec, stream.epoch)
    return spec.make(context)


def _opened(
    stream: Stream, kernels: list[list[Kernel]], position: Position
) -> tuple[Position, dict[int, Arrivals]]:
    """Unwraps the position from the most downstream stage that has a say in it to the source.

    Returns:
        The position of the source, and what came of the stages without an order, by number.
    """
    found: dict[int, Arrivals] = {}
    after: Arrivals | None = None  # those of the stage without an order that was looked at last
    for index, group in reversed(list(enumerate(kernels))):
        if not stream.ordered and stream.chain.takes_any_order(index):
            below = None if after is None or position is not None else after.start.below
            found[index] = arrivals = Arrivals(below.position() if below is not None else position)
            if after is not None:
                after.start.below = arrivals.start
            after, position = arrivals, arrivals.before
        for kernel in group:
            if isinstance(kernel, SerialKernel):
                position = kernel.open(position, stream.epoch)
    return position, found


def _stage(
    stream: Stream, index: int, kernels: list[Kernel], position: Position, arrivals: Arrivals | None
) -> Queue:
    plan = stream.chain.stages[index]
    if plan.kind == "boundary":
        return BoundaryQueue(stream, index, cast(BoundaryKernel, kernels[0]))
    if plan.kind == "serial":
        return SerialQueue(stream, index, cast(SerialKernel, kernels[0]))
    if arrivals is not None:
        return UnorderedQueue(stream, index, kernels, position, arrivals)
    return ParallelQueue(stream, index, kernels, position)


def _last_to_wait(stream: Stream) -> Queue:
    """Returns the stage whose calls all have to be started before the next stream may wait beside this one.

    That is the last one whose calls wait, if only decoding and functions follow. A stage that collects rows would hold those
    of two streams.
    """
    for stage in reversed(stream.stages):
        if stage.plan.cost == "waits":
            return stage
        if stage.plan.kind != "parallel":
            break
    return stream.last
