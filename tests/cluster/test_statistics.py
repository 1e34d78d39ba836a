"""The consumer's `stats()`, `explain()` and `trace()` cover its workers."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import types
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import arrowflow as af
from arrowflow.autotune import bottleneck
from arrowflow.bad_rows import NO_BAD_ROWS, LeftOut
from arrowflow.cluster.lane_worker import Piece, Ready, Request
from arrowflow.cluster.session import Asked, Remote, Session
from arrowflow.physical.tuning import WorkerStatistics
from tests.cluster import bad_rows
from tests.cluster.test_on_cluster import engine, processes_of, rows_of
from tests.ops.ranks.pipelines import BATCH, of

pytestmark = pytest.mark.any_version


@pytest.mark.slow
def test_statistics_tell_of_each_worker(ray: Any, shards: Path) -> None:
    dataset = of(shards).shuffle(1600, seed=1).batch(BATCH).with_engine(engine(2))
    with iter(dataset) as run:
        rows = sum(batch.num_rows for batch in run)
        found, shown, verbose = run.stats(), run.explain(), run.explain(verbose=True)
    cluster = found.cluster
    assert cluster is not None and found.rows == rows >= 17_760
    assert sorted(each.process for each in cluster.workers) == sorted(processes_of(dataset))
    assert sum(each.rows for each in cluster.workers) == 17_770, "the last ones fill no batch"
    assert sum(each.bytes for each in cluster.workers) >= 8 * rows
    for worker in cluster.workers:
        assert worker.pieces >= 8 and worker.waited_seconds > 0, "each has 8 lanes"
        assert worker.stages[-1].operators[0] == "read_parquet"
        assert worker.stages[0].rows == worker.rows
        assert all(stage.calls and stage.busy_seconds > 0 for stage in worker.stages)
    (transfer,) = [stage for stage in found.stages if stage.phase == "transfer"]
    assert transfer.rows == 17_770 and transfer.bytes >= 8 * rows and transfer.busy_seconds > 0
    assert all(f"(process {each.process}): {each.rows:,} rows in " in shown for each in cluster.workers)
    assert "all workers:\n  stage" in shown and "\n  read_parquet" in shown, shown
    assert verbose.count("  1. opening files for read_parquet: ") == 2, verbose
    assert found.left_out == []
    waiting = dataclasses.replace(found, seconds=10.0, waited_seconds=9.0, first_batch_seconds=0.5)
    assert ", in the workers of the cluster, limits you: the loop waited 89 %" in bottleneck(waiting)


@pytest.mark.slow
def test_an_epoch_has_figures_of_its_own(ray: Any, shards: Path) -> None:
    loader = of(shards).batch(BATCH).to_numpy(engine=engine(1))
    for _ in range(2):
        assert len(list(loader)) == 56
        cluster = loader.stats().cluster
        assert cluster is not None
        assert [each.rows for each in cluster.workers] == [17_770]


@pytest.mark.slow
def test_a_trace_shows_workers_beside_the_consumer(ray: Any, shards: Path, tmp_path: Path) -> None:
    dataset = af.range(4_000_000).with_columns(x=pl.col("id") * 2.0).batch(16_000).with_engine(engine(2))
    with iter(dataset) as run, run.trace(tmp_path / "trace.json"):
        for _ in run:
            pass
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {each["tid"]: each["args"]["name"] for each in trace if each["name"] == "thread_name"}
    spans = [each for each in trace if each["ph"] == "X"]
    there = [each for each in spans if names[each["tid"]].startswith("worker ")]
    assert {"range", "with_columns"} <= {each["name"] for each in there}
    places = {names[each["tid"]].split(", lane")[0] for each in there}
    assert len(places) == 2 and all(place.startswith(("worker 0 on ", "worker 1 on ")) for place in places)
    assert any(each["name"] == "transfer" for each in spans if each not in there)
    here = [each for each in spans if each not in there]
    first, last = min(each["ts"] for each in here), max(each["ts"] + each["dur"] for each in here)
    # But for the error of the clocks.
    assert all(first - 1e5 <= each["ts"] <= each["ts"] + each["dur"] <= last + 1e5 for each in there)


def test_clocks_are_compared_by_the_quickest_piece() -> None:
    """A worker's clock is 1,000 s ahead. Pieces take some time on their way, or wait until the consumer takes them."""
    time = [50.0]
    session, remote = Session(af.RayEngine()), Remote(0, None, None, Ready("a", 1, None))
    session._ray = types.SimpleNamespace(
        is_initialized=lambda: True,
        wait=lambda promises, timeout: (promises, []),
        get=lambda promise: promise,
        exceptions=types.SimpleNamespace(RayError=OSError, RayTaskError=OSError),
    )
    context: Any = types.SimpleNamespace(now=lambda: time[0], wait=lambda seconds: True)
    work = WorkerStatistics(node="a", process=1)
    for way in (0.2, 0.01, 1.0):
        piece = Piece([], False, None, work, sent_at=1000.0 + time[0])
        time[0] += way
        assert session.take(Asked(remote, Request(0, 0, None), piece), context) == piece
    assert remote.ahead_seconds == pytest.approx(1000.0 - 0.01)


@pytest.mark.slow
def test_bad_rows_of_workers_count_once(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of workers that are killed, and of lanes that move. Other pipelines: `test_worker.py`."""
    monkeypatch.setattr("arrowflow.cluster.session.PIECE_BYTES", 64)
    make = bad_rows.PIPELINES["a function"]
    files = bad_rows.write_lines(tmp_path / "files")
    with iter(bad_rows.split(make(files))) as run:
        expected = rows_of(run)
        counts = by_operator(run.stats())
    clustered = bad_rows.split(make(files)).with_engine(engine(2))
    found = []
    with iter(clustered) as run:
        for number, batch in enumerate(run):
            found.append(batch.to_pylist())
            if number in (1, 4):
                os.kill(processes_of(clustered)[-1 if number == 1 else 0], signal.SIGKILL)
        statistics, shown = run.stats(), run.explain()
    assert found == expected
    assert statistics.retries["a worker of the cluster died"] > 0
    assert by_operator(statistics) == counts
    assert statistics.skipped_rows == sum(each.rows for each in counts.values()) > 50
    assert f"bad rows left out: read_csv {counts['read_csv'].rows}" in shown


def by_operator(statistics: af.Statistics) -> dict[str, LeftOut]:
    found: dict[str, LeftOut] = {}
    for operator, each in statistics.left_out:
        found[operator] = found.get(operator, NO_BAD_ROWS).plus(each)
    return found
