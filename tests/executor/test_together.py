"""Calls that wait, beside each other."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from arrowflow.executor import Planning
from arrowflow.executor.workers.together import hedged, together
from arrowflow.testing import Gate


def test_results_are_in_order_and_calls_beside_each_other() -> None:
    barrier = threading.Barrier(4)

    def call(number: int) -> int:
        if number < 4:
            barrier.wait(30)
        return number

    calls = [partial(call, number) for number in range(50)]
    assert together(calls, 4) == list(range(50))
    assert Planning(4).together([]) == []


@pytest.mark.parametrize("threads", [1, 8])
def test_the_first_error_counts(threads: int) -> None:
    made = []

    def call(number: int) -> int:
        made.append(number)
        if number in {7, 9, 30}:
            raise ValueError(number)
        return number

    with pytest.raises(ValueError, match=r"^7$"):
        together([partial(call, number) for number in range(100)], threads)
    assert set(range(8)) <= set(made)
    assert threads > 1 or max(made) == 7


def test_without_threads_one_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert together([lambda: 1, lambda: 2], 8) == [1, 2]
    assert hedged(lambda: 3, 0.0, lambda: None, []) == 3


def test_a_call_in_time_is_made_once() -> None:
    made: list[int] = []
    slow: list[threading.Thread] = []
    assert hedged(lambda: made.append(1), 30.0, lambda: made.append(2), slow) is None
    assert (made, slow) == ([1], [])


def test_the_second_call_overtakes_the_first() -> None:
    gate = Gate()
    made: list[int] = []
    told: list[str] = []
    slow: list[threading.Thread] = []

    def call() -> int:
        made.append(len(made))
        number = len(made)
        if number == 1:
            gate.pass_through()
        return number

    assert hedged(call, 0.0, lambda: told.append("slow"), slow) == 2
    assert told == ["slow"]
    gate.open()
    for thread in slow:
        thread.join(30)
    assert not any(thread.is_alive() for thread in slow)


def test_an_error_of_one_call_waits_for_the_other() -> None:
    gate = Gate()
    made: list[None] = []

    def call() -> str:
        made.append(None)
        if len(made) == 1:
            gate.pass_through()
            return "first"
        gate.open()
        raise ValueError("second")

    assert hedged(call, 0.0, lambda: None, []) == "first"
    with pytest.raises(ValueError, match="both"):
        hedged(_fails, 0.0, lambda: None, [])


def _fails() -> str:
    raise ValueError("both")
