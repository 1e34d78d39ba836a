"""`IdleCores`: how much of the CPU budget no call used, and why.

A worker that finds nothing to start says why, and how many cores are idle then (`Pool.rests`). That holds until another
one rests or wakes. So a call costs nothing more, and the figures are as exact as workers rest often.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

YOUR_STEP: Final = "your own step"
MEMORY: Final = "the memory budget"
ORDER: Final = "results of running calls"


class IdleCores:
    """Core seconds that no call used, by reason. Under the run's lock."""

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
