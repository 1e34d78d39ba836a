"""The tuner: pure functions of measurements.

`model` says what they mean, `policy` what to change, `advice` what a person could, `report` all of it in words.
Nothing here knows threads or clocks; the executor hands samples in and applies what comes back.
"""

from arrowflow.autotune.advice import advice
from arrowflow.autotune.model import bottleneck
from arrowflow.autotune.policy import Policy
from arrowflow.autotune.report import report

__all__ = ["Policy", "advice", "bottleneck", "report"]
