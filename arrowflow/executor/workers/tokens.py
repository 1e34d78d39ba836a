"""What calls take of the CPU budget, and whether there is room for one more."""

from __future__ import annotations

from arrowflow.executor.limits import ROUNDING
from arrowflow.physical.tuning import MOSTLY_COMPUTES, WAITS


def fits(weight: float, room: float) -> bool:
    """Whether a call may begin, given what is left of the CPU budget.

    What is left of a core goes to whoever comes next: the cores there are, or the mean, bound what that uses.
    """
    return weight <= WAITS or weight <= room or room > 2 * ROUNDING


def token(weight: float) -> float:
    """Returns what a call takes of the CPU budget."""
    return weight if weight >= WAITS else 0.0


def rounded(share: float) -> float:
    """Returns what a call takes of a core, given its share of CPU time."""
    return 1.0 if share > MOSTLY_COMPUTES else max(0.0, share)
