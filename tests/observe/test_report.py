"""A run in words: every value that was tuned, with its reason."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import arrowflow as af
from arrowflow.autotune import Policy
from arrowflow.observe.report import report
from arrowflow.options import available_cpus
from arrowflow.physical.tuning import Refusals
from tests.autotune.measured import run, stage
from tests.autotune.simulation import Simulation, Work

pytestmark = pytest.mark.any_version

READ = stage(
    "read_parquet",
    phase="decode",
    cost="computes",
    calls=50,
    rows=500_000,
    busy_seconds=4.0,
    cpu_seconds=3.9,
    ready_items=3,
    max_calls=2,
)
MAP = stage(
    "map(decode)",
    calls=1000,
    rows=500_000,
    busy_seconds=40.0,
    cpu_seconds=1.0,
    max_calls=13,
    weight=0.025,
    ready_limit=13,
    reason="13 calls in flight: 50,000 rows/s, 38,000 before",
)
BATCH = stage("batch", kind="serial", rows=500_000)


def test_the_verdict_comes_first_then_a_table() -> None:
    skip, batch = stage("skip", kind="serial", calls=9, rows=500_000, busy_seconds=0.01), BATCH
    opened = stage("read_parquet", phase="open", calls=3, busy_seconds=0.1, cpu_seconds=0.1)
    read = replace(READ, bytes=50 << 20, chunks=50, max_ready_items=4, refusals=Refusals(chunks=7))
    measured = run(
        batch, MAP, skip, read, opened, rows=500_000, bottleneck="map limits you: …", advice=("a",)
    )
    assert report(measured).splitlines() == [
        "map limits you: …",
        "500,000 rows · 50,000 rows/s · 0.5 of 2 cores · memory 1.0 of 1,024 MiB",
        "",
        "stage         rows/s  cores    in flight    ready   memory",
        "read_parquet  50,000   0.40     0.4 of 2   4 of 4  4.0 MiB",
        "map(decode)   50,000   0.10    4.0 of 13  0 of 13        -",
        "batch         50,000         your thread                 -",
        "under 1 % of the work: skip",
        "advice: a",
    ]


def test_long_planning_has_a_line() -> None:
    assert "planning" not in report(run(BATCH, planning_seconds=0.04))
    assert "planning: 0.52 s" in report(run(BATCH, planning_seconds=0.52)).splitlines()[2]


def test_limits_are_shown_where_they_bind() -> None:
    asked = stage("map", calls=10, busy_seconds=30.0, asked_calls=3, max_calls=3)
    assert report(run(asked)).endswith("-  3 calls, as asked")
    lowered = stage("map", calls=10, busy_seconds=16.0, max_calls=1)
    assert "  1.6, now at most 1  " in report(run(lowered))
    locked = stage("map", calls=10, busy_seconds=3.0, reason="it holds the interpreter lock: 100 % …")
    assert report(run(locked)).endswith("-  holds the interpreter lock")
    ahead = stage("map", calls=10, busy_seconds=3.0, refusals=Refusals(chunks=1))
    assert report(run(ahead)).endswith("-") and report(run(ahead, waited_seconds=0.5)).endswith(
        "-  waits for you"
    )


def test_long_names_are_cut() -> None:
    name = "+".join(["with_columns"] * 6)
    line = report(run(stage("read_parquet", name, calls=1, busy_seconds=1.0))).splitlines()[-1]
    assert line.startswith("read_parquet + with_columns + with_columns …")
    assert all(len(line) <= 100 for line in report(run(stage(name, calls=1))).splitlines())


def test_values_and_reasons_are_shown_on_request() -> None:
    measured = run(BATCH, MAP, READ, rows=500_000, bottleneck="map limits you: …", advice=("use batches",))
    assert report(measured, verbose=True).splitlines() == [
        "map limits you: …",
        "500,000 rows · 50,000 rows/s · 0.5 of 2 cores · memory 1.0 of 1,024 MiB",
        "1. decoding Parquet: 500,000 rows in 50 calls of 80 ms; on average 0.40 in flight, using 0.39 cores; 3 of 4 "
        "finished chunks wait",
        "   at most 2 calls: it computes, so the CPU budget is the limit",
        "2. map(decode): 500,000 rows in 1,000 calls of 40 ms; on average 4.00 in flight, using 0.10 cores; 0 of 13 "
        "finished chunks wait",
        "   at most 13 calls, 0.03 cores each; 13 calls in flight: 50,000 rows/s, 38,000 before",
        "3. batch: 500,000 rows on the consumer's thread",
        "4 threads",
        "advice: use batches",
    ]


def test_numbers_that_were_asked_for_are_shown_as_such() -> None:
    text = report(run(stage("map", calls=10, busy_seconds=1.0, asked_calls=3, max_calls=3)), verbose=True)
    assert "   at most 3 calls, as asked" in text.splitlines()


def test_work_in_pools_of_others_is_shown_as_cores() -> None:
    measured = run(stage("read", cost="computes", foreign=True, calls=10, busy_seconds=10.0))
    assert "using 1.00 cores" in report(measured, verbose=True)
    assert "1.0 of 2 cores" in report(measured)


def test_a_run_that_has_not_begun() -> None:
    measured = run(stage("map", calls=1), seconds=0.0, rows=0, bottleneck="nothing was measured yet")
    assert report(measured).startswith("nothing was measured yet\n0 rows · 0 rows/s")


def test_what_the_tuner_found_is_in_the_report() -> None:
    works = (
        Work(name="read_parquet", cpu_seconds=0.001, cost="computes"),
        Work(name="map", cpu_seconds=0.01, holds_lock=True),
    )
    simulated = Simulation(works, Policy({})).run(3)
    measured = run(*(part.statistics() for part in simulated.stages), seconds=3.0)
    reason = "it holds the interpreter lock: 100 % of a call is CPU time if it is alone, "
    assert f"   at most 1 call, 1.00 cores each; {reason}" in report(measured, verbose=True)


def test_figures_to_plot_are_floats_under_the_same_names() -> None:
    loader = af.range(100).batch(10).to_numpy()
    before = loader.stats().metrics()
    for _ in loader:
        pass
    metrics = loader.stats().metrics(prefix="data/")
    assert list(metrics) == ["data/" + name for name in before]
    assert all(type(value) is float for value in (*before.values(), *metrics.values()))
    assert (metrics["data/rows"], metrics["data/batches"], metrics["data/retries"]) == (100.0, 10.0, 0.0)
    assert metrics["data/ledger_budget_bytes"] == loader.stats().ledger_budget_bytes


def test_another_budget_is_answered_with_rows_and_a_limit() -> None:
    loader = af.range(100_000).batch(1_000).to_numpy()
    before = loader.explain(what_if={"cpu_budget": 3})
    assert before.endswith("\nwith cpu_budget=3: nothing is known yet, run an epoch first")
    for _ in loader:
        pass
    text, line = loader.explain(what_if={"cpu_budget": 10_000}).rsplit("\n", 1)
    assert text == loader.explain()
    cores = available_cpus()
    assert re.fullmatch(
        rf"with cpu_budget=10000 about [\d,]+ rows/s, \d\.\d\d times as many, on a machine that has them \(this one has {cores}\); "
        r".+ would limit you",
        line,
    )
    with iter(af.range(10).batch(4)) as batches:
        next(batches)
        assert "this one has" not in batches.explain(what_if={"cpu_budget": 1})


@pytest.mark.parametrize(
    ("what_if", "text"),
    [
        ({"ram_budget": 1}, r"takes the key 'cpu_budget' alone, .* got \['ram_budget'\]"),
        ({}, r"alone, .* got \[\]"),
        (5, "alone, .* got 5"),
        ({"cpu_budget": 0}, r"what_if\['cpu_budget'\] is at least 1, got 0"),
        ({"cpu_budget": "8"}, "is a whole number"),
    ],
)
def test_what_the_model_cannot_answer_is_an_error(what_if: Any, text: str) -> None:
    with pytest.raises(af.PlanError, match=f"explain: .*{text}"):
        af.range(10).batch(4).to_numpy().explain(what_if=what_if)
