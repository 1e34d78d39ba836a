"""What a worker does around each call: whom it wakes, what takes a turn, and what is measured; how often a watch looks."""

from __future__ import annotations

from unittest.mock import Mock

import pyarrow as pa
import pytest

from arrowflow.executor.limits import FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS
from arrowflow.executor.workers import pool
from arrowflow.executor.workers.worker import Worker
from arrowflow.physical.stage import StagePlan
from arrowflow.physical.tuning import FIRST_CALLS
from arrowflow.testing import FakeClock
from tests.executor.fakes import (
    Stepper,
    clock_of,
    function,
    hold,
    serial,
    source,
    stages_of,
    stepper,
)


def serve(engine: Stepper) -> None:
    """Has one worker run what there is, until it has nothing to do."""
    worker = Worker(lambda: None, "worker")
    worker.parking = Mock(acquire=lambda timeout: engine.stop())
    worker.meter = engine.clock
    with engine.lock:
        engine.pool._serve(worker)


@pytest.mark.parametrize(
    ("first", "wakes"), [(source(6, max_calls=1), False), (source(6, max_calls=2), True)]
)
def test_only_a_parallel_call_wakes_another_thread(first: StagePlan, wakes: bool) -> None:
    """A serial one is over before that thread is awake."""
    engine = stepper(first, serial(buffer_items=9))
    woken: list[str] = []
    engine.pool.spawn = lambda: woken.append("a thread")  # type: ignore[method-assign]
    serve(engine)
    assert bool(woken) == wakes


@pytest.mark.parametrize(("held", "asked"), [(0, [False, True]), (1, [True, True])])
def test_parallel_calls_that_compute_take_turns_and_tell_whether_they_run_ahead(
    held: int, asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call runs ahead if another one of its stage runs, or if a chunk of its stage is there."""
    engine = stepper(source(held + 2, cost="waits"), serial(), function(buffer_items=9))
    hold(engine, "function", held)
    found: list[bool] = []
    turns = Mock(take=lambda ahead, seconds: found.append(ahead))
    monkeypatch.setattr(pool, "turns_of_runs", lambda: turns)
    serve(engine)
    assert found == asked
    assert turns.give.call_count == len(asked)


@pytest.mark.parametrize(
    ("cost", "seconds", "measured"),
    [("unknown", 0.5, 9), ("unknown", 2e-6, FIRST_CALLS), ("computes", 0.5, 0)],
)
def test_time_without_a_core_is_measured_where_a_call_may_wait_and_is_not_short(
    cost: str, seconds: float, measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tick(batch: pa.RecordBatch) -> pa.RecordBatch:
        clock_of(engine).advance(seconds)
        return batch

    monkeypatch.setattr(FakeClock, "queued", lambda clock: clock.now() / 2)
    engine = stepper(source(9), function(tick, cost=cost, buffer_items=9))
    serve(engine)
    stage = stages_of(engine)[0]
    assert stage.calls == 9
    assert stage.queued_seconds == pytest.approx(measured * seconds / 2)


def test_a_watch_looks_less_often_until_it_finds_a_call_that_waits() -> None:
    engine = stepper(source(100, cost="waits"), function(cost="unknown"), cpu_budget=1)
    ((_, _, busy),) = hold(engine, "function", 1)
    engine.settle()
    engine.pool.threads.append(busy)
    clock = clock_of(engine)
    watch, looks = Worker(lambda: None, "watch"), list[float]()

    def wait(timeout: float) -> None:
        looks.append(timeout)
        clock.advance(timeout)

    watch.parking = Mock(acquire=wait)
    busy.meter, busy.seen = clock, (0.0, 0.0, 0.0)
    with engine.lock:
        for number in range(7):
            if number == 6:
                busy.meter, busy.seen = Mock(cpu=lambda: 0.0, queued=lambda: 0.0), (clock.now(), 0.0, 0.0)
            assert engine.pool.pick() is None, "no token is free"
            engine.pool._rest(watch)
    assert looks == [FIRST_LOOK_SECONDS * 2**power for power in range(5)] + [LAST_LOOK_SECONDS] * 2
    assert engine.pool._look_seconds == FIRST_LOOK_SECONDS
