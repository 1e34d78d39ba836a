"""Rules 9 to 11: the ends of a run that come before its end, at any moment and from any thread."""

from __future__ import annotations

import gc
import itertools
import logging
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.errors import ArrowflowError, ClosedError
from arrowflow.executor import Engine
from arrowflow.kernels.items import Item
from arrowflow.ops.rows.take import TakeKernel
from arrowflow.physical.stage import StagePlan
from arrowflow.testing import Gate
from tests.executor.fakes import (
    chunk,
    function,
    hold,
    items_of,
    kernel,
    reader,
    running,
    same,
    serial,
    source,
    start,
    stepper,
    value_of,
    values_from,
    values_of,
)
from tests.executor.interrupter import INTERRUPTS, Preempted, interrupted
from tests.executor.test_budget import Windows


def measured() -> bool:
    """Whether coverage.py is at work: the suite also runs without it."""
    module = sys.modules.get("coverage")
    return module is not None and module.Coverage.current() is not None


def workers(name: str = "arrowflow-") -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(30)


@pytest.fixture(autouse=True)
def _no_worker_is_left() -> Iterator[None]:
    """The end of a run waits for its workers."""
    yield
    assert workers() == []


def test_stop_twice_and_close_twice() -> None:
    engine = start(source(), function(), serial())
    engine.next_item()
    engine.stop()
    engine.stop()
    engine.close()
    engine.close()
    with pytest.raises(ClosedError):
        engine.next_item()


def slow(gate: Gate, close_timeout: float) -> Engine:
    """Returns a run whose consumer waits for a call that does not return before the gate is open."""

    def wait(batch: pa.RecordBatch) -> pa.RecordBatch:
        gate.pass_through()
        return batch

    return waited_for(gate, source(1), function(wait, name="slow_map"), close_timeout=close_timeout)


def waited_for(gate: Gate, *stages: StagePlan, close_timeout: float) -> Engine:
    engine = start(*stages, close_timeout=close_timeout)

    def consume() -> None:
        with pytest.raises(ClosedError):
            engine.next_item()

    threading.Thread(target=consume).start()
    gate.wait_for(1)
    return engine


def test_a_call_that_does_not_return_is_named_and_left(gate: Gate) -> None:
    engine = slow(gate, close_timeout=0)
    with pytest.warns(
        RuntimeWarning, match=r"1 call\(s\) of slow_map did not return within close_timeout=0 s"
    ):
        engine.close()
    late = workers()
    assert len(late) >= 1
    gate.open()
    join(late)
    assert engine.statistics().ledger_bytes == 0


def test_an_interrupt_does_not_wait_for_a_call_that_does_not_return(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arrowflow.executor.engine.INTERRUPTED_SECONDS", 0.0)
    engine = slow(gate, close_timeout=3600)
    late = workers()
    with pytest.warns(
        RuntimeWarning, match=r"1 call\(s\) of slow_map .* within 0 s of the interrupt"
    ) as caught:
        engine.close(interrupted=True)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.close()  # nor does anybody wait again
    gate.open()
    join(late)


@pytest.mark.parametrize(("limit", "patience", "by_interrupt"), [(0.0, 0.01, False), (60.0, 0.0, True)])
def test_close_timeout_holds_without_an_interrupt_and_where_it_is_shorter(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, limit: float, patience: float, by_interrupt: bool
) -> None:
    monkeypatch.setattr("arrowflow.executor.engine.INTERRUPTED_SECONDS", limit)
    monkeypatch.setattr("arrowflow.executor.engine.INTERRUPTED_KILLED_SECONDS", 0.0)
    engine = slow(gate, close_timeout=patience)
    late = workers()
    with pytest.warns(RuntimeWarning, match=f"slow_map did not return within close_timeout={patience:g} s"):
        engine.close(interrupted=by_interrupt)
    gate.open()
    join(late)


def test_a_worker_that_comes_back_late_lets_go_of_its_memory(gate: Gate) -> None:
    before = pa.total_allocated_bytes()

    def allocate(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for _ in range(3):
            made = pa.record_batch({"x": pa.nulls(1000, pa.int64())})
            gate.pass_through()
            yield made
            del made

    engine = waited_for(gate, source(), reader(allocate), close_timeout=0)
    with pytest.warns(RuntimeWarning, match="reader"):
        engine.close()
    late = workers()
    gate.open()
    join(late)
    assert pa.total_allocated_bytes() == before
    assert engine.statistics().ledger_bytes == 0


@pytest.mark.parametrize("calls", [1, 2])
def test_user_functions_that_close_their_run_do_not_wait_for_themselves_or_each_other(calls: int) -> None:
    together = threading.Barrier(calls)

    def close(batch: pa.RecordBatch) -> pa.RecordBatch:
        together.wait(30)
        engine.close()
        return batch

    engine = start(source(), function(close, max_calls=calls, cost="waits"), close_timeout=3600)
    with pytest.raises(ClosedError):
        values_of(engine)
    engine.close()


@pytest.mark.parametrize("tail", [(), (serial(),), (serial(buffer_items=2),)])
def test_a_kernel_on_the_consumers_thread_may_close_its_own_run(tail: tuple[StagePlan, ...]) -> None:
    def close(item: Item) -> Iterator[Item]:
        engine.close()
        yield item

    engine = start(source(), *tail, serial(close, name="closing"))
    with pytest.raises(ClosedError):
        values_of(engine)


def test_a_signal_handler_that_closes_under_the_lock_does_not_wait_for_itself() -> None:
    engine = start(source(), function(), close_timeout=3600)
    engine.next_item()
    with engine.lock:
        engine.close()
    with pytest.raises(ClosedError):
        values_of(engine)
    engine.close()


def test_a_finalizer_in_a_worker_only_stops() -> None:
    other = start(source(1000), function(), kernel(Windows, "windows"), close_timeout=3600)
    other.next_item()
    threads = workers(f"arrowflow-{id(other):x}")

    def abandon(batch: pa.RecordBatch) -> pa.RecordBatch:
        assert not other.abandon()
        return batch

    assert len(values_from(source(3), function(abandon))) == 3
    join(threads)
    assert other.statistics().ledger_bytes == 0


class Resource:
    """Yields chunks for ever, and notes that it was closed, in which thread."""

    def __init__(self, close: Callable[[], None] = lambda: None) -> None:
        self.closed: list[str] = []
        self.close = close

    def __call__(self, value: Any = None) -> Iterator[pa.RecordBatch]:
        try:
            for number in itertools.count():
                yield chunk(number)
        finally:
            self.closed.append(threading.current_thread().name)
            self.close()


ENDLESS: dict[str, Callable[[Resource], tuple[StagePlan, ...]]] = {
    "source": lambda resource: (source(1, resource, streams=True, cost="waits"), function(), serial()),
    "reader": lambda resource: (source(1), reader(resource), serial()),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_suspended_generators_are_closed_by_a_worker(kind: str) -> None:
    resource = Resource()
    with running(*ENDLESS[kind](resource)) as engine:
        for _ in range(10):
            engine.next_item()
    assert len(resource.closed) == 1
    assert resource.closed[0].startswith("arrowflow-")


@pytest.mark.parametrize("kind", ENDLESS)
def test_generators_that_nobody_wants_any_more_are_closed_before_the_end(kind: str) -> None:
    resource = Resource()
    closed = threading.Event()
    resource.close = closed.set
    *above, _ = ENDLESS[kind](resource)
    with running(*above, kernel(lambda: TakeKernel(3), "take"), function(), serial()) as engine:
        assert values_of(engine) == [0, 1, 2]
        assert closed.wait(30)
    assert len(resource.closed) == 1


@pytest.mark.parametrize("error", [ValueError("in finally"), SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("kind", ENDLESS)
def test_a_generator_that_raises_when_closed_is_logged(
    kind: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    resource = Resource(fail)
    with caplog.at_level(logging.WARNING, "arrowflow"), running(*ENDLESS[kind](resource)) as engine:
        engine.next_item()
    assert len(resource.closed) == 1
    assert f"{kind} raised while it was closed before its end: {type(error).__name__}: {error}" in caplog.text


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_generator_that_blocks_when_closed_is_named(kind: str, gate: Gate) -> None:
    engine = start(*ENDLESS[kind](Resource(gate.pass_through)), close_timeout=0)
    engine.next_item()
    engine.options = start(source()).options  # patience for the workers that do return
    engine.stop()
    gate.wait_for(1)
    late = workers()
    engine.options = start(source(), close_timeout=0).options
    with pytest.warns(RuntimeWarning, match=kind):
        engine.close()
    gate.open()
    join(late)


def test_kernels_are_let_go_with_the_run() -> None:
    class Kept(Windows):
        pass

    kept = Kept()
    seen = weakref.ref(kept)
    held = [kept]
    del kept
    engine = start(source(1000), kernel(held.pop, "windows"), function(), serial())
    engine.next_item()
    assert seen() is not None
    engine.close()
    assert seen() is None


@pytest.mark.usefixtures("preempted")
@pytest.mark.parametrize("interrupt", INTERRUPTS, ids=["Ctrl-C", "handler"])
def test_an_interrupt_in_the_middle_of_a_start_is_survived(
    monkeypatch: pytest.MonkeyPatch, interrupt: Callable[[], None]
) -> None:
    """A handler may raise a `RuntimeError`, the class of a thread that cannot be started."""
    engine = start(source(), function())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda thread: interrupt())
        with pytest.raises((KeyboardInterrupt, Preempted)):
            engine.next_item()
    engine.close()


def test_an_abandoned_engine_is_collected() -> None:
    engine = start(source(), function(), serial())
    engine.next_item()
    engine.close()
    seen = weakref.ref(engine)
    del engine
    gc.collect()
    assert seen() is None


def test_calls_that_finish_after_the_stop_return_what_they_reserved() -> None:
    engine = stepper(source(20), function(max_calls=4, cost="waits"))
    calls = hold(engine, "function", 3)
    engine.close()
    for call in calls:
        engine.finish(call)
    del call, calls
    assert engine.statistics().ledger_bytes == 0


@pytest.mark.slow
@pytest.mark.versions
@pytest.mark.usefixtures("preempted")
def test_an_interrupt_at_any_point_of_the_consumer_ends_the_run() -> None:
    before = pa.total_allocated_bytes()
    hits = 0
    for at in itertools.count(1):
        dataset = af.range(140_000).map(_same, num_parallel_calls=2).batch(70_000).repeat(2).to_numpy()
        iterator = iter(dataset)
        found: list[int] = []
        with interrupted(at, INTERRUPTS[at % 2]) as interrupter:
            try:
                while (batch := next(iterator, None)) is not None:
                    found.append(int(batch["id"][0]))
            except (KeyboardInterrupt, Preempted):
                hits += 1
        batch = None
        if interrupter.points < at:
            break
        assert hits == at, interrupter.where  # nobody took it for an error of its own
        iterator.load_state_dict(iterator.state_dict())
        if not iterator.progress.epoch:  # else it hit the end, behind the last batch
            found += [int(batch["id"][0]) for batch in iterator]
        assert found == [0, 70_000] * 2, interrupter.where
        iterator.close()
        assert workers() == [], interrupter.where
        del iterator
        assert pa.total_allocated_bytes() == before, interrupter.where
    assert hits > 100


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
@pytest.mark.skipif(
    measured(), reason="coverage.py takes a lock in every frame, which an interrupt leaves locked"
)
# An interrupt that hits a finalizer goes nowhere but into a report of Python's own, which is no failure here.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_storm_of_interrupts_leaves_nothing_behind() -> None:
    dataset = af.range(1_000_000).map(_same, num_parallel_calls=2).batch(1000)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        for round_ in range(24):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.0005 * (round_ % 8))
                    for _ in dataset:
                        pass
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)  # which the interrupt may come in front of
            except KeyboardInterrupt:
                pass
    finally:
        signal.signal(signal.SIGALRM, previous)
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_point_of_a_finalizer_stops_the_run() -> None:
    for at in itertools.count(1):
        iterator = iter(af.range(1_000_000).map(_same, num_parallel_calls=2).batch(1000))
        next(iterator)
        with interrupted(at) as interrupter:
            del iterator
        join(workers("arrowflow"))
        assert workers() == [], interrupter.where
        if interrupter.points < at:
            break
    assert at > 20


def test_many_runs_at_once() -> None:
    with ExitStack() as stack:
        runs = [running(source(20), function(), serial(), cpu_budget=2) for _ in range(12)]
        steps = zip(*(items_of(stack.enter_context(run)) for run in runs), strict=True)
        found = [[value_of(item.chunk) for item in step] for step in steps]
    assert found == [[value] * 12 for value in range(20)]


def test_next_below_its_own_run_is_an_error_and_no_deadlock() -> None:
    def greedy(batch: pa.RecordBatch) -> pa.RecordBatch:
        next(iterator)
        return batch

    iterator = iter(af.range(100).map(greedy).batch(10))
    with pytest.raises(ArrowflowError, match=r"next\(\) is still running"):
        next(iterator)


def test_two_consumers_of_one_run_are_an_error_for_the_second(gate: Gate) -> None:
    def wait(batch: pa.RecordBatch) -> pa.RecordBatch:
        gate.pass_through()
        return batch

    iterator = iter(af.range(100).map(wait).batch(10))
    taken: list[int] = []
    first = threading.Thread(target=lambda: taken.append(next(iterator).num_rows))
    first.start()
    gate.wait_for(1)
    with pytest.raises(ArrowflowError, match="one consumer"):
        next(iterator)
    gate.open()
    first.join()
    assert taken == [10]
    assert sum(batch.num_rows for batch in iterator) == 90


def test_items_after_a_stop_are_not_waited_for() -> None:
    engine = start(source(), serial(same), function())
    assert next(items_of(engine)) is not None
    engine.stop()
    with pytest.raises(ClosedError):
        for _ in items_of(engine):
            pass
    engine.close()
