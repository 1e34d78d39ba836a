"""Sums and differences of the measurements of stages, and of the workers of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from arrowflow.bad_rows import NO_BAD_ROWS, LeftOut
from arrowflow.physical.tuning import StageKey, StageStatistics, WorkerStatistics


def summed(latest: StageStatistics, parts: Sequence[Any]) -> StageStatistics:
    """Returns the figures of stages of one plan, such as those of many lanes.

    Args:
        latest: The figures of one of them, which says what all have in common.
        parts: All of them: statistics, or running stages, of which a snapshot each would cost more.
    """
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


def since(before: StageStatistics | None, now: StageStatistics) -> StageStatistics:
    """Returns the work of a stage since an earlier look: differences, and 0 for all that says "now".

    Bad rows are left out of it: who counts them has to know which ones they are.
    """
    at_rest = replace(now, ready_items=0, running=0, left_out=NO_BAD_ROWS)
    if before is None:
        return at_rest
    return replace(
        at_rest,
        calls=now.calls - before.calls,
        rows=now.rows - before.rows,
        bytes=now.bytes - before.bytes,
        chunks=now.chunks - before.chunks,
        busy_seconds=now.busy_seconds - before.busy_seconds,
        cpu_seconds=now.cpu_seconds - before.cpu_seconds,
        queued_seconds=now.queued_seconds - before.queued_seconds,
        capped=now.capped - before.capped,
        full=now.full - before.full,
    )


def stages_together(parts: Iterable[StageStatistics]) -> tuple[StageStatistics, ...]:
    """Returns the sums of stages with equal keys, the most downstream first."""
    found: dict[StageKey, list[StageStatistics]] = {}
    for part in parts:
        found.setdefault(part.key, []).append(part)
    return tuple(summed(found[key][-1], found[key]) for key in sorted(found))


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
