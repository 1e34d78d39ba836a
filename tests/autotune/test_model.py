"""What measurements mean: the figures of a window."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from arrowflow.autotune.model import window_between
from arrowflow.physical.tuning import Refusals
from tests.autotune.measured import sample, stage

pytestmark = pytest.mark.any_version

EARLY = stage(
    "map",
    calls=100,
    busy_seconds=5.0,
    cpu_seconds=2.0,
    queued_seconds=0.5,
    refusals=Refusals(calls=7, chunks=3),
)
LATE = replace(
    EARLY,
    calls=140,
    busy_seconds=9.0,
    cpu_seconds=4.0,
    queued_seconds=1.5,
    refusals=Refusals(calls=8, chunks=3),
)


def test_a_window_is_the_difference_of_two_samples() -> None:
    window = window_between(
        sample(10.0, EARLY, waited_seconds=4.0, rows=100, chunks=10),
        sample(12.0, LATE, waited_seconds=4.5, rows=700, chunks=40),
    )
    part = window.stages["map",]
    assert (window.seconds, window.rows, window.chunks, window.rate) == (2.0, 600, 30, 300.0)
    assert window.waiting == 0.25
    assert (part.calls, part.in_flight, part.cores, part.queued) == (40, 2.0, 1.0, 0.5)
    assert part.alive == 1.5
    assert part.share == pytest.approx(2 / 3)
    assert part.call_seconds(window.seconds) == pytest.approx(0.1)
    assert part.refused == Refusals(calls=1)
    assert part.stage is LATE


def test_a_stage_that_has_just_begun_has_no_past() -> None:
    part = window_between(sample(0.0), sample(2.0, EARLY)).stages["map",]
    assert (part.calls, part.in_flight, part.refused.chunks) == (100, 2.5, 3)


def test_a_stage_that_did_nothing_has_no_share_and_no_length() -> None:
    part = window_between(sample(0.0, EARLY), sample(2.0, EARLY)).stages["map",]
    assert (part.share, part.call_seconds(2.0), part.refused.calls) == (0.0, 0.0, 0)


def test_work_in_pools_of_others_counts_as_computing() -> None:
    foreign = stage("read", foreign=True, cost="computes", busy_seconds=3.0, cpu_seconds=0.1)
    window = window_between(sample(0.0), sample(2.0, foreign))
    assert (window.cores, window.python_cores) == (1.5, 0.0)


def test_the_time_in_a_queue_is_no_waiting() -> None:
    """Two calls on one core: each has it half of the time, and is after it all the time."""
    queued = stage("map", calls=10, busy_seconds=2.0, cpu_seconds=1.0, queued_seconds=1.0)
    assert window_between(sample(0.0), sample(1.0, queued)).stages["map",].share == 1.0


def test_cores_are_those_of_all_stages_and_the_locks_those_of_python() -> None:
    part = stage("map", busy_seconds=4.0, cpu_seconds=2.0, queued_seconds=1.0)
    read = stage("read", cost="computes", busy_seconds=1.0, cpu_seconds=1.0)
    window = window_between(sample(0.0), sample(2.0, part, read))
    assert (window.cores, window.wanted_cores, window.python_cores) == (1.5, 2.0, 1.0)


def test_a_consumer_waits_no_more_than_all_the_time() -> None:
    assert window_between(sample(0.0), sample(1.0, waited_seconds=1.2)).waiting == 1.0


def test_only_parallel_stages_are_tuned() -> None:
    window = window_between(sample(0.0), sample(1.0, stage("map"), stage("shuffle", kind="serial")))
    assert [key for key, _ in window.tunable()] == [("map",)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"weight": 0.1}, True),
        ({"weight": 0.6}, True),
        ({"weight": 1.0}, False),
        ({"weight": 0.1, "cpu_seconds": 0.9}, False),
        ({"weight": 0.1, "asked_calls": 4}, False),
        ({"weight": 0.1, "cost": "computes"}, False),
        ({"weight": 0.0, "cost": "waits"}, True),
    ],
)
def test_which_calls_may_wait(fields: dict[str, Any], expected: bool) -> None:
    part = window_between(sample(0.0), sample(1.0, stage("map", busy_seconds=1.0, **fields))).stages["map",]
    assert part.may_wait is expected


def test_how_much_makes_a_rate() -> None:
    few, many = sample(0.2, chunks=15), sample(0.2, chunks=16)
    assert not window_between(sample(0.0), few).says_something
    assert window_between(sample(0.0), many).says_something
    assert window_between(sample(-0.5), sample(0.0)).says_something


def test_calls_that_end_together_make_a_rate_doubtful() -> None:
    window = window_between(sample(0.0), sample(1.0, stage("map", busy_seconds=8.0), chunks=32))
    assert window.doubt(("map",)) == 0.25
