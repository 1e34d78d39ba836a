"""`Engine`: one run. The lock, the workers, what the consumer waits on, and the end. See the package's contract."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn, Protocol, cast

from arrowflow.errors import ArrowflowError, ClosedError
from arrowflow.executor.failure import located
from arrowflow.executor.ledger import Ledger
from arrowflow.executor.lifetime import Worker, check_process, register, rest_at_exit
from arrowflow.executor.serial import SerialStage
from arrowflow.executor.stage import Stage
from arrowflow.executor.stream import Stream
from arrowflow.executor.tail import Tail
from arrowflow.executor.totals import count, plans_of
from arrowflow.ops.base import Item, Position
from arrowflow.options import ResolvedOptions
from arrowflow.physical.stage import Chain
from arrowflow.physical.tuning import EngineStatistics, StageStatistics

logger = logging.getLogger("arrowflow")


class Clock(Protocol):
    """Where the engine's measurements take their time from."""

    def now(self) -> float:
        """Returns seconds of wall time since any fixed point."""

    def thread_cpu(self) -> float:
        """Returns seconds of CPU time that the calling thread used."""


class Engine:
    """Runs one chain from a position to its end, and all streams that its boundaries open.

    Args:
        chain: The physical plan.
        epoch: The epoch to run.
        position: Where to start; None for the start of the epoch.
        options: Budgets and limits of the run.
        clock: Measures calls.
    """

    def __init__(
        self, chain: Chain, epoch: int, position: Position, options: ResolvedOptions, clock: Clock
    ) -> None:
        self.options = options
        self.clock = clock
        self.lock = threading.RLock()
        self._holding = threading.Condition(self.lock)  # only to ask whether this thread holds the lock
        self.ledger = Ledger(options.ram_budget)
        self.order: list[Stage] = []  # all stages, the most downstream first
        self.computing = 0
        self.changed = False  # a stage has ended or begun since `_pick` last looked
        self._process = os.getpid()
        self._stopped = False
        self._dropped = False
        self._failure: ArrowflowError | None = None  # of the executor itself
        self._max_workers = options.cpu_budget
        self._threads: list[Worker] = []
        # A parked thread waits on a lock of its own, which whoever wakes it releases. One C call to park and one to
        # wake, where a Condition takes several Python frames; and waking is possible from a finalizer. The locks
        # live as long as the threads: an interrupt between any two steps of waking loses nobody, since `stop` finds
        # all of them, also those that only now begin to wait. A release too many ends the next wait early, and the
        # waiter looks and waits again.
        self._parked: deque[Worker] = deque()
        self._bell = threading.Lock()
        self._bell.acquire()
        self._waiting = False  # the consumer is about to wait for the bell
        self._to_close: deque[tuple[Stage, Any]] = deque()
        self._plans = plans_of(chain)
        self._past: dict[int, StageStatistics] = {}  # of stages that are gone, by id of their plan
        # A trailing serial stage runs on the consumer's thread (rule 4), so it is not in `order`.
        self._tail: Tail | None = None
        with self.lock:
            self.root = Stream(self, chain, epoch, position)
            self.add(self.root)
        last = self.root.last
        if type(last) is SerialStage and last.plan.buffer_items is None:
            self._tail = Tail(last)
            self.order.remove(last)
            self.root_out: Stage = cast(Stage, last.upstream)
        else:
            self.root_out = last
        register(self)

    # ------------------------------------------------------------------ streams

    def add(self, stream: Stream) -> None:
        """Schedules a stream's stages, after all that are further downstream."""
        self.order.extend(reversed(stream.stages))
        beyond_budget = sum(stage.limits.max_calls for stage in self.order if not stage.computes)
        self._max_workers = max(self._max_workers, self.options.cpu_budget + beyond_budget)
        self.changed = True

    def remove(self, stream: Stream) -> None:
        """Ends a stream and forgets its stages."""
        stream.drop()
        for stage in stream.stages:
            count(self._past, stage)
        gone = set(map(id, stream.stages))
        self.order = [stage for stage in self.order if id(stage) not in gone]

    def close_later(self, stage: Stage, iterator: Any) -> None:
        """Remembers an abandoned iterator; closing it may run user code: only on a worker, not under the lock."""
        if iterator is not None and hasattr(iterator, "close"):
            self._to_close.append((stage, iterator))

    def _close_abandoned(self, me: Worker) -> None:
        while True:
            try:
                stage, iterator = self._to_close.popleft()
            except IndexError:
                return
            me.operators = stage.plan.operators
            try:
                iterator.close()
            except BaseException as error:
                logger.warning(
                    "%s raised while it was closed before its end: %r", "+".join(me.operators), error
                )
            me.operators = ()

    # ------------------------------------------------------------------ workers

    def _unpark_one(self) -> None:
        try:
            # The last one to park: its caches and its allocator's heap are warm. Taking turns instead would spread
            # the decoding over all threads, each of which touches fresh memory first.
            _wake(self._parked.pop().parking)
        except IndexError:  # another thread woke it first
            pass

    def _unpark_consumer(self) -> None:
        self._waiting = False
        _wake(self._bell)

    def _kick(self) -> None:
        """Finds a thread for work that nobody is on its way to: a parked one, or a new one."""
        if self._parked:
            if self._pick() is not None:
                self._unpark_one()
        elif len(self._threads) < self._max_workers and self._pick() is not None:
            self._spawn()

    def _spawn(self) -> None:
        if self._stopped:
            return
        worker = Worker(self._work, f"arrowflow-{id(self):x}-{len(self._threads)}")
        self._threads.append(worker)
        try:
            worker.start()
        except RuntimeError as error:
            self._threads.remove(worker)
            if not self._threads:
                raise ArrowflowError(f"no thread can be started: {error}") from error
            self._max_workers = len(self._threads)
            logger.warning("going on with %d threads: %s", self._max_workers, error)

    def _pick(self) -> Stage | None:
        """Returns the most downstream stage that can run (rule 2)."""
        busy = self.computing >= self.options.cpu_budget
        while True:
            self.changed = False
            for stage in self.order:
                if busy and stage.computes:
                    continue
                try:
                    if stage.can_start():
                        return stage
                except Exception as error:
                    stage.end(located(error, stage.plan.specs[0].operator))
            if not self.changed:
                return None
            # A stage noticed the end of its input, which the stages before it in `order` have not seen yet.
            if self._waiting and self.root_out.ended:
                self._unpark_consumer()

    def _work(self) -> None:
        """A worker, from its start until the run is stopped and what it held is dropped."""
        me = cast(Worker, threading.current_thread())
        try:
            with self.lock:
                self._serve(me)
        except BaseException as error:
            # A bug, or no memory is left. The consumer has to hear of it, or it would wait for ever.
            self._failure = ArrowflowError(f"the executor failed: {type(error).__name__}: {error}")
            self._failure.__cause__ = error
            self.stop()
        self._drop()
        self._close_abandoned(me)

    def _serve(self, me: Worker) -> None:
        """Picks, runs, completes, until the run is stopped. Called and returns with the lock held."""
        clock = self.clock
        while not self._stopped:
            stage = self._pick()
            if stage is None:
                self._park(me)
                continue
            call = stage.start()
            self.computing += stage.computes
            me.operators = stage.plan_operators
            if stage.plan.kind == "parallel":
                # A serial call is over before another thread would be awake, and this one then goes on to the work
                # that it would have been woken for.
                self._kick()
            self.lock.release()
            try:
                began, cpu = clock.now(), clock.thread_cpu()
                stage.execute(call)
                cpu, elapsed = clock.thread_cpu() - cpu, clock.now() - began
            finally:
                self.lock.acquire()
            me.operators = ()
            self.computing -= stage.computes
            stage.calls += 1
            stage.busy_seconds += elapsed
            stage.cpu_seconds += cpu
            stage.complete(call)
            del call
            if self._waiting and (self.root_out.out or self.root_out.ended):
                self._unpark_consumer()
            if self._to_close:
                self._outside(lambda: self._close_abandoned(me))

    def _outside(self, function: Callable[[], object]) -> None:
        """Calls a function without the lock, from where it is held."""
        self.lock.release()
        try:
            function()
        finally:
            self.lock.acquire()

    def _park(self, me: Worker) -> None:
        """Waits until there may be work. Called and returns with the lock held."""
        self._parked.append(me)
        self._outside(me.parking.acquire)

    # ------------------------------------------------------------------ consumer

    def next_item(self) -> Item | None:
        """Returns the next item with rows, or None at the end. Called by one thread at a time.

        Raises:
            ArrowflowError: The first error of the run, in order.
            ClosedError: It was stopped.
        """
        check_process(self._process)
        tail = self._tail
        if tail is not None:
            item = tail.next_item(self._await_item)
            if tail.stage.kernel.done and not self.root_out.ended:
                self._end_input(tail.stage)
        else:
            item = self._await_item()
            while item is not None and not item.chunk.num_rows:
                item = self._await_item()
        if item is None and self._stopped:
            self._refuse()
        return item

    def _end_input(self, stage: Stage) -> None:
        """Stops all that would work for a tail that is done."""
        with self.lock:
            stage.end()

    def _refuse(self) -> NoReturn:
        rest_at_exit()
        raise self._failure or ClosedError("the iterator was closed; make a new one with iter(…)")

    def _await_item(self) -> Item | None:
        """Takes the next item of the workers' last stage, waiting for it; None at its end."""
        while True:
            if self._stopped:
                self._refuse()
            with self.lock:
                source = self.root_out
                if source.out:
                    item = source.out.popleft()
                    self._kick()
                    return item
                if source.ended and not self._stopped:
                    if source.error is not None:
                        raise source.error
                    return None
                self._kick()
                if source.out or source.ended:
                    continue
                self._waiting = True
            self._bell.acquire()

    # ------------------------------------------------------------------ the end

    def stop(self) -> None:
        """Tells everybody to stop. Takes no lock and never waits (rule 7)."""
        self._stopped = True
        for worker in list(self._threads):
            _wake(worker.parking)
        _wake(self._bell)

    def close(self) -> None:
        """Stops the run, waits for its workers and drops what it holds (rule 8)."""
        self.stop()
        if os.getpid() != self._process or self._must_not_wait():
            return
        with self.lock:  # `_spawn` is not in the middle of starting one more
            threads = list(self._threads)
        deadline = self.clock.now() + self.options.close_timeout
        for thread in threads:
            try:
                thread.join(max(0.0, deadline - self.clock.now()))
            except RuntimeError:  # an interrupt hit the middle of its start: it finds the run stopped
                pass
        self._drop()
        calls = [thread.operators for thread in threads if thread.is_alive() and thread.operators]
        if calls:
            self._warn_about(calls)

    def _must_not_wait(self) -> bool:
        """Whether the workers wait for this very thread: it is one of them, or a signal hit it under the lock."""
        if threading.current_thread() in self._threads:
            return True
        try:
            self._holding.notify()
        except RuntimeError:
            return False
        return True

    def abandon(self) -> bool:
        """Closes the run from a finalizer, which may run in any thread and in the middle of anything.

        Returns:
            Whether it could be waited for.
        """
        if isinstance(threading.current_thread(), Worker):
            # It may hold the lock of a run, which others need in order to stop: it must not wait. Each worker drops
            # what there is to drop when it leaves.
            self.stop()
            return False
        self.close()
        return True

    def _drop(self) -> None:
        """Lets go of everything that no call is in the middle of; calls let go of the rest when they return."""
        with self.lock:
            if self._dropped:
                return
            self._dropped = True
            self.root.drop()
            for stage in self._stages():
                count(self._past, stage)
            self.order = []
            if self._tail is not None:
                self._tail.iterator = None

    def _stages(self) -> list[Stage]:
        return self.order if self._tail is None else [self._tail.stage, *self.order]

    def _warn_about(self, calls: list[tuple[str, ...]]) -> None:
        names = sorted({name for operators in calls for name in operators})
        warnings.warn(
            f"{len(calls)} call(s) of {', '.join(names)} did not return within "
            f"close_timeout={self.options.close_timeout:g} s; they go on until they return, and their results are "
            "dropped. Give user functions that wait a timeout of their own",
            RuntimeWarning,
            stacklevel=4,
        )

    def statistics(self) -> EngineStatistics:
        """Returns a snapshot; after the end, the last one."""
        if os.getpid() != self._process:
            return EngineStatistics()  # in a forked child the lock may be held by a thread that is not there
        with self.lock:
            self.ledger.drain()
            totals = dict(self._past)
            if not self._dropped:
                for stage in self._stages():
                    count(totals, stage)
            return EngineStatistics(
                stages=tuple(totals[id(plan)] for plan in self._plans if id(plan) in totals),
                ledger_bytes=self.ledger.used,
                ledger_peak_bytes=self.ledger.peak,
                workers=len(self._threads),
            )


def _wake(parking: threading.Lock) -> None:
    try:
        parking.release()
    except RuntimeError:  # it was woken and did not wait again yet
        pass
