"""An instance of a class stays with one thread for its life, and is closed there, however the run ends."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sqlite3
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.clock import WallClock
from arrowflow.executor.workers.instances import RunInstances
from arrowflow.executor.workers.worker import Helped, Runner
from arrowflow.testing import FakeClock, Gate
from tests.executor.workers.test_tokens import Gauge

SECONDS = 60.0
NUMBERS = af.range(400).with_options(af.Options(max_chunk_rows=10))


class Noting:
    """Notes on which threads an instance is made, called and closed."""

    notes: list[tuple[str, int, int]]
    """Each with the instance and its thread."""

    def __init__(self) -> None:
        self.note("made")

    def __call__(self, given: Any, batch: Any = None) -> Any:
        self.note("called")
        return given

    def close(self) -> None:
        self.note("closed")

    def note(self, what: str) -> None:
        type(self).notes.append((what, id(self), threading.get_ident()))


class Masking(Noting):
    def __call__(self, given: Any, batch: Any = None) -> Any:
        return pa.array([True] * super().__call__(given).num_rows)


class Summing(Noting):
    def __call__(self, given: Any, batch: Any = None) -> Any:
        return super().__call__(given) + batch.num_rows


class Counting(Summing):
    def __call__(self, given: Any, batch: Any = None) -> Any:
        return super().__call__(given, batch), batch


def noting(base: type[Noting] = Noting) -> Any:
    """Returns a class of its own, with no notes."""
    return type("Fresh", (base,), {"notes": []})


def check(cls: type[Noting], most: int) -> None:
    """Checks that each instance had one thread, and was closed once, at its end."""
    lives: dict[tuple[int, int], list[str]] = {}
    for what, instance, thread in cls.notes:
        lives.setdefault((instance, thread), []).append(what)
    assert 1 <= len(lives) <= most
    for life in lives.values():
        assert (life[0], life[-1]) == ("made", "closed")
        assert set(life[1:-1]) <= {"called"}


class Looking:
    """Looks numbers up in a database, by a connection that belongs to one thread."""

    def __init__(self) -> None:
        self.made = sqlite3.connect(":memory:")
        self.made.execute("create table squares (number, square)")
        squares = [(number, number * number) for number in range(400)]
        self.made.executemany("insert into squares values (?, ?)", squares)

    def __call__(self, arrays: dict[str, Any]) -> dict[str, Any]:
        query = "select square from squares where number between ? and ? order by number"
        found = self.made.execute(query, (int(arrays["id"][0]), int(arrays["id"][-1])))
        return {"square": np.array([square for (square,) in found])}

    def close(self) -> None:
        self.made.close()


@pytest.mark.parametrize("executor", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_a_connection_that_belongs_to_one_thread(executor: Any) -> None:
    ds = NUMBERS.map(Looking, format="numpy", num_parallel_calls=2, executor=executor)
    assert ds.to_table()["square"].to_pylist() == [number * number for number in range(400)]


# ------------------------------------------------------------------------------------------ the end


def exhaust(ds: af.Dataset) -> None:
    for _ in ds:
        pass


def leave(ds: af.Dataset) -> None:
    for _ in ds:
        break
    gc.collect()


def close(ds: af.Dataset) -> None:
    iterator = iter(ds)
    next(iterator)
    iterator.close()


def collect(ds: af.Dataset) -> None:
    held: list[Any] = [iter(ds)]
    next(held[0])
    held.append(held)  # a cycle
    del held
    gc.collect()


def take(ds: af.Dataset) -> None:
    assert ds.take(15).to_table().num_rows == 15


def fail_in_the_loop(ds: af.Dataset) -> None:
    with contextlib.suppress(ZeroDivisionError), iter(ds) as iterator:
        next(iterator)
        raise ZeroDivisionError


def fail_in_a_function(ds: af.Dataset) -> None:
    def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["id"][0].as_py() < 200:
            return batch
        raise ValueError("no")

    with pytest.raises(af.FunctionError, match="no"):
        exhaust(ds.map(broken))


ENDS = [exhaust, leave, close, collect, take, fail_in_the_loop, fail_in_a_function]


@pytest.mark.parametrize("calls", [1, 4])
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_an_instance_is_closed_on_its_thread(end: Callable[[af.Dataset], None], calls: int) -> None:
    cls = noting()
    end(NUMBERS.map(cls, num_parallel_calls=calls))
    check(cls, calls)


class Writing:
    """Notes its process in a file when it is closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.thread = threading.get_ident()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        assert threading.get_ident() == self.thread
        return batch

    def close(self) -> None:
        assert threading.get_ident() == self.thread
        (self.folder / f"{os.getpid()} {id(self)}").touch(exist_ok=False)


@pytest.mark.parametrize("end", [exhaust, close, collect, fail_in_a_function], ids=lambda end: end.__name__)
def test_an_instance_in_a_worker_process_is_closed(end: Callable[[af.Dataset], None], tmp_path: Path) -> None:
    cls = functools.partial(Writing, tmp_path)
    end(NUMBERS.map(cls, num_parallel_calls=2, executor="process"))
    processes = [int(file.name.split()[0]) for file in tmp_path.iterdir()]
    assert 1 <= len(processes) <= 2 and os.getpid() not in processes
    assert len(set(processes)) == len(processes)


OPERATORS: dict[str, tuple[type[Noting], Callable[[Any], af.Dataset], int]] = {
    "map_rows": (Noting, lambda cls: NUMBERS.map_rows(cls, num_parallel_calls=4), 4),
    "filter": (Masking, lambda cls: NUMBERS.filter(cls, num_parallel_calls=4), 4),
    "take_while": (Masking, lambda cls: NUMBERS.take_while(cls), 1),
    "scan": (Counting, lambda cls: NUMBERS.scan(0, cls), 1),
    "flat_map": (
        Noting,
        lambda cls: NUMBERS.take(40).flat_map(lambda row: af.range(2).map(cls, num_parallel_calls=1)),
        4,
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_each_operator_that_takes_a_class_closes_its_instances(name: str) -> None:
    base, plan, most = OPERATORS[name]
    cls = noting(base)
    exhaust(plan(cls))
    check(cls, most)


def test_reduce_calls_its_instance_on_the_consumers_thread() -> None:
    cls = noting(Summing)
    assert NUMBERS.reduce(0, cls) == 400
    check(cls, 1)
    assert {thread for _, _, thread in cls.notes} == {threading.get_ident()}


class Shouting:
    """Cannot be closed."""

    broken = False

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.broken:
            raise ValueError("no")
        return batch

    def close(self) -> None:
        raise OSError("the disk is full")


class Broken(Shouting):
    broken = True


class Folding:
    def __call__(self, state: int, batch: pa.RecordBatch) -> int:
        return state

    def close(self) -> None:
        raise SystemExit(3)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_an_exception_of_close_is_a_warning(executor: Any) -> None:
    def run(cls: type) -> af.Dataset:
        return NUMBERS.map(cls, num_parallel_calls=1, executor=executor)

    told = r"^Shouting\.close\(\) raised OSError: the disk is full$"
    with pytest.warns(RuntimeWarning, match=told) as caught:
        assert sum(batch.num_rows for batch in run(Shouting)) == 400
    assert [warning.filename for warning in caught] == [__file__]
    with (
        pytest.warns(RuntimeWarning, match=r"^Broken\.close\(\) raised OSError: the disk is full$"),
        pytest.raises(af.FunctionError, match="ValueError: no"),
    ):
        exhaust(run(Broken))


def test_an_exception_of_close_after_reduce_is_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match=r"^Folding\.close\(\) raised SystemExit: 3$") as caught:
        assert NUMBERS.reduce(1, Folding) == 1
    assert [warning.filename for warning in caught] == [__file__]


# ------------------------------------------------------------------------------------------ what does not return


class Blocking:
    """Does not return from its second call, or from `close`."""

    gate: Gate
    where: str

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.calls += 1
        if self.where == "call" and self.calls > 1:
            self.gate.pass_through()
        return batch

    def close(self) -> None:
        if self.where == "close":
            self.gate.pass_through()


def blocking(gate: Gate, where: str) -> Any:
    return type("Slow", (Blocking,), {"gate": gate, "where": where})


@pytest.mark.parametrize("where", ["call", "close"])
def test_an_instance_that_does_not_return_is_named_once(where: str, gate: Gate) -> None:
    ds = NUMBERS.map(blocking(gate, where), num_parallel_calls=1)
    iterator = iter(ds.with_options(af.Options(close_timeout=0.05)))
    next(iterator)
    if where == "call":
        gate.wait_for(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        iterator.close()
        iterator.close()
    (text,) = [str(warning.message) for warning in caught]
    name = "map" if where == "call" else "Slow.close"
    assert text.startswith(f"1 call(s) of {name} did not return within close_timeout=0.05 s")


@pytest.mark.slow
def test_a_worker_process_that_does_not_close_is_killed(tmp_path: Path) -> None:
    cls = functools.partial(Forever, tmp_path)
    ds = NUMBERS.map(cls, num_parallel_calls=1, executor="process")
    with pytest.warns(RuntimeWarning, match="did not close the instances of a class in time, and was killed"):
        exhaust(ds.with_options(af.Options(close_timeout=0.05)))
    assert len(list(tmp_path.iterdir())) == 1


class Forever:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def close(self) -> None:
        (self.folder / "began").touch()
        threading.Event().wait()


# ------------------------------------------------------------------------------------------ threads alone


def test_a_call_after_the_end_is_refused() -> None:
    lender = RunInstances(WallClock(), Runner)
    instances = lender.instances("owner", list, "list")
    assert instances.call(lambda made: made) == []
    (home,) = lender.homes
    lender.end()
    home.join(SECONDS)
    for _ in range(2):  # an idle instance whose thread has left, and none
        with pytest.raises(af.ClosedError):
            instances.call(lambda made: made)
    assert home.instance is None and len(lender.homes) == 1


def test_an_instance_that_could_not_be_made_is_made_by_the_next_call() -> None:
    lender = RunInstances(WallClock(), Runner)
    tries = iter([OSError("not yet"), None])

    def make() -> Any:
        if (error := next(tries)) is not None:
            raise error
        return "made"

    instances = lender.instances("owner", make, "Model")
    with pytest.raises(OSError, match="not yet"):
        instances.call(str)
    assert instances.call(str) == "made"
    assert len(lender.homes) == 1
    lender.end()


def _value(value: object, made: Any) -> object:
    return value


def _divided(value: object, made: Any) -> object:
    return 1 / 0


def test_nothing_of_a_call_is_kept() -> None:
    class Value:
        pass

    lender = RunInstances(WallClock(), Runner)
    instances = lender.instances("owner", list, "list")
    value = Value()
    gone = weakref.ref(value)
    gc.collect()
    gc.disable()
    try:
        assert instances.call(functools.partial(_value, value)) is value
        with pytest.raises(ZeroDivisionError):
            instances.call(functools.partial(_divided, value))
        del value
        assert gone() is None
    finally:
        gc.enable()
        lender.end()


def test_threads_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    lender = RunInstances(WallClock(), Runner)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(af.ArrowflowError, match="no thread can be started for an instance of Model"):
        lender.instances("owner", list, "Model").call(str)
    assert not lender.homes


# ------------------------------------------------------------------------------------------ measurements


def test_the_time_of_an_instance_is_its_callers() -> None:
    clock = FakeClock()
    before = Helped(cpu=1.0, queued=2.0)
    helped = before.begun(Gauge(clock, 1.0, 0.5), weighed=True)
    clock.advance(4.0)
    assert helped.now() == (5.0, 4.0)
    assert helped.ended() == Helped(cpu=5.0, queued=4.0)
    assert before.begun(Gauge(clock, 1.0, 0.5), weighed=False).ended() == before


class Burning:
    """Takes 10 ms of CPU time a call."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        until = time.thread_time() + 0.01
        while time.thread_time() < until:
            pass
        return batch


def test_what_an_instance_computes_is_measured() -> None:
    with iter(af.range(100).batch(10).map(Burning, num_parallel_calls=2)) as iterator:
        exhaust(iterator)  # type: ignore[arg-type]
        stages = iterator.stats().stages
    (stage,) = [one for one in stages if "map(Burning)" in one.operators and one.kind == "parallel"]
    assert 10 * 0.01 <= stage.cpu_seconds <= stage.busy_seconds * 1.1
