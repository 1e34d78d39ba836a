"""Instances of classes that are functions. Each has a thread of its own, its *home*: it is made, called and closed there.

The thread of a call hands the call over to an idle instance's home, and waits. Where no instance is idle, it starts a home.
So there are never more instances than calls at the same time, and one where calls come one by one. The homes of a run end
as soon as it is stopped, each after its call. A home counts as its caller: what it computes is the caller's CPU time.

No lock is taken, since `end` has to be called from anywhere. Both ends of a deque are one step each. A home that leaves
says so, and then answers what it was handed meanwhile; whoever hands a call to it looks for that afterwards. So
nobody waits for a home that has left.

To hand over and to take back costs 20 µs of CPU time, and 30 µs where the time without a core is measured, too: twice what a
function costs that does nothing on batches of 64 rows, and nothing beside one that takes a millisecond.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from arrowflow.clock import Clock
from arrowflow.errors import ArrowflowError, ClosedError
from arrowflow.executor.limits import LAST_PATIENCE_SECONDS
from arrowflow.executor.workers.worker import Runner, RunThread, Worker, wake
from arrowflow.kernels.instances import close_instance


class RunInstances:
    """All instances of one run.

    Args:
        clock: Measures what their threads use.
        caller: Returns who runs calls on the current thread.

    Attributes:
        homes: All their threads.
        failed: The errors of those that could not be closed.
        over: Whether the run is stopped.
    """

    def __init__(self, clock: Clock, caller: Callable[[], Runner]) -> None:
        self.clock = clock
        self.caller = caller
        self.homes: deque[Home] = deque()
        self.failed: deque[str] = deque()
        self.over = False
        self.numbers = itertools.count()
        self._of: dict[Hashable, Instances] = {}

    def instances(self, owner: Hashable, make: Callable[[], Any], name: str) -> Instances:
        """Returns the instances of one owner. Any thread."""
        return self._of.setdefault(owner, Instances(self, make, name))

    def end(self) -> None:
        """Has all homes close their instances and end, each after its call. Takes no lock and never waits."""
        self.over = True
        for home in list(self.homes):
            wake(home.parking)

    def drop(self) -> None:
        """Lets go of the classes."""
        self._of.clear()


class Instances:
    """The instances of one class for one operator.

    Args:
        run: Those of the run.
        make: Makes one.
        name: The name of the class.

    Attributes:
        idle: The homes of those that no call has, the latest at the right.
    """

    def __init__(self, run: RunInstances, make: Callable[[], Any], name: str) -> None:
        self.run = run
        self.make = make
        self.name = name
        self.idle: deque[Home] = deque()

    def call(self, work: Callable[[Any], Any]) -> Any:
        """Returns the value of `work` for an instance, at its home. Any thread; waits without a lock."""
        run = self.run
        call = _Call(work, run.caller())
        try:
            home = self.idle.pop()
        except IndexError:
            home = self._started()
        try:
            home.hand(call)
            return call.wait()
        except BaseException:
            call.is_waited_for = False  # an interrupt, or it is over
            raise

    def _started(self) -> Home:
        run = self.run
        if run.over:
            raise ClosedError("the iterator was closed")
        home = Home(self, f"arrowflow-{id(run):x}-instance-{next(run.numbers)}")
        run.homes.append(home)
        error = home.begin()
        if error is not None:
            run.homes.remove(home)
            raise ArrowflowError(
                f"no thread can be started for an instance of {self.name}: {error}"
            ) from error
        return home


class _Call:
    """A call on its way to a home and back."""

    def __init__(self, work: Callable[[Any], Any], caller: Runner) -> None:
        self.work: Callable[[Any], Any] | None = work
        self.caller = caller
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_waited_for = True
        self.done = threading.Lock()
        self.done.acquire()

    def wait(self) -> Any:
        """Waits for the end of the call; returns its result, or raises its error."""
        # Only a worker waits without a look: a signal is lost if it comes in the moment before the wait.
        patience = -1.0 if isinstance(self.caller, Worker) else LAST_PATIENCE_SECONDS
        while not self.done.acquire(timeout=patience):
            pass
        if (error := self.error) is None:
            return self.result
        try:
            raise error
        finally:
            self.error = None
            del error, self  # the error's traceback leads to this frame


class Home(RunThread):
    """The thread of one instance.

    Attributes:
        instance: The instance; None before the first call, and as long as none could be made.
    """

    def __init__(self, of: Instances, name: str) -> None:
        super().__init__(self._live, name)
        self.instance: Any = None
        self._of = of
        self._class_name = of.name
        self._handed: deque[_Call] = deque()
        self._call: _Call | None = None
        self._left = self._closes = False

    def hand(self, call: _Call) -> None:
        """Gives it a call. Only by who took it from the idle ones, or started it."""
        self._handed.append(call)
        wake(self.parking)
        if self._left:
            self._refuse()

    @property
    def operators(self) -> tuple[str, ...]:
        """The work that it is in the middle of, unless the thread of the call waits and says so itself."""
        call = self._call
        if self._closes:
            return (f"{self._class_name}.close",)
        return () if call is None or call.is_waited_for else (self._class_name,)

    def _live(self) -> None:
        """Makes calls until the run is stopped, and then closes the instance."""
        run = self._of.run
        meter = run.clock.meter(threading.get_ident())
        while self._handed or not run.over:
            try:
                self._call = self._handed.popleft()
            except IndexError:
                self.parking.acquire()
            else:
                self._make(meter)
        self._left = True
        self._refuse()
        self._closes = True
        if (text := close_instance(self.instance, self._class_name)) is not None:
            run.failed.append(text)
        self.instance = None
        del self._of  # nobody needs the class any more
        self._closes = False
        meter.close()

    def _make(self, meter: Any) -> None:
        call, of = self._call, self._of
        assert call is not None and call.work is not None
        caller = call.caller
        caller.helped = caller.helped.begun(meter, weighed=caller.began is not None)
        try:
            if self.instance is None:
                self.instance = of.make()
            call.result = call.work(self.instance)
        except BaseException as error:
            call.error = error
        call.work = None  # it holds the chunk
        caller.helped = caller.helped.ended()
        self._call = None
        of.idle.append(self)
        call.done.release()

    def _refuse(self) -> None:
        """Answers what it was handed too late."""
        while True:
            try:
                call = self._handed.popleft()
            except IndexError:
                return
            call.error = ClosedError("the iterator was closed")
            call.done.release()
