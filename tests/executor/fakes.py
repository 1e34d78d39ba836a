"""Kernels that do what a test says, chains of them, and an engine that the test steps by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from arrowflow.dataset import Dataset
from arrowflow.errors import ArrowflowError
from arrowflow.executor import Engine
from arrowflow.executor.stages.base import Queue
from arrowflow.executor.stages.caller import Slot
from arrowflow.executor.workers.worker import ConsumerState, Worker
from arrowflow.kernels.context import Context, StreamHandle
from arrowflow.kernels.held import Held
from arrowflow.kernels.items import Item, Made, Origin, Payload, Task, Ticket
from arrowflow.kernels.kinds import (
    BoundaryKernel,
    Kernel,
    ReaderKernel,
    SerialKernel,
    SourceKernel,
    StatelessKernel,
)
from arrowflow.kernels.operator import KernelSpec
from arrowflow.options import Options
from arrowflow.physical.stage import Chain, StagePlan
from arrowflow.physical.tuning import FIRST_CALLS, StageKey
from arrowflow.plan.position import Position
from arrowflow.run import plan_element
from arrowflow.testing import FakeClock

Running = tuple[Queue, Any, Worker]
"""A call that was started and not completed."""


def chunk(value: int, num_bytes: int = 8) -> pa.RecordBatch:
    """Returns rows of one value in one buffer of exactly `num_bytes` bytes, which nothing else holds."""
    buffer = pa.py_buffer(np.full(num_bytes // 8, value, np.int64))
    return pa.RecordBatch.from_arrays(
        [pa.Array.from_buffers(pa.int64(), num_bytes // 8, [None, buffer])], ["x"]
    )


def value_of(batch: pa.RecordBatch) -> int:
    """Returns the value of a chunk's first row."""
    return int(batch.column(0)[0].as_py())


def number(batch: pa.RecordBatch, value: int) -> pa.RecordBatch:
    """Returns a new chunk of another value and the same size."""
    return chunk(value, batch.column(0).buffers()[1].size)


def _made(chunks: Iterator[pa.RecordBatch], position: Callable[[pa.RecordBatch], Position]) -> Iterator[Made]:
    """Yields what a test's generator does, and closes it with itself."""
    try:
        for batch in chunks:
            yield Made(batch, position(batch))
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()


class Source(SourceKernel):
    """One task a value. `make` gets the value and yields its chunks."""

    def __init__(
        self,
        values: Sequence[int],
        make: Callable[[int], Iterator[pa.RecordBatch]],
        task_bytes: int,
        streams: bool,
    ) -> None:
        self.values, self.make, self.task_bytes, self.streams = values, make, task_bytes, streams

    def tasks(self, position: Position) -> Iterator[Task]:
        first = 0 if position is None else position[0]
        for index in range(first, len(self.values)):
            yield Task(index, Origin(index), self.task_bytes, self.streams)

    def read(self, task: Task) -> Iterator[Made]:
        return _made(self.make(self.values[task.payload]), lambda batch: (task.payload + 1,))


class Reader(ReaderKernel):
    """`fn` yields the chunks of an item."""

    def __init__(self, fn: Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]], call_bytes: int) -> None:
        self.fn, self.call_bytes = fn, call_bytes

    def num_bytes(self, payload: Payload) -> int:
        return self.call_bytes

    def read(self, payload: Payload) -> Iterator[Made]:
        return _made(self.fn(payload), lambda batch: (value_of(batch),))


class Function(StatelessKernel):
    """`fn` makes a chunk of a chunk."""

    def __init__(self, fn: Callable[[pa.RecordBatch], Any]) -> None:
        self.fn = fn

    def apply(self, chunk: Payload, origin: Origin) -> Payload:
        return self.fn(chunk)


class Serial(SerialKernel):
    """Passes on what `fn` yields for each item."""

    def __init__(self, fn: Callable[[Item], Iterator[Item]], last: Callable[[], Iterator[Item]]) -> None:
        self.fn, self.last = fn, last

    def open(self, position: Position, epoch: int) -> Position:
        return position

    def push(self, item: Item) -> Iterator[Item]:
        yield from self.fn(item)

    def finish(self) -> Iterator[Item]:
        yield from self.last()


class Concatenate(BoundaryKernel):
    """Its inputs one after the other, the next one opened when the one before has ended.

    Each input of `children` is a plan of its own, so its stages learn the sizes of their calls for themselves.
    """

    reads_runs = True

    def __init__(self, context: Context, inputs: int) -> None:
        self.context, self.inputs, self.index = context, inputs, 0
        self.stream: StreamHandle | None = None

    def open(self, position: Position, epoch: int) -> Position:
        return None

    def next_input(self) -> StreamHandle | None:
        if self.stream is None and self.index < self.inputs:
            self.stream = self.context.open(self.index, 0, None)
        return self.stream

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        yield item

    def ended(self, stream: StreamHandle) -> None:
        self.stream = None
        self.index += 1

    @property
    def exhausted(self) -> bool:
        return self.index + 1 >= self.inputs


def once(value: int) -> Iterator[pa.RecordBatch]:
    yield chunk(value)


def same(item: Item) -> Iterator[Item]:
    yield item


def nothing() -> Iterator[Item]:
    return iter(())


def _stage(kind: Any, name: str, kernel: Callable[[Context], Kernel], **plan: Any) -> StagePlan:
    spec_kind: Any = "stateless" if kind == "parallel" else kind
    spec = KernelSpec(
        spec_kind,
        kernel,
        phase=plan.pop("phase", None),
        max_calls=plan.pop("max_calls", None),
        cost=plan.pop("cost", "computes"),
        holds_lock=plan.pop("holds_lock", False),
        operator=name,
    )
    if kind in ("source", "reader"):
        return StagePlan(kind="parallel", head=spec, **plan)
    return StagePlan(kind=kind, kernels=(spec,), **plan)


def source(
    values: int | Sequence[int] = 10,
    make: Callable[[int], Iterator[pa.RecordBatch]] = once,
    *,
    task_bytes: int = 8,
    streams: bool = False,
    **plan: Any,
) -> StagePlan:
    """Returns a stage that makes one chunk a value."""
    values = range(values) if isinstance(values, int) else values
    return _stage("source", "source", lambda context: Source(values, make, task_bytes, streams), **plan)


def reader(
    fn: Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]], *, call_bytes: int = 8, **plan: Any
) -> StagePlan:
    """Returns a stage that makes any number of chunks of each."""
    return _stage("reader", "reader", lambda context: Reader(fn, call_bytes), **plan)


def function(
    fn: Callable[[pa.RecordBatch], Any] = lambda batch: batch, name: str = "function", **plan: Any
) -> StagePlan:
    """Returns a stage that calls a function of chunks."""
    return _stage("parallel", name, lambda context: Function(fn), **plan)


def serial(
    fn: Callable[[Item], Iterator[Item]] = same,
    last: Callable[[], Iterator[Item]] = nothing,
    name: str = "serial",
    **plan: Any,
) -> StagePlan:
    """Returns a stage that sees items in order. Last of a chain, it runs on the consumer's thread."""
    return _stage("serial", name, lambda context: Serial(fn, last), **plan)


def kernel(make: Callable[[], SerialKernel], name: str, **plan: Any) -> StagePlan:
    """Returns a stage of a library's serial kernel."""
    return _stage("serial", name, lambda context: make(), **plan)


def boundary(make: Callable[[Context], BoundaryKernel], name: str = "boundary", **plan: Any) -> StagePlan:
    """Returns a stage that opens streams."""
    return _stage("boundary", name, make, **plan)


def start(
    *stages: StagePlan,
    children: Sequence[Chain] = (),
    type: type[Engine] = Engine,
    position: Position = None,
    **options: Any,
) -> Engine:
    """Returns an engine of a chain, not yet asked for anything."""
    resolved = Options(**{"cpu_budget": 2, "ram_budget": 1 << 30} | options).resolved()
    return type(Chain(stages=stages, children=tuple(children)), 0, position, resolved, FakeClock())


@contextmanager
def running(*stages: StagePlan, children: Sequence[Chain] = (), **options: Any) -> Iterator[Engine]:
    engine = start(*stages, children=children, **options)
    try:
        yield engine
    finally:
        engine.close()


def items_of(engine: Engine) -> Iterator[Item]:
    while (item := engine.next_item()) is not None:
        yield item


def values_of(engine: Engine) -> list[int]:
    """Returns the values of all chunks that are left."""
    return [value_of(item.chunk) for item in items_of(engine)]


def values_from(*stages: StagePlan, children: Sequence[Chain] = (), **options: Any) -> list[int]:
    """Runs a chain from its start to its end, closes it, and returns the values of its chunks."""
    with running(*stages, children=children, **options) as engine:
        return values_of(engine)


def drained(engine: Engine) -> tuple[list[int], ArrowflowError]:
    """Returns the values before the error of a run, and the error."""
    values: list[int] = []
    with pytest.raises(ArrowflowError) as caught:
        values.extend(value_of(item.chunk) for item in items_of(engine))
    return values, caught.value


def clock_of(engine: Engine) -> FakeClock:
    """Returns the clock of a run, for a test to move."""
    assert isinstance(engine.clock, FakeClock)
    return engine.clock


def stages_of(engine: Engine) -> list[Queue]:
    """Returns the stages that workers run, the most downstream first."""
    return list(engine.pool.ready.stages())


class Stepper(Engine):
    """An engine without threads: the test picks, runs and completes the calls, in any order it likes.

    `next_item` works too: it runs what there is, and fails where nothing can run.

    Attributes:
        largest_bytes: The most that one call reserved, or made.
        largest_call_bytes: The same, with the chunks that the call's input stands on: of a window, all that it has rows of.
        largest_made_bytes: The most that a call of each stage made; elements of `interleave` have stages of the same key.
        largest_beside_bytes: The most that calls of stages that are open together made, of those that exceed the budget
            each, without the largest one.
        unforeseen_bytes: Bytes that calls of parallel stages, started within the budget, made beyond those that had to be
            free for them.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.largest_bytes = self.largest_call_bytes = self.unforeseen_bytes = 0
        self.largest_made_bytes: dict[StageKey, int] = {}
        self.largest_beside_bytes = 0
        self._too_large: dict[Queue, int] = {}
        self._within: set[Any] = set()  # calls in flight that did not go beyond the budget
        self._flying = self._spared = (
            0  # calls that were started and not completed, and what was spared before them
        )
        self.pool.spawn = lambda: None  # type: ignore[method-assign]
        # Its calls take no time at all; still they are the test's to run.
        self._consumer.comes_soon = lambda now: False  # type: ignore[method-assign]

    def close(self, *, interrupted: bool = False) -> None:
        """Closes the run, and the iterators that a worker would close."""
        super().close(interrupted=interrupted)
        self.abandoned.close(Worker(lambda: None, "no worker"))

    def begin(self, *, waited_for: bool = False) -> Running | None:
        """Starts the call that a free worker would start; None where it would park.

        Args:
            waited_for: Whether the consumer is in `next()`.
        """
        with self.lock:
            before = self.consumer.state
            if waited_for:
                self.consumer.state = ConsumerState.WAITING
            ready = self.pool.pick()
            self.consumer.state = before
            if ready is None:
                return None
            worker = Worker(lambda: None, "no worker")
            if not self._flying:
                self._spared = self.ledger.spared
            self._flying += 1
            running = ready.stage, self.pool.begin(ready, worker), worker
            if self.ledger.fits(0):
                self._within.add(running[1])
            return running

    def finish(self, running: Running) -> None:
        """Runs a call and completes it."""
        stage, call, worker = running
        with self.lock:
            least, most = call.estimate[:2] if isinstance(call, Slot) else (call.reserved, call.reserved)
            taken = self.ledger.made_bytes(_stands_on(call))
        stage.caller.execute(call)
        with self.lock:
            made = stage.bytes
            self.pool.finish(stage, call, worker, 0.0, 0.0)
            made = stage.bytes - made
            self.largest_bytes = max(self.largest_bytes, least, made)
            self.largest_made_bytes[stage.key] = max(made, self.largest_made_bytes.get(stage.key, 0))
            if made > self.ledger.budget:
                self._too_large[stage] = max(made, self._too_large.get(stage, 0))
                sizes = [self._too_large.get(each, 0) for each in stages_of(self)]
                self.largest_beside_bytes = max(self.largest_beside_bytes, sum(sizes) - max(sizes))
            if least or made:
                self.largest_call_bytes = max(self.largest_call_bytes, taken + max(least, made))
            if isinstance(call, Slot) and call in self._within:
                self.unforeseen_bytes += max(0, made - most)
            self._within.discard(call)
            self._flying -= 1
            assert self._flying or self.ledger.spared == self._spared, "calls that are over spare bytes"

    def idle(self, flying: list[Running]) -> bool:
        """Begins a call that the consumer waits for, and it joins those in flight; tells whether nothing can be done."""
        running = self.begin(waited_for=True)
        if running is not None:
            flying.append(running)
        return not flying and not self.root_out.ended

    def settle(self) -> None:
        """Works, one call at a time, until nothing can run before something is taken."""
        while (running := self.begin()) is not None:
            self.finish(running)

    def _await_item(self) -> Item | None:
        while not (self._consumer._taken or self.root_out.out or self.root_out.ended):
            running = self.begin(waited_for=True)
            if running is None:
                break
            self.finish(running)
        with self.lock:
            assert self._consumer._taken or self.root_out.out or self.root_out.ended, (
                "a deadlock: nothing can run, and the consumer waits"
            )
        return super()._await_item()


def _stands_on(call: Any) -> list[Ticket]:
    """Returns what the input of a call stands on, with the rows that its kernel keeps back."""
    if isinstance(call, Slot):
        return [call.item.ticket] if isinstance(call.item, Item) else []
    held = getattr(call.kernel, "_held", None)
    rows = held.tickets() if isinstance(held, Held) else []
    return [*rows, *(item.ticket for item in call.inbox)]


class Hurrying(Stepper):
    """An engine of which so much is known that its consumer runs what is cheap itself. Workers come when they are let in.

    So it is no matter of speed who runs a call: without workers it is the consumer, or nobody.
    """

    close = Engine.close
    _await_item = Engine._await_item

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        del self._consumer.comes_soon  # that of the class, which decides
        while any(stage.calls < FIRST_CALLS for stage in stages_of(self)):
            running = self.begin()
            assert running is not None
            self.finish(running)

    def let_workers_in(self) -> None:
        """From now on workers are started as they are needed."""
        del self.pool.spawn


def hurrying(*stages: StagePlan, **options: Any) -> Hurrying:
    """Returns an engine that has run the first calls of each stage, as a worker."""
    engine = start(*stages, type=Hurrying, **options)
    assert isinstance(engine, Hurrying)
    return engine


def hold(engine: Stepper, operator: str, calls: int) -> list[Running]:
    """Returns calls of an operator, started one after the other and not completed; completes all others."""
    held: list[Running] = []
    while len(held) < calls:
        running = engine.begin()
        assert running is not None, f"{operator}: {len(held)} calls in flight, expected {calls}"
        if running[0].plan.operators == (operator,):
            held.append(running)
        else:
            engine.finish(running)
    return held


def hold_all(engine: Stepper, operator: str) -> list[Running]:
    """Returns all parallel calls of an operator that can be in flight together, and completes all others."""
    held: list[Running] = []
    while (running := engine.begin()) is not None:
        if running[0].plan.operators == (operator,) and running[0].plan.kind == "parallel":
            held.append(running)
        else:
            engine.finish(running)
    return held


def stepper(*stages: StagePlan, children: Sequence[Chain] = (), **options: Any) -> Stepper:
    """Returns an engine to step by hand."""
    engine = start(*stages, children=children, type=Stepper, **options)
    assert isinstance(engine, Stepper)
    return engine


def stepper_of(dataset: Dataset) -> Stepper:
    """Returns an engine to step by hand, of a dataset."""
    prepared = dataset._ready()
    plan = plan_element(prepared.options)
    return Stepper(prepared.chain, 0, None, prepared.options, FakeClock(), plan=plan)


def read_slowly(engine: Stepper, items: int) -> None:
    """Takes so many items at most, each only when nothing is left that can run, and closes the run."""
    engine.settle()
    while items and engine.next_item() is not None:
        items -= 1
        engine.settle()
    engine.close()
