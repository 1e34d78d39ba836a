"""`Pool`: the workers of one run: which calls they pick, how they wait, and how many of them may compute.

**Tokens.** A call takes `StageLimits.weight` of the CPU budget: 1 if it computes, hardly anything if it waits. Nothing
tells beforehand whether a user function computes, so its first calls take a whole token each. While some stage finds no
token left, one idle worker (the *watch*) looks at the CPU clocks of the running calls every millisecond or a few. A
call that turns out to wait gives its token back in the middle. So a sleeping map has the calls in flight that it needs
within milliseconds, and computing calls go beyond the budget by less than one call.

These weights are only the beginning: after a few calls the tuner sets the weights from measurements.

**The mean.** Calls that wait take no token, but each takes a little time of a core, and ten of them add up. Where the
budget is below the number of cores, the pool compares the CPU time of all workers with the time that the budget allowed
so far. As long as the workers used more, no call that computes begins. Tokens bound how many calls compute at the same
time; the mean bounds how much CPU time they get.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any, cast

from arrowflow.errors import ArrowflowError
from arrowflow.executor.limits import (
    CREDIT_SECONDS,
    FIRST_LOOK_SECONDS,
    GUARD_SECONDS,
    INTERPRETER_SHARE,
    LAST_LOOK_SECONDS,
    ROUNDING,
    SHORTEST_CALL_SECONDS,
    TURN_SECONDS,
    rounded,
    token,
    waits,
)
from arrowflow.executor.stages.base import Queue, Ready, Run
from arrowflow.executor.workers.cores import MEMORY, ORDER, YOUR_STEP, IdleCores, allowance, available
from arrowflow.executor.workers.cores import turns as turns_of_runs
from arrowflow.executor.workers.ready import ReadySet
from arrowflow.executor.workers.worker import ConsumerState, Runner, Worker, WorkerState, wake
from arrowflow.physical.tuning import FIRST_CALLS, NO_TIMES

logger = logging.getLogger("arrowflow")


class Pool:
    """Threads, tokens, and the order of work. All of it under the engine's lock, except where it says otherwise.

    Attributes:
        tokens: Cores that the running calls take, but for those that wait.
        idle: The cores that they leave.
        threads: All workers.
        ready: The streams to look at for work.
        coming: Threads that were woken or started and have not looked for work yet: while there are any, none is woken.
    """

    def __init__(self, engine: Run, max_workers: int, *, on_demand: bool) -> None:
        self.engine = engine
        self._on_demand = on_demand
        self.tokens = 0.0
        self.threads: list[Worker] = []
        self.ready = ReadySet(engine)
        self._max_workers = max_workers
        self._cores = available()
        self.idle = IdleCores(engine.clock.now(), 0.0)
        # A parked thread waits on a lock of its own, which the waking thread releases. To park and to wake take one C
        # call each, where a Condition takes several Python frames; and a finalizer can wake, too. The locks live as
        # long as the threads. So an interrupt between any two steps of waking loses nobody: `wake_all` finds all
        # threads, also a thread that only now begins to wait. A release too many ends the next wait early, and the
        # waiter looks and waits again.
        self._parked: deque[Worker] = deque()
        self.coming = 0
        self._watch: Worker | None = None  # the last one; it is WATCHING or was
        self._guard: Worker | None = None  # the last one; it is GUARDING or was
        self._look_seconds = FIRST_LOOK_SECONDS
        self._indebted = False
        self._debt_seconds = 0.0  # CPU time used beyond the budget, at the time `_paid`
        self._paid = engine.clock.now()

    # ------------------------------------------------------------------ what runs next

    def pick(self) -> Ready | None:
        """Returns the call of the most downstream stage that can start one (rule 2), if it is for a worker to run."""
        engine = self.engine
        ready = None if self._idles() else self._find()
        if ready is not None and engine.consumer.hurries and self.ready.all_calls_are_short():
            ready = None
            if self.tokens < ROUNDING:
                engine.consumer.hand_over()
        return ready

    def _idles(self) -> bool:
        """Whether workers have nothing to do, whatever there is."""
        consumer = self.engine.consumer
        return consumer.rests_workers or (self._on_demand and consumer.state is not ConsumerState.WAITING)

    def pick_inline(self) -> Ready | None:
        """Returns the same for the consumer to run, if nothing is at work and all that is left is cheap."""
        return self._find() if self.tokens < ROUNDING and self.ready.all_calls_are_short() else None

    def _find(self) -> Ready | None:
        engine = self.engine
        allowed = allowance(engine)
        self._indebted = allowed < self._cores and self._debt_seconds > 0 and self._owes()
        return self.ready.find(0.0 if self._indebted else allowed - self.tokens + ROUNDING)

    def _owes(self) -> bool:
        """Whether more CPU time was used than the budget allowed until now."""
        now = self.engine.clock.now()
        debt = self._debt_seconds - (now - self._paid) * self.engine.options.cpu_budget
        self._debt_seconds = max(debt, -CREDIT_SECONDS)
        self._paid = now
        return debt > 0

    def kick(self) -> None:
        """Finds a thread for work that nobody is on its way to: a parked one, or a new one.

        A thread that was called and has not looked yet will find the work, and then call the next thread itself.
        """
        if self.coming or not (self._parked or len(self.threads) < self._max_workers):
            return
        if self.pick() is not None or self._wants_watch():
            self._call_one()

    def _call_one(self) -> None:
        if self._parked:
            self._unpark_one()
        else:
            self.spawn()

    def spawn(self) -> None:
        """Starts one more worker, or goes on with those there are."""
        if self.engine.stopped:
            return
        worker = Worker(self._work, f"arrowflow-{id(self.engine):x}-{len(self.threads)}")
        self.threads.append(worker)
        self._call(worker)
        error = worker.begin()
        if error is not None:
            self._arrive(worker)
            self.threads.remove(worker)
            if not self.threads:
                raise ArrowflowError(f"no thread can be started: {error}") from error
            self._max_workers = len(self.threads)
            logger.warning("going on with %d threads: %s", self._max_workers, error)

    def _unpark_one(self) -> None:
        # The last one to park: its caches and its allocator's heap are warm. Taking turns instead would spread
        # the decoding over all threads, each of which touches fresh memory first: `handover` of columns takes 1.3 x as long.
        worker = self._parked.pop()
        self._call(worker)
        wake(worker.parking)

    def _call(self, worker: Worker) -> None:
        worker.state = WorkerState.CALLED
        self.coming += 1

    def _arrive(self, worker: Worker) -> None:
        self.coming -= worker.state is WorkerState.CALLED
        worker.state = WorkerState.AWAKE

    def wake_all(self) -> None:
        """Wakes every worker. Takes no lock (rule 9)."""
        for worker in list(self.threads):
            wake(worker.parking)

    # ------------------------------------------------------------------ workers

    def _work(self) -> None:
        """A worker, from its start until the run is stopped and what it held is dropped."""
        me = cast(Worker, threading.current_thread())
        engine = self.engine
        try:
            me.meter = engine.clock.meter(threading.get_ident())
            with engine.lock:
                self._serve(me)
        except BaseException as error:
            # A bug, or no memory is left. The consumer has to hear of it, or it would wait for ever.
            engine.fail(error)
        if engine.stopped:
            engine.drop()
        self.engine.abandoned.close(me)
        if me.meter is not None:
            me.meter.close()

    def _serve(self, me: Worker) -> None:
        """Picks, runs, completes, until the run is stopped or over. Called and returns with the lock held."""
        engine = self.engine
        clock = engine.clock
        self._arrive(me)
        while not engine.stopped:
            if engine.abandoned:
                self._outside_close(me)
            ready = self.pick()
            if ready is None:
                if self.ready.root_out.ended:
                    self._dismiss()
                    return  # nothing will be left to do, so a `close` need not wait for this thread
                self._rest(me)
                continue
            stage, call = ready.stage, self.begin(ready, me)
            cheap = stage.calls_are_short and engine.consumer.state is not ConsumerState.STUCK
            weighed = stage.cost_is_measured and not cheap
            parallel = stage.plan.kind == "parallel" and not cheap
            if parallel:
                # A serial or cheap call is over before another thread would be awake. This thread then goes on to the
                # work of that other thread. A consumer that is stuck wakes nobody if the call takes long after all.
                self.kick()
            turns = turns_of_runs() if parallel and stage.plan.cost == "computes" else None
            ahead = stage.running > 1 or bool(stage.out)
            engine.lock.release()
            if turns is not None:
                turns.take(ahead=ahead, seconds=TURN_SECONDS)
            try:
                helped = me.helped
                began, cpu = clock.now(), clock.thread_cpu() + helped.cpu
                queued = me.meter.queued() + helped.queued if weighed else 0.0
                me.seen = me.began = (began, cpu, queued) if weighed else None
                stage.caller.execute(call)
                helped = me.helped
                cpu, elapsed = clock.thread_cpu() + helped.cpu - cpu, clock.now() - began
                if stage.plan.process:
                    elapsed -= engine.processes.starting_seconds()
                if weighed:
                    queued = me.meter.queued() + helped.queued - queued
            finally:
                if turns is not None:
                    turns.give()
                engine.lock.acquire()
            self.finish(stage, call, me, elapsed, cpu, queued)
            del call
            self.ready.tell()
            engine.tune(began + elapsed)

    def _outside_close(self, me: Runner) -> None:
        self.engine.lock.release()
        try:
            self.engine.abandoned.close(me)
        finally:
            self.engine.lock.acquire()

    def _dismiss(self) -> None:
        """Wakes all who wait for work of a run that is over: they leave while the consumer is still busy."""
        self.idle.change(self.engine.clock.now(), 0.0)
        while self._parked:
            self._unpark_one()

    def begin(self, ready: Ready, me: Runner) -> Any:
        """Starts a call: takes its tokens and its input."""
        stage = ready.stage
        me.stage, me.weight, me.seen, me.began = stage, stage.limits.weight, None, None
        call = stage.start(ready)
        me.beside = stage.running
        self.tokens += token(me.weight)
        self.ready.moved(stage.stream)
        return call

    def finish(
        self, stage: Queue, call: Any, me: Runner, elapsed: float, cpu: float, queued: float = 0.0
    ) -> None:
        """Ends a call: gives its tokens back and takes its results over."""
        self.tokens -= token(me.weight)
        # Other pools work without their time being seen here; such calls say that they compute.
        self._debt_seconds += elapsed * me.weight if stage.foreign else cpu
        if (
            stage.cost_is_measured
            and stage.calls < FIRST_CALLS
            and elapsed > SHORTEST_CALL_SECONDS
            and not stage.limits.reason
        ):
            share = cpu / max(cpu, elapsed - queued, SHORTEST_CALL_SECONDS)
            # The holder of the interpreter lock may wait for a core, and all others then wait for the lock.
            wanted = (cpu + queued) / max(cpu + queued, elapsed)
            if max(share, wanted) * max(stage.running, me.beside) < INTERPRETER_SHARE:
                self._weigh(stage, rounded(share))
        chunks = stage.chunks
        stage.complete(call)
        me.stage = None  # only now: an interrupt of the consumer before this gives the call up
        stage.measure(cpu, elapsed, queued, stage.chunks - chunks)
        stage.unfinished = NO_TIMES  # the next look counts those that still run
        self.ready.moved(stage.stream)

    def _weigh(self, stage: Queue, weight: float) -> None:
        """Sets the cores that the next calls take, of all stages with these limits."""
        waited, stage.limits.weight = waits(stage.limits.weight), weight
        if waited != waits(weight):
            self.ready.note_all()

    def rests(self) -> None:
        """Notes that a worker has found nothing to do, and why."""
        if self.ready.root_out.out or self._idles():
            reason = YOUR_STEP
        else:
            reason = MEMORY if self.ready.lacks_bytes else ORDER
        self.idle.change(self.engine.clock.now(), self._free_cores, reason)

    @property
    def _free_cores(self) -> float:
        return self.engine.options.cpu_budget - self.tokens

    def _rest(self, me: Worker) -> None:
        """Waits until there may be work. Called and returns with the lock held."""
        consumer = self.engine.consumer
        state, timeout, turns = WorkerState.PARKED, -1.0, consumer.turns
        if consumer.rests_workers:
            if not _is(self._guard, WorkerState.GUARDING):
                self._guard, state, timeout = me, WorkerState.GUARDING, GUARD_SECONDS
        elif self._wants_watch():
            self._watch, state, timeout = me, WorkerState.WATCHING, self._look_seconds
        me.state = state
        self._parked.append(me)
        self.rests()
        self.engine.lock.release()
        try:
            me.parking.acquire(timeout=timeout)
        finally:
            self.engine.lock.acquire()
        self._arrive(me)
        # A thread that looks for work takes a core until it rests again.
        self.idle.change(self.engine.clock.now(), self._free_cores - 1)
        if me in self._parked:
            self._parked.remove(me)
        if state is WorkerState.WATCHING and not self.engine.stopped:
            self._look()
        elif state is WorkerState.GUARDING and consumer.rests_workers and consumer.turns == turns:
            is_stuck = consumer.take_over()
            if is_stuck:
                self.excuse(consumer)

    def guard(self) -> None:
        """Sees to it that a worker is there to notice if a function that the consumer calls blocks."""
        if not self.coming and self.ready.cost_is_measured and not _is(self._guard, WorkerState.GUARDING):
            self._call_one()

    # ------------------------------------------------------------------ the watch

    def _wants_watch(self) -> bool:
        """Whether work waits for a token that a running call may not need."""
        if not self.ready.lacks_token or _is(self._watch, WorkerState.WATCHING):
            return False
        return self._indebted or any(map(_may_wait, self.threads))

    def _look(self) -> None:
        """Looks at the CPU clocks of the calls that may be waiting, and takes tokens back from those that are."""
        clock = self.engine.clock
        now = clock.now()
        rates: list[tuple[Worker, float]] = []
        wanted = 0.0
        for worker in self.threads:
            if not _may_wait(worker):
                continue
            before, worker.seen = worker.seen, (now, *worker.used())
            if before is None:  # a call that was thought to be cheap, or has just begun
                continue
            at, cpu, queued = before
            free = now - at - (worker.seen[2] - queued)
            if free >= FIRST_LOOK_SECONDS / 2:
                rates.append((worker, (worker.seen[1] - cpu) / free))
                wanted += (worker.seen[1] - cpu + worker.seen[2] - queued) / (now - at)
        lock_is_free = max(wanted, sum(rate for _, rate in rates)) < INTERPRETER_SHARE
        waiting = [(worker, rate) for worker, rate in rates if lock_is_free and waits(rate)]
        for worker, rate in waiting:
            self.excuse(worker, rate)
            stage = worker.stage
            if stage.calls < FIRST_CALLS and not stage.limits.reason:
                self._weigh(stage, min(stage.limits.weight, rate))
        self._look_seconds = FIRST_LOOK_SECONDS if waiting else min(2 * self._look_seconds, LAST_LOOK_SECONDS)
        self.engine.tune(now)

    def excuse(self, caller: Runner, rate: float = 0.0) -> None:
        """Takes the token of a running call back, but for what it really uses."""
        self.tokens += token(rate) - token(caller.weight)
        caller.weight = rate


def _is(worker: Worker | None, state: WorkerState) -> bool:
    return worker is not None and worker.state is state


def _may_wait(worker: Worker) -> bool:
    return worker.stage is not None and worker.stage.cost_is_measured and not waits(worker.weight)
