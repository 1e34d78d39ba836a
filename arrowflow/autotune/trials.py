"""The policy's memory: what it knows of a stage, which change it tries, and how long a kind of change rests."""

from __future__ import annotations

from dataclasses import dataclass, field

from arrowflow.autotune.model import RunWindow
from arrowflow.physical.tuning import StageKey, StageLimits

FIRST_REST_SECONDS, LAST_REST_SECONDS = 1.0, 60.0


@dataclass(slots=True, kw_only=True)
class Trial:
    """A change whose worth is not known yet: the setting and the figures of the run before it, and the change in words."""

    key: StageKey
    kind: str
    before: StageLimits
    was: RunWindow
    evidence: str


@dataclass(slots=True, kw_only=True)
class Memory:
    """The policy's knowledge of one stage: its setting, and when each kind of change may be tried again.

    Attributes:
        share: Share of a call that is CPU time, smoothed.
        used_share: The one that the weight was made of.
        lock: Whether it was found to hold the interpreter lock.
        rest_seconds: How long each kind of change rests the next time.
    """

    setting: StageLimits
    share: float
    used_share: float
    lock: bool
    rests_until: dict[str, float]
    rest_seconds: dict[str, float] = field(default_factory=dict)

    def may(self, kind: str, now: float) -> bool:
        """Whether a kind of change may be tried."""
        return now >= self.rests_until.get(kind, 0.0)
