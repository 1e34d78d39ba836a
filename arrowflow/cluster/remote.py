"""Workers and requests as the consumer sees them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from arrowflow.cluster.worker import Ready


@dataclass(slots=True, eq=False)
class Remote:
    """A worker as the consumer sees it.

    Attributes:
        number: Its place among the workers.
        handle: The actor.
        starting: The promise of its `Ready`.
        ready: What it said, once it has started.
        cpu_seconds: CPU time of its process, as it told last.
        rows: Rows that came from it.
        ahead_seconds: By how much its clock is ahead of the consumer's, at least: less the time that the quickest piece took.
    """

    number: int
    handle: Any
    starting: Any
    ready: Ready | None = None
    cpu_seconds: float = 0.0
    rows: int = 0
    ahead_seconds: float = -math.inf

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return "" if self.ready is None else f" on {self.ready.host} (process {self.ready.process})"


@dataclass(slots=True, eq=False)
class Asked:
    """A request on its way: of which lane and which run of it, to which worker, with which part of its byte budget.

    `is_first` says whether it is the first one of that run.
    """

    lane: int
    remote: Remote
    name: str
    ram_budget: int
    promise: Any
    is_first: bool = True
