"""What all tests of the executor need."""

from __future__ import annotations

import pytest

from arrowflow.executor import cores


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves runs that earlier tests have not closed out of what live runs share."""
    monkeypatch.setattr(cores._Process, "runs", ())
    monkeypatch.setattr(cores._Process, "arrow_threads", None)
