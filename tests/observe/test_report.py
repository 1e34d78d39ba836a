"""A run in words: every value that was tuned, with its reason."""

from __future__ import annotations

from arrowflow.autotune import Policy
from arrowflow.observe.report import report
from tests.autotune.measured import run, stage
from tests.autotune.simulation import Simulation, Work

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
    "map",
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


def test_values_reasons_and_evidence_are_shown() -> None:
    measured = run(BATCH, MAP, READ, rows=500_000, bottleneck="map limits you: …", advice=("use batches",))
    assert report(measured, 2).splitlines() == [
        "500,000 rows, 50,000 rows/s, 50 % of the step is waiting; ledger at most 1.0 of 1,024.0 MiB; cpu_budget 2, "
        "4 threads",
        "1. decoding Parquet: 500,000 rows in 50 calls of 80 ms; on average 0.40 in flight, using 0.39 cores; 3 of 4 "
        "finished chunks wait",
        "   at most 2 calls: it computes, so the CPU budget is the limit",
        "2. map: 500,000 rows in 1,000 calls of 40 ms; on average 4.00 in flight, using 0.10 cores; 0 of 13 finished "
        "chunks wait",
        "   at most 13 calls, 0.03 cores each; 13 calls in flight: 50,000 rows/s, 38,000 before",
        "3. batch: 500,000 rows on the consumer's thread",
        "map limits you: …",
        "advice: use batches",
    ]


def test_numbers_that_were_asked_for_are_shown_as_such() -> None:
    text = report(run(stage("map", calls=10, busy_seconds=1.0, asked_calls=3, max_calls=3)), 2)
    assert "   at most 3 calls, as asked" in text.splitlines()


def test_work_in_pools_of_others_is_shown_as_cores() -> None:
    text = report(run(stage("read", cost="computes", foreign=True, calls=10, busy_seconds=10.0)), 2)
    assert "using 1.00 cores" in text


def test_a_run_that_has_not_begun() -> None:
    text = report(run(stage("map", calls=1), seconds=0.0, rows=0, bottleneck="nothing was measured yet"), 2)
    assert text.splitlines()[0].startswith("0 rows, 0 rows/s, 0 % of the step is waiting")
    assert text.splitlines()[-1] == "nothing was measured yet"


def test_what_the_tuner_found_is_in_the_report() -> None:
    works = (
        Work(name="read_parquet", cpu_seconds=0.001, cost="computes"),
        Work(name="map", cpu_seconds=0.01, holds_lock=True),
    )
    simulated = Simulation(works, Policy({})).run(3)
    text = report(run(*(part.statistics() for part in simulated.stages), seconds=3.0), 2)
    reason = "it holds the interpreter lock: 100 % of a call is CPU time if it is alone, "
    assert f"   at most 1 call, 1.00 cores each; {reason}" in text
