"""What the engine measured adds up, during a run and after it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.executor import Engine
from arrowflow.ops.rows.repeat import RepeatKernel
from arrowflow.ops.rows.take import TakeKernel
from arrowflow.physical.stage import Chain
from arrowflow.physical.tuning import StageStatistics
from tests.executor.fakes import (
    boundary,
    chunk,
    clock_of,
    function,
    kernel,
    number,
    running,
    serial,
    source,
    start,
    stepper,
    value_of,
    values_of,
)


def by_operator(engine: Engine) -> dict[str, StageStatistics]:
    return {stage.operators[0]: stage for stage in engine.statistics().stages}


@pytest.mark.parametrize("closed", [False, True])
def test_rows_chunks_calls_and_bytes_of_each_stage(closed: bool) -> None:
    def three_rows(value: int) -> Iterator[pa.RecordBatch]:
        yield chunk(value, 24)

    with running(
        source(10, three_rows), function(lambda batch: number(batch, value_of(batch))), serial(name="tail")
    ) as engine:
        values_of(engine)
        if closed:
            engine.close()
        found = by_operator(engine)
        assert list(found) == ["tail", "function", "source"]
        assert [(stage.rows, stage.chunks) for stage in found.values()] == [(30, 10)] * 3
        assert [stage.calls for stage in found.values()] == [0, 10, 10]
        assert [stage.bytes for stage in found.values()] == [0, 240, 240]
        assert [stage.running for stage in found.values()] == [0, 0, 0]
        assert [stage.ready_items for stage in found.values()] == [0, 0, 0]


def test_the_seconds_of_a_call_are_those_of_the_clock() -> None:
    def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
        clock_of(engine).advance(2.0)
        return batch

    with running(source(5), function(slow), cpu_budget=1) as engine:
        values_of(engine)
    found = by_operator(engine)
    assert found["function"].busy_seconds == found["function"].cpu_seconds == 10.0
    assert found["source"].busy_seconds == 0.0


def test_what_waits_is_counted() -> None:
    engine = stepper(source(100), function(buffer_items=4))
    engine.settle()
    stage = by_operator(engine)["function"]
    assert stage.ready_items == stage.max_ready_items == engine.root_out.limits.max_ready_items
    flying = [engine.next_item(), engine.begin()]
    assert by_operator(engine)["function"].running == 1
    del flying
    engine.close()
    assert by_operator(engine)["function"].ready_items == 0
    assert by_operator(engine)["function"].max_ready_items == stage.max_ready_items


@pytest.mark.parametrize("closed", [False, True])
def test_epochs_add_up_to_one_stage(closed: bool) -> None:
    repeat = boundary(lambda context: RepeatKernel(4, context), "repeat")
    with running(repeat, function(), children=[Chain(stages=(source(5), serial(name="inner")))]) as engine:
        values_of(engine)
        if closed:
            engine.close()
        found = by_operator(engine)
        assert list(found) == ["function", "repeat", "inner", "source"]
        assert [stage.rows for stage in found.values()] == [20] * 4
        assert found["source"].calls == 20


def test_a_stage_that_ended_early_keeps_its_numbers() -> None:
    with running(source(1000), function(), kernel(lambda: TakeKernel(3), "take")) as engine:
        assert len(values_of(engine)) == 3
    found = by_operator(engine)
    assert found["take"].rows == 3
    assert 3 <= found["function"].rows <= found["source"].rows < 1000


def test_a_run_that_never_began_has_nothing_to_tell() -> None:
    engine = start(source(), function())
    engine.close()
    statistics = engine.statistics()
    assert (statistics.workers, statistics.ledger_bytes, statistics.ledger_peak_bytes) == (0, 0, 0)
    assert [stage.calls for stage in statistics.stages] == [0, 0]


def test_workers_are_those_that_were_started() -> None:
    with running(source(), function()) as engine:
        values_of(engine)
        before = engine.statistics().workers
    assert engine.statistics().workers == before > 0


def test_statistics_of_an_iterator_add_up_and_outlive_it() -> None:
    loader = af.range(1000).batch(100).to_numpy()
    rows = sum(len(batch["id"]) for batch in loader)
    statistics = loader.stats()
    assert (statistics.rows, statistics.batches) == (rows, 10)
    assert statistics.stages[0].rows == rows
    assert statistics.ledger_bytes == 0
    for _ in loader:
        break
    statistics = loader.stats()
    assert (statistics.rows, statistics.batches) == (100, 1)
    assert statistics.stages[-1].rows == 1000
    assert statistics.waited_seconds >= statistics.first_batch_seconds > 0
