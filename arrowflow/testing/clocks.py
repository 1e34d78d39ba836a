"""Time and order under the control of a test: a clock that is moved, and calls that happen in a given order.

This is the one module outside of `executor/` that knows of threads: tests wait for events here and never sleep. A wait
that would hang fails after `PATIENCE_SECONDS`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

PATIENCE_SECONDS: Final = 30.0


class FakeClock:
    """A clock that stands still until it is told to move.

    Examples:
        >>> clock = FakeClock()
        >>> clock.advance(1.5)
        >>> clock.now()
        1.5
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._lock = threading.Lock()

    def now(self) -> float:
        """Returns the seconds by which the clock was moved so far."""
        return self._seconds

    thread_cpu = process_cpu = cpu = now

    def advance(self, seconds: float) -> None:
        """Moves the clock; any thread may call it."""
        with self._lock:
            self._seconds += seconds

    def meter(self, thread: int) -> FakeClock:
        """Returns the meter of a thread that always computes: the clock itself."""
        return self

    def queued(self) -> float:
        """Returns 0: the thread never waits for a core."""
        return 0.0

    def close(self) -> None:
        """Does nothing."""


class _Waits:
    """A condition with patience."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        if not self._changed.wait_for(ready, PATIENCE_SECONDS):
            raise AssertionError(f"waited {PATIENCE_SECONDS:.0f} seconds for {what}")


class Gate(_Waits):
    """Holds every thread that passes until the gate is open, and counts arrivals.

    Examples:
        >>> gate = Gate()
        >>> gate.open()
        >>> gate.pass_through()
        >>> gate.arrived
        1
    """

    def __init__(self) -> None:
        super().__init__()
        self._open = False
        self.arrived = 0

    def pass_through(self) -> None:
        """Waits until the gate is open."""
        with self._changed:
            self.arrived += 1
            self._changed.notify_all()
            self._wait(lambda: self._open, "the gate to open")

    def open(self) -> None:
        """Lets every thread through, now and later."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def wait_for(self, arrivals: int) -> None:
        """Waits until `arrivals` threads have arrived, whether or not they went through."""
        with self._changed:
            self._wait(
                lambda: self.arrived >= arrivals, f"{arrivals} arrivals at the gate, got {self.arrived}"
            )


class Sequencer(_Waits):
    """Makes blocks run in the order of their numbers, whichever thread comes first.

    Examples:
        >>> sequencer = Sequencer()
        >>> with sequencer(0):
        ...     first = "done"
    """

    def __init__(self) -> None:
        super().__init__()
        self._next = 0

    @contextmanager
    def __call__(self, number: int) -> Iterator[None]:
        """Waits for the blocks below `number`, and lets the next one run after this one."""
        with self._changed:
            self._wait(lambda: self._next >= number, f"block {number}, at {self._next}")
        try:
            yield
        finally:
            with self._changed:
                self._next = max(self._next, number + 1)
                self._changed.notify_all()
