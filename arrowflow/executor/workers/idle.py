"""`IdleCores`: how much of the CPU budget no call used, and why.

Whoever finds nothing to start says why (`Pool.pick`). A call that starts or ends changes how many cores are idle. The
time between two such changes counts for the last reason that was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

YOUR_STEP: Final = "your own step"
MEMORY: Final = "the memory budget"
ORDER: Final = "calls that have to end first"
HAND_OVER: Final = "hand-overs between threads"


class IdleCores:
    """Core seconds that no call used, by reason. Under the run's lock.

    Attributes:
        reason: Why a core is idle now.
    """

    __slots__ = ("_cores", "_seconds", "_since", "reason")

    def __init__(self, now: float, cores: float) -> None:
        self.reason = HAND_OVER
        self._seconds: dict[str, float] = {}
        self._since, self._cores = now, cores

    def change(self, now: float, cores: float) -> None:
        """Counts the time until now; from now on so many cores are idle, until somebody finds out why for a hand-over."""
        if self._cores > 0:
            spent = self._cores * (now - self._since)
            self._seconds[self.reason] = self._seconds.get(self.reason, 0.0) + spent
        self._since, self._cores, self.reason = now, cores, HAND_OVER

    def seconds(self, now: float) -> Mapping[str, float]:
        """Returns the core seconds of each reason until now."""
        reason = self.reason
        self.change(now, self._cores)
        self.reason = reason
        return dict(self._seconds)
