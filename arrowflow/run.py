"""bind → optimise → plan → execute, in that order; and `Iterator`, which a user holds while it runs.

`prepare` does everything that needs no thread, once per dataset: the only I/O in it is `Node.bind` of sources (a
listing and one footer each). `Iterator` starts the engine at the first `next()`, so that loading a state or setting
the epoch before costs nothing.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import count
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import pyarrow as pa

from arrowflow import state
from arrowflow.errors import ArrowflowError, BudgetError, ClosedError
from arrowflow.executor import Engine
from arrowflow.expr import forget_compiled
from arrowflow.ops.base import Position, Slice
from arrowflow.ops.with_options import WithOptions
from arrowflow.optimizer import optimise
from arrowflow.options import Options, ResolvedOptions, check_size
from arrowflow.physical.planner import plan_chain
from arrowflow.physical.stage import Chain
from arrowflow.physical.tuning import EngineStatistics, Statistics
from arrowflow.plan.node import BindContext, Node
from arrowflow.plan.walk import fold, post_order
from arrowflow.records import dataclass

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class WallClock:
    """The clock of the operating system."""

    now: Final = staticmethod(time.perf_counter)
    thread_cpu: Final = staticmethod(time.thread_time)

    def cpu_of(self, thread: int) -> float:
        """Returns seconds of CPU time of a living thread; where threads have no clocks, of the whole process."""
        if not hasattr(time, "pthread_getcpuclockid"):
            return time.process_time()
        return time.clock_gettime(time.pthread_getcpuclockid(thread))


def options_of(plan: Node) -> ResolvedOptions:
    """Returns the options of a plan: of several settings of one field the most downstream one wins."""
    merged = Options()
    for node in post_order(plan):
        if isinstance(node, WithOptions):
            merged = merged.merged(node.options)
    return merged.resolved()


def bind(plan: Node, options: ResolvedOptions, first_place: int = 0) -> Node:
    """Returns the plan with schemas, seeds and files: the only planning step that does I/O.

    Places, which tell operators apart in the keys of everything random, are counted from `first_place`.

    Raises:
        PlanError: An operator does not fit its inputs.
        SourceError: A source cannot be found or opened.
    """
    places = count(first_place)

    def combine(node: Node, inputs: Sequence[Node]) -> Node:
        try:
            return node.bind(tuple(inputs), BindContext(options=options, place=next(places)))
        except ArrowflowError as error:
            error.locate(operator=node.name)
            raise

    return fold(plan, combine)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A plan, ready to run any number of times.

    Attributes:
        bound: As written, with schemas.
        optimised: After the rules.
        applied: Names of the rules that changed something.
        chain: The physical plan.
        options: Options of the whole pipeline.
    """

    bound: Node
    optimised: Node
    applied: tuple[str, ...]
    chain: Chain
    options: ResolvedOptions

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What states of this pipeline say about it."""
        return state.identify(self.bound, self.chain)

    @cached_property
    def owns_buffers(self) -> bool:
        """Whether nobody but its batches holds their memory."""
        return fold(self.optimised, lambda node, inputs: node.owns_buffers(inputs))


def prepare(plan: Node) -> Prepared:
    """Binds, optimises and plans."""
    options = options_of(plan)
    bound = bind(plan, options)
    optimised, applied = optimise(bound, options.disabled_rules)
    chain = plan_chain(optimised, options)
    forget_compiled()
    return Prepared(bound=bound, optimised=optimised, applied=applied, chain=chain, options=options)


def plan_element(options: ResolvedOptions) -> Callable[[Node, int], Chain]:
    """Returns what makes chains of plans that operators get from user functions while they run."""

    def plan(node: Node, first_place: int) -> Chain:
        optimised, _ = optimise(bind(node, options, first_place), options.disabled_rules)
        return plan_chain(optimised, options)

    return plan


def count_rows(plan: Node) -> int | None:
    """Returns the exact rows of one epoch of a bound plan, or None if only running it tells."""
    return fold(plan, lambda node, inputs: node.count_rows(inputs))


def count_batches(plan: Node) -> int | None:
    """Returns the exact batches of one epoch of a bound plan that ends in batches, or None."""

    def combine(node: Node, inputs: Sequence[tuple[int | None, int | None]]) -> tuple[int | None, int | None]:
        rows = [child[0] for child in inputs]
        return node.count_rows(rows), node.count_batches(rows, [child[1] for child in inputs])

    return fold(plan, combine)[1]


def check_budget(chain: Chain, budget_bytes: int) -> None:
    """Raises `BudgetError` if the budget is under what the stages need to make progress one after the other."""
    needs = [(spec.operator, spec.floor_bytes) for spec in _specs(chain) if spec.floor_bytes]
    floor = sum(num_bytes for _, num_bytes in needs)
    if floor > budget_bytes:
        parts = ", ".join(f"{operator} {num_bytes:,}" for operator, num_bytes in needs)
        raise BudgetError(
            f"ram_budget={budget_bytes:,} bytes is under the least that this pipeline needs, {floor:,} bytes "
            f"({parts}); raise the budget, or use a smaller shuffle window or smaller row groups"
        )


def _specs(chain: Chain) -> list[Any]:
    own = [spec for stage in chain.stages for spec in stage.specs]
    return own + [spec for child in chain.children for spec in _specs(child)]


@dataclass(slots=True)
class EpochCounter:
    """How often a dataset was iterated: the one thing it remembers.

    Attributes:
        next: The epoch that the next iteration runs.
    """

    next: int = 0

    def take(self) -> int:
        """Returns the next epoch and counts it."""
        epoch = self.next
        self.next += 1
        return epoch


@dataclass(slots=True)
class Progress:
    """How far an iterator is, and what its consumer measured. Outlives it, so that a loader can tell after a `break`.

    Attributes:
        epoch: The epoch that it runs.
        position: Position of the last delivered batch.
        batches: Batches delivered in this epoch, also before a resume.
        delivered: Batches delivered by this iterator.
        rows: Rows delivered by this iterator.
        began: Time of the first `next()`.
        last: Time of the end of the latest `next()`.
        waited_seconds: Time inside `next()`.
        first_batch_seconds: Time inside the first `next()`.
        final: What the engine measured, once it has ended.
    """

    epoch: int
    position: Position = None
    batches: int = 0
    delivered: int = 0
    rows: int = 0
    began: float | None = None
    last: float = 0.0
    waited_seconds: float = 0.0
    first_batch_seconds: float = 0.0
    final: EngineStatistics = field(default_factory=EngineStatistics)

    def place(self, epoch: int, position: Position = None, batches: int = 0) -> None:
        """Moves to a place in the data."""
        self.epoch, self.position, self.batches = epoch, position, batches

    def measure(self, began: float, now: float) -> None:
        """Counts one `next()`."""
        if self.began is None:
            self.began = began
            self.first_batch_seconds = now - began
        self.last = now
        self.waited_seconds += now - began

    def deliver(self, position: Position, rows: int) -> None:
        """Counts one batch."""
        self.position = position
        self.batches += 1
        self.delivered += 1
        self.rows += rows


class Delivery(Protocol[T_co]):
    """The last step of a run, on the consumer's thread: from chunks to what the consumer gets."""

    def __call__(self, chunk: pa.RecordBatch | Slice) -> T_co:
        """Returns one batch for the consumer."""

    def forget(self) -> None:
        """Lets go of all memory. Called when the run ends."""


class RecordBatches:
    """Delivers record batches as they are."""

    def __call__(self, chunk: pa.RecordBatch | Slice) -> pa.RecordBatch:
        """Returns the record batch."""
        return chunk.record_batch() if type(chunk) is Slice else chunk

    def forget(self) -> None:
        """Does nothing: it keeps nothing."""


class Iterator(Generic[T]):
    """One pass over a dataset. Made by `iter(dataset)` and `iter(loader)`; a context manager.

    Work starts with the first `next()`. It ends, threads and files included, when the iterator is exhausted, closed,
    or no longer referenced. `close` may be called from another thread; everything else is for one thread at a time.
    """

    def __init__(self, prepared: Prepared, counter: EpochCounter, deliver: Delivery[T]) -> None:
        self._prepared = prepared
        self._counter = counter
        self._deliver = deliver
        self._clock = WallClock()
        self._engine: Engine | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._closed = False
        self._ended = False
        self._busy = False
        self.progress = Progress(counter.take())

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __next__(self) -> T:
        began = self._clock.now()
        progress = self.progress
        if self._busy:
            raise ArrowflowError(
                "next() is still running, in another thread or in one that waits for this one; an iterator has one "
                "consumer at a time"
            )
        self._busy = True
        try:
            item = self._running().next_item()
            if item is not None:
                result = self._deliver(item.chunk)
                progress.deliver(item.position, item.chunk.num_rows)
                progress.measure(began, self._clock.now())
                return result
            self._end()
            progress.measure(began, self._clock.now())
            progress.place(progress.epoch + 1)
            raise StopIteration
        except BaseException:
            # Whatever it is, an interrupt too: nothing of this run may go on without its consumer.
            self._end()
            raise
        finally:
            self._busy = False

    def _running(self) -> Engine:
        self._check_open()
        if self._ended:
            raise StopIteration
        if self._engine is None:
            prepared, progress = self._prepared, self.progress
            check_budget(prepared.chain, prepared.options.ram_budget)
            self._engine = Engine(
                prepared.chain,
                progress.epoch,
                progress.position,
                prepared.options,
                self._clock,
                plan=plan_element(prepared.options),
            )
            # Not `__del__`: what stops the run must not need the iterator, which is being torn down.
            self._finalizer = weakref.finalize(self, _abandon, self._engine, progress)
            self._finalizer.atexit = False
            self._check_open()  # `close` in another thread may have come before there was anything to close
        return self._engine

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the iterator was closed; make a new one with iter(…)")

    def _end(self) -> None:
        self._ended = True
        if self._engine is not None:
            self._engine.close()
            self.progress.final = self._engine.statistics()
            self._engine = None
            self._deliver.forget()
            if self._finalizer is not None:
                self._finalizer.detach()

    def close(self) -> None:
        """Stops all work and lets go of all memory and files. May be called from any thread, and again.

        A user function that does not return is waited for `Options.close_timeout` seconds and then named in a
        warning.
        """
        self._closed = True
        engine = self._engine
        if engine is not None:
            engine.close()
            self.progress.final = engine.statistics()
            if not self._busy:
                self._deliver.forget()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after the last delivered batch: JSON, under 64 KiB, made in microseconds.

        Loaded into an iterator of the same pipeline, also in another process, it goes on with exactly the next
        batch.

        Raises:
            StateError: The pipeline cannot be resumed (a one-shot stream, `deterministic=False`).
        """
        return state_of(self._prepared, self.progress)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from a state: the next batch is the one after the state was taken.

        Raises:
            StateError: The state belongs to another pipeline; the message says what differs.
        """
        self._restart(*place_of(self._prepared, state_dict))

    def set_epoch(self, epoch: int) -> None:
        """Starts over, at the beginning of an epoch."""
        self._restart(check_size("set_epoch", "epoch", epoch, least=0))

    def _restart(self, epoch: int, position: Position = None, batches: int = 0) -> None:
        self._check_open()
        self._end()
        self._ended = False
        self.progress.place(epoch, position, batches)
        self._counter.next = epoch + 1

    def stats(self) -> Statistics:
        """Returns what the run measured so far; each field says how to read it."""
        engine = self._engine
        return statistics_of(self._prepared, self.progress, None if engine is None else engine.statistics())


def _abandon(engine: Engine, progress: Progress) -> None:
    """Ends the run of an iterator that is gone; a loader may still ask how far it came."""
    if engine.abandon():
        progress.final = engine.statistics()


def statistics_of(prepared: Prepared, progress: Progress, ran: EngineStatistics | None) -> Statistics:
    """Returns what the consumer and the engine measured together."""
    ran = progress.final if ran is None else ran
    return Statistics(
        batches=progress.delivered,
        rows=progress.rows,
        seconds=0.0 if progress.began is None else progress.last - progress.began,
        waited_seconds=progress.waited_seconds,
        first_batch_seconds=progress.first_batch_seconds,
        ledger_bytes=ran.ledger_bytes,
        ledger_peak_bytes=ran.ledger_peak_bytes,
        ledger_budget_bytes=prepared.options.ram_budget,
        workers=ran.workers,
        stages=ran.stages,
    )


def state_of(prepared: Prepared, progress: Progress) -> dict[str, Any]:
    """Returns the state after the last delivered batch."""
    state.check_resumable(prepared.bound, deterministic=prepared.options.deterministic)
    return state.pack(prepared.identity, progress.epoch, progress.position, progress.batches)


def place_of(prepared: Prepared, state_dict: Mapping[str, Any]) -> tuple[int, Position, int]:
    """Returns (epoch, position, batches): where a state says to go on."""
    state.check_resumable(prepared.bound, deterministic=prepared.options.deterministic)
    return state.unpack(state_dict, prepared.identity)
