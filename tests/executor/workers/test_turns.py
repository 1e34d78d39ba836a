"""Calls of several runs take turns where a process has more runs than cores."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.executor.stages.caller import ParallelCaller
from arrowflow.executor.workers import cores
from arrowflow.executor.workers.cores import Turns

LONG = 60.0


def waiting(turns: Turns) -> int:
    return len(turns._first) + len(turns._ahead)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_call_that_its_run_waits_for_comes_first() -> None:
    turns, order = Turns(1), list[str]()
    turns.take(ahead=False, seconds=LONG)

    def call(name: str) -> None:
        turns.take(ahead=name == "ahead", seconds=LONG)
        order.append(name)
        turns.give()

    threads = []
    for number, name in enumerate(("ahead", "first", "second"), 1):
        threads.append(threading.Thread(target=call, args=(name,)))
        threads[-1].start()
        until(lambda number=number: waiting(turns) == number)  # type: ignore[misc]
    assert not order
    turns.give()
    for thread in threads:
        thread.join(LONG)
    assert order == ["first", "second", "ahead"]


def test_nobody_waits_for_ever() -> None:
    """A call goes on without a turn after a while. Afterwards there are as many turns as before."""
    turns = Turns(1)
    turns.take(ahead=False, seconds=LONG)
    turns.take(ahead=True, seconds=0.01)
    assert not waiting(turns)
    third = threading.Thread(target=lambda: turns.take(ahead=False, seconds=LONG))
    third.start()
    until(lambda: waiting(turns) == 1)
    turns.give()
    assert waiting(turns) == 1, "the call without a turn is still there"
    turns.give()
    third.join(LONG)
    assert not third.is_alive()
    turns.give()
    assert turns._free == 1


def test_more_runs_than_cores_decode_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores._Process, "available", 1)
    monkeypatch.setattr(cores._Process, "turns", Turns(1))
    pq.write_table(pa.table({"x": range(512)}), tmp_path / "a.parquet", row_group_size=8)
    running, most = list[ParallelCaller](), list[int]()
    execute = ParallelCaller.execute

    def slow(self: ParallelCaller, call: Any) -> None:
        assert self.plan.cost == "computes"
        running.append(self)
        most.append(len(running))
        time.sleep(0.005)
        running.remove(self)
        execute(self, call)

    monkeypatch.setattr(ParallelCaller, "execute", slow)
    dataset = af.read_parquet(tmp_path / "a.parquet").batch(8).with_options(af.Options(cpu_budget=1))
    runs = [iter(dataset) for _ in range(4)]
    found = [next(run).num_rows for run in runs]  # the first run has no others beside it yet
    until(lambda: not running)
    most.clear()
    found += [sum(batch.num_rows for batch in run) for run in runs]
    for run in runs:
        run.close()
    assert found == [8] * 4 + [504] * 4
    assert set(most) == {1}, most
