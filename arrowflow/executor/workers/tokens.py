"""Tokens: the part of the CPU budget that calls take, and whether there is room for one more call."""

from __future__ import annotations

from arrowflow.executor.limits import ROUNDING
from arrowflow.physical.tuning import MOSTLY_COMPUTES, WAITS

LEAST_ROOM = 2 * ROUNDING
"""Less is what rounding leaves of a budget that is taken."""


def waits(weight: float) -> bool:
    """Whether a call of this weight waits, so that it takes no token and needs no room."""
    return weight < WAITS


def fits(weight: float, room: float) -> bool:
    """Whether a call may begin, given what is left of the CPU budget.

    The next call takes the rest of a core. The number of cores, or the mean, bounds how much the call uses.
    """
    return weight < WAITS or room > LEAST_ROOM


def any_fits(room: float) -> bool:
    """Whether a call that computes may begin."""
    return room > LEAST_ROOM


def token(weight: float) -> float:
    """Returns the part of the CPU budget that a call takes."""
    return 0.0 if weight < WAITS else weight


def rounded(share: float) -> float:
    """Returns the part of a core that a call takes, given its share of CPU time."""
    return 1.0 if share > MOSTLY_COMPUTES else max(0.0, share)
