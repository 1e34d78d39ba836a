"""`Engine`: one run. The lock, what the consumer waits on, the tuner's steps, and the end. See the package's contract."""

from __future__ import annotations

import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NoReturn

from arrowflow.clock import Clock
from arrowflow.errors import ArrowflowError, ClosedError, said
from arrowflow.executor import keeping
from arrowflow.executor.consumer import Consumer
from arrowflow.executor.failure import is_interrupt
from arrowflow.executor.limits import INTERRUPTED_KILLED_SECONDS, INTERRUPTED_SECONDS, KILLED_SECONDS
from arrowflow.executor.process_exit import check_not_forked, is_forked, register, rest_at_exit
from arrowflow.executor.stages.base import Blocked, Done, Look, Queue, Ready, Run, Stream, Waits
from arrowflow.executor.stages.serial import SerialQueue, Tail
from arrowflow.executor.stages.stream import open_stream
from arrowflow.executor.workers import cores
from arrowflow.executor.workers.instances import RunInstances
from arrowflow.executor.workers.pool import Pool
from arrowflow.executor.workers.worker import Runner, RunThread, Worker, note_unfinished
from arrowflow.interrupts import is_own
from arrowflow.kernels.items import Item
from arrowflow.kernels.kept import Kept
from arrowflow.observe.timeline import Timeline
from arrowflow.options import ResolvedOptions
from arrowflow.physical.planner import max_workers, runs_on_demand
from arrowflow.physical.stage import Chain
from arrowflow.physical.totals import Totals
from arrowflow.physical.tuning import EngineStatistics, RunSample, Tuner
from arrowflow.plan.node import Node
from arrowflow.plan.position import Position


class Engine(Run):
    """Runs one chain from a position to its end, and all streams that its boundaries open.

    Args:
        chain: The physical plan.
        epoch: The epoch to run.
        position: Where to start; None for the start of the epoch.
        options: This and the next ones are as in `Run`.
        tuner: Sets the limits of stages while they run; None leaves them as the plan suggests.
        plan: Makes a chain of a node and its first place.
    """

    def __init__(
        self,
        chain: Chain,
        epoch: int,
        position: Position,
        options: ResolvedOptions,
        clock: Clock,
        *,
        tuner: Tuner | None = None,
        plan: Callable[[Node, int], Chain] | None = None,
        timeline: Timeline | None = None,
        keeps: bool = False,
    ) -> None:
        super().__init__(options, clock, tuner=tuner, plan=plan, timeline=timeline, keeps=keeps)
        self._holding = threading.Condition(self.lock)  # only to ask whether this thread holds the lock
        self._began_cpu = clock.process_cpu()
        self._dropped = False
        self._kept: tuple[Kept, ...] = ()  # what it had kept at its end
        self._closes = False  # somebody is in `close`, and waits for worker processes
        self._given_up: set[threading.Thread] = set()  # by `close`, which waits for each once
        self._failure: ArrowflowError | None = None  # of the executor itself
        self._next_step = clock.now() + (0.0 if tuner is None else tuner.period_seconds)
        self.lender = RunInstances(clock, self._runner)
        self.pool = Pool(self, max_workers(chain, options), on_demand=runs_on_demand(chain, options))
        self.consumer = self._consumer = Consumer(self, self.pool)
        self.totals = Totals()
        # A trailing serial stage runs on the consumer's thread (rule 4), so workers do not look at it.
        self._tail: Tail | None = None
        self.root = Stream(self, chain, epoch, (), None, 1.0)
        with self.lock:
            open_stream(self.root, position)
            self.add(self.root)
        last = self.root.last
        if type(last) is SerialQueue and last.plan.buffer_items is None:
            self._tail = Tail(last)
            self.root.downstream_first.remove(last)
            last = self.root.stages[-2]
        self.root_out = self.pool.ready.root_out = last
        last.feeds_consumer = True
        register(self)
        cores.join(self)

    # ------------------------------------------------------------------ streams

    def add(self, stream: Stream) -> None:
        self.pool.ready.add(stream)

    def remove(self, stream: Stream) -> None:
        for stage in stream.stages:
            self.totals.count(stage)
        self.pool.ready.remove(stream)

    def changed(self, stream: Stream) -> None:
        self.pool.ready.note(stream)

    @property
    def tokens(self) -> float:
        return self.pool.tokens

    def _runner(self) -> Runner:
        """Returns who runs calls of this run on the current thread."""
        thread = threading.current_thread()
        return thread if isinstance(thread, Worker) else self.consumer

    # ------------------------------------------------------------------ tuning

    def tune(self, now: float) -> None:
        """Lets the tuner look, if it is time. Under the lock; the tuner only computes."""
        if self.tuner is None or now < self._next_step:
            return
        self._next_step = now + self.tuner.period_seconds
        self.ledger.drain()
        note_unfinished(self.pool.threads, now)
        sample = RunSample(
            now=now,
            cpu_budget=cores.allowance(self),
            waited_seconds=self._consumer.waited(now),
            rows=self._consumer.rows,
            chunks=self._consumer.chunks,
            stages=self.totals.statistics(self._stages()),
        )
        if changes := self.tuner.step(sample):
            for key, change in changes.items():
                self.limits[key].take(change)
            self.pool.ready.note_all()
        if self.timeline is not None:
            self.timeline.counter("ledger bytes", now, self.ledger.held)
            for key, limits in self.limits.items():
                if limits.reason:
                    self.timeline.counter(f"{key[-1]}: calls at most", now, limits.of_all().max_calls)
                    self.timeline.counter(f"{key[-1]}: cores a call", now, limits.weight)

    # ------------------------------------------------------------------ consumer

    def next_item(self) -> Item | None:
        """Returns the next item with rows, or None at the end. Called by one thread at a time.

        Raises:
            ArrowflowError: The first error of the run, in order.
            ClosedError: It was stopped.
        """
        check_not_forked()
        tail = self._tail
        if tail is not None:
            item = tail.next_item(self._await_item)
            if tail.stage.caller.kernel.done and not self.root_out.ended:
                with self.lock:  # it stops all that would work for it
                    tail.stage.end()
        else:
            item = self._await_item()
            while item is not None and not item.chunk.num_rows:
                item = self._await_item()
        if item is None and self.stopped:
            self._refuse()
        return item

    def _await_item(self) -> Item | None:
        item = self._consumer.next_item()
        if item is None and self.stopped:  # so that the tail does not take it for the end
            self._refuse()
        return item

    def _refuse(self) -> NoReturn:
        """Raises what a run that was stopped has to say."""
        rest_at_exit()
        raise self._failure or ClosedError("the iterator was closed; make a new one with iter(…)")

    # ------------------------------------------------------------------ the end

    def fail(self, error: BaseException) -> None:
        """Stops the run because the executor itself failed; the consumer is told."""
        self._failure = ArrowflowError(f"the executor failed: {said(error)}")
        self._failure.__cause__ = error
        self.stop()

    def stop(self) -> None:
        self.stopped = True
        self.pool.wake_all()
        self.lender.end()
        self.consumer.ring()

    def close(self, *, interrupted: bool = False) -> None:
        alone = is_forked() or self._must_not_wait()
        self._closes = self._closes or not alone
        self.stop()
        if alone:
            return
        with self.lock:  # `spawn` is not in the middle of starting one more
            threads = [thread for thread in self.pool.threads if thread not in self._given_up]
        patience, killed_patience = self.options.close_timeout, KILLED_SECONDS
        waited = f"close_timeout={patience:g} s"
        if interrupted and patience > INTERRUPTED_SECONDS:
            patience, killed_patience = INTERRUPTED_SECONDS, INTERRUPTED_KILLED_SECONDS
            waited = f"{patience:g} s of the interrupt"
        deadline = self.clock.now() + patience
        self.processes.stop_starting()
        self._join([*threads, *self.slow], deadline)
        killed = self.processes.kill()
        if killed:
            deadline = self.clock.now() + killed_patience
            self._join(threads, deadline)
        self.drop()
        self.processes.leave(max(deadline - self.clock.now(), killed_patience))
        if not self.pool.threads:
            self.abandoned.close(self.consumer)
        homes = [home for home in list(self.lender.homes) if home not in self._given_up]
        self._join(homes, deadline)
        late: list[RunThread] = [thread for thread in (*threads, *homes) if thread.is_alive()]
        self._given_up.update(late)
        calls = [thread.operators for thread in late if thread.operators]
        if killed:
            self._warn_about(killed, waited, "their worker processes were killed")
        if calls:
            names = [name for operators in calls for name in operators]
            happened = "they go on until they return, and their results are dropped"
            self._warn_about(names, waited, happened, len(calls))
        for failed in (self.lender.failed, self.processes.failed):
            while failed:
                warnings.warn(failed.popleft(), RuntimeWarning, stacklevel=_level_outside())

    def _join(self, threads: Sequence[threading.Thread], deadline: float) -> None:
        for thread in threads:
            try:
                thread.join(max(0.0, deadline - self.clock.now()))
            except RuntimeError as error:  # a thread whose start was interrupted: it finds the run stopped
                if is_interrupt(error):
                    raise

    def _must_not_wait(self) -> bool:
        """Whether the workers wait for this very thread: it is one of them, or a signal hit it under the lock."""
        if threading.current_thread() in (*self.pool.threads, *self.lender.homes):
            return True
        try:
            self._holding.notify()
        except RuntimeError as error:
            if is_interrupt(error):
                raise
            return False
        return True

    def abandon(self) -> bool:
        """Closes the run from a finalizer, which may run in any thread and in the middle of anything.

        Returns:
            Whether it could be waited for.
        """
        try:
            if isinstance(threading.current_thread(), RunThread):
                # It may hold the lock of a run, which others need in order to stop: it must not wait. Each worker drops
                # what there is to drop when it leaves.
                return False
            self.close()
            return True
        finally:
            self.stop()  # also where an interrupt ends this: Python reports it, and calls no finalizer twice

    def drop(self) -> None:
        """Lets go of everything that no call is in the middle of; calls let go of the rest when they return."""
        with self.lock:
            if self._dropped:
                return
            self._dropped = True
            self.root.drop()
            self._kept = self.ledger.kept
            keeping.leave(self.ledger)
            self.run_storage.clear()
            self.lender.drop()
            self._consumer.drop()
            for stage in self._stages():
                self.totals.count(stage)
            if self.tuner is not None:
                self.tuner.remember(self.totals.statistics(()))
            self.pool.ready.clear()
            if self._tail is not None:
                self._tail.iterator = None
        cores.leave(self)
        if not self._closes:
            self.processes.leave(self.options.close_timeout)

    def _stages(self) -> list[Queue]:
        tail = () if self._tail is None else (self._tail.stage,)
        return [*tail, *self.pool.ready.stages()]

    def _warn_about(self, names: list[str], waited: str, happened: str, calls: int | None = None) -> None:
        warnings.warn(
            f"{calls or len(names)} call(s) of {', '.join(sorted(set(names)))} did not return within {waited}; {happened}. "
            "Give user functions that wait a timeout of their own",
            RuntimeWarning,
            stacklevel=_level_outside(),
        )

    def describe(self) -> str:
        """Returns the states of all threads and stages, a line each: for a run that hangs. Takes no lock."""
        ready, ledger = self.pool.ready, self.ledger
        lines = [
            f"stopped {self.stopped}, ledger {ledger.used:,} used and {ledger.spared:,} spared of "
            f"{ledger.budget:,} bytes, tokens {self.pool.tokens:g}, {self.pool.coming} threads come to look",
            f"consumer {self.consumer.state.name}, hurries {self.consumer.hurries}, in {self.consumer.operators}",
        ]
        lines += [f"{one.name} {one.state.name}, in {one.operators}" for one in list(self.pool.threads)]
        lines += [f"{home.name} has {home.instance!r}" for home in list(self.lender.homes)]
        room = cores.allowance(self) - self.pool.tokens
        for stage in list(ready.stages()):
            noted = "" if stage.stream is self.root else f", stream noted {stage.stream.noted}"
            lines.append(
                f"{'+'.join(stage.plan.titles)}: {_in_words(stage.look(room))}; {stage.running} calls run, "
                f"{stage.undelivered} undelivered, {stage.turn_chunks} chunks wait for their turn, {len(stage.out)} ready{noted}"
            )
        return "\n".join(lines)

    def statistics(self) -> EngineStatistics:
        """Returns a snapshot; after the end, the last one."""
        if is_forked():
            return EngineStatistics()  # in a forked child the lock may be held by a thread that is not there
        with self.lock:
            self.ledger.drain()
            note_unfinished(self.pool.threads, self.clock.now())
            kept = self.ledger.kept or self._kept
            return EngineStatistics(
                stages=self.totals.statistics(() if self._dropped else self._stages()),
                ledger_bytes=self.ledger.held,
                ledger_peak_bytes=self.ledger.peak,
                kept_rows=self.kept_rows,
                kept_images=self.kept_images,
                kept_bytes=sum(each.num_bytes for each in kept),
                keepable_bytes=sum(each.total_bytes for each in kept),
                workers=len(self.pool.threads),
                cpu_seconds=self.clock.process_cpu() - self._began_cpu,
                idle=self.pool.idle.seconds(self.clock.now()),
                retries=Counter(self.retried),
                cluster=self.elsewhere.statistics(),
            )


def _in_words(look: Look) -> str:
    match look:
        case Ready():
            return "ready"
        case Waits(source):
            return "waits" if source is None else f"waits for {'+'.join(source.plan.titles)}"
        case Blocked(gate, most_bytes):
            free = f" until the ledger counts {most_bytes:,.0f} bytes" if most_bytes >= 0 else ""
            return f"blocked by {gate.name.lower()}{free}"
        case Done(_, error):
            return f"done{f': {error}' if error is not None else ''}"


def _level_outside() -> int:
    """Returns the `stacklevel` by which a warning of the caller names the code that called the library."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and is_own(frame):
        level, frame = level + 1, frame.f_back
    return level
