"""What all tests of the executor need."""

from __future__ import annotations

import pytest

from arrowflow.executor import engine
from arrowflow.executor.workers import cores


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves runs that earlier tests have not closed out of what live runs share."""
    monkeypatch.setattr(cores._Process, "runs", ())
    monkeypatch.setattr(cores._Process, "arrow_threads", None)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for workers that a busy machine keeps from ending, after interrupts too."""
    monkeypatch.setattr(engine, "INTERRUPTED_SECONDS", 60.0)
