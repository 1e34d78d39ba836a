"""`Queue`: what waits in a stage, what is in flight, and what may start; `Look`: the one value that says so.

A stage is a queue and a caller. The queue is bookkeeping: all of it under the run's lock, and no kernel runs in it. The
caller (`stages.caller`) runs kernels: without the lock, and it touches nothing but its call.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from arrowflow.bad_rows import LeftOut
from arrowflow.clock import Clock
from arrowflow.executor import keeping
from arrowflow.executor.failure import Abandoned
from arrowflow.executor.ledger import Ledger
from arrowflow.executor.processes.kernel import RunProcesses
from arrowflow.executor.stages.measures import Elsewhere, Measures
from arrowflow.executor.stages.sizes import NO_BYTES, Estimate, Sizes
from arrowflow.executor.workers.instances import RunInstances
from arrowflow.executor.workers.worker import Seat
from arrowflow.kernels.items import Item, Origin, Ticket
from arrowflow.observe.timeline import Timeline
from arrowflow.options import ResolvedOptions
from arrowflow.physical.planner import default_limits
from arrowflow.physical.stage import Chain, StagePlan, stage_key
from arrowflow.physical.tuning import Gate, StageKey, StageLimits, Tuner
from arrowflow.plan.node import Node


class Run(ABC):
    """The objects that the parts of one run share. All of it under the run's lock, except where it says otherwise.

    Attributes:
        options: Budgets and limits. Any thread.
        clock: Measures calls. Any thread.
        timeline: Records calls, if somebody wants to see them. Any thread.
        lock: Guards everything that has no other guard.
        ledger: The bytes that the run holds.
        processes: The run's side of worker processes. Any thread.
        lender: Lends instances of classes, each with a thread of its own. Any thread.
        abandoned: Iterators of kernels that nobody will ask any more.
        consumer: Where the consumer is.
        plan: Makes the chain of a sub-plan that is only known while the run goes on. Any thread.
        run_storage: Things that kernels keep until the run ends, by owner. Any thread.
        stopped: Whether the run was stopped. Any thread.
        retried: Why reads were tried again, one entry each. Any thread.
        elsewhere: The work of other processes for the run. Any thread.
        bad_rows: Bad rows that stages leave out, each with its operator and a place that is the same whenever the rows are
            read again; None where nobody asks for single ones. Set before the first item is asked for; any thread.
        slow: Threads of calls that were made twice; the slower one of each may still run. Any thread.
        keeps: Whether what kernels make is kept for later epochs: whoever iterates may come again.
        kept_rows: Rows that came from chunks of earlier epochs.
        kept_images: Images whose pixels did.
    """

    consumer: Seat
    lender: RunInstances

    def __init__(
        self,
        options: ResolvedOptions,
        clock: Clock,
        *,
        tuner: Tuner | None,
        plan: Callable[[Node, int], Chain] | None,
        timeline: Timeline | None,
        keeps: bool = False,
    ) -> None:
        self.options = options
        self.keeps = keeps
        self.clock = clock
        self.timeline = timeline
        self.lock = threading.RLock()
        self.ledger = Ledger(options.ram_budget)
        keeping.begin(self.ledger, shares=options.shares_ram)
        self.kept_rows = self.kept_images = 0
        self.processes = RunProcesses(clock, options.close_timeout)
        self.abandoned = Abandoned()
        self.plan = plan
        self.run_storage: dict[Any, Any] = {}
        self.stopped = False
        self.retried: list[str] = []
        self.elsewhere = Elsewhere()
        self.bad_rows: deque[tuple[str, Any, LeftOut]] | None = None
        self.slow: list[threading.Thread] = []
        self.tuner = tuner
        # Stages of one key share these, in all streams, those to come included.
        self.limits: dict[StageKey, StageLimits] = {}
        self.sizes: dict[StageKey, Sizes] = {}
        self.asked: dict[StageKey, Any] = {}  # the calls of those with a number that a user asked for

    @abstractmethod
    def changed(self, stream: Stream) -> None:
        """Notes a change of a stream that no call of it made: it may go on, and others may go on or have to end."""

    @abstractmethod
    def add(self, stream: Stream) -> None:
        """Schedules the stages of a stream, after all stages that are further downstream."""

    @abstractmethod
    def remove(self, stream: Stream) -> None:
        """Forgets a stream that was dropped."""

    @abstractmethod
    def tune(self, now: float) -> None:
        """Lets the tuner look, if it is time."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Stops the run because the executor itself failed."""

    @abstractmethod
    def stop(self) -> None:
        """Tells everybody to stop. Takes no lock and never waits (rule 9)."""

    @abstractmethod
    def close(self, *, interrupted: bool = False) -> None:
        """Stops the run, waits for its workers and drops what it holds (rule 10)."""

    @abstractmethod
    def drop(self) -> None:
        """Lets go of everything that no call is in the middle of."""

    @property
    @abstractmethod
    def tokens(self) -> float:
        """Cores that the running calls take, except for calls that wait. Read by other runs, without the lock."""


class Stream:
    """One pass over a chain: its stages, upstream first. `stages.stream` makes them.

    Attributes:
        run: The run.
        chain: The stages as planned.
        epoch: The pass's epoch: part of the key of all that is random in it.
        path: The beginning of the keys of its stages.
        ordered: Whether chunks come in order, whatever finishes first.
        share: Share of the byte budget up to which its stages may work ahead.
        boundary: The boundary that opened it, if any.
        to_begin: Whether its boundary has taken nothing from it so far.
        stages: Its stages, upstream first.
        last: The stage whose output is the stream's.
        downstream_first: Its stages that workers run, in the order of looks for work.
        last_to_wait: The stage whose calls all have to be started before the next stream may wait beside this one.
        rank: Its place in the order of looks; None while it is not scheduled. This and the next two are the ready set's.
        noted: Whether it is noted for a look.
        tokenless: Whether it is noted for a look when there is a token.
    """

    last: Queue
    last_to_wait: Queue

    def __init__(
        self, run: Run, chain: Chain, epoch: int, path: StageKey, boundary: Queue | None, share: float
    ) -> None:
        self.run = run
        self.chain = chain
        self.epoch = epoch
        self.path = path
        self.ordered = boundary is None and run.options.deterministic
        self.share = share
        self.boundary = boundary
        self.to_begin = boundary is not None
        self.stages: list[Queue] = []
        self.downstream_first: list[Queue] = []
        self.rank: int | None = None
        self.noted = self.tokenless = False

    @property
    def holds_lock(self) -> bool:
        """Whether the calls of all its stages hold the interpreter lock."""
        return all(stage.holds_lock for stage in self.stages)

    @property
    def allocates(self) -> bool:
        """Whether its chunks take memory that was not there before."""
        return any(stage.allocates for stage in self.stages)

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


class Ready(NamedTuple):
    """A call may start.

    Attributes:
        stage: The stage that calls.
        call: The call that goes on, of those that were suspended; None for a call on the next input.
        estimate: What it may take.
    """

    stage: Queue
    call: Any = None
    estimate: Estimate = NO_BYTES


class Waits(NamedTuple):
    """There is nothing to do before another stage has put something out.

    Attributes:
        source: That stage; None where a boundary has to turn to another input first (`Queue.settle`).
    """

    source: Queue | None


class Blocked(NamedTuple):
    """There is work, and no call may start.

    Attributes:
        gate: The reason.
        most_bytes: The bytes that the ledger may count at most for a call to start, if only bytes are lacking; else -1.
    """

    gate: Gate
    most_bytes: float = -1.0


class Done(NamedTuple):
    """No further call will start.

    Attributes:
        ends: Whether the stage is to be ended now: none of its calls is in flight or waits for its turn.
        error: The error to end it with.
    """

    ends: bool = False
    error: BaseException | None = None


Look = Ready | Waits | Blocked | Done

DONE: Final = Done()
BLOCKED: Final = tuple(map(Blocked, Gate))
"""By gate: the look that finds it closed, where there is nothing to say of bytes."""


class Queue(Measures, ABC):
    """The queue of one running stage, with what the stage measures.

    Attributes:
        caller: What runs its calls.
        out: Items ready for the next stage, in order.
        ended: Nothing more will be put into `out`.
        error: Why it ended, if not because it was finished.
        running: Calls in flight.
        feeds_consumer: Whether the consumer takes what it puts out.
        downstream: What takes what it puts out.
        cost_is_measured: Whether what its calls take is measured rather than known.
        where: Names the file and row group of its work; None where the work does not lie in one.
        allocates: Whether its chunks take memory that was not there before.
        reserved_bytes: Bytes that are reserved for its calls in flight.
    """

    caller: Any
    allocates = False
    reserved_bytes = 0

    def __init__(self, stream: Stream, index: int) -> None:
        run, chain = stream.run, stream.chain
        plan, key = chain.stages[index], stage_key(chain, index, stream.path)
        if key not in run.limits:
            run.limits[key] = default_limits(chain, index, run.options, stream.share)
            if run.tuner is not None and (found := run.tuner.recall(key)) is not None:
                run.limits[key].take(found)
        super().__init__(key, plan, run.limits[key])
        self.run = run
        self.stream = stream
        self.sizes = run.sizes.setdefault(key, Sizes())
        self.upstream = upstream = stream.stages[-1] if stream.stages else None
        self.downstream: Queue | None = stream.boundary
        if upstream is not None:
            upstream.downstream = self
        self.waits = Waits(upstream)
        self.feeds_consumer = False
        self.where = _where(plan, upstream)
        self.out: deque[Item] = deque()
        self.ended = False
        self.error: BaseException | None = None
        self.running = 0
        self.cost_is_measured = plan.kind == "parallel" and plan.cost != "computes" and run.options.autotune

    @property
    @abstractmethod
    def has_begun_all(self) -> bool:
        """Whether it will start no further call on new input."""

    @abstractmethod
    def look(self, room: float = math.inf) -> Look:
        """Returns what a look at it finds. Cheap, and changes nothing.

        The code that changes something on which the answer depends notes the stream (the table of `workers.ready`).

        Args:
            room: Cores of the CPU budget that are free.
        """

    def settle(self) -> bool:
        """Does what needs no call, after a look that found it waiting; returns whether to look again."""
        return False

    def leaves_room(self, wanting: Stream, num_bytes: int, room: int) -> bool:
        """Whether `room` is enough for what a boundary may take of others of its streams before it lets go of anything."""
        return True

    def may_exceed(self, taken: Ticket) -> bool:
        """Whether a call may go beyond the budget: it is needed, and nothing else does, or the consumer waits for it.

        A stage is needed if the consumer has no item, and each stage between the two waits for the stage before it. That
        holds for at most one stage that can start.

        Args:
            taken: The place that the call's input stands on.
        """
        stage: Queue = self
        while not stage.out and not stage.feeds_consumer:
            following = stage.downstream
            if following is None or following.look() != Waits(stage):
                return False
            stage = following
        ledger = self.run.ledger
        return not stage.out and (self.run.consumer.waits_for_run or ledger.fits(-ledger.made_bytes(taken)))

    @abstractmethod
    def start(self, ready: Ready) -> Any:
        """Takes the input of the call that a look has just found, and returns the call."""

    @abstractmethod
    def complete(self, call: Any) -> None:
        """Takes the results of a call over."""

    def drop(self) -> None:
        """Ends the stage and gives up all that it holds, since nobody wants the stage any more."""
        self.ended = True
        self.error = None
        self.out.clear()
        self._let_go()

    @abstractmethod
    def _let_go(self) -> None:
        """Gives up what its kernels hold, and what they are yet to do. May be called again."""

    def put(self, item: Item) -> None:
        """Hands an item to the next stage."""
        out = self.out
        out.append(item)
        rows = item.chunk.num_rows
        if rows:
            self.rows += rows
            self.chunks += 1
        self.max_ready_items = max(self.max_ready_items, len(out) * self.limits.streams)

    def end(self, error: BaseException | None = None) -> None:
        """Marks that nothing more comes, and stops the stages before it: they would work for nobody."""
        if not self.ended:
            self.ended = True
            self.error = error
            self.run.changed(self.stream)
            upstream = self.upstream
            while upstream is not None:
                upstream.drop()
                upstream = upstream.upstream
        self._let_go()

    def close_later(self, iterator: Any) -> None:
        """Leaves an iterator of a kernel, if there is one, to be closed without the lock."""
        self.run.abandoned.add(self.plan.operators, iterator)

    @property
    def ready_items(self) -> int:  # type: ignore[override]
        """Items that wait for the next stage."""
        return len(self.out)


def _where(plan: StagePlan, upstream: Queue | None) -> Callable[[Origin], tuple[str, int, str]] | None:
    """Returns a function that names the file and row group of a stage's work, as long as the work lies in one."""
    if any(spec.splits for spec in plan.specs):
        return None
    own = [spec.where for spec in plan.specs if spec.where is not None]
    return own[-1] if own else upstream.where if upstream is not None else None
