"""What a stage has measured: whether its calls are short, told by the latest of them, and never by one alone."""

from __future__ import annotations

import pytest

from arrowflow.physical.tuning import FIRST_CALLS, short_times
from tests.executor.fakes import function, source, stages_of, stepper

SHORT = 5e-6
SECOND = 1.0


def are_short(times: list[float]) -> list[bool]:
    """Tells before the first and after each of calls of these CPU and wall seconds whether a stage has short calls."""
    stage = stages_of(stepper(source(10), function()))[0]
    found = [stage.calls_are_short]
    for seconds in times:
        stage.measure(seconds, seconds, 0.0, 1)
        found.append(stage.calls_are_short)
    return found


def test_calls_are_short_once_enough_of_them_were() -> None:
    assert are_short([SHORT] * 2 * FIRST_CALLS) == [False] * FIRST_CALLS + [True] * (FIRST_CALLS + 1)


@pytest.mark.parametrize("before", [*range(FIRST_CALLS, 12), 20, 39])
def test_one_call_that_is_interrupted_makes_short_ones_no_longer_ones(before: int) -> None:
    assert all(are_short([SHORT] * before + [SECOND] + [SHORT] * 39)[before:])


def test_calls_that_become_long_are_long_from_the_second_on() -> None:
    for before in (10, 100):
        assert not are_short([SHORT] * before + [SECOND] * 2)[-1]


def test_calls_that_are_long_from_the_first_on_were_never_short() -> None:
    assert not any(are_short([SECOND] * 20))


def test_calls_of_which_every_tenth_is_long_are_not_short() -> None:
    assert not are_short(([SHORT] * 9 + [SECOND]) * 10)[-1]


def test_what_is_short_depends_on_who_holds_the_interpreter_lock() -> None:
    times, locked = short_times(holds_lock=False), short_times(holds_lock=True)
    assert all(short < long for short, long in zip(times, locked, strict=True))
