"""`Turns`: which calls compute next, where a process has more runs than cores."""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """Lets so many calls compute at a time. A call that its run waits for comes before those that work ahead.

    Any thread, without the lock of a run.

    Args:
        number: How many calls.
    """

    def __init__(self, number: int) -> None:
        self._lock = threading.Lock()
        self._free = number  # less those that wait
        self._first: deque[threading.Lock] = deque()
        self._ahead: deque[threading.Lock] = deque()

    def take(self, *, ahead: bool, seconds: float) -> None:
        """Waits for a turn; so long at most, since nobody can tell that a call does not wait for one of another run."""
        line = self._ahead if ahead else self._first
        with self._lock:
            self._free -= 1
            if self._free >= 0:
                return
            mine = threading.Lock()
            mine.acquire()
            line.append(mine)
        if not mine.acquire(timeout=seconds):
            with self._lock:
                if mine in line:
                    line.remove(mine)

    def give(self) -> None:
        """Ends a turn."""
        with self._lock:
            self._free += 1
            if self._free + len(self._first) + len(self._ahead) > 0 and (line := self._first or self._ahead):
                line.popleft().release()
