"""What a stage has measured: whether its calls are short, told by the latest of them, and never by one alone."""

from __future__ import annotations

from arrowflow.executor.stages.base import Queue
from arrowflow.physical.tuning import FIRST_CALLS, short_times
from tests.executor.fakes import function, source, stages_of, stepper

SHORT = 5e-6
SECOND = 1.0


def _stage(times: list[float]) -> Queue:
    """Returns a stage after calls of these CPU and wall seconds."""
    engine = stepper(source(10), function())
    stage = stages_of(engine)[0]
    for seconds in times:
        stage.measure(seconds, seconds, 0.0, 1)
    engine.close()
    return stage


def test_calls_are_short_once_enough_of_them_were() -> None:
    for calls in range(2 * FIRST_CALLS):
        assert _stage([SHORT] * calls).calls_are_short == (calls >= FIRST_CALLS)


def test_one_call_that_is_interrupted_makes_short_ones_no_longer_ones() -> None:
    for before in range(FIRST_CALLS, 40):
        times = [SHORT] * before + [SECOND]
        for after in range(40):
            assert _stage(times + [SHORT] * after).calls_are_short, (before, after)


def test_calls_that_become_long_are_long_from_the_second_on() -> None:
    for before in (10, 100):
        assert not _stage([SHORT] * before + [SECOND] * 2).calls_are_short


def test_calls_that_are_long_from_the_first_on_were_never_short() -> None:
    for calls in range(20):
        assert not _stage([SECOND] * calls).calls_are_short, calls


def test_calls_of_which_every_tenth_is_long_are_not_short() -> None:
    times = [SHORT] * 9 + [SECOND]
    assert not _stage(times * 10).calls_are_short


def test_what_is_short_depends_on_who_holds_the_interpreter_lock() -> None:
    times, locked = short_times(holds_lock=False), short_times(holds_lock=True)
    assert all(short < long for short, long in zip(times, locked, strict=True))
