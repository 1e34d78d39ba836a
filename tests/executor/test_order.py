"""Rules 1, 2 and 4: the order of items, who runs what first, and on which thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest

from arrowflow.executor.stages.base import BLOCKED
from arrowflow.executor.stages.parallel import ParallelQueue
from arrowflow.kernels.items import Item
from arrowflow.physical import tuning
from arrowflow.physical.tuning import MAX_REORDER_SLOTS, MAX_TURN_CHUNKS, MAX_WAITING_SLOTS
from arrowflow.testing import Gate, Sequencer
from tests.executor.fakes import (
    Running,
    Stepper,
    chunk,
    function,
    hold,
    items_of,
    number,
    reader,
    running,
    same,
    serial,
    source,
    stepper,
    value_of,
    values_from,
    values_of,
)


@pytest.mark.parametrize("ranks", [(3, 2, 1, 0), (1, 2, 3, 0), (3, 0, 1, 2), (2, 0, 3, 1)])
def test_order_is_kept_whatever_finishes_first(ranks: tuple[int, ...]) -> None:
    sequencer = Sequencer()

    def wait_for_turn(batch: pa.RecordBatch) -> pa.RecordBatch:
        with sequencer(ranks[value_of(batch)]):
            return batch

    assert values_from(source(4), function(wait_for_turn, max_calls=4, cost="waits")) == [0, 1, 2, 3]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_without_order_items_come_as_they_finish(order: list[int]) -> None:
    engine = stepper(source(3), function(max_calls=3, cost="waits"), deterministic=False)
    calls = hold(engine, "function", 3)
    for value in order:
        engine.finish(calls[value])
    assert values_of(engine) == order


def test_positions_and_origins_travel_with_the_chunks() -> None:
    with running(source(5), function(lambda batch: number(batch, -1)), serial()) as engine:
        found = [(item.position, item.origin.split) for item in items_of(engine)]
    assert found == [((i + 1,), i) for i in range(5)]


def test_chunks_without_rows_travel_but_do_not_arrive() -> None:
    seen: list[int] = []

    def odd(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if value_of(batch) % 2 else batch.slice(0, 0)

    def note(item: Item) -> Iterator[Item]:
        seen.append(item.chunk.num_rows)
        yield item

    assert values_from(source(6), function(odd), serial(note), function()) == [1, 3, 5]
    assert seen == [0, 1] * 3


def test_kernels_are_not_called_for_chunks_without_rows() -> None:
    called: list[int] = []

    def count(batch: pa.RecordBatch) -> pa.RecordBatch:
        called.append(batch.num_rows)
        return batch

    assert values_from(source(6), function(lambda batch: batch.slice(0, 0)), function(count)) == []
    assert called == []


def test_the_most_downstream_call_runs_first() -> None:
    log: list[str] = []

    def logged(name: str) -> Iterator[pa.RecordBatch]:
        log.append(name)
        yield chunk(0)

    def note(batch: pa.RecordBatch) -> pa.RecordBatch:
        log.append("map")
        return batch

    with running(source(20, lambda value: logged("read")), function(note), cpu_budget=1) as engine:
        for _ in range(4):
            engine.next_item()
        assert log[:8] == ["read", "map"] * 4


def test_a_free_worker_takes_the_most_downstream_stage_of_three() -> None:
    engine = stepper(source(20), function(name="upper"), function(name="lower"), cpu_budget=4)
    names = []
    for _ in range(6):
        call = engine.begin()
        assert call is not None
        names.append(call[0].plan.operators[0])
        engine.finish(call)
    assert names == ["source", "upper", "lower"] * 2


@pytest.mark.parametrize(("cost", "slots"), [("computes", MAX_REORDER_SLOTS), ("waits", MAX_WAITING_SLOTS)])
def test_a_straggler_holds_back_so_many_calls_and_no_worker(cost: str, slots: int) -> None:
    engine = stepper(source(150), function(max_calls=2, cost=cost), ram_budget=1 << 30, cpu_budget=4)
    (straggler,) = hold(engine, "function", 1)
    stage = straggler[0]
    assert stage.limits.max_slots == slots
    stage.limits.max_slots = 64
    engine.settle()
    assert stage.calls == 63
    assert not stage.out
    engine.finish(straggler)
    assert len(stage.out) == 64
    assert values_of(engine) == list(range(150))


def test_a_straggler_does_not_stop_the_calls_behind_it() -> None:
    gate, behind = Gate(), Gate()
    behind.open()

    def hold_first(batch: pa.RecordBatch) -> pa.RecordBatch:
        (behind if value_of(batch) else gate).pass_through()
        return batch

    with running(source(200), function(hold_first, max_calls=2, cost="waits")) as engine:
        found: list[int] = []
        first = threading.Thread(target=lambda: found.extend(values_of(engine)))
        first.start()
        behind.wait_for(MAX_REORDER_SLOTS - 1)
        assert found == []
        gate.open()
        first.join()
        assert found == list(range(200))


def held_back(chunks: int, inputs: int, **plan: Any) -> tuple[Stepper, Running, ParallelQueue]:
    """Returns a run whose calls make so many chunks each, and whose first call takes long."""
    many = reader(lambda batch: (chunk(value_of(batch)) for _ in range(chunks)), **plan)
    engine = stepper(source(inputs), many, cpu_budget=4)
    (straggler,) = hold(engine, "reader", 1)
    return engine, straggler, cast(ParallelQueue, straggler[0])


def test_a_call_of_many_chunks_behind_a_straggler_is_held_back_too() -> None:
    engine, straggler, stage = held_back(200, inputs=3, max_calls=3)
    assert stage.limits.max_turn_chunks == MAX_TURN_CHUNKS
    stage.limits.max_turn_chunks = 100
    engine.settle()
    assert stage.look() == BLOCKED[tuning.Gate.TURN]
    assert 100 <= sum(len(slot.results) for slot in stage.slots) <= 102
    engine.finish(straggler)
    assert values_of(engine) == [value for value in range(3) for _ in range(200)]


def test_workers_go_on_behind_a_straggler_whose_neighbours_make_many_chunks() -> None:
    """Chunks that wait for their turn are none that the next stage could take: `explain` names the slow call."""
    engine, straggler, stage = held_back(8, inputs=30)
    stage.limits.max_slots, stage.limits.max_turn_chunks = 12, 128
    engine.settle()
    assert len(stage.slots) == 12
    assert stage.turn_chunks == 11 * 8 > stage.limits.max_ready_items
    assert stage.look() == BLOCKED[tuning.Gate.SLOTS] and not stage.out
    assert stage.refusals.slots and not (stage.refusals.turn or stage.refusals.chunks)
    stage.limits.max_slots = 20
    engine.settle()
    assert len(stage.slots) == 128 // 8 + 1
    assert stage.look() == BLOCKED[tuning.Gate.TURN]
    engine.finish(straggler)
    assert values_of(engine) == [value for value in range(30) for _ in range(8)]


@pytest.mark.parametrize("deterministic", [True, False])
def test_calls_of_many_chunks_are_delivered_in_order_or_without_one(deterministic: bool) -> None:
    def many(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for part in range(value_of(batch) % 4):
            yield chunk(10 * value_of(batch) + part)

    chain = (source(40), reader(many), function(lambda batch: number(batch, value_of(batch))), serial())
    found = values_from(*chain, deterministic=deterministic, cpu_budget=3)
    assert (found if deterministic else sorted(found)) == [
        10 * i + n for i in range(40) for n in range(i % 4)
    ]


def test_only_the_last_serial_kernel_runs_on_the_consumer_and_only_without_a_buffer() -> None:
    threads: dict[str, set[str]] = {}

    def note(name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        threads.setdefault(name, set()).add(threading.current_thread().name)
        return batch

    def noting(name: str, item: Item) -> Iterator[Item]:
        note(name, item.chunk)
        yield item

    values_from(
        source(5, lambda value: iter([note("source", chunk(value))])),
        serial(lambda item: noting("middle", item)),
        function(lambda batch: note("function", batch)),
        serial(lambda item: noting("last", item)),
        autotune=False,
    )
    values_from(source(5), serial(lambda item: noting("buffered", item), buffer_items=2), autotune=False)
    here = threading.current_thread().name
    assert threads.pop("last") == {here}
    assert all(name.startswith("arrowflow-") for names in threads.values() for name in names)
    assert set(threads) == {"source", "middle", "function", "buffered"}


def test_serial_kernels_see_items_in_order_one_call_at_a_time() -> None:
    busy = threading.Lock()
    seen: list[int] = []

    def alone(item: Item) -> Iterator[Item]:
        assert busy.acquire(blocking=False)
        seen.append(value_of(item.chunk))
        yield item
        busy.release()

    stages = source(300), serial(alone), function(), serial(same, name="tail")
    assert values_from(*stages, cpu_budget=4) == list(range(300))
    assert seen == list(range(300))


def test_what_a_serial_kernel_ends_with_comes_last() -> None:
    held: list[Item] = []

    def keep(item: Item) -> Iterator[Item]:
        held.append(item)
        return iter(())

    for last in ((), (function(),)):
        held.clear()
        assert values_from(source(5), serial(keep, lambda: reversed(held)), *last) == [4, 3, 2, 1, 0]
