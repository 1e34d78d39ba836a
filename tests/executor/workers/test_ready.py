"""The streams that are looked at for work: as few as can be, and none is missed (`conftest` checks each look)."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from arrowflow.executor.stages.base import Blocked, Look, Stream
from arrowflow.executor.stages.parallel import ParallelQueue
from arrowflow.executor.workers.ready import ReadySet
from arrowflow.physical.stage import Chain
from tests.executor.fakes import Stepper, boundary, function, source, stages_of, stepper, values_of
from tests.executor.test_budget import SIZE, Turns, sized

UNCHECKED = ReadySet.find


def open_inputs(inputs: int, chunks: int = 20, ram_budget: int = 1 << 30) -> Stepper:
    """Returns an engine that takes chunks of so many inputs in turn."""
    mixed = boundary(lambda context: Turns(context, inputs), "turns")
    chains = [Chain(stages=(source(chunks, sized, task_bytes=SIZE), function())) for _ in range(inputs)]
    return stepper(mixed, children=chains, ram_budget=ram_budget)


def looks_of_a_turn(inputs: int, monkeypatch: pytest.MonkeyPatch) -> float:
    looks: Counter[str] = Counter()
    look = ParallelQueue.look

    def counted(self: ParallelQueue, room: float = math.inf) -> Look:
        looks["all"] += 1
        return look(self, room)

    engine = open_inputs(inputs)
    monkeypatch.setattr(ReadySet, "find", UNCHECKED)
    for _ in range(2 * inputs):
        engine.next_item()
    engine.settle()
    monkeypatch.setattr(ParallelQueue, "look", counted)
    for _ in range(2 * inputs):
        engine.next_item()
    engine.close()
    return looks["all"] / (2 * inputs)


def test_a_turn_looks_at_as_many_stages_with_many_inputs_as_with_few(monkeypatch: pytest.MonkeyPatch) -> None:
    few = looks_of_a_turn(4, monkeypatch)
    monkeypatch.undo()
    assert looks_of_a_turn(20, monkeypatch) <= 1.2 * few


def test_streams_without_room_are_looked_at_again_when_bytes_are_released() -> None:
    engine = open_inputs(4, ram_budget=400 * SIZE)
    engine.ledger.reserve(396 * SIZE)
    engine.settle()
    ready = engine.pool.ready
    blocked = {stage.stream for stage in stages_of(engine) if isinstance(stage.look(), Blocked)}
    assert len(blocked) >= 3, "all inputs but the first"
    engine.ledger.unreserve(396 * SIZE)
    ready.find(1.0)
    assert all(stream.noted for stream in blocked)
    engine.settle()
    assert all(calls_of_sources(engine))
    assert len(values_of(engine)) == 4 * 20


@pytest.mark.parametrize("spared", [0, 396 * SIZE])
def test_streams_without_room_are_left_alone_until_then(spared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_inputs(4, ram_budget=400 * SIZE)
    engine.ledger.reserve(396 * SIZE - spared, spared)
    engine.settle()
    blocked = {stage.stream for stage in stages_of(engine) if isinstance(stage.look(), Blocked)}
    looks: list[Stream] = []
    look = ParallelQueue.look

    def noted(self: ParallelQueue, room: float = math.inf) -> Look:
        looks.append(self.stream)
        return look(self, room)

    monkeypatch.setattr(ParallelQueue, "look", noted)
    assert UNCHECKED(engine.pool.ready, 1.0) is None
    assert len(blocked.intersection(looks)) <= 1, "the wanted one"
    engine.ledger.unreserve(396 * SIZE - spared, spared)


def calls_of_sources(engine: Stepper) -> list[int]:
    return [stage.calls for stage in stages_of(engine) if stage.plan.operators == ("source",)]


def test_a_dropped_stream_is_forgotten() -> None:
    engine = open_inputs(3, chunks=2)
    values = values_of(engine)
    assert len(values) == 6
    assert all(stage.stream is engine.root for stage in stages_of(engine))
    engine.close()
    assert not stages_of(engine)
