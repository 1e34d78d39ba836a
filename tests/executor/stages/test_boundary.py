"""Boundaries: streams that are opened, opened ahead, ended and dropped in the same executor."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from arrowflow.errors import FunctionError
from arrowflow.executor.stages.boundary import BoundaryQueue
from arrowflow.kernels.context import Context, StreamHandle
from arrowflow.kernels.items import Item
from arrowflow.ops.batches.batch import BatchKernel
from arrowflow.ops.rows.repeat import RepeatKernel
from arrowflow.ops.rows.take import TakeKernel
from arrowflow.physical.stage import Chain, StagePlan
from arrowflow.plan.position import Position
from tests.executor.fakes import (
    Concatenate,
    Stepper,
    boundary,
    chunk,
    drained,
    function,
    hold,
    hold_all,
    items_of,
    kernel,
    running,
    serial,
    source,
    stages_of,
    stepper,
    value_of,
    values_from,
    values_of,
)


def repeat(count: int | None) -> StagePlan:
    return boundary(lambda context: RepeatKernel(count, context), "repeat")


def inputs(*chains: tuple[StagePlan, ...]) -> list[Chain]:
    return [Chain(stages=stages) for stages in chains]


def concatenate(count: int) -> StagePlan:
    return boundary(lambda context: Concatenate(context, count), "concatenate")


def swallow(item: Item) -> Iterator[Item]:
    return iter(())


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("epochs", [0, 1, 2, 7])
def test_epochs_follow_each_other(epochs: int, deterministic: bool) -> None:
    chains = inputs((source(5), function()))
    found = values_from(repeat(epochs), serial(), children=chains, deterministic=deterministic)
    expected = list(range(5)) * epochs
    assert found == expected if deterministic else sorted(found) == sorted(expected)


def streams_of(engine: Stepper) -> int:
    """Returns how many streams the boundary of a run has open."""
    (found,) = (stage for stage in stages_of(engine) if isinstance(stage, BoundaryQueue))
    return len(found.streams)


@pytest.mark.parametrize(("max_calls", "calls"), [(None, 2), (1, 1), (2, 2)])
def test_the_next_epoch_starts_beside_the_last_call_of_this_one(max_calls: int | None, calls: int) -> None:
    """A number of calls that was asked for holds for both together."""
    engine = stepper(repeat(3), children=inputs((source(1), function(max_calls=max_calls))))
    held = hold_all(engine, "function")
    assert len(held) == calls
    assert streams_of(engine) == 2
    for call in held:
        engine.finish(call)
    assert values_of(engine) == [0] * 3


@pytest.mark.parametrize(("after", "streams"), [((), 2), ((serial(),), 1)], ids=["computes", "collects"])
def test_the_next_epoch_waits_beside_the_one_that_still_computes(
    after: tuple[StagePlan, ...], streams: int
) -> None:
    chain = (source(4, cost="waits"), function(), *after)
    engine = stepper(repeat(3), children=inputs(chain), cpu_budget=1)
    (call,) = hold(engine, "function", 1)
    engine.settle()
    engine.finish(call)
    (call,) = hold(engine, "function", 1)
    assert streams_of(engine) == streams, "two calls of the first epoch have not begun"
    engine.finish(call)
    assert values_of(engine) == list(range(4)) * 3


def test_only_one_epoch_is_opened_ahead() -> None:
    engine = stepper(repeat(None), children=inputs((source(1),)))
    stage = engine.root_out
    assert isinstance(stage, BoundaryQueue)
    most = 0
    for _ in range(50):
        engine.next_item()
        engine.settle()
        most = max(most, len(stage.streams))
    assert most <= 2
    engine.close()
    assert not stage.streams
    assert engine.statistics().ledger_bytes == 0


def test_an_endless_repeat_is_closed_like_any_other() -> None:
    with running(repeat(None), serial(), children=inputs((source(3), function()))) as engine:
        for _ in range(100):
            engine.next_item()
        engine.close()
        assert engine.statistics().ledger_bytes == 0


@pytest.mark.parametrize(
    "chain", [(source(0),), (source(3), function(lambda batch: batch.slice(0, 0)))], ids=["chunks", "rows"]
)
def test_an_endless_repeat_of_nothing_ends(chain: tuple[StagePlan, ...]) -> None:
    assert values_from(repeat(None), children=inputs(chain)) == []


@pytest.mark.parametrize("below", [(), (function(),)])
def test_a_take_below_ends_an_endless_repeat(below: tuple[StagePlan, ...]) -> None:
    take = kernel(lambda: TakeKernel(7), "take")
    assert values_from(repeat(None), take, *below, children=inputs((source(3),))) == [0, 1, 2, 0, 1, 2, 0]


def test_repeats_of_repeats() -> None:
    inner = Chain(stages=(repeat(3), function()), children=tuple(inputs((source(2), serial()))))
    assert values_from(repeat(2), serial(), children=[inner]) == [0, 1] * 6


def test_batches_go_across_epochs() -> None:
    batch = kernel(lambda: BatchKernel(4, drop_remainder=False), "batch")
    with running(repeat(3), batch, function(), children=inputs((source(3),))) as engine:
        assert [item.chunk.column(0).to_pylist() for item in items_of(engine)] == [
            [0, 1, 2, 0],
            [1, 2, 0, 1],
            [2],
        ]


def test_a_resumed_repeat_goes_on_in_its_epoch() -> None:
    with running(repeat(3), children=inputs((source(4),))) as engine:
        items = list(items_of(engine))
    for index, item in enumerate(items):
        rest = values_from(repeat(3), children=inputs((source(4),)), position=item.position)
        assert rest == [value_of(later.chunk) for later in items[index + 1 :]]


@pytest.mark.parametrize("below", [(), (serial(swallow), function())])
def test_a_stream_that_is_opened_without_notice_is_worked_on(below: tuple[StagePlan, ...]) -> None:
    """The end of one stream is noticed and the next one opened in one look over the stages."""
    chains = inputs(*[(source(2),)] * 30)
    engine = stepper(concatenate(30), *below, children=chains)
    expected = [] if below else [0, 1] * 30
    assert values_of(engine) == expected
    assert values_from(concatenate(30), *below, children=chains, cpu_budget=3) == expected


def test_streams_of_different_inputs_run_in_one_ledger() -> None:
    chains = inputs((source(3),), (source(2), function()), (source([]),), (source([9]),))
    with running(concatenate(4), serial(), children=chains) as engine:
        assert values_of(engine) == [0, 1, 2, 0, 1, 9]
        engine.close()
        assert engine.statistics().ledger_bytes == 0


def failing(value: int) -> Iterator[pa.RecordBatch]:
    if value == 2:
        raise FunctionError("in a stream")
    yield chunk(value)


def test_an_error_in_a_stream_comes_in_order() -> None:
    with running(concatenate(2), children=inputs((source(5, failing),), (source(5),))) as engine:
        found, error = drained(engine)
    assert found == [0, 1]
    assert isinstance(error, FunctionError) and error.operator == "source"


def test_an_error_in_an_epoch_that_was_opened_ahead_is_hidden_by_a_take() -> None:
    chains = inputs((source(3),), (source([2], failing),))
    take = kernel(lambda: TakeKernel(3), "take")
    assert values_of(stepper(concatenate(2), take, function(), children=chains)) == [0, 1, 2]


class Broken(Concatenate):
    """Cannot open its second input."""

    def next_input(self) -> StreamHandle | None:
        if self.index == 1:
            raise ValueError("no second input")
        return super().next_input()


def test_a_boundary_that_fails_to_open_fails_in_order() -> None:
    broken = boundary(lambda context: Broken(context, 2), "broken")
    with running(broken, function(), children=inputs((source(3),), (source(3),))) as engine:
        found, error = drained(engine)
    assert found == [0, 1, 2]
    assert error.operator == "broken" and isinstance(error.__cause__, ValueError)


class RoundRobin(Concatenate):
    """One item of each input in turn; an input that has ended is left out. Closes them all after `limit` items."""

    reads_runs = False

    def __init__(self, context: Context, inputs: int, limit: int) -> None:
        super().__init__(context, inputs)
        self.limit = limit
        self.open_streams: list[StreamHandle] | None = None
        self.turn = 0

    def next_input(self) -> StreamHandle | None:
        if self.open_streams is None:
            self.open_streams = [self.context.open(child, 0, None) for child in range(self.inputs)]
        if self.limit <= 0:
            for stream in self.open_streams:
                self.context.close(stream)
            self.open_streams = []
        return self.open_streams[self.turn % len(self.open_streams)] if self.open_streams else None

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        self.turn += 1
        self.limit -= 1
        yield item

    def ended(self, stream: StreamHandle) -> None:
        assert self.open_streams is not None
        self.open_streams.remove(stream)

    def open(self, position: Position, epoch: int) -> Position:
        return None


@pytest.mark.parametrize("budget", [1, 1 << 20])
def test_a_boundary_pulls_from_whichever_stream_it_wants(budget: int) -> None:
    turns = boundary(lambda context: RoundRobin(context, 3, 100), "turns")
    chains = inputs((source([1, 2, 3]),), (source([10, 20]), function()), (source([100]),))
    assert values_from(turns, function(), children=chains, ram_budget=budget) == [1, 10, 100, 2, 20, 3]


def test_a_boundary_may_close_streams_before_their_end() -> None:
    turns = boundary(lambda context: RoundRobin(context, 2, 5), "turns")
    engine: Stepper = stepper(turns, children=inputs((source(range(100)),), (source(range(100, 200)),)))
    assert values_of(engine) == [0, 100, 1, 101, 2]
    assert engine.statistics().ledger_bytes == 0


class Patient(RoundRobin):
    """Goes on with the others where one has failed, and asks that one again in the end."""

    broken: StreamHandle | None = None

    def next_input(self) -> StreamHandle | None:
        return super().next_input() or self.broken

    def failed(self, stream: StreamHandle) -> Iterator[Item]:
        self.broken = stream
        self.ended(stream)
        return iter(())


def test_a_boundary_may_put_an_error_off() -> None:
    turns = boundary(lambda context: Patient(context, 2, 100), "turns")
    chains = inputs((source(5, failing),), (source([10, 20, 30]),))
    with running(turns, function(), children=chains) as engine:
        found, error = drained(engine)
    assert found == [0, 10, 1, 20, 30]
    assert isinstance(error, FunctionError) and error.operator == "source"
