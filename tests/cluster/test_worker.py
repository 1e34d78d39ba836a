"""What a worker does with a lane. Needs no cluster: an actor is an object here."""

from __future__ import annotations

import dataclasses
import pickle
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.cluster.on_cluster import packed
from arrowflow.cluster.worker import LaneWorker, Piece, Start, Work
from arrowflow.executor.workers import cores


@pytest.fixture(autouse=True)
def own_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker limits the cores of its process, which here is that of all tests."""
    monkeypatch.setattr(cores._Process, "available", cores.available())


def worker_of(dataset: af.Dataset) -> LaneWorker:
    planned: Any = dataset.with_engine(af.RayEngine(workers=1, cpus_per_worker=1))._ready()
    work: Any = planned.optimised.planned_inputs[0].work
    return LaneWorker(packed(Work(work, dataclasses.replace(planned.options, ram_budget=64 << 20))), 1)


START = Start(0, 0, None, 64 << 20)


def test_a_run_that_is_closed_while_it_opens_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = worker_of(af.range(4_000_000).batch(1600))
    opens, closed = threading.Event(), threading.Event()
    opened = worker._open

    def slowly(start: Start) -> Any:
        opens.set()
        assert closed.wait(30)
        return opened(start)

    monkeypatch.setattr(worker, "_open", slowly)
    pieces: list[Piece] = []
    caller = threading.Thread(target=lambda: pieces.append(worker.pull("run", START, 1 << 10)))
    caller.start()
    assert opens.wait(30)
    worker.close("run")
    closed.set()
    caller.join(30)
    assert worker._runs == {}
    assert pieces[0].ended and not pieces[0].batches


def sent_bytes(piece: Piece) -> int:
    """Returns the bytes that go into the object store."""
    buffers: list[int] = []
    rest = pickle.dumps(
        piece.batches, protocol=5, buffer_callback=lambda each: buffers.append(each.raw().nbytes)
    )
    return len(rest) + sum(buffers)


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
    pieces = [worker.pull("run", START, 1 << 16)]
    while not pieces[-1].ended:
        pieces.append(worker.pull("run", None, 1 << 16))
        assert pieces[-1].error is None
    batches = [batch for piece in pieces for batch, _ in piece.batches]
    assert pa.Table.from_batches(batches).equals(pa.table(table.slice(0, 4_000)))
    for piece in pieces:
        # Beside the rows there are the positions, the schema, and what tells of each buffer.
        assert sent_bytes(piece) <= 2 * sum(batch.nbytes for batch, _ in piece.batches) + 4_096 * (
            1 + len(piece.batches)
        )
