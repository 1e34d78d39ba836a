"""`Clock`, the source of time of a run, and the clock of the operating system: wall time, and CPU time of threads."""

from __future__ import annotations

import os
import time
from typing import Final, Protocol


class Meter(Protocol):
    """The CPU use of one thread."""

    def cpu(self) -> float:
        """Returns seconds of CPU time."""

    def queued(self) -> float:
        """Returns seconds in which the thread could have run but had no core."""

    def close(self) -> None:
        """Called by the thread at its end."""


class Clock(Protocol):
    """The source of time of all measurements; a test passes a clock that it moves by hand."""

    def now(self) -> float:
        """Returns seconds of wall time since any fixed point."""

    def thread_cpu(self) -> float:
        """Returns seconds of CPU time that the calling thread used."""

    def process_cpu(self) -> float:
        """Returns seconds of CPU time that the process used."""

    def meter(self, thread: int) -> Meter:
        """Returns a meter that tells any thread how much CPU `thread` uses."""


class ThreadMeter:
    """The CPU use of one thread. That thread makes it and closes it; any thread may read it meanwhile.

    Args:
        thread: Identifier of the thread.
    """

    __slots__ = ("_clock", "_file")

    def __init__(self, thread: int) -> None:
        thread_clock = getattr(time, "pthread_getcpuclockid", None)
        self._clock: int | None = None if thread_clock is None else thread_clock(thread)
        try:  # the file keeps its meaning, whichever thread reads it
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # not Linux, or a kernel without scheduler statistics
            self._file = -1

    def cpu(self) -> float:
        """Returns seconds of CPU time; if threads have no clocks, those of the whole process."""
        return time.process_time() if self._clock is None else time.clock_gettime(self._clock)

    def queued(self) -> float:
        """Returns seconds that the thread could have run but had no core; 0 if the system does not tell.

        A `pread` of 30 bytes: 1 µs, and a chance for other threads to take the interpreter lock.
        """
        return 0.0 if self._file < 0 else int(os.pread(self._file, 64, 0).split()[1]) * 1e-9

    def close(self) -> None:
        """Closes the file; nobody reads it any more."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


class WallClock:
    """The clock of the operating system."""

    now: Final = staticmethod(time.perf_counter)
    thread_cpu: Final = staticmethod(time.thread_time)
    process_cpu: Final = staticmethod(time.process_time)

    def meter(self, thread: int) -> ThreadMeter:
        """Returns the meter of the calling thread, which has the identifier `thread`."""
        return ThreadMeter(thread)
