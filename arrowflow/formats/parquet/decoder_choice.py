"""Which decoder reads: the one that was faster on a kind of files so far. Values never depend on it.

Polars decodes most flat columns 1.3 to 2 times as fast as Arrow, booleans 20 times. But `BYTE_STREAM_SPLIT` takes it 2.4
times as long, and `DELTA_BINARY_PACKED` 1.2 times (4 M rows of 8 columns, 2 cores). So both decode some of the first
runs, and the faster one decodes most of the others. The best time of a decoder counts: the others had to wait for a
core, or for memory that was touched for the first time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, TypeVar

from arrowflow.clock import WallClock

Decoded = TypeVar("Decoded")

_FIRST_RUNS: Final = 2
"""Runs that each decoder reads before one of them is preferred."""


@dataclass(slots=True)
class _Times:
    """The runs that a decoder has read, and its best time, in seconds for each value."""

    runs: int = 0
    best: float = math.inf


@dataclass(slots=True)
class _Kind:
    polars: _Times
    arrow: _Times

    @property
    def prefers_polars(self) -> bool:
        """Whether Polars reads the next run. The slower decoder gets another chance after 4, 8, 16, ... runs."""
        is_faster = self.polars.best < self.arrow.best
        faster, slower = (self.polars, self.arrow) if is_faster else (self.arrow, self.polars)
        is_known = slower.runs >= max(_FIRST_RUNS, faster.runs.bit_length())
        return is_faster if is_known else not is_faster


class DecoderChoice:
    """The times that each decoder took for each kind of files, in all epochs and threads. A copy begins anew.

    Args:
        now: Tells the time, in seconds.
    """

    __slots__ = ("_kinds", "_now")

    def __init__(self, now: Callable[[], float] = WallClock.now) -> None:
        self._now = now
        # Several threads change the times without a lock. A run that is not counted does no harm.
        self._kinds: dict[Hashable, _Kind] = {}

    def __reduce__(self) -> tuple[type[DecoderChoice], tuple[()]]:
        return DecoderChoice, ()

    def by_polars(
        self, kind: Hashable, num_values: int, decode: Callable[[], Decoded | None]
    ) -> Decoded | None:
        """Returns what Polars decodes; None if it is Arrow's turn, or if Polars cannot decode the run."""
        times = self._of(kind)
        return self._timed(times.polars, num_values, decode) if times.prefers_polars else None

    def by_arrow(self, kind: Hashable, num_values: int, decode: Callable[[], Decoded]) -> Decoded:
        """Returns what Arrow decodes."""
        decoded = self._timed(self._of(kind).arrow, num_values, decode)
        assert decoded is not None
        return decoded

    def facts(self) -> list[str]:
        """Returns what was found of each kind, for people."""
        found = []
        for kind in list(self._kinds.values()):
            polars, arrow = kind.polars, kind.arrow
            if min(polars.runs, arrow.runs) >= _FIRST_RUNS:
                times = arrow.best / polars.best
                faster = f"polars, {times:.1f}" if times >= 1 else f"arrow, {1 / times:.1f}"
                found.append(f"decoded by {faster} x as fast as the other decoder")
        return found

    def _timed(self, times: _Times, num_values: int, decode: Callable[[], Decoded | None]) -> Decoded | None:
        began = self._now()
        decoded = decode()
        if decoded is not None:
            times.best = min(times.best, (self._now() - began) / num_values)
        times.runs += 1
        return decoded

    def _of(self, kind: Hashable) -> _Kind:
        return self._kinds.setdefault(kind, _Kind(_Times(), _Times()))
