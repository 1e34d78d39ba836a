"""Measurements of stages that come and go, added up by what they were made of."""

from __future__ import annotations

from collections.abc import Iterable

from arrowflow.executor.stages.base import Stage
from arrowflow.physical.tuning import StageKey, StageStatistics


class Totals:
    """The measurements of all stages of one run. Under the engine's lock."""

    def __init__(self) -> None:
        self._past: dict[StageKey, StageStatistics] = {}

    def count(self, stage: Stage) -> None:
        """Adds a stage that is gone."""
        _add(self._past, stage)

    def statistics(self, stages: Iterable[Stage]) -> tuple[StageStatistics, ...]:
        """Returns the sums, with the stages that are still there, the most downstream first."""
        totals = dict(self._past)
        for stage in stages:
            _add(totals, stage)
        return tuple(totals[key] for key in sorted(totals))


def _add(totals: dict[StageKey, StageStatistics], stage: Stage) -> None:
    now = stage.statistics()
    totals[stage.key] = totals[stage.key].plus(now) if stage.key in totals else now
