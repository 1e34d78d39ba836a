"""What lanes share: calls, finished chunks, and the work at a part."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.kernels.items import Item, Origin
from arrowflow.physical.planner import READY_BESIDE, default_limits
from arrowflow.physical.stage import Chain
from arrowflow.physical.tuning import MAX_WAITING_CALLS, StageLimits, untold_calls
from tests.executor.fakes import hold_all, stepper_of
from tests.ops.ranks.pipelines import of

BUDGET = 2


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def chain_of(plan: af.Dataset) -> Chain:
    return plan._ready().chain


def split(plan: af.Dataset, lanes: int) -> af.Dataset:
    split = plan.batch(160).split_by_rank(0, 1, lanes=lanes, how="parts")
    return split.with_options(af.Options(cpu_budget=BUDGET))


def limits_of(plan: af.Dataset) -> dict[str, StageLimits]:
    """Returns the limits of the parallel stages of a lane, by cost."""
    dataset = plan._ready()
    lane = dataset.chain.children[0]
    return {
        stage.cost: default_limits(lane, index, dataset.options)
        for index, stage in enumerate(lane.stages)
        if stage.kind == "parallel" and stage.phase != "open"
    }


@pytest.mark.parametrize("lanes", [1, 2, 4, 16])
def test_lanes_have_together_what_the_plan_has_without_them(path: Path, lanes: int) -> None:
    """Calls that wait above all: one of each lane leaves a store with a delay idle."""
    plan = af.read_parquet(f"memory://{_in_memory(path)}").map(same, keeps_rows=True)
    limits = limits_of(split(plan, lanes))
    calls = {cost: each.max_calls for cost, each in limits.items()}
    expected = {"waits": MAX_WAITING_CALLS, "computes": BUDGET, "unknown": untold_calls(BUDGET)}
    assert {"waits", "unknown"} <= calls.keys()
    for cost, number in calls.items():
        assert expected[cost] <= number * lanes < expected[cost] + lanes + BUDGET, cost
        ready = READY_BESIDE if lanes > 1 else 2 * BUDGET
        assert limits[cost].max_ready_items == -(-ready // lanes)


def _in_memory(path: Path) -> str:
    import fsspec

    files = fsspec.filesystem("memory")
    folder = f"/lanes-{path.name}"
    files.put(str(path), folder, recursive=True)
    return folder


@pytest.mark.parametrize("streams", [1, 4, 16])
def test_a_tuner_sets_limits_of_all_streams(streams: int) -> None:
    limits = StageLimits(streams=streams, max_calls=3, max_ready_items=2)
    assert limits.of_all().max_calls == 3 * streams
    limits.take(StageLimits(max_calls=20, max_ready_items=33, weight=0.5))
    assert (limits.max_calls, limits.max_ready_items) == (-(-20 // streams), -(-33 // streams))
    assert (limits.streams, limits.weight) == (streams, 0.5)
    again = limits.of_all()
    limits.take(again)
    assert limits.of_all() == again


@pytest.mark.parametrize("asked", [1, 3, 8])
@pytest.mark.parametrize("lanes", [1, 4])
def test_a_number_of_calls_holds_for_all_lanes_together(asked: int, lanes: int) -> None:
    """`num_parallel_calls=1` is for functions that must not be called twice at a time."""
    plan = af.range(16_000).map(same, num_parallel_calls=asked, keeps_rows=True)
    engine = stepper_of(split(plan, lanes).with_options(af.Options(max_chunk_rows=100, cpu_budget=16)))
    held = hold_all(engine, "map")
    assert len(held) == asked
    for running in held:  # a call that ends makes room for one more, of whichever lane
        engine.finish(running)
        assert len(hold_all(engine, "map")) == 1
    engine.close()


class Streams:
    """Opens streams, and is their number."""

    def open(self, child: int, epoch: int, position: Any) -> int:
        return child


@pytest.mark.parametrize("shuffled", [False, True])
def test_lanes_are_pulled_from_in_turn(path: Path, shuffled: bool) -> None:
    """Else all wait for the first one, which has one call in flight."""
    plan = of(path).shuffle(1_600, seed=1) if shuffled else of(path)
    (spec,) = chain_of(split(plan, 4)).stages[0].specs
    assert spec.make is not None
    kernel: Any = spec.make(cast(Any, Streams()))
    kernel.open(None, 0)
    chunk = pa.record_batch({"id": pa.array(range(3), pa.int64())})
    pulled = []
    for number in itertools.islice(itertools.count(), 40):
        pulled.append(lane := kernel.next_input())
        list(kernel.push_from(lane, Item(chunk, None, None, Origin(number))))
    assert pulled == [0, 1, 2, 3] * 10
