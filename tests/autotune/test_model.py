"""What measurements mean: the figures of a window, and what limits a run, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from arrowflow.autotune.model import bottleneck, phrase, window_between
from arrowflow.physical.tuning import Refusals, StageStatistics, Times
from tests.autotune.measured import run, sample, stage

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
    part = window_between(
        sample(0.0),
        sample(1.0, stage("map", calls=10, busy_seconds=2.0, cpu_seconds=1.0, queued_seconds=1.0)),
    ).stages["map",]
    assert part.share == 1.0


def test_cores_are_those_of_all_stages_and_the_locks_those_of_python() -> None:
    window = window_between(
        sample(0.0),
        sample(
            2.0,
            stage("map", busy_seconds=4.0, cpu_seconds=2.0, queued_seconds=1.0),
            stage("read", cost="computes", busy_seconds=1.0, cpu_seconds=1.0),
        ),
    )
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


# ---------------------------------------------------------------- what limits a run

DECODE = stage(
    "read_parquet",
    "filter",
    phase="decode",
    cost="computes",
    calls=100,
    rows=10_000,
    busy_seconds=19.0,
    cpu_seconds=18.5,
)


def test_nothing_was_measured() -> None:
    assert bottleneck(run()) == "nothing was measured yet"
    assert bottleneck(run(DECODE, seconds=0.0)) == "nothing was measured yet"


def test_the_consumer_limits() -> None:
    line = "your own step limits you: the loop waited 1.0 % of 9.90 s (and 0.10 s for the first batch)"
    assert bottleneck(run(DECODE, waited_seconds=0.2)) == line


def test_the_cpu_limits_and_two_more_cores_help() -> None:
    line = "decoding Parquet with filter limits you: the loop waited 49 % of 9.90 s (and 0.10 s for the first batch); "
    assert bottleneck(run(DECODE)) == line + "two more cores would give about +98 %"


def test_cores_help_no_more_than_the_consumer_can_take() -> None:
    line = "decoding Parquet with filter limits you: the loop waited 15 % of 9.90 s (and 0.10 s for the first batch); "
    assert bottleneck(run(DECODE, waited_seconds=1.6)) == line + "two more cores would give about +18 %"


def test_of_stages_that_compute_the_one_with_most_cores_is_named() -> None:
    busy = stage("map", calls=10, busy_seconds=30.0, cpu_seconds=22.0)
    line = "map limits you: the loop waited 49 % of 9.90 s (and 0.10 s for the first batch); two more cores would give about +50 %"
    assert bottleneck(run(busy, DECODE, cpu_budget=4)) == line


@pytest.mark.parametrize(
    ("alone", "words"),
    [
        (
            stage("from_generator", phase="read", asked_calls=1, busy_seconds=9.0, cpu_seconds=1.0),
            "from_generator, which makes one chunk after the other,",
        ),
        (stage("map", asked_calls=1, busy_seconds=9.0), "map, which has one call at a time,"),
        (
            stage("shuffle", kind="serial", cost="computes", busy_seconds=9.0, cpu_seconds=9.0),
            "shuffle, which runs on one thread at a time,",
        ),
    ],
)
def test_a_stage_that_has_one_call_limits(alone: StageStatistics, words: str) -> None:
    other = stage("batch", kind="serial", busy_seconds=1.0)
    assert (
        bottleneck(run(other, alone))
        == f"{words} limits you: the loop waited 49 % of 9.90 s (and 0.10 s for the first batch)"
    )


def test_the_ledger_limits() -> None:
    part = stage("map", busy_seconds=3.0, cpu_seconds=3.0)
    line = "ram_budget, which is used up, limits you: the loop waited 49 % of 9.90 s (and 0.10 s for the first batch)"
    assert bottleneck(run(part, ledger_peak_bytes=1 << 30)) == line
    assert "ram_budget" not in bottleneck(run(part))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"busy_seconds": 640.0, "cpu_seconds": 1.0}, "map, which waits with 64 calls in flight,"),
        ({"busy_seconds": 70.0, "cpu_seconds": 9.8}, "map"),  # one core together: they may wait for the lock
        ({"busy_seconds": 70.0, "cpu_seconds": 5.0, "queued_seconds": 5.0}, "map"),
        ({"unfinished": Times(70.0, 10.0, 0.0)}, "map"),
        ({"unfinished": Times(70.0, 1.0, 0.0)}, "map, which waits with 7 calls in flight,"),
        ({"busy_seconds": 6.0, "cpu_seconds": 1.0}, "map"),
        ({"busy_seconds": 20.0, "cpu_seconds": 12.0}, "map"),
        (
            {"busy_seconds": 30.0, "cpu_seconds": 1.0, "asked_calls": 3},
            "map, of which you asked for 3 calls at a time,",
        ),
        (
            {
                "busy_seconds": 9.0,
                "cpu_seconds": 9.0,
                "reason": "it holds the interpreter lock: 100 % of a call …",
            },
            "map, which holds the interpreter lock,",
        ),
    ],
)
def test_a_stage_limits_though_cores_idle(fields: dict[str, Any], words: str) -> None:
    line = f"{words} limits you: the loop waited 49 % of 9.90 s (and 0.10 s for the first batch)"
    assert bottleneck(run(stage("map", **fields), stage("read_parquet", busy_seconds=1.0))) == line


@pytest.mark.parametrize(
    ("operators", "phase", "words"),
    [
        (("read_parquet",), "decode", "decoding Parquet"),
        (("read_parquet", "filter", "map"), "decode", "decoding Parquet with filter+map"),
        (("read_ipc",), "decode", "decoding Arrow IPC"),
        (("read_parquet",), "open", "opening files for read_parquet"),
        (("read_parquet",), "read", "fetching Parquet"),
        (("read_csv",), "decode", "read_csv"),
        (("interleave",), "open", "opening inputs of interleave"),
        (("from_generator",), "read", "from_generator"),
        (("map",), "map", "map"),
    ],
)
def test_what_a_stage_does_in_words(operators: tuple[str, ...], phase: str, words: str) -> None:
    assert phrase(stage(*operators, phase=phase)) == words
