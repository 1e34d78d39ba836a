"""What a worker does with a lane. Needs no cluster: an actor is an object here."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.bad_rows import NO_BAD_ROWS, LeftOut
from arrowflow.cluster.lane_worker import KEPT_NAMES, LaneWorker, Piece, Request, packed
from arrowflow.cluster.parts import Joined, Kept
from arrowflow.executor.stages.measures import Elsewhere
from arrowflow.executor.workers import cores
from arrowflow.observe.timeline import Timeline
from tests.cluster import bad_rows

pytestmark = pytest.mark.any_version


@pytest.fixture(autouse=True)
def own_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker limits the cores of its process, which here is that of all tests."""
    monkeypatch.setattr(cores._Process, "available", cores.available())
    monkeypatch.setattr(cores._Process, "turns", cores._Process.turns)


def worker_of(dataset: af.Dataset) -> LaneWorker:
    planned: Any = dataset.with_engine(af.RayEngine(workers=1, cpus_per_worker=1))._ready()
    plan = planned.optimised
    lane, *_ = getattr(plan, "planned_inputs", plan.inputs) or (plan,)  # a whole plan is one lane
    return LaneWorker(packed(lane.inputs[0], planned.options), 1)


def taken(worker: LaneWorker, told: Elsewhere, lane: int, position: Any, most: int) -> tuple[Any, bool, int]:
    """Takes pieces of a lane from a position on, as a consumer does; returns its position, whether it ended, and its rows."""
    name, rows = f"{lane} {position} {most}", 0
    for _ in range(most):
        piece = worker.pull(REQUEST._replace(run=name, lane=lane, position=position))
        assert piece.error is None
        for operator, place, found in piece.bad_rows:
            told.leave_out(operator, (lane, place), found)
        told.add(piece.work)
        rows += piece.work.rows
        position = piece.parts[-1].position if piece.parts else position
        if piece.ended:
            return position, True, rows
    worker.close(name)
    return position, False, rows


REQUEST = Request(0, 0, None, run="run", ram_budget=64 << 20, num_bytes=1, most_bytes=64 << 20)


def test_later_epochs_take_what_the_worker_has_kept(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(16_000)}), tmp_path / "a.parquet", row_group_size=500)
    worker = worker_of(af.read_parquet(tmp_path).shuffle(2_000, seed=1).batch(160))
    rows: list[list[int]] = [[], []]
    kept_rows = [0, 0]
    for epoch in range(2):
        for lane in range(16):
            joined = Joined(Kept(0))
            request = REQUEST._replace(run=f"{lane} {epoch}", lane=lane, epoch=epoch)
            while not (piece := worker.pull(request)).ended:
                assert piece.error is None
                for batch, _ in joined.add(piece.parts):
                    rows[epoch] += batch["x"].to_pylist()
                kept_rows[epoch] = max(
                    kept_rows[epoch], worker._runs[request.run].engine.statistics().kept_rows
                )
    assert [sorted(found) for found in rows] == [list(range(16_000))] * 2
    assert kept_rows[0] == 0 < kept_rows[1]


def test_a_run_that_is_closed_while_it_opens_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = worker_of(af.range(4_000_000).batch(1600))
    opens, closed = threading.Event(), threading.Event()
    opened = worker._open

    def slowly(*given: Any) -> Any:
        opens.set()
        assert closed.wait(30)
        return opened(*given)

    monkeypatch.setattr(worker, "_open", slowly)
    pieces: list[Piece] = []
    caller = threading.Thread(target=lambda: pieces.append(worker.pull(REQUEST._replace(num_bytes=1 << 10))))
    caller.start()
    assert opens.wait(30)
    worker.close("run")
    closed.set()
    caller.join(30)
    assert worker._runs == {}
    assert pieces[0].ended and not pieces[0].parts


def columns(rows: int) -> pa.RecordBatch:
    values = np.arange(rows, dtype=np.float64)
    names = pa.array([None if row % 3 == 0 else f"name {row % 5}" for row in range(rows)])
    return pa.record_batch(
        {
            "x": values,
            "name": names,
            "even": pa.array(values % 2 == 0),
            "both": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(values, 2)), 2),
            "list": pa.array([[row] * (row % 3) for row in range(rows)]),
        }
    )


@pytest.mark.parametrize("behind", [False, True], ids=["slices of a table", "a function behind batch"])
def test_a_piece_has_the_bytes_of_its_rows(behind: bool) -> None:
    table = columns(64_000)
    dataset = af.from_arrow(pa.table(table)).batch(1600)
    if behind:
        dataset = dataset.map(lambda batch: batch, keeps_rows=True)
    worker = worker_of(dataset)
    pieces = [worker.pull(REQUEST._replace(num_bytes=1 << 16))]
    while not pieces[-1].ended:
        pieces.append(worker.pull(REQUEST._replace(num_bytes=1 << 16)))
        assert pieces[-1].error is None
    joined = Joined(Kept(0))
    batches = [batch for piece in pieces for batch, _ in joined.add(piece.parts)]
    assert pa.Table.from_batches(batches).equals(pa.table(table.slice(0, 4_000)))
    for piece in pieces:
        assert piece.work.bytes <= 2 * sum(batch.nbytes for batch in batches[: len(piece.parts)])
        del batches[: len(piece.parts)]
        # Beside the bytes of rows there are the positions, the schema, and what tells of each buffer.
        assert len(pickle.dumps(piece)) <= piece.work.bytes + 4_096 * (1 + len(piece.parts))


def by_operator(left_out: Iterable[tuple[str, LeftOut]]) -> dict[str, LeftOut]:
    found: dict[str, LeftOut] = {}
    for operator, each in left_out:
        found[operator] = found.get(operator, NO_BAD_ROWS).plus(each)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", bad_rows.PIPELINES)
def test_bad_rows_count_once_wherever_lanes_go_on(tmp_path: Path, name: str) -> None:
    """Each lane is left and opened again after every piece, so that most rows are read more than once."""
    dataset = bad_rows.split(bad_rows.PIPELINES[name](bad_rows.write_lines(tmp_path)))
    with iter(dataset) as run:
        assert sum(batch.num_rows for batch in run) > 400
        expected = by_operator(run.stats().left_out)
    worker, told = worker_of(dataset), Elsewhere()
    for lane in range(16):
        position: Any = None
        ended = False
        while not ended:
            position, ended, _ = taken(worker, told, lane, position, 1)
    found = told.statistics()
    assert found is not None
    assert by_operator(found.left_out.items()) == expected
    assert sum(each.rows for each in found.left_out.values()) > 50


def test_pieces_tell_of_all_work_of_their_lane() -> None:
    """What the pieces of a run tell adds up to what the run measured, however often they tell."""
    dataset = (
        af.from_arrow(pa.table(columns(64_000))).filter(pl.col("x") % 2 == 0).batch(1600, drop_remainder=True)
    )
    dataset = dataset.split_by_rank(0, 1, equal_steps="drop")
    worker, told = worker_of(dataset), Elsewhere()
    moments = iter(range(1_000))
    worker._clock.now = lambda: 0.2 * next(moments)  # type: ignore[misc]
    _, ended, rows = taken(worker, told, 3, None, 1_000)
    found = told.statistics()
    assert ended and found is not None
    (one,) = found.workers
    assert one.stages[0].rows == rows == 2_000
    assert all(stage.calls for stage in one.stages)


def test_spans_come_by_the_clock_of_the_consumer() -> None:
    worker = worker_of(af.range(64_000).batch(1600))
    began = worker._clock.now()
    piece = worker.pull(REQUEST._replace(records=True))
    assert {span[1] for span in piece.spans} >= {"range"}
    timeline = Timeline()
    timeline.merge(piece.spans, "worker 0 on a, lane 0", ahead_seconds=began - 5.0)
    assert all(track.startswith("worker 0 on a, lane 0: ") for _, _, _, _, track, _, _ in timeline._events)
    assert all(5.0 <= event[2] <= event[3] <= 5.0 + worker._clock.now() - began for event in timeline._events)
    later = worker.pull(REQUEST._replace(records=True))
    assert not set(map(str, later.spans)) & set(map(str, piece.spans)), "each span comes once"


def test_names_of_closed_runs_are_few() -> None:
    worker = worker_of(af.range(64_000).batch(1600))
    for number in range(3 * KEPT_NAMES):
        worker.close(f"run {number}")
    assert len(worker._closed) == KEPT_NAMES
    assert worker.pull(REQUEST._replace(run=f"run {3 * KEPT_NAMES - 1}")).parts == []
