"""`Clock`, which a run is given, and the clock of the operating system: wall time, and CPU time of threads."""

from __future__ import annotations

import os
import time
from typing import Final, Protocol


class Meter(Protocol):
    """What one thread used of the CPU."""

    def cpu(self) -> float:
        """Returns seconds of CPU time."""

    def queued(self) -> float:
        """Returns seconds in which it could have run but had no core."""

    def close(self) -> None:
        """Is called by the thread at its end."""


class Clock(Protocol):
    """The source of time of all measurements; a test passes one that it moves by hand."""

    def now(self) -> float:
        """Returns seconds of wall time since any fixed point."""

    def thread_cpu(self) -> float:
        """Returns seconds of CPU time that the calling thread used."""

    def meter(self, thread: int) -> Meter:
        """Returns what tells, to any thread, how much of the CPU that thread uses."""


class ThreadMeter:
    """What one thread used of the CPU. Made, first asked and closed by that thread; later read by any.

    Args:
        thread: Its identifier.
    """

    __slots__ = ("_clock", "_file")

    def __init__(self, thread: int) -> None:
        thread_clock = getattr(time, "pthread_getcpuclockid", None)
        self._clock: int | None = None if thread_clock is None else thread_clock(thread)
        self._file: int | None = None

    def cpu(self) -> float:
        """Returns seconds of CPU time; where threads have no clocks, those of the whole process."""
        return time.process_time() if self._clock is None else time.clock_gettime(self._clock)

    def queued(self) -> float:
        """Returns seconds that the thread could have run but had no core; 0 where the system does not tell.

        A `pread` of 30 bytes: 1 µs, and a chance for other threads to take the interpreter lock.
        """
        if self._file is None:
            self._file = self._open()
        return 0.0 if self._file < 0 else int(os.pread(self._file, 64, 0).split()[1]) * 1e-9

    def _open(self) -> int:
        try:
            # Opened by this thread it goes on meaning this thread, whoever reads it.
            return os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # not Linux, or a kernel without scheduler statistics
            return -1

    def close(self) -> None:
        """Lets go of the file; nobody reads it any more."""
        if self._file is not None and self._file >= 0:
            os.close(self._file)
        self._file = -1


class WallClock:
    """The clock of the operating system."""

    now: Final = staticmethod(time.perf_counter)
    thread_cpu: Final = staticmethod(time.thread_time)

    def meter(self, thread: int) -> ThreadMeter:
        """Returns the meter of the calling thread, whose identifier this is."""
        return ThreadMeter(thread)
