"""Measurements of stages that come and go, added up by what they were made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce

from arrowflow.bad_rows import LeftOut
from arrowflow.executor.stages.base import Stage
from arrowflow.physical.tuning import StageKey, StageStatistics

Part = Stage | StageStatistics


class Totals:
    """The measurements of all stages of one run. Under the engine's lock."""

    def __init__(self) -> None:
        self._past: dict[StageKey, StageStatistics] = {}

    def count(self, stage: Stage) -> None:
        """Adds a stage that is gone."""
        past = self._past.get(stage.key)
        self._past[stage.key] = _sum([stage] if past is None else [past, stage])

    def statistics(self, stages: Iterable[Stage]) -> tuple[StageStatistics, ...]:
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
    return replace(
        latest,
        calls=sum([part.calls for part in parts]),
        rows=sum([part.rows for part in parts]),
        bytes=sum([part.bytes for part in parts]),
        chunks=sum([part.chunks for part in parts]),
        busy_seconds=sum([part.busy_seconds for part in parts]),
        cpu_seconds=sum([part.cpu_seconds for part in parts]),
        queued_seconds=sum([part.queued_seconds for part in parts]),
        ready_items=sum([part.ready_items for part in parts]),
        max_ready_items=max([part.max_ready_items for part in parts]),
        running=sum([part.running for part in parts]),
        capped=sum([part.capped for part in parts]),
        full=sum([part.full for part in parts]),
        left_out=reduce(LeftOut.plus, [part.left_out for part in parts]),
    )
