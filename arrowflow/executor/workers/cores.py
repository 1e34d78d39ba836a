"""Cores and memory that the live runs of a process share.

Each run keeps its own budgets, and the runs together are bounded too. Their calls that compute are bounded by the cores
that this process may use. The bytes of runs without a budget of their own are bounded by one quarter of the memory.

No run hands anything over, and no run waits for another. A thread that looks for work reads how much the other runs use
now. It may always use its run's fair share, at least one call. So no run starves, and no run waits for a wake-up that
nobody sends. A run that idles (the validation set, between two epochs) costs the others nothing.

With more runs than cores, each run may begin one call, and calls that decode or gather take turns (`turns`). A worker of a
cluster has a run for each of its lanes. All of them at once would fill the caches and the memory with half-made chunks.

Arrow's own pool follows the largest CPU budget while any run lives, and gets its size back with the last run.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from arrowflow.executor import keeping
from arrowflow.executor.stages.base import Run
from arrowflow.options import available_cpus


class Turns:
    """Lets so many calls compute at a time, where a process has more runs than cores.

    A call that its run waits for comes before those that work ahead. Any thread, without the lock of a run.

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


class _Process:
    """The state that the runs of this process share.

    Attributes:
        lock: Guards joining and leaving; reading what others use needs none.
        runs: The live runs; replaced as a whole, so that readers see the old set or the new set. The references are
            weak: an interrupt may hit a run that has just joined, and then nobody makes it leave.
        available: Cores that this process may use, once they were looked up.
        cores: Calls that may compute at the same time.
        turns: Says whose turn it is, where there are more runs than cores.
        arrow_threads: Size of Arrow's pool before the first run.
    """

    lock = threading.RLock()  # a finalizer may end a run in the middle of another's start
    runs: tuple[weakref.ref[Run], ...] = ()
    available = 0
    cores = 1
    turns = Turns(1)
    arrow_threads: int | None = None


def join(run: Run) -> None:
    """Takes a run among those that share."""
    with _Process.lock:
        _share([*_alive(), run])


def leave(run: Run) -> None:
    """Gives up a run's share; again is fine."""
    with _Process.lock:
        runs = _alive()
        if run in runs:
            runs.remove(run)
            _share(runs)


def available() -> int:
    """Returns the cores that this process may use, as at its first run."""
    if not _Process.available:
        limit(available_cpus())
    return _Process.available


def limit(number: int) -> None:
    """Has the runs of this process use no more cores than these: others have the rest of the machine."""
    _Process.available = number
    _Process.turns = Turns(number + number // 2)  # calls of Polars leave parts of its pool idle


def turns() -> Turns | None:
    """Returns the turns of calls that are known to compute; None where there is a core for each run."""
    return _Process.turns if len(_Process.runs) > available() else None


def _alive() -> list[Run]:
    return [run for reference in _Process.runs if (run := reference()) is not None]


def _share(runs: list[Run]) -> None:
    _Process.runs = tuple(map(weakref.ref, runs))
    budgets = [run.options.cpu_budget for run in runs]
    _Process.cores = max((available(), *budgets))
    _size_arrow_pool(max(budgets, default=None))
    sharing = [run for run in runs if run.options.shares_ram]
    for run in sharing:
        run.ledger.budget = run.options.ram_budget // len(sharing)
        keeping.trim(run.ledger)


def _size_arrow_pool(threads: int | None) -> None:
    if _Process.arrow_threads is None:
        _Process.arrow_threads = pa.cpu_count()
    if threads is None:
        threads, _Process.arrow_threads = _Process.arrow_threads, None
    if threads != pa.cpu_count():
        pa.set_cpu_count(threads)


def allowance(run: Run) -> int:
    """Returns how many calls of a run may compute now. Called under the run's lock; reads others' without theirs."""
    budget = run.options.cpu_budget
    if len(_Process.runs) <= 1:
        return budget
    others = [other.tokens for other in _alive() if other is not run and other.tokens > 0]
    fair = max(1, _Process.cores // (1 + len(others)))
    return min(budget, max(fair, _Process.cores - round(sum(others))))


YOUR_STEP: Final = "your own step"
MEMORY: Final = "the memory budget"
ORDER: Final = "results of running calls"


class IdleCores:
    """Core seconds of a run's budget that no call used, by reason. Under the run's lock.

    A worker that finds nothing to start says why, and how many cores are idle then (`Pool.rests`). That holds until another
    one rests or wakes. So a call costs nothing more, and the figures are as exact as workers rest often.
    """

    def __init__(self, now: float, cores: float) -> None:
        self._reason = ORDER
        self._seconds: dict[str, float] = {}
        self._since, self._cores = now, cores

    def change(self, now: float, cores: float, reason: str | None = None) -> None:
        """Counts the time until now; from now on so many cores are idle, for the same reason if none is given."""
        if self._cores > 0:
            spent = self._cores * (now - self._since)
            self._seconds[self._reason] = self._seconds.get(self._reason, 0.0) + spent
        self._since, self._cores, self._reason = now, cores, reason or self._reason

    def seconds(self, now: float) -> Mapping[str, float]:
        """Returns the core seconds of each reason until now."""
        self.change(now, self._cores)
        return dict(self._seconds)
