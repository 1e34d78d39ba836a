"""Workers and requests as the consumer sees them, and how their clocks are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from arrowflow.cluster.worker import Ready

PINGS: Final = 5
PING_SECONDS: Final = 2.0
"""Pings that compare clocks, and the time that one may take. The clock is off by half the quickest round trip at most."""


@dataclass(slots=True, eq=False)
class Remote:
    """A worker as the consumer sees it.

    Attributes:
        number: Its place among the workers.
        handle: The actor.
        starting: The promise of its `Ready`.
        ready: What it said, once it has started.
        cpu_seconds: CPU time of its process, as it told last.
        num_bytes: Bytes that came from it.
        rows: Rows that came from it.
        ahead_seconds: By how much its clock is ahead of the consumer's; None until somebody wants to know.
    """

    number: int
    handle: Any
    starting: Any
    ready: Ready | None = None
    cpu_seconds: float = 0.0
    num_bytes: int = 0
    rows: int = 0
    ahead_seconds: float | None = None


@dataclass(slots=True, eq=False)
class Asked:
    """A request on its way: of which lane and which run of it, to which worker."""

    lane: int
    remote: Remote
    name: str
    promise: Any


def ahead_by(sent: float, found: float, back: float) -> tuple[float, float]:
    """Returns the round trip of a ping, and by how much the other clock is ahead if both ways took as long.

    Example:
        >>> ahead_by(10.0, 110.5, 11.0)
        (1.0, 100.0)
    """
    return back - sent, found - (sent + back) / 2


def place_of(remote: Remote) -> str:
    """Returns where a worker is, for messages."""
    ready = remote.ready
    return "" if ready is None else f" on {ready.host} (process {ready.process})"
