"""`Stage`: what all running stages share.

All attributes are guarded by the engine's lock, except where a comment says otherwise. `execute` runs without it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from arrowflow.bad_rows import NO_BAD_ROWS, LeftOut
from arrowflow.clock import Clock
from arrowflow.executor.ledger import Ledger
from arrowflow.executor.limits import RECENT_CALLS, SHORTEST_CALL_SECONDS
from arrowflow.executor.processes.kernel import RunProcesses
from arrowflow.executor.stages.elsewhere import Elsewhere
from arrowflow.executor.stages.sizes import Sizes
from arrowflow.executor.workers.instances import RunInstances
from arrowflow.kernels.items import Item, Origin, Ticket
from arrowflow.observe.timeline import Timeline
from arrowflow.options import ResolvedOptions
from arrowflow.physical.stage import Chain, StagePlan, stage_key
from arrowflow.physical.tuning import (
    FIRST_CALLS,
    NO_TIMES,
    StageKey,
    StageLimits,
    StageStatistics,
    are_short,
)
from arrowflow.plan.node import Node


class Host(Protocol):
    """The part of a run that its stages, streams and kernels see. All of it under the run's lock, except `clock`.

    Attributes:
        options: Budgets and limits.
        clock: Measures calls.
        ledger: The bytes that the run holds.
        timeline: Records calls, if somebody wants to see them.
        plan: Makes the chain of a sub-plan that is only known while the run goes on.
        processes: The run's side of worker processes.
        lender: Lends instances of classes, each with a thread of its own. From any thread.
        run_storage: Things that kernels keep until the run ends, by owner. From any thread.
        stopped: Whether the run was stopped. From any thread.
        retried: Why reads were tried again, one entry each. From any thread.
        elsewhere: What other processes do for the run. From any thread.
        bad_rows: Bad rows that stages leave out, each with its operator and a place that is the same whenever the rows are
            read again; None where nobody asks for single ones. Set before the first item is asked for; any thread.
        slow: Threads of calls that were made twice; the slower one of each may still run. From any thread.
    """

    options: ResolvedOptions
    clock: Clock
    ledger: Ledger
    timeline: Timeline | None
    plan: Callable[[Node, int], Chain] | None
    processes: RunProcesses
    lender: RunInstances
    run_storage: dict[Any, Any]
    stopped: bool
    retried: list[str]
    elsewhere: Elsewhere
    bad_rows: deque[tuple[str, Any, LeftOut]] | None
    slow: list[threading.Thread]

    @property
    def is_waited_for(self) -> bool:
        """Whether the consumer is in `next()`, and has nothing left of what it took before."""

    def limits_of(self, key: StageKey, chain: Chain, index: int, share: float) -> StageLimits:
        """Returns the limits that all stages of one key share."""

    def sizes_of(self, key: StageKey) -> Sizes:
        """Returns the sizes that all stages of one key measure together."""

    def changed(self, stream: StreamView) -> None:
        """Notes a change of a stream that no call of it made: it may go on, and others may go on or have to end."""

    def close_later(self, operators: tuple[str, ...], iterator: Any) -> None:
        """Leaves an iterator of a kernel, if there is one, to be closed without the lock."""

    def add(self, stream: StreamView) -> None:
        """Schedules the stages of a stream, after all stages that are further downstream."""

    def remove(self, stream: StreamView) -> None:
        """Forgets a stream that was dropped."""


class StreamView(Protocol):
    """The part of a stream that its stages see. `Stream` documents the attributes."""

    host: Host
    chain: Chain
    path: StageKey
    epoch: int
    share: float

    @property
    def boundary(self) -> BoundaryView | None:
        """The boundary that opened it, if any."""

    @property
    def to_begin(self) -> bool:
        """Whether its boundary has taken nothing from it so far."""


class BoundaryView(Protocol):
    """The part of a boundary that the stages of its inputs see."""

    def leaves_room(self, wanting: StreamView, num_bytes: int, room: int) -> bool:
        """Whether `room` is enough for what it may take of other streams before it lets go of what it holds."""


class Stage(ABC):
    """One running stage.

    Attributes:
        out: Items ready for the next stage, in order.
        ended: Nothing more will be put into `out`.
        error: Why it ended, if not because it was finished.
        running: Calls in flight.
        feeds_consumer: Whether the consumer takes what it puts out.
        calls_are_brief: Whether its calls are so brief that their CPU share would be noise: they count as computing.
        calls_are_short: Whether to wake another thread for its calls costs more than they do, as far as is known.
        most_bytes: The bytes that the ledger may count at most for a call to start, if only bytes are lacking; else -1.
    """

    def __init__(self, stream: StreamView, index: int, upstream: Stage | None) -> None:
        host, chain = stream.host, stream.chain
        self.host = host
        self.stream = stream
        self.plan = plan = chain.stages[index]
        self.plan_operators, self.plan_titles = plan.operators, plan.titles
        self.epoch = stream.epoch
        self.key: StageKey = stage_key(chain, index, stream.path)
        self.limits = host.limits_of(self.key, chain, index, stream.share)
        self.upstream = upstream
        self.downstream: Stage | None = None  # what takes `out`
        self.feeds_consumer = False
        self.most_bytes = -1.0
        if upstream is not None:
            upstream.downstream = self
        self.where = _where(plan, upstream)
        self.out: deque[Item] = deque()
        self.ended = False
        self.error: BaseException | None = None
        self.running = 0
        # Whether what its calls take is measured rather than known.
        self.cost_is_measured = plan.kind == "parallel" and plan.cost != "computes" and host.options.autotune
        self.foreign = plan.cost == "computes" and ("polars" in plan.engine or plan.process)
        self.holds_lock = plan.holds_lock
        self.capped = self.full = 0
        self.left_out_so_far = NO_BAD_ROWS
        self.calls = self.rows = self.bytes = self.chunks = self.max_ready_items = 0
        self.busy_seconds = self.cpu_seconds = self.queued_seconds = 0.0
        self.unfinished = NO_TIMES
        self.lately = (0.0, 0.0)  # CPU and wall seconds of a call, or of a chunk of one that makes several
        self.calls_are_brief = False
        self.calls_are_short = self.limits.calls_are_short and not self.foreign

    @property
    def allocates(self) -> bool:
        """Whether its chunks take memory that was not there before."""
        return False

    @property
    def reserved_bytes(self) -> int:
        """Bytes that are reserved for its calls in flight."""
        return 0

    @property
    def tuned(self) -> bool:
        """Whether the tuner has set what its calls take."""
        return bool(self.limits.reason)

    @property
    @abstractmethod
    def exhausted(self) -> bool:
        """Whether it will start no further call on new input."""

    @property
    def drained(self) -> bool:
        """Whether it will start no further call on new input, and none is in flight."""
        return self.exhausted and not self.running

    @property
    def needed(self) -> bool:
        """Whether nothing of what follows can go on, nor does the consumer have an item, until this puts one out.

        That holds for at most one stage that can start: the one that may go beyond the budget.
        """
        stage = self
        while not stage.out and not stage.feeds_consumer:
            following = stage.downstream
            if following is None or not following.is_starved_by(stage):
                return False
            stage = following
        return not stage.out

    def _may_exceed(self, taken: Ticket) -> bool:
        """Whether a call may go beyond the budget: it is needed, and nothing else does, or the consumer waits for it.

        Args:
            taken: What the call's input stands on.
        """
        ledger = self.host.ledger
        if ledger.fits(-ledger.made_bytes(taken)) or self.host.is_waited_for:
            return self.needed
        return False

    @abstractmethod
    def is_starved_by(self, source: Stage) -> bool:
        """Whether all that it has to do, or waits for, is what `source` will put out."""

    @abstractmethod
    def can_start(self) -> bool:
        """Whether a call may start now. Cheap; may do bookkeeping, such as noticing that the input has ended.

        The code that changes something on which the answer depends notes the stream (the table of `workers.ready`).
        """

    @abstractmethod
    def start(self) -> Any:
        """Takes the input of one call and returns it. Only called right after `can_start`."""

    @abstractmethod
    def execute(self, call: Any) -> None:
        """Does the work of a call, without the lock. Never raises: errors are results too."""

    @abstractmethod
    def complete(self, call: Any) -> None:
        """Takes the results of a call over."""

    @abstractmethod
    def drop(self) -> None:
        """Ends the stage and gives up all that it holds, since nobody wants the stage any more."""

    def measure(self, cpu: float, elapsed: float, queued: float, chunks: int) -> None:
        """Counts a call that is over and has put out so many chunks."""
        self.calls = calls = self.calls + 1
        self.busy_seconds += elapsed
        self.cpu_seconds += cpu
        self.queued_seconds += queued
        if chunks > 1:
            cpu, elapsed = cpu / chunks, elapsed / chunks
        weight = 1 / calls if calls < RECENT_CALLS else 1 / RECENT_CALLS
        before_cpu, before = self.lately
        cpu, elapsed = before_cpu + weight * (cpu - before_cpu), before + weight * (elapsed - before)
        self.lately = (cpu, elapsed)
        self.calls_are_brief = calls >= FIRST_CALLS and elapsed < SHORTEST_CALL_SECONDS
        calls = max(calls, self.chunks)
        if calls >= FIRST_CALLS and not self.foreign:
            self.calls_are_short = are_short(calls, cpu, elapsed, holds_lock=self.holds_lock)

    def put(self, item: Item) -> None:
        """Hands an item to the next stage."""
        out = self.out
        out.append(item)
        rows = item.chunk.num_rows
        if rows:
            self.rows += rows
            self.chunks += 1
        self.max_ready_items = max(self.max_ready_items, len(out))

    def end(self, error: BaseException | None = None) -> None:
        """Marks that nothing more comes, and stops the stages before it: they would work for nobody."""
        if not self.ended:
            self.ended = True
            self.error = error
            self.host.changed(self.stream)
            upstream = self.upstream
            while upstream is not None:
                upstream.drop()
                upstream = upstream.upstream

    def draw(self, track: str, began: float, elapsed: float) -> None:
        """Records a call, if somebody wants to see it; calls of parallel stages record their own parts."""
        timeline = self.host.timeline
        if timeline is not None and self.plan.kind != "parallel":
            timeline.span(track, "+".join(self.plan_titles), began, began + elapsed)

    def note_bad_rows(self, found: LeftOut, place: Any) -> None:
        """Notes bad rows that a kernel just left out, if somebody asks for single ones. On any thread, without the lock.

        Before the items that come of it: whoever has taken an item finds the bad rows in front of it noted.
        """
        if self.host.bad_rows is not None:
            place = (*self.key, self.epoch, place, found.place)
            self.host.bad_rows.append((self.plan_titles[0], place, found))

    @property
    def left_out(self) -> LeftOut:
        """Bad rows that its kernels left out."""
        return self.left_out_so_far

    @property
    def ready_items(self) -> int:
        """Items that wait for the next stage."""
        return len(self.out)

    def statistics(self) -> StageStatistics:
        """Returns a snapshot of what it measured."""
        limits, plan = self.limits, self.plan
        return StageStatistics(
            key=self.key,
            kind=plan.kind,
            cost=plan.cost,
            asked_calls=plan.max_calls,
            connections=plan.connections,
            phase=plan.phase,
            foreign=self.foreign,
            holds_lock=self.holds_lock,
            random=plan.random,
            given_ready=plan.buffer_items is not None,
            weight=limits.weight,
            reason=limits.reason,
            ready_limit=limits.max_ready_items,
            capped=self.capped,
            full=self.full,
            operators=self.plan_titles,
            engine=plan.engine,
            max_calls=limits.max_calls,
            calls=self.calls,
            rows=self.rows,
            bytes=self.bytes,
            chunks=self.chunks,
            busy_seconds=self.busy_seconds,
            cpu_seconds=self.cpu_seconds,
            queued_seconds=self.queued_seconds,
            ready_items=self.ready_items,
            max_ready_items=self.max_ready_items,
            running=self.running,
            unfinished=self.unfinished,
            left_out=self.left_out,
        )


def _where(plan: StagePlan, upstream: Stage | None) -> Callable[[Origin], tuple[str, int, str]] | None:
    """Returns a function that names the file and row group of a stage's work, as long as the work lies in one."""
    if any(spec.splits for spec in plan.specs):
        return None
    own = [spec.where for spec in plan.specs if spec.where is not None]
    return own[-1] if own else upstream.where if upstream is not None else None
