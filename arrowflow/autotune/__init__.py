"""The tuner: pure functions of measurements.

`model` says what measurements mean, `limit` what limits a run, and `policy` what to change.
Nothing here knows threads or clocks; the executor hands samples in and applies what comes back.
"""

from arrowflow.autotune.limit import bottleneck
from arrowflow.autotune.policy import Policy

__all__ = ["Policy", "bottleneck"]
