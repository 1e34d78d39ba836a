"""`workers=AUTOTUNE` on a cluster: workers come and go while a run goes on."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from tests.cluster.test_on_cluster import processes_of, session_of
from tests.ops.ranks.pipelines import ranks

pytestmark = pytest.mark.any_version

LANES, CHUNK_ROWS = 16, 100
STEPS = 20_000
"""More than any machine makes before its workers have come and gone."""


class SlowWhile:
    """A function of 5 ms as long as a file is there, seen from any process."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        end = time.thread_time() + 0.005
        while self.file.exists() and time.thread_time() < end:
            pass
        return batch


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are looked at, and lanes move, where pieces arrive: of so few rows there would be one of a lane.

    Nor does a loop collect more than a step ahead: it would have all rows before workers come and go.
    """
    monkeypatch.setattr("arrowflow.cluster.session.PIECE_BYTES", 4 << 10)
    monkeypatch.setattr("arrowflow.ops.ranks.split_by_rank.PART_BYTES", 1)


@pytest.mark.slow
def test_a_worker_comes_while_the_loop_waits_and_goes_while_it_does_not(
    ray: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("arrowflow.cluster.scaling.PERIOD_SECONDS", 0.5)
    monkeypatch.setattr("arrowflow.cluster.scaling.CALM", 2)
    # So small pieces are on their way for a part of the time that counts as waiting.
    monkeypatch.setattr("arrowflow.cluster.scaling.IDLES", 0.1)
    # However many cores the machine has left: a worker that uses few of its own gets none beside it, and one that brings
    # nothing would go again.
    monkeypatch.setattr("arrowflow.cluster.scaling.BUSY", 0.3)
    monkeypatch.setattr("arrowflow.cluster.scaling.GAIN", 0.0)
    slow = tmp_path / "slow"
    slow.touch()
    size = LANES * CHUNK_ROWS
    plan = af.range(STEPS * size).map(SlowWhile(slow), keeps_rows=True).batch(size)
    plan = plan.with_options(af.Options(max_chunk_rows=CHUNK_ROWS))
    clustered = plan.with_engine(af.RayEngine(workers=af.AUTOTUNE, cpus_per_worker=1, max_workers=2))
    counts, found = set(), []
    with iter(clustered) as run:
        for batch in run:
            found.append(batch)
            count = len(session_of(clustered)._workers)
            counts.add(count)
            if count == 2:
                slow.unlink(missing_ok=True)
            if not slow.exists():
                if count == 1:
                    break
                threading.Event().wait(0.05)  # a step of the loop, for which the workers are too many
        shown = run.explain()
    assert counts == {1, 2}, shown
    assert len(session_of(clustered)._workers) == 1, shown
    moves = [line for line in shown.splitlines() if " workers: " in line]
    assert "1 -> 2 workers: lanes waited " in moves[0] and "for workers that compute" in moves[0], shown
    assert "2 -> 1 workers: lanes waited " in moves[-1], shown
    assert found == list(itertools.islice(plan.split_by_rank(0, 1), len(found)))


@pytest.mark.slow
def test_each_rank_has_workers_of_its_own(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank adds workers and gives them up, and the other one notices nothing."""
    monkeypatch.setattr("arrowflow.cluster.scaling.PERIOD_SECONDS", 1e9)  # no look but that of the test
    options = af.Options(max_chunk_rows=CHUNK_ROWS)
    plan = af.range(640_000).map(lambda batch: batch, keeps_rows=True).batch(1600).with_options(options)
    expected = [list(dataset) for dataset in ranks(lambda: plan, 2)]
    engine = af.RayEngine(workers=af.AUTOTUNE, cpus_per_worker=1, max_workers=3)
    clustered = [rank.with_engine(engine) for rank in ranks(lambda: plan, 2)]
    runs = [iter(dataset) for dataset in clustered]
    found: list[list[Any]] = [[], []]
    for step in range(len(expected[0])):
        for rank, run in enumerate(runs):
            found[rank].append(next(run))
        if step in (5, 200):
            session_of(clustered[0]).resize(3 if step == 5 else 1)
        if step == 195:
            first, second = map(processes_of, clustered)
            assert len(first) == 3 and len(second) == 1 and not {*first} & {*second}
    assert found == expected
    assert len(processes_of(clustered[0])) == 1
    for run in runs:
        assert next(run, None) is None
