"""Tokens: the part of the CPU budget that calls take, and whether there is room for one more call."""

from __future__ import annotations

from arrowflow.executor.limits import ROUNDING
from arrowflow.physical.tuning import MOSTLY_COMPUTES, WAITS


def waits(weight: float) -> bool:
    """Whether a call of this weight waits, so that it takes no token and needs no room."""
    return weight < WAITS


def fits(weight: float, room: float) -> bool:
    """Whether a call may begin, given what is left of the CPU budget.

    The next call takes the rest of a core. The number of cores, or the mean, bounds how much the call uses.
    """
    return waits(weight) or any_fits(room)


def any_fits(room: float) -> bool:
    """Whether a call that computes may begin."""
    return room > 2 * ROUNDING


def token(weight: float) -> float:
    """Returns the part of the CPU budget that a call takes."""
    return 0.0 if waits(weight) else weight


def rounded(share: float) -> float:
    """Returns the part of a core that a call takes, given its share of CPU time."""
    return 1.0 if share > MOSTLY_COMPUTES else max(0.0, share)
