"""Sums and differences of the measurements of stages, and of the workers of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from arrowflow.bad_rows import NO_BAD_ROWS, LeftOut
from arrowflow.physical.tuning import NO_TIMES, Refusals, StageKey, StageStatistics, Times, WorkerStatistics

_WORK = ("calls", "rows", "bytes", "chunks", "busy_seconds", "cpu_seconds", "queued_seconds")
"""The figures that grow while a stage runs. The others say what is now."""
_NOW = ("ready_items", "running", "undelivered", "turn_chunks")


def since(before: StageStatistics | None, now: StageStatistics) -> StageStatistics:
    """Returns the work of a stage since an earlier look: differences, and 0 for all that says "now".

    Bad rows are left out of it: who counts them has to know which ones they are.
    """
    zeros: dict[str, Any] = dict.fromkeys(_NOW, 0)
    at_rest = replace(now, **zeros, left_out=NO_BAD_ROWS, unfinished=NO_TIMES)
    if before is None:
        return at_rest
    grown = {name: getattr(now, name) - getattr(before, name) for name in _WORK}
    return replace(at_rest, **grown, refusals=now.refusals.plus(before.refusals, -1))


def stages_together(parts: Iterable[Any]) -> tuple[StageStatistics, ...]:
    """Returns the sums of stages with equal keys, such as those of many lanes, the most downstream first.

    Args:
        parts: Statistics, or running stages, of which a snapshot each would cost more.
    """
    found: dict[StageKey, list[Any]] = {}
    for part in parts:
        found.setdefault(part.key, []).append(part)
    return tuple(_summed(found[key]) for key in sorted(found))


def _summed(parts: Sequence[Any]) -> StageStatistics:
    last = parts[-1]
    latest: StageStatistics = last if isinstance(last, StageStatistics) else last.statistics()
    if len(parts) == 1:
        return latest
    return replace(
        latest,
        **{name: sum([getattr(part, name) for part in parts]) for name in (*_WORK, *_NOW)},
        refusals=Refusals(*map(sum, zip(*[part.refusals for part in parts], strict=True))),
        unfinished=Times(*map(sum, zip(*[part.unfinished for part in parts], strict=True))),
        max_ready_items=max([part.max_ready_items for part in parts]),
        left_out=reduce(LeftOut.plus, [part.left_out for part in parts]),
    )


def workers_together(before: WorkerStatistics, more: WorkerStatistics) -> WorkerStatistics:
    """Returns the figures of a worker with those that came since."""
    return replace(
        more,
        pieces=before.pieces + more.pieces,
        rows=before.rows + more.rows,
        bytes=before.bytes + more.bytes,
        waited_seconds=before.waited_seconds + more.waited_seconds,
        stages=stages_together((*before.stages, *more.stages)) if more.stages else before.stages,
    )


class Totals:
    """The measurements of all stages of one run, which come and go. Under the engine's lock."""

    def __init__(self) -> None:
        self._past: dict[StageKey, StageStatistics] = {}

    def count(self, stage: Any) -> None:
        """Adds a stage that is gone."""
        past = self._past.get(stage.key)
        (self._past[stage.key],) = stages_together([stage] if past is None else [past, stage])

    def statistics(self, stages: Iterable[Any]) -> tuple[StageStatistics, ...]:
        """Returns the sums, with the stages that are still there, the most downstream first."""
        return stages_together([*self._past.values(), *stages])
