"""Calls that the consumer runs itself: when it does, and that nothing but the thread is different."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from arrowflow.errors import ArrowflowError, ClosedError
from arrowflow.executor import Engine
from tests.executor.fakes import (
    chunk,
    function,
    items_of,
    number,
    running,
    serial,
    source,
    value_of,
    values_of,
)

WAIT_SECONDS = 30


class Noting:
    """A function that notes which threads called it."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns its argument."""
        self.threads.append(threading.current_thread().name)
        return batch


def here() -> str:
    return threading.current_thread().name


def test_a_consumer_that_hurries_runs_cheap_calls_itself() -> None:
    noting = Noting()
    with running(source(500), function(noting), serial()) as engine:
        assert values_of(engine) == list(range(500))
    # The clock stands still: nothing takes any time, and the consumer comes back at once.
    assert noting.threads.count(here()) > 250


def test_before_anything_is_known_workers_do() -> None:
    noting = Noting()
    with running(source(4), function(noting)) as engine:
        values_of(engine)
    assert here() not in noting.threads


def test_without_a_tuner_only_workers_do() -> None:
    noting = Noting()
    with running(source(100), function(noting), autotune=False) as engine:
        values_of(engine)
    assert here() not in noting.threads


def test_a_consumer_that_was_away_for_long_finds_what_workers_made() -> None:
    noting = Noting()
    with running(source(100), function(noting)) as engine:
        values: list[int] = []
        while (item := engine.next_item()) is not None:
            values.append(value_of(item.chunk))
            engine.clock.advance(1.0)  # type: ignore[attr-defined]
    assert values == list(range(100))
    assert here() not in noting.threads[10:]


@pytest.mark.parametrize(("others_hold", "here_calls"), [(True, 180), (False, 0)])
def test_calls_that_hold_the_interpreter_lock_are_the_consumers_although_it_is_away_for_longer(
    here_calls: int, *, others_hold: bool
) -> None:
    noting = Noting()
    with running(source(200, holds_lock=others_hold), function(noting, holds_lock=True)) as engine:
        values: list[int] = []
        while (item := engine.next_item()) is not None:
            values.append(value_of(item.chunk))
            engine.clock.advance(0.0005)  # type: ignore[attr-defined]
    assert values == list(range(200))
    assert abs(noting.threads.count(here()) - here_calls) <= 20


def test_calls_that_hold_the_lock_and_wait_are_for_workers() -> None:
    names: list[str] = []

    def waits(batch: pa.RecordBatch) -> pa.RecordBatch:
        names.append(here())
        clock.advance(0.01)  # type: ignore[attr-defined]
        return batch

    with running(source(100, holds_lock=True), function(waits, holds_lock=True)) as engine:
        clock = engine.clock
        assert values_of(engine) == list(range(100))
    assert here() not in names


def test_calls_that_take_long_are_for_workers() -> None:
    names: list[str] = []

    def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
        names.append(here())
        clock.advance(0.01)  # type: ignore[attr-defined]
        return batch

    with running(source(100), function(slow)) as engine:
        clock = engine.clock
        assert values_of(engine) == list(range(100))
    assert threading.current_thread().name not in names


def test_calls_that_come_to_take_long_go_to_workers() -> None:
    threads: dict[int, str] = {}

    def slower(batch: pa.RecordBatch) -> pa.RecordBatch:
        value = value_of(batch)
        threads[value] = here()
        if value >= 300:
            clock.advance(0.01)  # type: ignore[attr-defined]
        return batch

    with running(source(600), function(slower)) as engine:
        clock = engine.clock
        assert values_of(engine) == list(range(600))
    assert here() in {threads[value] for value in range(300)}
    assert here() not in {threads[value] for value in range(310, 600)}


def _fails(batch: pa.RecordBatch) -> pa.RecordBatch:
    if value_of(batch) == 300:
        raise ValueError("no")
    return number(batch, 2 * value_of(batch))


def test_an_error_is_the_same_whoever_ran_the_call() -> None:
    with running(source(500), function(_fails)) as engine:
        values: list[int] = []
        with pytest.raises(ArrowflowError, match="function: ValueError: no") as caught:
            values.extend(value_of(item.chunk) for item in items_of(engine))
        assert isinstance(caught.value.__cause__, ValueError)


def test_an_interrupt_of_a_call_of_its_own_is_the_consumers() -> None:
    def interrupted(batch: pa.RecordBatch) -> pa.RecordBatch:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return batch

    with running(source(500), function(interrupted)) as engine, pytest.raises(KeyboardInterrupt):
        values_of(engine)


def test_workers_take_over_while_a_call_of_the_consumers_waits_for_others() -> None:
    others = threading.Event()
    waited: list[int] = []

    def waits(batch: pa.RecordBatch) -> pa.RecordBatch:
        if threading.current_thread() is threading.main_thread():
            waited.append(value_of(batch))
            assert others.wait(WAIT_SECONDS), "no other call was begun"
        elif waited:
            others.set()
        return batch

    with running(source(2000), function(waits)) as engine:
        assert values_of(engine) == list(range(2000))
    assert waited  # and the consumer ran no more of them
    assert len(waited) == 1


def test_a_run_that_is_closed_meanwhile_says_so_once_the_call_returns() -> None:
    entered, closed = threading.Event(), threading.Event()

    def waits(batch: pa.RecordBatch) -> pa.RecordBatch:
        if threading.current_thread() is threading.main_thread():
            entered.set()
            assert closed.wait(WAIT_SECONDS)
        return batch

    def close() -> None:
        entered.wait(WAIT_SECONDS)
        engine.stop()
        closed.set()

    with running(source(2000), function(waits)) as engine:
        thread = threading.Thread(target=close)
        thread.start()
        with pytest.raises(ClosedError):
            values_of(engine)
        thread.join()


def test_what_the_consumer_leaves_behind_is_closed() -> None:
    closed = threading.Event()

    def endless(value: int) -> Iterator[pa.RecordBatch]:
        try:
            while True:
                yield chunk(value)
        finally:
            closed.set()

    with running(source(1, endless)) as engine:
        for _ in range(100):
            engine.next_item()
        _inline(engine)
    assert closed.is_set()


def _inline(engine: Engine) -> None:
    assert engine.consumer.turns
