"""Rule 4: calls that the consumer runs itself: when it does, and that nothing but the thread is different.

Engines here have run the first calls of each stage, and have no workers until a test lets them in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from arrowflow.errors import ClosedError
from arrowflow.executor.workers.worker import Worker
from arrowflow.physical.tuning import FIRST_CALLS
from tests.executor.fakes import (
    Hurrying,
    chunk,
    clock_of,
    drained,
    function,
    hurrying,
    number,
    running,
    serial,
    source,
    stepper,
    value_of,
    values_from,
    values_of,
)
from tests.executor.interrupter import INTERRUPTS, Preempted, ctrl_c

WAIT_SECONDS = 30


class Noting:
    """A function that notes who called it: the consumer, or somebody else."""

    def __init__(self, slow_from: int | None = None) -> None:
        self.engine: Hurrying | None = None  # until there is one, nobody is its consumer
        self.callers: list[str] = []
        self.slow_from = slow_from

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns its argument."""
        engine = self.engine
        is_consumer = engine is not None and engine.consumer.stage is not None
        self.callers.append("consumer" if is_consumer else "worker")
        if engine is not None and self.slow_from is not None and value_of(batch) >= self.slow_from:
            clock_of(engine).advance(0.01)
        return batch


def consume(engine: Hurrying, noting: Noting, items: int, away_seconds: float = 0.0) -> None:
    """Takes so many items of a run of more, and is away for some time after each."""
    noting.engine = engine
    with closing(engine):
        for value in range(items):
            item = engine.next_item()
            assert item is not None and value_of(item.chunk) == value
            clock_of(engine).advance(away_seconds)


def by(workers: int, consumer: int) -> list[str]:
    return ["worker"] * workers + ["consumer"] * consumer


def test_a_consumer_that_hurries_runs_cheap_calls_itself() -> None:
    noting = Noting()
    consume(hurrying(source(500), function(noting), serial()), noting, 500)
    assert noting.callers == by(FIRST_CALLS, 500 - FIRST_CALLS)


def resting(**plan: Any) -> Hurrying:
    """Returns a run of which the consumer runs the calls, and workers rest."""
    engine = hurrying(source(500), function(**plan), serial())
    for _ in range(FIRST_CALLS + 1):
        engine.next_item()
    return engine


def test_workers_rest_meanwhile() -> None:
    with closing(resting()) as engine:
        assert engine.consumer.rests_workers
        assert engine.begin() is None


@pytest.mark.parametrize(("calls", "autotune"), [(FIRST_CALLS, True), (100, False)])
def test_before_anything_is_known_and_without_a_tuner_only_workers_do(calls: int, *, autotune: bool) -> None:
    here: list[bool] = []

    def note(batch: pa.RecordBatch) -> pa.RecordBatch:
        here.append(threading.current_thread() is threading.main_thread())
        return batch

    values_from(source(calls), function(note), autotune=autotune)
    assert here == [False] * calls


@pytest.mark.parametrize(
    ("away_seconds", "others_hold", "hurries"),
    [(0.0005, True, True), (0.0005, False, False), (0.0015, True, False), (1.0, False, False)],
)
def test_a_consumer_that_was_away_for_longer_leaves_calls_to_workers(
    away_seconds: float, *, others_hold: bool, hurries: bool
) -> None:
    """It may be away for longer where all calls hold the interpreter lock."""
    noting = Noting()
    # More than workers make ahead: who holds the lock is asked of stages that still have input.
    engine = hurrying(source(10_000, holds_lock=others_hold), function(noting, holds_lock=True))
    if not hurries:
        engine.let_workers_in()
    consume(engine, noting, 200, away_seconds)
    assert noting.callers[:200] == (by(FIRST_CALLS, 200 - FIRST_CALLS) if hurries else by(200, 0))


@pytest.mark.parametrize("holds_lock", [False, True])
def test_calls_that_take_long_are_for_workers(holds_lock: bool) -> None:
    names: list[str] = []

    def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
        names.append(threading.current_thread().name)
        clock.advance(0.01)  # type: ignore[attr-defined]
        return batch

    with running(source(100, holds_lock=holds_lock), function(slow, holds_lock=holds_lock)) as engine:
        clock = engine.clock
        assert values_of(engine) == list(range(100))
    assert threading.current_thread().name not in names


def test_calls_that_come_to_take_long_go_to_workers() -> None:
    noting = Noting(slow_from=300)
    engine = hurrying(source(600), function(noting))
    noting.engine = engine
    with closing(engine):
        for _ in range(301):
            engine.next_item()
        engine.let_workers_in()
        assert values_of(engine) == list(range(301, 600))
    assert noting.callers == by(FIRST_CALLS, 301 - FIRST_CALLS) + by(299, 0)


def test_an_error_of_a_call_of_its_own_is_the_same_as_of_a_workers() -> None:
    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        if value_of(batch) == 300:
            raise ValueError("no")
        return number(batch, 2 * value_of(batch))

    with closing(hurrying(source(500), function(fails))) as engine:
        values, error = drained(engine)
    assert values == list(range(0, 600, 2))
    assert str(error) == "function: ValueError: no" and isinstance(error.__cause__, ValueError)


@pytest.mark.parametrize("interrupt", INTERRUPTS, ids=["Ctrl-C", "handler"])
@pytest.mark.parametrize("where", ["source", "function"])
@pytest.mark.usefixtures("preempted")
def test_an_interrupt_of_a_call_of_its_own_is_the_consumers(
    where: str, interrupt: Callable[[], None]
) -> None:
    raised = KeyboardInterrupt if interrupt is ctrl_c else Preempted

    def interrupted(batch: pa.RecordBatch) -> pa.RecordBatch:
        if value_of(batch) == 100:
            interrupt()
        return batch

    def make(value: int) -> Iterator[pa.RecordBatch]:
        yield interrupted(chunk(value)) if where == "source" else chunk(value)

    stages = source(500, make), function(interrupted if where == "function" else lambda batch: batch)
    with closing(hurrying(*stages)) as engine, pytest.raises(raised):
        values_of(engine)


def test_workers_take_over_while_a_call_of_the_consumers_waits_for_others() -> None:
    others = threading.Event()
    waited: list[int] = []

    def waits(batch: pa.RecordBatch) -> pa.RecordBatch:
        if value_of(batch) < FIRST_CALLS:
            return batch
        if threading.current_thread() is threading.main_thread():
            waited.append(value_of(batch))
            assert others.wait(WAIT_SECONDS), "no other call was begun"
        else:
            others.set()
        return batch

    engine = hurrying(source(2000), function(waits, cost="unknown"))
    engine.let_workers_in()
    with closing(engine):
        assert values_of(engine) == list(range(2000))
    assert waited == [FIRST_CALLS]  # and the consumer ran no more of them


def test_a_guard_that_saw_progress_is_followed_by_another() -> None:
    """Else nobody would be there when a later call waits for others."""
    guards: list[str] = []
    others: list[str] = []
    with closing(resting(cost="unknown")) as engine:
        guard, beside = Worker(lambda: None, "guard"), Worker(lambda: None, "beside")
        beside.parking = Mock(acquire=lambda timeout: others.append(beside.state.name))

        def wake_after_progress(timeout: float) -> bool:
            guards.append(guard.state.name)
            with engine.lock:
                engine.pool._rest(beside)
            engine.next_item()
            return False

        guard.parking = Mock(acquire=wake_after_progress)
        with engine.lock:
            engine.pool._rest(guard)
            assert engine.consumer.rests_workers, "it did not take over"
            engine.pool._rest(guard)
    assert guards == ["GUARDING", "GUARDING"]
    assert others == ["PARKED", "PARKED"], "one guard is enough"


def test_a_run_describes_itself() -> None:
    with closing(resting()) as engine:
        text = engine.describe()
    assert "consumer NEAR, hurries False" in text
    assert "function: waits for source; 0 calls run, 0 undelivered" in text
    assert "source: ready;" in text


def test_a_stage_without_a_free_core_is_described_as_that() -> None:
    engine = stepper(source(9, cost="computes", max_calls=4), cpu_budget=1)
    assert engine.begin() is not None
    assert "source: blocked by token; 1 calls run" in engine.describe()


def test_a_run_that_is_closed_meanwhile_says_so_once_the_call_returns() -> None:
    entered, closed = threading.Event(), threading.Event()

    def waits(batch: pa.RecordBatch) -> pa.RecordBatch:
        if value_of(batch) == 100:
            entered.set()
            assert closed.wait(WAIT_SECONDS)
        return batch

    def close() -> None:
        assert entered.wait(WAIT_SECONDS)
        engine.stop()
        closed.set()

    with closing(hurrying(source(2000), function(waits))) as engine:
        thread = threading.Thread(target=close)
        thread.start()
        with pytest.raises(ClosedError):
            values_of(engine)
        thread.join()


def test_a_generator_that_the_consumer_leaves_behind_is_closed() -> None:
    closed = threading.Event()

    def endless(value: int) -> Iterator[pa.RecordBatch]:
        try:
            while True:
                yield chunk(value)
        finally:
            closed.set()

    with closing(hurrying(source(1, endless))) as engine:
        for _ in range(100):
            engine.next_item()
        assert not engine.pool.threads
    assert closed.is_set()
