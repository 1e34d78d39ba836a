"""Measurements of stages that come and go, added up by the plan that they were made of."""

from __future__ import annotations

from arrowflow.executor.stage import Stage
from arrowflow.physical.stage import Chain, StagePlan
from arrowflow.physical.tuning import StageStatistics


def plans_of(chain: Chain) -> list[StagePlan]:
    """Returns the plans of all stages, the most downstream first."""
    return [*reversed(chain.stages), *(plan for child in chain.children for plan in plans_of(child))]


def count(totals: dict[int, StageStatistics], stage: Stage) -> None:
    """Adds a stage to the totals of its plan; a plan lives as long as the engine, so its id is a key."""
    key, now = id(stage.plan), stage.statistics()
    totals[key] = totals[key].plus(now) if key in totals else now
