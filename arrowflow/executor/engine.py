"""`Engine`: one run. The lock, the workers, what the consumer waits on, and the end. See the package's contract."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

from arrowflow.executor.ledger import Ledger
from arrowflow.executor.lifetime import check_process, register
from arrowflow.executor.serial import SerialStage
from arrowflow.executor.stage import Stage
from arrowflow.executor.stream import Stream
from arrowflow.ops.base import Item, Position, SerialKernel
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
        register(self)
        self.options = options
        self.clock = clock
        self.lock = threading.RLock()
        self.ledger = Ledger(options.ram_budget)
        self.order: list[Stage] = []  # all stages, the most downstream first
        self.computing = 0
        self.changed = False  # a stage has ended since `_pick` last looked
        self._process = os.getpid()
        self._stopped = False
        self._closed_late = False
        self._max_workers = options.cpu_budget
        self._threads: list[threading.Thread] = []
        self._current: dict[str, Stage] = {}  # by thread name: what a worker is in the middle of
        # A parked thread waits on a lock of its own. One C call to park and one to wake, where a Condition takes
        # several Python frames; and waking is possible from a finalizer.
        self._parked: deque[threading.Lock] = deque()
        self._consumer: threading.Lock | None = None
        self._to_close: deque[Any] = deque()
        self._past: dict[int, StageStatistics] = {}  # of stages that are gone, by id of their plan
        self._final: EngineStatistics | None = None
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

    # ------------------------------------------------------------------ streams

    def add(self, stream: Stream) -> None:
        """Schedules a stream's stages, after all that are further downstream."""
        self.order.extend(reversed(stream.stages))
        beyond_budget = sum(stage.limits.max_calls for stage in self.order if not stage.computes)
        self._max_workers = max(self._max_workers, self.options.cpu_budget + beyond_budget)

    def remove(self, stream: Stream) -> None:
        """Ends a stream and forgets its stages."""
        for stage in stream.stages:
            _count(self._past, stage)
        stream.drop()
        gone = set(map(id, stream.stages))
        self.order = [stage for stage in self.order if id(stage) not in gone]

    def close_later(self, iterator: Any) -> None:
        """Remembers an abandoned iterator; closing it may run user code, which must not happen under the lock."""
        if iterator is not None and hasattr(iterator, "close"):
            self._to_close.append(iterator)

    def _close_abandoned(self) -> None:
        while self._to_close:
            iterator = self._to_close.popleft()
            try:
                iterator.close()
            except Exception as error:
                logger.warning("an abandoned iterator raised while it was closed: %r", error)

    # ------------------------------------------------------------------ workers

    def _unpark_one(self) -> None:
        try:
            self._parked.popleft().release()
        except IndexError:  # another thread woke it first
            pass

    def _unpark_consumer(self) -> None:
        parked, self._consumer = self._consumer, None
        if parked is not None:
            try:
                parked.release()
            except RuntimeError:  # `stop`, which takes no lock, released it at the same time
                pass

    def _kick(self) -> None:
        """Finds a thread for work that nobody is on its way to: a parked one, or a new one."""
        if self._parked:
            if self._pick() is not None:
                self._unpark_one()
        elif len(self._threads) < self._max_workers and self._pick() is not None:
            self._spawn()

    def _spawn(self) -> None:
        thread = threading.Thread(
            target=self._work, name=f"arrowflow-{id(self):x}-{len(self._threads)}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _pick(self) -> Stage | None:
        """Returns the most downstream stage that can run (rule 2)."""
        busy = self.computing >= self.options.cpu_budget
        while True:
            self.changed = False
            for stage in self.order:
                if not (busy and stage.computes) and stage.can_start():
                    return stage
            if not self.changed:
                return None
            # A stage noticed the end of its input, which the stages before it in `order` have not seen yet.
            if self._consumer is not None and self.root_out.ended:
                self._unpark_consumer()

    def _work(self) -> None:
        """A worker: picks, runs, completes, until the run is stopped."""
        name = threading.current_thread().name
        clock = self.clock
        self.lock.acquire()
        try:
            while not self._stopped:
                stage = self._pick()
                if stage is None:
                    self._park()
                    continue
                call = stage.start()
                self.computing += stage.computes
                self._current[name] = stage
                self._kick()
                self.lock.release()
                try:
                    began, cpu = clock.now(), clock.thread_cpu()
                    stage.execute(call)
                    cpu, elapsed = clock.thread_cpu() - cpu, clock.now() - began
                finally:
                    self.lock.acquire()
                del self._current[name]
                self.computing -= stage.computes
                if self._stopped:
                    break
                stage.calls += 1
                stage.busy_seconds += elapsed
                stage.cpu_seconds += cpu
                stage.complete(call)
                del call
                if self._consumer is not None and (self.root_out.out or self.root_out.ended):
                    self._unpark_consumer()
                if self._to_close:
                    self._outside(self._close_abandoned)
        finally:
            late = self._closed_late
            self.lock.release()
            if late:
                self._drop()

    def _outside(self, function: Callable[[], None]) -> None:
        """Calls a function without the lock, from where it is held."""
        self.lock.release()
        try:
            function()
        finally:
            self.lock.acquire()

    def _park(self) -> None:
        """Waits until there may be work. Called and returns with the lock held."""
        parked = threading.Lock()
        parked.acquire()
        self._parked.append(parked)
        if self._stopped:
            # `stop` takes no lock: it may have unparked everybody just before this thread was in the list.
            return
        self._outside(cast(Callable[[], None], parked.acquire))

    # ------------------------------------------------------------------ consumer

    def next_item(self) -> Item | None:
        """Returns the next item with rows, or None at the end. Called by one thread at a time.

        Raises:
            ArrowflowError: The first error of the run, in order.
        """
        check_process(self._process)
        if self._tail is not None:
            return self._tail.next_item(self._await_item)
        while True:
            item = self._await_item()
            if item is None or item.chunk.num_rows:
                return item

    def _await_item(self) -> Item | None:
        """Takes the next item of the workers' last stage, waiting for it; None at its end."""
        while True:
            with self.lock:
                source = self.root_out
                if source.out:
                    item = source.out.popleft()
                    self._kick()
                    return item
                if source.ended or self._stopped:
                    if source.error is not None and not self._stopped:
                        raise source.error
                    return None
                self._kick()
                if source.out or source.ended:
                    continue
                parked = threading.Lock()
                parked.acquire()
                self._consumer = parked
            # A stop between here and the lock above has released `parked` already.
            if not self._stopped:
                parked.acquire()

    @property
    def stopped(self) -> bool:
        """Whether the run was told to stop."""
        return self._stopped

    # ------------------------------------------------------------------ the end

    def stop(self) -> None:
        """Tells everybody to stop. Takes no lock and never waits (rule 7)."""
        self._stopped = True
        for _ in range(len(self._parked)):
            self._unpark_one()
        self._unpark_consumer()

    def close(self) -> None:
        """Stops the run, waits for its workers and drops what it holds (rule 8)."""
        self.stop()
        if os.getpid() != self._process:
            return
        deadline = self.clock.now() + self.options.close_timeout
        me = threading.current_thread()
        for thread in list(self._threads):
            if thread is not me:
                thread.join(max(0.0, deadline - self.clock.now()))
        alive = [thread for thread in self._threads if thread.is_alive() and thread is not me]
        if alive:
            self._closed_late = True
            self._warn_about(alive)
        else:
            self._drop()

    def abandon(self) -> None:
        """Closes the run from a finalizer, which may run in any thread and in the middle of anything."""
        if threading.current_thread() in self._threads:
            # A worker that collects garbage may hold the lock that the others need to stop: it must not wait.
            self.stop()
        else:
            self.close()

    def _drop(self) -> None:
        with self.lock:
            self._final = self.statistics()
            self.root.drop()
            self.order = []
            if self._tail is not None:
                self.close_later(self._tail.iterator)
                self._tail.iterator = None
        self._close_abandoned()
        self._threads.clear()

    def _warn_about(self, alive: list[threading.Thread]) -> None:
        names = {
            name for thread in alive if (stage := self._current.get(thread.name)) for name in stage.plan.operators
        }
        warnings.warn(
            f"{len(alive)} call(s) of {', '.join(sorted(names)) or 'the pipeline'} did not return within "
            f"close_timeout={self.options.close_timeout:g} s; they go on until they return, and their results are "
            "dropped. Give user functions that wait a timeout of their own",
            RuntimeWarning,
            stacklevel=4,
        )

    def statistics(self) -> EngineStatistics:
        """Returns a snapshot; after the end, the last one."""
        with self.lock:
            if self._final is not None:
                return self._final
            self.ledger.drain()
            tail = () if self._tail is None else (self._tail.stage,)
            past = dict(self._past)
            for stage in (*tail, *self.order):
                _count(past, stage)
            return EngineStatistics(
                stages=tuple(past.values()),
                ledger_bytes=self.ledger.used,
                ledger_peak_bytes=self.ledger.peak,
                workers=len(self._threads),
            )


def _count(totals: dict[int, StageStatistics], stage: Stage) -> None:
    """Adds a stage to the totals of its plan; a plan lives as long as the engine, so its id is a key."""
    key, now = id(stage.plan), stage.statistics()
    totals[key] = totals[key].plus(now) if key in totals else now


class Tail:
    """Runs the last serial kernel on the consumer's thread, one result at a time."""

    def __init__(self, stage: SerialStage) -> None:
        self.stage = stage
        self.kernel: SerialKernel = stage.kernel
        self.kernel.lazy = True
        self.iterator: Iterator[Item] | None = None
        self.finished = False

    def next_item(self, take: Callable[[], Item | None]) -> Item | None:
        """Returns the kernel's next result with rows; takes input as needed."""
        while True:
            if self.iterator is not None:
                for item in self.iterator:
                    if item.chunk.num_rows:
                        self.stage.chunks += 1
                        self.stage.rows += item.chunk.num_rows
                        return item
                self.iterator = None
            if self.kernel.done or self.finished:
                return None
            item = take()
            if item is not None:
                self.iterator = self.kernel.push(item)
            else:
                self.finished = True
                self.iterator = self.kernel.finish()
