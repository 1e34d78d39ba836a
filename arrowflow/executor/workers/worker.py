"""`Worker`, a thread of a run; `Seat`, where the consumer is, as workers see it; `Runner`, what both have in common."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from arrowflow.clock import Meter
from arrowflow.executor.limits import LONG_CALL_SECONDS
from arrowflow.interrupts import interruption, interruptions
from arrowflow.physical.tuning import NO_TIMES, Times


class Helped(NamedTuple):
    """The part of a runner's calls that other threads have done. Replaced as a whole, so that any thread may read it.

    Attributes:
        cpu: Seconds of CPU time, without what `meter` counts.
        queued: Seconds that they had no core, likewise.
        meter: Of the thread that does something for it just now, less what `cpu` and `queued` say.
        weighed: Whether `meter` counts the time without a core, too.
    """

    cpu: float = 0.0
    queued: float = 0.0
    meter: Meter | None = None
    weighed: bool = False

    def begun(self, meter: Meter, *, weighed: bool) -> Helped:
        """Returns what is done while a thread with this meter helps."""
        queued = meter.queued() if weighed else 0.0
        return Helped(self.cpu - meter.cpu(), self.queued - queued, meter, weighed)

    def ended(self) -> Helped:
        """Returns what was done when that thread has ended its part."""
        return Helped(*self.now())

    def now(self) -> tuple[float, float]:
        """Returns the CPU time, and the time without a core, until now."""
        meter = self.meter
        if meter is None:
            return self.cpu, self.queued
        return self.cpu + meter.cpu(), self.queued + (meter.queued() if self.weighed else 0.0)


class Runner:
    """A thread that runs calls: a worker, or the consumer that does not wait for a worker.

    Attributes:
        stage: The stage of the call that it is in the middle of, if any.
        weight: Cores that its call takes.
        beside: Calls of its stage that were in flight when its own began, itself included.
        seen: When it was last looked at, with its CPU time and the time that it had waited for a core; None until
            its call has begun.
        began: The same when its call began; None where nobody asks for it.
        meter: Measures its use of the CPU; None before it runs.
        helped: The part of its calls that other threads have done.
        closing: Operators whose abandoned iterator it closes.
    """

    def __init__(self) -> None:
        self.stage: Any = None
        self.weight = 0.0
        self.beside = 0
        self.seen: tuple[float, float, float] | None = None
        self.began: tuple[float, float, float] | None = None
        self.meter: Any = None
        self.helped = Helped()
        self.closing: tuple[str, ...] = ()

    def give_up(self) -> None:
        """Forgets its call, which will not come to an end."""
        stage, self.stage = self.stage, None
        if stage is not None:
            stage.running = 0

    def used(self) -> tuple[float, float]:
        """Returns the CPU time of its calls, and the time that they had no core, with what others did. Any thread."""
        cpu, queued = self.helped.now()
        return self.meter.cpu() + cpu, self.meter.queued() + queued

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators of the call that it is in the middle of."""
        stage = self.stage
        return self.closing if stage is None else stage.plan.operators


class WorkerState(Enum):
    """Where a worker is. The package's docstring has the diagram."""

    CALLED = auto()
    """Started or woken; it has not looked for work yet."""
    AWAKE = auto()
    """Looking for work, or in a call."""
    PARKED = auto()
    """Waiting until it is woken."""
    WATCHING = auto()
    """Parked until it is time to look whether running calls wait for something."""
    GUARDING = auto()
    """Parked until it is time to look whether the consumer makes progress."""


class RunThread(threading.Thread):
    """A thread of a run: a type of its own, by which finalizers know where they run.

    Attributes:
        parking: The lock that it waits for when it has nothing to do; released to wake it.
    """

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self.parking = threading.Lock()
        self.parking.acquire()

    @property
    def operators(self) -> tuple[str, ...]:
        """The work that it is in the middle of, for a warning that it does not end."""
        return ()

    def begin(self) -> RuntimeError | None:
        """Starts it; returns the error where the system has no thread more."""
        try:
            with interruptions():
                self.start()
        except RuntimeError as error:
            if interruption(error) is not None:  # a signal's handler may raise this class, too
                raise
            return error
        return None


class Worker(Runner, RunThread):
    """A thread that takes the calls of a run.

    Attributes:
        state: Where it is. `Pool` changes it, under the engine's lock.
    """

    def __init__(self, target: Callable[[], None], name: str) -> None:
        Runner.__init__(self)
        RunThread.__init__(self, target, name)
        self.state = WorkerState.AWAKE


def wake(parking: threading.Lock) -> None:
    """Ends a wait, or the next one."""
    try:
        parking.release()
    except RuntimeError as error:  # it was woken and did not wait again yet
        if interruption(error) is not None:
            raise


class ConsumerState(Enum):
    """Where the consumer is. The package's docstring has the diagram."""

    AWAY = auto()
    """In its own code. Workers run all calls."""
    NEAR = auto()
    """In its own code, and expected back so soon that workers rest."""
    TAKING = auto()
    """In `next()`, with an eye on what there is to take or to do."""
    COMPUTING = auto()
    """In a call that it runs itself. Workers rest."""
    STUCK = auto()
    """In a call of its own that took so long that workers took over."""
    WAITING = auto()
    """In `next()`, waiting for the bell."""


class Seat(Runner):
    """The consumer's place in a run. Guarded by the run's lock, except where it says otherwise.

    Attributes:
        state: Where it is.
        hurries: It is in `next()`, and runs cheap calls itself.
        turns: Calls that it ran, and times that it took something.
        trusts: No call of its own was stuck so far. Its own.
        in_charge: It runs all calls.
        bell: Released to wake it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state = ConsumerState.AWAY
        self.hurries = self.in_charge = False
        self.turns = 0
        self.trusts = True
        self.bell = threading.Lock()
        self.bell.acquire()

    @property
    def waits_for_run(self) -> bool:
        """Whether it is in `next()`, and has nothing left of what it took before."""
        return self.state in (ConsumerState.TAKING, ConsumerState.WAITING)

    @property
    def rests_workers(self) -> bool:
        """Whether it runs all calls itself."""
        return self.state in (ConsumerState.NEAR, ConsumerState.COMPUTING)

    def hand_over(self) -> None:
        """Leaves all calls to it."""
        self.in_charge = True
        self.ring()

    def take_over(self) -> bool:
        """Lets workers work again, since it made nothing for a while: it is busy elsewhere, or stuck.

        The call that it is stuck in may wait for other calls; then it does not run any more of them.

        Returns:
            Whether it is stuck in a call.
        """
        stuck = self.state is ConsumerState.COMPUTING
        if stuck:
            self.state = ConsumerState.STUCK
            self.trusts = False
        elif self.state is ConsumerState.NEAR:
            self.state = ConsumerState.AWAY
        self.hurries = self.in_charge = False
        return stuck

    def ring(self) -> None:
        """Wakes it, to look what there is to do. Takes no lock."""
        if self.state is ConsumerState.WAITING:
            self.state = ConsumerState.TAKING
        wake(self.bell)


def note_unfinished(workers: Sequence[Worker], now: float) -> None:
    """Tells stages the times of their long calls that still run: many windows of time may end before they do."""
    for worker in workers:
        if worker.stage is not None:
            worker.stage.unfinished = NO_TIMES
    for worker in workers:
        stage, began = worker.stage, worker.began
        if stage is not None and began is not None and now - began[0] >= LONG_CALL_SECONDS:
            at, cpu, queued = began
            used, lacked = worker.used()
            so_far = (now - at, used - cpu, lacked - queued)
            stage.unfinished = Times(*map(operator.add, stage.unfinished, so_far))
