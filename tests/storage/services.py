"""Services of a run, as a test gives them to reads and writes of a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Services:
    """Services with a clock that waiting moves. Calls are made one after the other, and what is done is told.

    Args:
        goes_on: Whether the run goes on after a wait.
    """

    def __init__(self, *, goes_on: bool = True) -> None:
        self.time = 0.0
        self.pauses: list[float] = []
        self.told: list[str] = []
        self.goes_on = goes_on

    def now(self) -> float:
        return self.time

    def wait(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.time += seconds
        return self.goes_on

    def retried(self, why: str) -> None:
        self.told.append(why)

    def together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        return [call() for call in calls]

    def hedged(self, call: Callable[[], Any], seconds: float) -> Any:
        self.told.append(f"hedged after {seconds} s")
        return call()
