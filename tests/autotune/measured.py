"""Statistics as a run would have measured them, of which a test names what matters."""

from __future__ import annotations

import dataclasses
from typing import Any

from arrowflow.physical.tuning import RunSample, StageLimits, StageStatistics, Statistics

ZEROS: dict[Any, Any] = {"bool": False, "int": 0, "float": 0.0}
NOTHING: dict[str, Any] = {
    field.name: ZEROS[field.type]
    for field in dataclasses.fields(StageStatistics)
    if field.type in ZEROS and field.default is dataclasses.MISSING
} | {"kind": "parallel", "cost": "unknown", "asked_calls": None, "engine": "python"}

LIMITS = {field.name for field in dataclasses.fields(StageLimits)} - {"max_ready_items"}


def stage(*operators: str, **fields: Any) -> StageStatistics:
    """Returns what one stage measured: nothing but what is given, of its limits too."""
    own = {name: fields.pop(name) for name in LIMITS & fields.keys()}
    room = fields.pop("ready_limit", 4)
    fields.setdefault("limits", StageLimits(**{"max_calls": 10, "max_ready_items": room, **own}))
    named: dict[str, Any] = {"key": operators, "operators": operators, "phase": operators[0]}
    return StageStatistics(**(NOTHING | named | fields))


def run(*stages: StageStatistics, **fields: Any) -> Statistics:
    """Returns what a run of ten seconds measured, half of which its consumer waited; the last stage comes first."""
    measured: dict[str, Any] = {
        "batches": 100,
        "rows": 1000,
        "seconds": 10.0,
        "waited_seconds": 5.0,
        "first_batch_seconds": 0.1,
        "ledger_bytes": 0,
        "ledger_peak_bytes": 1 << 20,
        "ledger_budget_bytes": 1 << 30,
        "cpu_budget": 2,
        "workers": 4,
    }
    return Statistics(**(measured | {"stages": stages} | fields))


def sample(now: float, *stages: StageStatistics, **fields: Any) -> RunSample:
    """Returns what a tuner sees at a moment."""
    seen: dict[str, Any] = {
        "cpu_budget": 2,
        "waited_seconds": 0.0,
        "rows": 0,
        "chunks": 0,
    }
    return RunSample(**(seen | {"now": now, "stages": stages} | fields))
