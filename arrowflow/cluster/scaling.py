"""When a cluster gets a worker more, or one less: a pure function of what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

PERIOD_SECONDS: Final = 2.0
"""Time between looks: a worker starts in half a second, and fills its queues in as much again."""
WAITS: Final = 0.2
IDLES: Final = 0.02
BUSY: Final = 0.6
"""Shares of time: lanes that lack rows so long, in the mean, want a worker more; those that hardly lack any may give one up;
workers compute that use so much of their cores."""
GAIN: Final = 1.05
"""A worker more has to bring so much."""
REST_PERIODS: Final = 5
"""Looks that are more periods apart have a rest between them, such as that after an epoch."""
REST: Final = 10
"""Looks before a move is tried again that brought nothing."""
CALM: Final = 5
"""Looks one after the other at which lanes lack nothing, before a worker goes."""


def dealt(places: Mapping[int, int], lanes: Sequence[int], workers: int) -> dict[int, int]:
    """Returns the number of the worker that runs each lane. As few lanes as possible move.

    Examples:
        >>> dealt({}, range(4), 2)
        {0: 0, 1: 1, 2: 0, 3: 1}
        >>> dealt({0: 0, 1: 1, 2: 0, 3: 1}, range(4), 3)
        {0: 0, 1: 1, 2: 0, 3: 2}
    """
    loads = [0] * workers
    least, more = divmod(len(lanes), workers)
    found: dict[int, int] = {}
    for lane in lanes:
        place = places.get(lane, workers)
        if place < workers and loads[place] < least + (more > 0):
            more -= loads[place] == least
            loads[place] += 1
            found[lane] = place
    for lane in lanes:
        if lane not in found:
            found[lane] = place = min(range(workers), key=loads.__getitem__)
            loads[place] += 1
    return {lane: found[lane] for lane in lanes}


@dataclass(slots=True)
class Scaling:
    """Decides how many workers there are. Verifies each move: one more that brings nothing is taken back.

    Attributes:
        own: How many lanes the consumer has.
        waited: Seconds since the latest look that lanes waited for their workers, all together.
        reasons: Why workers came and went.

    Examples:
        >>> scaling = Scaling(most=4, own=16, cores=2)
        >>> scaling.decide(1, waited=0.9, busy=0.95, rate=100.0)
        2
    """

    most: int
    own: int
    cores: int
    waited: float = 0.0
    reasons: list[str] = field(default_factory=list)
    _then: tuple[float, float, int] | None = None
    _before: float | None = None
    _rests: int = 0
    _calm: int = 0

    def look(self, now: float, workers: int, cpu_seconds: float, rows: int) -> int | None:
        """Returns how many workers there shall be from now on; None where it is too early to say.

        CPU time and rows are those of all workers until now.
        """
        if self._then is None:
            self.begin(now, cpu_seconds, rows)
            return None
        then, cpu_then, rows_then = self._then
        elapsed = now - then
        if elapsed < PERIOD_SECONDS:
            return None
        waited = self.waited / (elapsed * self.own)
        self.begin(now, cpu_seconds, rows)
        if elapsed > REST_PERIODS * PERIOD_SECONDS and waited > IDLES:
            return None  # the mean of a rest and of the time around it says nothing
        busy = (cpu_seconds - cpu_then) / (elapsed * self.cores * workers)
        return self.decide(workers, waited=waited, busy=busy, rate=(rows - rows_then) / elapsed)

    def begin(self, now: float, cpu_seconds: float, rows: int) -> None:
        """Measures from now on."""
        self._then, self.waited = (now, cpu_seconds, rows), 0.0

    def decide(self, count: int, *, waited: float, busy: float, rate: float) -> int:
        """Returns how many workers there shall be in place of so many.

        Args:
            waited: The share of time that a lane's request was waited for, in the mean over lanes.
            busy: The share of the workers' cores that they used.
            rate: Rows a second.
        """
        before, self._before = self._before, None
        if before is not None and rate < before * GAIN:
            self._rests = REST
            why = f"{count} brought {rate / before:.2f} x the rows/s of {count - 1}"
            return self._move(count, count - 1, why)
        self._rests = max(0, self._rests - 1)
        if waited > WAITS:
            self._calm = 0
            if busy > BUSY and count < self.most and not self._rests:
                self._before = rate
                why = f"lanes waited {waited:.0%} of the time for workers that compute"
                return self._move(count, count + 1, why)
            return count
        self._calm = self._calm + 1 if waited <= IDLES else 0
        if self._calm >= CALM and count > 1 and busy * count < BUSY * (count - 1):
            self._calm = 0
            return self._move(count, count - 1, f"lanes waited {waited:.0%} of the time")
        return count

    def refused(self, count: int, why: str) -> None:
        """Is told that the cluster has no room for more than so many workers."""
        self.most, self._before = count, None
        self._move(count + 1, count, f"worker {count} {why}")

    def _move(self, old: int, new: int, why: str) -> int:
        self.reasons.append(f"{old} -> {new} workers: {why}")
        return new
