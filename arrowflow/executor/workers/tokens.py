"""Tokens: the part of the CPU budget that calls take, and whether there is room for one more call."""

from __future__ import annotations

from arrowflow.executor.limits import ROUNDING
from arrowflow.physical.tuning import MOSTLY_COMPUTES, WAITS


def fits(weight: float, room: float) -> bool:
    """Whether a call may begin, given what is left of the CPU budget.

    The next call takes the rest of a core. The number of cores, or the mean, bounds how much the call uses.
    """
    return weight <= WAITS or any_fits(room)


def any_fits(room: float) -> bool:
    """Whether a call that computes may begin."""
    return room > 2 * ROUNDING


def token(weight: float) -> float:
    """Returns the part of the CPU budget that a call takes."""
    return weight if weight >= WAITS else 0.0


def rounded(share: float) -> float:
    """Returns the part of a core that a call takes, given its share of CPU time."""
    return 1.0 if share > MOSTLY_COMPUTES else max(0.0, share)
