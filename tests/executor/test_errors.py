"""Rules 7 and 8: the first error comes once, in order, typed, with its operator and its cause."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.errors import ArrowflowError, ClosedError, DataError, FunctionError, SourceError
from arrowflow.executor.stages.parallel import ParallelQueue
from arrowflow.kernels.items import Item, Origin, Task
from arrowflow.kernels.kinds import SourceKernel, StatelessKernel
from arrowflow.ops.batches.batch import BatchKernel
from arrowflow.ops.rows.take import TakeKernel
from arrowflow.physical.stage import StagePlan
from arrowflow.plan.position import Position
from arrowflow.testing import Gate, Sequencer
from tests.executor.fakes import (
    Reader,
    Source,
    chunk,
    drained,
    function,
    hold,
    items_of,
    kernel,
    once,
    reader,
    running,
    serial,
    source,
    start,
    stepper,
    value_of,
    values_from,
    values_of,
)


class Fault(Exception):
    """What a user's code raises here."""


def failing_at(bad: int, error: BaseException | None = None) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def call(batch: pa.RecordBatch) -> pa.RecordBatch:
        if value_of(batch) == bad:
            raise error or FunctionError("it failed") from Fault(str(bad))
        return batch

    return call


def yielding(bad: int) -> Callable[[int], Iterator[pa.RecordBatch]]:
    def make(value: int) -> Iterator[pa.RecordBatch]:
        yield failing_at(bad)(chunk(value))

    return make


def calling(call: Callable[[pa.RecordBatch], pa.RecordBatch], name: str) -> StagePlan:
    """Returns a serial stage of a function of chunks."""
    return serial(lambda item: iter([item._replace(chunk=call(item.chunk))]), name=name)


WHERE: dict[str, Callable[[Callable[[pa.RecordBatch], pa.RecordBatch]], tuple[StagePlan, ...]]] = {
    "source": lambda call: (source(20, lambda value: (call(chunk(value)) for _ in range(1))), function()),
    "reader": lambda call: (source(20), reader(lambda batch: (call(batch) for _ in range(1))), function()),
    "function": lambda call: (source(20), function(call)),
    "serial": lambda call: (source(20), calling(call, "serial"), function(name="below")),
    "tail": lambda call: (source(20), calling(call, "tail")),
}
"""Stages, of which one calls a function."""


@pytest.mark.parametrize("where", WHERE)
def test_everything_before_the_error_is_delivered_then_it_is_raised(where: str) -> None:
    with running(*WHERE[where](failing_at(7)), cpu_budget=3) as engine:
        values, error = drained(engine)
        assert values == list(range(7))
        assert isinstance(error, FunctionError)
        assert isinstance(error.__cause__, Fault)
        assert error.operator == where
        assert str(error) == f"{where}: it failed"


EXCEPTIONS = (ValueError("x"), MemoryError("x"), StopIteration())
OTHERS = (KeyboardInterrupt(), SystemExit(3), GeneratorExit())


@pytest.mark.parametrize(
    ("where", "error"),
    [(where, error) for where in WHERE for error in EXCEPTIONS]
    # On the consumer's own thread, that of the tail, an interrupt is the consumer's.
    + [(where, error) for where in WHERE for error in OTHERS if where != "tail"],
)
def test_whatever_a_kernel_raises_becomes_an_error_of_the_library(where: str, error: BaseException) -> None:
    def call(batch: pa.RecordBatch) -> pa.RecordBatch:
        if value_of(batch) == 2:
            raise error
        return batch

    with running(*WHERE[where](call)) as engine:
        values, found = drained(engine)
    assert values == [0, 1]
    assert type(found) is ArrowflowError
    assert found.operator == where
    causes = [found.__cause__, found.__cause__ and found.__cause__.__cause__]
    # Python itself turns a `StopIteration` inside of a generator into a `RuntimeError`.
    assert error in causes


def test_data_that_arrow_refuses_is_a_data_error() -> None:
    def refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise pa.ArrowInvalid("no")

    with (
        running(source(3), function(refuse)) as engine,
        pytest.raises(DataError, match="function: ArrowInvalid: no"),
    ):
        engine.next_item()


def test_an_interrupt_in_the_tail_reaches_the_consumer_as_it_is() -> None:
    def interrupted(item: Item) -> Iterator[Item]:
        if item.chunk.num_rows:
            raise KeyboardInterrupt
        yield item

    with running(source(3), serial(interrupted)) as engine, pytest.raises(KeyboardInterrupt):
        engine.next_item()


def test_where_an_error_happened_is_not_overwritten() -> None:
    error = SourceError("broken").locate(operator="read_parquet", file="a.parquet", row_group=3)
    with running(source(3), function(failing_at(0, error))) as engine:
        _, found = drained(engine)
    assert found is error
    assert (found.operator, found.file, found.row_group) == ("read_parquet", "a.parquet", 3)


def test_the_first_error_in_order_comes_not_the_first_in_time() -> None:
    sequencer = Sequencer()

    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        value = value_of(batch)
        if value >= 2:
            with sequencer(5 - value):  # 5 first, 2 last
                raise FunctionError(f"number {value}")
        return batch

    with running(source(6), function(fail, max_calls=4, cost="waits")) as engine:
        values, error = drained(engine)
    assert values == [0, 1]
    assert "number 2" in str(error)


def test_an_error_is_raised_once_and_ends_the_iterator() -> None:
    iterator = iter(af.range(100).map(raising, num_parallel_calls=1).batch(7))
    with pytest.raises(FunctionError):
        next(iterator)
    with pytest.raises(ClosedError, match="has raised FunctionError"):
        next(iterator)


def raising(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise Fault


def test_an_error_of_the_stage_below_wins_over_a_later_one_above() -> None:
    with running(source(20, yielding(9)), function(failing_at(4), name="below")) as engine:
        values, error = drained(engine)
    assert values == [0, 1, 2, 3]
    assert error.operator == "below"


@pytest.mark.parametrize("below", [(), (function(),)])
def test_rows_that_batch_holds_back_are_not_delivered_short(below: tuple[StagePlan, ...]) -> None:
    chain = (source(20, yielding(8)), kernel(lambda: BatchKernel(3, drop_remainder=False), "batch"), *below)
    with running(*chain) as engine:
        sizes: list[int] = []
        with pytest.raises(FunctionError):
            sizes.extend(item.chunk.num_rows for item in items_of(engine))
    assert sizes == [3, 3]


@pytest.mark.parametrize("below", [(), (function(),)])
@pytest.mark.parametrize("cpus", [1, 4])
def test_a_satisfied_take_hides_a_later_error(cpus: int, below: tuple[StagePlan, ...]) -> None:
    chain = (source(20, yielding(5)), function(), kernel(lambda: TakeKernel(5), "take"), *below)
    assert values_from(*chain, cpu_budget=cpus) == [0, 1, 2, 3, 4]


def test_a_satisfied_take_stops_what_is_above_it_at_once() -> None:
    engine = stepper(source(1000), kernel(lambda: TakeKernel(2), "take"))
    assert engine.next_item() is not None
    (flying,) = hold(engine, "source", 1)
    engine.finish(flying)
    assert engine.next_item() is not None
    assert engine.begin() is None
    assert engine.next_item() is None


def test_what_is_done_from_the_start_reads_nothing() -> None:
    engine = stepper(source(1000), kernel(lambda: TakeKernel(0), "take"), function())
    assert engine.next_item() is None
    engine.close()
    assert [stage.calls for stage in engine.statistics().stages] == [0, 0, 0]


def test_without_order_an_error_comes_once_too() -> None:
    with running(source(40), function(failing_at(11)), deterministic=False, cpu_budget=3) as engine:
        values, error = drained(engine)
    assert len(values) == len(set(values)) < 40
    assert 11 not in values
    assert error.operator == "function"


def test_an_error_after_some_chunks_of_a_call_comes_after_them() -> None:
    def two_then_fail(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield chunk(10 * value_of(batch))
        yield chunk(10 * value_of(batch) + 1)
        if value_of(batch) == 2:
            raise FunctionError("after two")

    with running(source(5), reader(two_then_fail)) as engine:
        values, error = drained(engine)
    assert values == [0, 1, 10, 11, 20, 21]
    assert "after two" in str(error)


class BrokenTasks(SourceKernel):
    """Cannot say what its fourth task is."""

    def tasks(self, position: Position) -> Iterator[Task]:
        for index in range(3):
            yield Task(index, Origin(index))
        raise Fault("tasks")

    def read(self, task: Task) -> Iterator[Any]:
        return Source(range(3), once, 0, streams=False).read(task)


def test_a_source_that_fails_to_name_its_work_fails_in_order() -> None:
    head: Any = source(3).head
    broken = StagePlan(kind="parallel", head=replace(head, make=lambda context: BrokenTasks()))
    with running(broken, function()) as engine:
        values, error = drained(engine)
    assert values == [0, 1, 2]
    assert error.operator == "source"
    assert isinstance(error.__cause__, Fault)


def test_a_reader_that_cannot_estimate_is_an_error_and_no_hang() -> None:
    class Unsized(Reader):
        def num_bytes(self, payload: Any) -> int:
            raise Fault

    head: Any = reader(lambda batch: iter([batch])).head
    made = replace(head, make=lambda context: Unsized(lambda batch: iter([batch]), 8))
    with running(source(3), StagePlan(kind="parallel", head=made)) as engine:
        _, error = drained(engine)
    assert isinstance(error.__cause__, Fault)


def test_a_failure_of_the_executor_itself_is_told_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(stage: ParallelQueue, call: object) -> None:
        raise Fault("a bug")

    monkeypatch.setattr(ParallelQueue, "complete", broken)
    with running(source(3)) as engine, pytest.raises(ArrowflowError, match="executor failed: Fault: a bug"):
        engine.next_item()


def test_calls_in_flight_behind_an_error_are_dropped() -> None:
    engine = stepper(source(6), function(failing_at(0), max_calls=4, cost="waits"), ram_budget=1 << 20)
    calls = hold(engine, "function", 4)
    for call in calls:
        engine.finish(call)
    del call, calls
    with pytest.raises(FunctionError):
        engine.next_item()
    engine.close()
    assert engine.statistics().ledger_bytes == 0


def test_an_error_does_not_keep_the_run_alive_in_a_cycle() -> None:
    engine = start(source(6), function(failing_at(2)))
    stage = weakref.ref(engine.root_out)
    gc.collect()
    gc.disable()
    try:
        caught: list[weakref.ref[FunctionError]] = []
        try:
            values_of(engine)
        except FunctionError as error:
            caught.append(weakref.ref(error))
        engine.close()
        assert caught[0]() is None
        assert engine.root_out.error is None
    finally:
        gc.enable()
    del engine
    gc.collect()
    assert stage() is None


def test_the_traceback_leads_to_the_users_line() -> None:
    with running(source(6), function(failing_at(2))) as engine:
        _, error = drained(engine)
    text = "".join(traceback.format_exception(error))
    assert 'raise error or FunctionError("it failed") from Fault(str(bad))' in text
    assert "executor/stages/base.py" not in text


def test_close_while_held_back_rows_wait_gives_no_short_batch() -> None:
    gate = Gate()

    def hold_the_fifth(value: int) -> Iterator[pa.RecordBatch]:
        if value == 4:
            gate.pass_through()
        yield chunk(value)

    class Stopping(BatchKernel):
        def push(self, item: Item) -> Iterator[Item]:
            yield from super().push(item)
            if value_of(item.chunk) == 3:
                engine.stop()

    chain = (source(20, hold_the_fifth), kernel(lambda: Stopping(3, drop_remainder=False), "batch"))
    engine = start(*chain)
    sizes: list[int] = []
    with pytest.raises(ClosedError):
        sizes.extend(item.chunk.num_rows for item in items_of(engine))
    assert sizes == [3]
    gate.open()
    engine.close()


def test_a_kernel_may_fail_in_any_of_several_fused_functions() -> None:
    class Fail(StatelessKernel):
        def apply(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
            raise Fault

    first, second = function(name="first").kernels[0], function(name="second").kernels[0]
    fused = StagePlan(kind="parallel", kernels=(first, replace(second, make=lambda context: Fail())))
    with running(source(2), fused) as engine:
        _, error = drained(engine)
    assert error.operator == "second"
