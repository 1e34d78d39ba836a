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
