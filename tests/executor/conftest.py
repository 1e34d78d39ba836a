"""What all tests of the executor need."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from arrowflow.executor import engine
from arrowflow.executor.stages.base import Ready
from arrowflow.executor.workers import cores
from arrowflow.executor.workers.ready import ReadySet
from arrowflow.testing import Gate
from tests.executor.interrupter import Preempted


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves runs that earlier tests have not closed out of what live runs share."""
    monkeypatch.setattr(cores._Process, "runs", ())
    monkeypatch.setattr(cores._Process, "arrow_threads", None)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for workers that a busy machine keeps from ending, after interrupts too."""
    monkeypatch.setattr(engine, "INTERRUPTED_SECONDS", 60.0)


@pytest.fixture(autouse=True)
def _looks_miss_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Holds each look of the ready set that finds nothing against a look at all stages."""
    find = ReadySet.find

    def checked(self: ReadySet, room: float) -> Ready | None:
        found = find(self, room)
        if found is None:
            missed = [stage for stage in self.stages() if isinstance(stage.look(room), Ready)]
            assert not missed, f"a look for work missed {missed[0].plan.operators}"
        return found

    monkeypatch.setattr(ReadySet, "find", checked)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that is opened at the end, so that no call outlives its test."""
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def preempted() -> Iterator[None]:
    """Handles a signal by an exception."""

    def preempt(number: int, frame: FrameType | None) -> None:
        raise Preempted

    previous = signal.signal(signal.SIGUSR1, preempt)
    yield
    signal.signal(signal.SIGUSR1, previous)
