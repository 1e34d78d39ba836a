"""Cores that no call uses are counted, with the reason why nothing started."""

from __future__ import annotations

import pytest

import arrowflow as af
from arrowflow.executor.workers.cores import MEMORY, ORDER, YOUR_STEP, IdleCores
from arrowflow.observe.report import report
from tests.autotune.measured import run
from tests.executor.fakes import Stepper, clock_of, function, hold, source, stepper


def test_time_counts_for_the_reason_that_was_given_last() -> None:
    idle = IdleCores(0.0, 2.0)
    idle.change(1.0, 1.0, MEMORY)  # a call began after a second
    idle.change(4.0, 0.0, MEMORY)  # another one began
    idle.change(9.0, 2.0, YOUR_STEP)  # both ended
    assert idle.seconds(10.0) == {ORDER: 2.0, MEMORY: 3.0, YOUR_STEP: 2.0}
    assert idle.seconds(11.0)[YOUR_STEP] == 4.0


def test_calls_beyond_the_budget_take_nothing_back() -> None:
    idle = IdleCores(0.0, 1.0)
    idle.change(2.0, -1.0, MEMORY)  # with more runs than cores each may run one call
    assert idle.seconds(7.0) == {ORDER: 2.0}


def advanced(engine: Stepper, seconds: float) -> dict[str, float]:
    """Lets a worker look for work in vain and rest, and returns the core seconds after some time."""
    before = dict(engine.statistics().idle)
    assert engine.begin() is None
    with engine.lock:
        engine.pool.rests()
    clock_of(engine).advance(seconds)
    after = engine.statistics().idle
    return {
        reason: value - before.get(reason, 0.0)
        for reason, value in after.items()
        if value != before.get(reason)
    }


def test_a_call_that_has_to_end_first() -> None:
    engine = stepper(source(values=1), function())
    (call,) = hold(engine, "function", 1)  # there is nothing else to do
    assert advanced(engine, 3.0) == {ORDER: 3.0}
    engine.finish(call)
    assert advanced(engine, 1.0) == {YOUR_STEP: 2.0}


def test_a_consumer_that_does_not_take() -> None:
    engine = stepper(source(), function())
    engine.settle()
    assert advanced(engine, 2.0) == {YOUR_STEP: 4.0}


def test_a_full_ledger() -> None:
    engine = stepper(source(task_bytes=400), function(), ram_budget=1_000)
    call = engine.begin()  # there is no room for another one of 400 bytes in its share
    assert call is not None
    assert advanced(engine, 1.0) == {MEMORY: 1.0}
    engine.finish(call)


def test_calls_that_use_the_budget_leave_nothing_idle() -> None:
    engine = stepper(source(), function(cost="computes"))
    calls = hold(engine, "function", 2)
    assert advanced(engine, 5.0) == {}
    for call in calls:
        engine.finish(call)


def test_after_the_end_nothing_is_idle() -> None:
    ds = af.range(1000).batch(10)
    with iter(ds) as batches:
        rows = sum(batch.num_rows for batch in batches)
    statistics = batches.stats()
    assert rows == 1000
    assert batches.stats().idle == statistics.idle
    assert statistics.cpu_seconds > 0
    assert statistics.utilisation == pytest.approx(
        statistics.cpu_seconds / (statistics.seconds * statistics.cpu_budget)
    )


def test_the_report_names_reasons_that_are_worth_it() -> None:
    measured = run(seconds=10.0, idle={ORDER: 3.0, YOUR_STEP: 0.1, MEMORY: 0.0})
    assert report(measured).splitlines()[2] == f"of 2 cores, 0.30 waited for {ORDER}"
