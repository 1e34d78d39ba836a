"""What limits a run, in words, and what it would do under another CPU budget."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from arrowflow.autotune import Policy, limit
from arrowflow.autotune.limit import bottleneck, forecast, phrase
from arrowflow.physical.tuning import Statistics, Times
from tests.autotune.measured import run, stage
from tests.autotune.simulation import Simulation, Work

pytestmark = pytest.mark.any_version

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


BUSY = stage("map", calls=10, busy_seconds=30.0, cpu_seconds=22.0)
GENERATOR = stage("from_generator", phase="read", asked_calls=1, busy_seconds=9.0, cpu_seconds=1.0)
SHUFFLE = stage("shuffle", kind="serial", cost="computes", busy_seconds=9.0, cpu_seconds=9.0)
OTHER = stage("batch", kind="serial", busy_seconds=1.0)
PART = stage("map", busy_seconds=3.0, cpu_seconds=3.0)


@pytest.mark.parametrize(
    ("measured", "words", "waited", "cores"),
    [
        (run(DECODE, waited_seconds=0.2), "your own step", "1.0 %", ""),
        (run(DECODE), "decoding Parquet with filter", "49 %", "+74 %"),
        # Cores help no more than the consumer can take.
        (run(DECODE, waited_seconds=1.6), "decoding Parquet with filter", "15 %", "+9 %"),
        # Of stages that compute the one with most cores is named.
        (run(BUSY, DECODE, cpu_budget=4), "map", "49 %", "+42 %"),
        (run(OTHER, GENERATOR), "from_generator, which makes one chunk after the other,", "49 %", ""),
        (
            run(OTHER, stage("map", asked_calls=1, busy_seconds=9.0)),
            "map, which has one call at a time,",
            "49 %",
            "",
        ),
        (run(OTHER, SHUFFLE), "shuffle, which runs on one thread at a time,", "49 %", ""),
        (run(PART, ledger_peak_bytes=1 << 30), "ram_budget, which is used up,", "49 %", ""),
    ],
)
def test_what_limits_and_whether_cores_help(
    measured: Statistics, words: str, waited: str, cores: str
) -> None:
    line = f"{words} limits you: the loop waited {waited} of 9.90 s (and 0.10 s for the first batch)"
    assert bottleneck(measured) == line + (f"; two more cores would give about {cores}" if cores else "")
    assert "ram_budget" not in bottleneck(run(PART))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"busy_seconds": 640.0, "cpu_seconds": 1.0}, "map, which waits with 64 calls in flight,"),
        ({"busy_seconds": 70.0, "cpu_seconds": 9.8}, "map"),  # one core together: they may wait for the lock
        ({"busy_seconds": 70.0, "cpu_seconds": 5.0, "queued_seconds": 5.0}, "map"),
        ({"unfinished": Times(70.0, 10.0, 0.0)}, "map"),
        ({"unfinished": Times(70.0, 1.0, 0.0)}, "map, which waits with 7 calls in flight,"),
        ({"unfinished": Times(10.0, 0.1, 0.0)}, "map, which waits with 1 call in flight,"),
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


# ---------------------------------------------------------------- another CPU budget

READ = Work(name="read_parquet", cpu_seconds=0.002, cost="computes")
MAP = Work(name="map", cpu_seconds=0.008)
WORKLOADS: dict[str, tuple[Work, float, str]] = {
    "computes": (MAP, 0.0, "map"),
    "your step": (MAP, 0.004, "your own step"),
    "the lock": (replace(MAP, holds_lock=True), 0.0, "map, which holds the interpreter lock,"),
    "one call": (replace(MAP, asked_calls=1), 0.0, "map, which has one call at a time,"),
    "asked": (
        Work(name="map", waiting_seconds=0.04, asked_calls=4),
        0.0,
        "map, of which you asked for 4 calls at a time,",
    ),
    "waits": (Work(name="map", waiting_seconds=0.5), 0.0, "map, which waits with 64 calls in flight,"),
}
"""What follows a read, the consumer's step, and what limits on eight cores."""
SECONDS = 4.0


def simulated(work: Work, step_seconds: float, cores: int) -> Statistics:
    """Returns the measurements of a simulated run."""
    found = Simulation(
        [READ, work], Policy({}), cpu_budget=cores, cores=cores, step_seconds=lambda _: step_seconds
    ).run(SECONDS)
    return run(
        *(part.statistics() for part in found.stages),
        rows=1000 * len(found.deliveries),
        seconds=SECONDS,
        waited_seconds=found.waited_seconds,
        cpu_budget=cores,
    )


@pytest.fixture
def _ideal_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores that do not slow each other, as those of the simulation."""
    monkeypatch.setattr(limit, "SHARED_SPEED", 1.0)


@pytest.mark.usefixtures("_ideal_cores")
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_forecast_comes_true(name: str) -> None:
    work, step_seconds, limit = WORKLOADS[name]
    measured = {cores: simulated(work, step_seconds, cores) for cores in (1, 2, 8)}
    for now, then in itertools.permutations(measured, 2):
        if now == 1 and work.holds_lock:
            continue  # of one call at a time nobody sees whether it would hold up another one
        truth = measured[then].rows_per_second
        assert forecast(measured[now], then).rows_per_second == pytest.approx(truth, rel=0.15), (now, then)
    assert forecast(measured[2], 8).limit == limit


def test_a_stage_of_few_calls_uses_no_more_cores() -> None:
    few = stage("map", calls=4, busy_seconds=20.0, cpu_seconds=20.0)
    found = forecast(run(few, rows=4, waited_seconds=10.0), 100)
    assert found == (0.8, "map, which makes 4 calls in all,")


def test_pools_use_no_more_than_the_process() -> None:
    """On a busy machine calls take longer, and what they take of the budget is not what they use."""
    fields: dict[str, Any] = {"foreign": True, "cost": "computes", "calls": 100, "busy_seconds": 20.0}
    pool, processes = (stage("map", engine=engine, **fields) for engine in ("arrow+polars", "python"))
    cpu: dict[str, Any] = {"waited_seconds": 10.0, "cpu_seconds": 8.0}
    speed = limit.SHARED_SPEED  # one of two cores works faster alone
    assert forecast(run(pool, **cpu), 1).rows_per_second == pytest.approx(1000 / (8 * speed + 6))
    assert forecast(run(processes, **cpu), 1).rows_per_second == pytest.approx(1000 / (20 * speed))


@pytest.mark.parametrize("machine", [1, 2, 8])
def test_the_consumer_needs_cores_of_the_machine_too(monkeypatch: pytest.MonkeyPatch, machine: int) -> None:
    """Of 10 CPU seconds calls need 7, which may have two cores; the rest is the consumer's own."""
    monkeypatch.setattr(limit, "available_cpus", lambda: machine)
    part = stage("map", cost="computes", calls=100, busy_seconds=7.0, cpu_seconds=7.0)
    measured = run(part, seconds=10.0, waited_seconds=8.0, cpu_seconds=10.0, cpu_budget=1)
    unexplained = 10.0 - max(7.0, 10.0 / machine)
    computed = 7.0 / limit.SHARED_SPEED
    seconds = max(computed / 2, (computed + 3.0) / max(2, machine))
    assert forecast(measured, 2).rows_per_second == pytest.approx(1000 / (seconds + unexplained))


@pytest.mark.parametrize(("then", "times"), [(1, 1 / 2 / 0.93), (2, 1.0), (4, 2 * 0.93), (16, 8 * 0.93**3)])
def test_cores_slow_each_other(then: int, times: float) -> None:
    part = stage("map", cost="computes", calls=100, busy_seconds=20.0, cpu_seconds=20.0)
    measured = run(part, waited_seconds=10.0)
    told = forecast(measured, then).rows_per_second / measured.rows_per_second
    assert told == pytest.approx(times)


def test_what_is_not_explained_stays() -> None:
    """Of 10 s, two cores need 2, and four cores a little more than 1: the cure is another one."""
    part = stage("read_parquet", cost="computes", calls=100, busy_seconds=4.0, cpu_seconds=4.0)
    found = forecast(run(part, waited_seconds=10.0, ledger_peak_bytes=1 << 30), 4)
    assert found.limit == "ram_budget, which is used up,"
    assert found.rows_per_second == pytest.approx(1000 / (8 + 1 / limit.SHARED_SPEED))
