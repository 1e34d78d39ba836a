"""Rule 3: one value says whether a stage can start a call, and why not; looking changes nothing."""

from __future__ import annotations

import copy
import dataclasses

import pytest

from arrowflow.executor.limits import FIRST_CALL_BYTES
from arrowflow.executor.stages.base import (
    BLOCKED,
    DONE,
    Blocked,
    Done,
    Queue,
    Ready,
    Waits,
)
from arrowflow.kernels.items import Item
from arrowflow.physical.stage import Chain, StagePlan
from arrowflow.physical.tuning import Gate, Refusals
from tests.executor.fakes import (
    Concatenate,
    Stepper,
    boundary,
    chunk,
    function,
    hold,
    serial,
    source,
    stages_of,
    stepper,
    values_of,
)


def found(engine: Stepper) -> list[Queue]:
    """Returns the stages of a run, the source first."""
    return stages_of(engine)[::-1]


def test_a_stage_with_input_is_ready_and_the_one_after_it_waits() -> None:
    engine = stepper(source(10), function(), serial(buffer_items=2))
    first, second, third = found(engine)
    look = first.look()
    assert isinstance(look, Ready) and look.stage is first and look.call is None
    assert second.look() == Waits(first)
    assert third.look() == Waits(second)


def test_a_serial_call_takes_the_input_that_is_there() -> None:
    engine = stepper(source(1), serial(buffer_items=2), serial(name="tail"))
    for _ in range(2):
        call = engine.begin()
        assert call is not None
        engine.finish(call)
    assert [len(stage.out) for stage in found(engine)] == [0, 1]


@pytest.mark.parametrize("num_bytes", [0, 1_000])
def test_a_call_in_a_worker_process_takes_a_copy_of_its_input(num_bytes: int) -> None:
    (spec,) = function().kernels
    process = StagePlan(kind="parallel", kernels=(dataclasses.replace(spec, process=True),))
    engine = stepper(source(1, lambda value: iter([chunk(value, num_bytes)])), process)
    (call,) = hold(engine, "function", 1)
    assert call[0].reserved_bytes == (num_bytes or FIRST_CALL_BYTES)


def test_as_many_calls_as_may_be() -> None:
    engine = stepper(source(10), function(max_calls=2), cpu_budget=4)
    calls = hold(engine, "function", 2)
    engine.settle()
    assert calls[0][0].look() == BLOCKED[Gate.CALLS]
    for call in calls:
        engine.finish(call)
    assert values_of(engine) == list(range(10))


def test_a_call_that_computes_needs_a_core() -> None:
    for cost in ("computes", "waits"):
        engine = stepper(source(10, cost=cost))
        (first,) = found(engine)
        assert (first.look(0.0) == BLOCKED[Gate.TOKEN]) == (cost == "computes")
        assert isinstance(first.look(1.0), Ready)
        engine.close()


def test_finished_chunks_that_nobody_takes() -> None:
    engine = stepper(source(10, buffer_items=3), serial(buffer_items=2))
    engine.settle()
    assert [stage.look() for stage in found(engine)] == [BLOCKED[Gate.CHUNKS], BLOCKED[Gate.CHUNKS]]
    assert all(stage.refusals.chunks for stage in found(engine))
    assert values_of(engine) == list(range(10))


def test_a_full_ledger_says_at_how_many_bytes_to_look_again() -> None:
    engine = stepper(source(10, task_bytes=100), function(), ram_budget=1000)
    (first, _) = found(engine)
    first.out.append(Item(None, None, None, None))  # type: ignore[arg-type]  # so it is not the head of its line
    engine.ledger.reserve(950)
    assert first.look() == Blocked(Gate.BYTES, first.limits.ledger_share * 1000 - 100)
    engine.ledger.unreserve(950)
    assert isinstance(first.look(), Ready)


def test_the_head_goes_beyond_the_budget_only_where_all_that_follows_waits_for_it() -> None:
    engine = stepper(source(10, task_bytes=100), function(), ram_budget=50)
    first, second = found(engine)
    assert second.look() == Waits(first)
    assert isinstance(first.look(), Ready), "nothing else is beyond the budget"
    engine.ledger.reserve(60)
    assert isinstance(first.look(), Blocked)
    assert engine.begin(waited_for=True) is not None


def test_the_end_of_a_stage() -> None:
    engine = stepper(source(1), function(), serial(buffer_items=2))
    call = engine.begin()
    assert call is not None
    first, second, _ = found(engine)
    assert first.look() == DONE, "its only call is in flight"
    engine.finish(call)
    engine.settle()
    assert [stage.ended for stage in (first, second)] == [True, True]
    assert values_of(engine) == [0]


def test_a_boundary_waits_for_the_input_that_it_wants() -> None:
    chains = [Chain(stages=(source(3),)) for _ in range(2)]
    engine = stepper(boundary(lambda context: Concatenate(context, 2)), children=chains)
    (mixed,) = found(engine)
    assert isinstance(mixed.look(), Ready), "it may have something before any input"
    call = engine.begin()
    assert call is not None
    engine.finish(call)
    assert mixed.look() == Waits(None), "it has to turn to an input"
    call = engine.begin()
    assert call is not None
    assert mixed.look() == Waits(call[0])
    engine.finish(call)
    assert isinstance(mixed.look(), Ready)
    assert values_of(engine) == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("taken", [0, 3, 7])
def test_looking_changes_nothing(taken: int) -> None:
    engine = stepper(source(10), function(max_calls=2), serial(buffer_items=2))
    for _ in range(taken):
        engine.next_item()
    stages = found(engine)
    before = [(stage.look(), copy.copy(stage.refused), stage.ended, len(stage.out)) for stage in stages]
    used = engine.ledger.used, engine.ledger.spared
    for stage in stages * 3:
        stage.look(0.0)
        stage.look()
    assert before == [
        (stage.look(), copy.copy(stage.refused), stage.ended, len(stage.out)) for stage in stages
    ]
    assert used == (engine.ledger.used, engine.ledger.spared)
    assert values_of(engine) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9][taken:]


def test_refusals_are_added_and_subtracted_by_gate() -> None:
    assert [gate.name.lower() for gate in Gate] == list(Refusals._fields)
    assert Refusals(calls=2).plus(Refusals(calls=1, token=1)) == Refusals(calls=3, token=1)
    assert Refusals(calls=2).plus(Refusals(calls=1, token=1), -1) == Refusals(calls=1, token=-1)
    assert Done(True) != DONE
