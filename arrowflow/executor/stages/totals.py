"""Measurements of stages that come and go, added up by what they were made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from arrowflow.executor.stages.measures import Measures
from arrowflow.physical.totals import summed
from arrowflow.physical.tuning import StageKey, StageStatistics

Part = Measures | StageStatistics


class Totals:
    """The measurements of all stages of one run. Under the engine's lock."""

    def __init__(self) -> None:
        self._past: dict[StageKey, StageStatistics] = {}

    def count(self, stage: Measures) -> None:
        """Adds a stage that is gone."""
        past = self._past.get(stage.key)
        self._past[stage.key] = _sum([stage] if past is None else [past, stage])

    def statistics(self, stages: Iterable[Measures]) -> tuple[StageStatistics, ...]:
        """Returns the sums, with the stages that are still there, the most downstream first."""
        parts: dict[StageKey, list[Part]] = {key: [past] for key, past in self._past.items()}
        for stage in stages:
            parts.setdefault(stage.key, []).append(stage)
        return tuple(_sum(parts[key]) for key in sorted(parts))


def _sum(parts: Sequence[Part]) -> StageStatistics:
    """Returns the figures of stages of one plan, such as those of many lanes; one snapshot of each would cost more."""
    last = parts[-1]
    latest = last if isinstance(last, StageStatistics) else last.statistics()
    if len(parts) == 1:
        return latest
    return summed(latest, parts)
