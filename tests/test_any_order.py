"""`deterministic=False`: a state goes on with every row that did not come yet, whatever came before it, and in which order.

Each plan is stopped and gone on with until it ends, several times in one epoch; no row may be lost, and none come twice.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.executor.stages.arrivals import Arrivals
from arrowflow.executor.stages.caller import Slot
from arrowflow.kernels.items import Item, Origin
from arrowflow.plan.position import Arrived, listed, tupled
from arrowflow.testing.chunks import chunked
from tests.effort import scaled
from tests.executor.fakes import (
    Running,
    Stepper,
    function,
    hold,
    items_of,
    serial,
    source,
    stepper,
    stepper_of,
    value_of,
    values_of,
)
from tests.ops.tables import refused

pytestmark = pytest.mark.any_version

ROWS = 900
OPTIONS = af.Options(deterministic=False, cpu_budget=3, max_chunk_rows=25)
ROUNDS = scaled(12)


class Uneven:
    """Passes batches on, and lets every third call wait until another one has come."""

    def __init__(self) -> None:
        self.calls, self.came = 0, threading.Event()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.calls += 1
        if self.calls % 3 == 0:
            self.came.clear()
            self.came.wait(0.002)
        self.came.set()
        return batch


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def thirds(arrays: dict[str, Any]) -> Any:
    return arrays["id"] % 3 > 0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    af.range(ROWS).write_parquet(folder, shard_rows=70)
    return folder


def rows_in_memory() -> af.Dataset:
    return af.range(ROWS).with_options(OPTIONS)


def rows_in_files(folder: Path) -> af.Dataset:
    return af.read_parquet(folder).with_options(OPTIONS)


PLANS: dict[str, Callable[[Path], af.Dataset]] = {
    "source": rows_in_files,
    "map": lambda folder: rows_in_files(folder).map(Uneven()),
    "map, batch": lambda folder: rows_in_files(folder).map(Uneven()).batch(32),
    "filter, batch": lambda folder: rows_in_files(folder).filter(thirds, format="numpy").batch(32),
    "shuffle": lambda folder: rows_in_files(folder).map(Uneven()).shuffle(100, seed=1).batch(32),
    "map on both sides": lambda folder: (
        rows_in_memory().map(Uneven()).shuffle(100, seed=1).map(Uneven(), num_parallel_calls=4).batch(32)
    ),
    "after batch": lambda folder: rows_in_files(folder).shuffle(60, seed=2).batch(32).map(Uneven()),
    "all rows": lambda _: rows_in_memory().shuffle(seed=3).map(Uneven()).batch(32),
    "generator": lambda _: (
        af.from_generator(lambda: ({"id": row} for row in range(ROWS))).with_options(OPTIONS).map(Uneven())
    ),
    "cache": lambda folder: rows_in_files(folder).map(Uneven()).cache().map(Uneven()).batch(32),
    "unique": lambda folder: rows_in_files(folder).unique(["id"]).map(Uneven()).batch(32),
    "zip": lambda folder: (
        af.zip(rows_in_files(folder).map(Uneven()), af.range(ROWS).rename({"id": "other"}))
        .map(Uneven())
        .batch(32)
    ),
    "take": lambda folder: rows_in_files(folder).take(500).map(Uneven()).batch(32),
}


def ids(batch: pa.RecordBatch) -> list[int]:
    return list(batch["id"].to_pylist())


def in_parts(ds: af.Dataset, rng: random.Random) -> list[int]:
    """Returns the rows of an epoch that is stopped after a few batches, and gone on with, again and again."""
    rows: list[int] = []
    state: dict[str, Any] | None = None
    while True:
        with iter(ds) as iterator:
            if state is not None:
                iterator.load_state_dict(json.loads(json.dumps(state)))
            for _ in range(rng.randrange(12)):
                batch = next(iterator, None)
                if batch is None:
                    return rows
                rows += ids(batch)
            state = iterator.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_every_row_comes_once(name: str, files: Path) -> None:
    ds = PLANS[name](files)
    whole = sorted(row for batch in ds.with_options(af.Options(deterministic=True)) for row in ids(batch))
    for seed in range(ROUNDS):
        assert sorted(in_parts(ds, random.Random(seed))) == whole, seed


def test_one_repeat_in_another_makes_numbers_of_splits_of_any_length(files: Path) -> None:
    plan = af.read_parquet(files).repeat(2).repeat(2).repeat(2).map(lambda batch: batch)
    once = sorted(af.read_parquet(files).to_table()["id"].to_pylist())
    found = plan.with_options(af.Options(deterministic=False)).to_table()["id"].to_pylist()
    assert sorted(found) == sorted(8 * once)


def test_other_budgets_go_on(files: Path) -> None:
    ds = PLANS["shuffle"](files)
    with iter(ds) as iterator:
        rows = ids(next(iterator)) + ids(next(iterator))
        state = iterator.state_dict()
    other = af.Options(cpu_budget=1, ram_budget="1MiB")
    with iter(ds.with_options(other)) as iterator:
        iterator.load_state_dict(state)
        rows += [row for batch in iterator for row in ids(batch)]
    assert sorted(rows) == list(range(ROWS))


# ---------------------------------------------------------------------------------- one stage


def held(engine: Stepper) -> dict[int, Running]:
    """Returns the calls of the function by the values of their chunks."""
    calls = hold(engine, "function", 6)
    return {value_of(call.item.chunk): (stage, call, worker) for stage, call, worker in calls}


def test_what_came_comes_again_in_the_same_order_and_then_what_is_ready() -> None:
    engine = stepper(source(6), function(max_calls=6, cost="waits"), serial(), deterministic=False)
    calls = held(engine)
    for value in (4, 1, 5):
        engine.finish(calls[value])
    first = [engine.next_item() for _ in range(3)]
    found = [value_of(item.chunk) for item in first if item is not None]
    place = next(item for item in first if item is not None).position
    assert found == [4, 1, 5]
    state = tupled(json.loads(json.dumps(listed(place))))
    assert [split for split, _ in state.again] == [1, 5]

    again = stepper(
        source(6), function(max_calls=6, cost="waits"), serial(), deterministic=False, position=state
    )
    calls = held(again)
    for value in (5, 3, 2, 0, 4, 1):
        again.finish(calls[value])
    assert values_of(again)[:2] == [1, 5]


def made(split: int, rows: int, position: int) -> Item:
    return Item(pa.record_batch({"x": [split] * rows}), (position,), None, Origin(split))


def test_a_place_moves_on_when_the_first_call_is_over() -> None:
    arrivals = Arrivals(None)
    later = arrivals.put(1, arrivals.rest(1, made(1, 3, 2)) or made(1, 3, 2), ends=True).position
    assert listed(later) == {"before": None, "below": None, "came": [[1, 3]], "again": []}
    part = arrivals.put(0, arrivals.rest(0, made(0, 2, 1)) or made(0, 2, 1), ends=False).position
    assert listed(part) == {"before": None, "below": None, "came": [[1, 3], [0, 2]], "again": []}
    arrivals.end(0)
    assert listed(arrivals.place()) == {"before": [2], "below": None, "came": [], "again": []}
    assert listed(later) == {"before": None, "below": None, "came": [[1, 3]], "again": [[0, 2]]}


def test_the_place_where_a_stage_was_opened_tells_what_came_since() -> None:
    """A state may still be taken from it."""
    arrivals = Arrivals(Arrived((7,), [], []).position())
    arrivals.put(0, made(0, 3, 8), ends=False)
    assert listed(arrivals.start.position()) == {"before": [7], "below": None, "came": [], "again": [[0, 3]]}


def test_rows_that_came_are_dropped_and_the_rest_is_not() -> None:
    arrivals = Arrivals(Arrived((7,), [(0, 5)], []).position())
    assert arrivals.before == (7,) and arrivals.rest(0, made(0, 3, 8)) is None
    rest = arrivals.rest(0, made(0, 4, 9))
    assert rest is not None and rest.chunk.num_rows == 2
    assert listed(arrivals.put(0, rest, ends=True).position) == {
        "before": [9],
        "below": None,
        "came": [],
        "again": [],
    }


def test_rows_of_a_split_keep_their_order_though_chunks_of_a_cache_begin_within_it(tmp_path: Path) -> None:
    """Else a state would count rows of the split that were not the first ones."""
    rows = pa.record_batch({"id": pa.array(range(90))})
    splits = [[rows.slice(first + at, 1) for at in range(3)] for first in range(0, 90, 3)]
    ds = chunked(splits, rows.schema).cache(tmp_path / "cache", compression="zstd")
    assert ds.to_table().num_rows == 90
    engine = stepper_of(ds.with_options(af.Options(deterministic=False, cpu_budget=40)))
    held: list[Running] = []
    while (running := engine.begin()) is not None:
        if isinstance(running[1], Slot):
            held.append(running)
        else:
            engine.finish(running)
    for call in reversed(held):
        engine.finish(call)
    found = [row for item in items_of(engine) for row in ids(item.chunk)]
    assert sorted(found) == list(range(90)) and found != sorted(found)
    for split in range(30):
        assert [row for row in found if row // 3 == split] == list(range(3 * split, 3 * split + 3))


# ---------------------------------------------------------------------------------- bad input


def state_after_one(ds: af.Dataset) -> dict[str, Any]:
    with iter(ds) as iterator:
        next(iterator)
        return iterator.state_dict()


def loaded(ds: af.Dataset, state: dict[str, Any]) -> None:
    with iter(ds) as iterator:
        iterator.load_state_dict(state)
        list(iterator)


def test_a_state_of_the_other_option_is_refused(files: Path) -> None:
    ds = PLANS["map, batch"](files)
    ordered = ds.with_options(af.Options(deterministic=True))
    refused(af.StateError, lambda: loaded(ordered, state_after_one(ds)), "deterministic=False", "same option")
    refused(af.StateError, lambda: loaded(ds, state_after_one(ordered)), "deterministic=True", "same option")


def test_other_stages_are_refused(files: Path) -> None:
    def twice(calls: int = af.AUTOTUNE) -> af.Dataset:
        typed = rows_in_files(files).batch(32).map(same, schema={"id": pa.int64()})
        return typed.map(same, schema={"id": pa.int64()}, num_parallel_calls=calls)

    state = state_after_one(twice())
    refused(af.StateError, lambda: loaded(twice(2), state), "stages", "num_parallel_calls")


AFTER: dict[str, Callable[[af.Dataset], af.Dataset]] = {
    "one call": lambda ds: ds.map(same, schema={"id": pa.int64()}, num_parallel_calls=1),
    "calls": lambda ds: ds.map(same, schema={"id": pa.int64()}),
    "expression": lambda ds: ds.with_columns(more=pl.col("id") + 1),
}


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("name", AFTER)
def test_a_state_also_fits_once_a_cache_is_complete(
    files: Path, tmp_path: Path, name: str, compression: Any
) -> None:
    def make() -> af.Dataset:
        return AFTER[name](rows_in_files(files).batch(32).cache(tmp_path / "cache", compression=compression))

    with iter(make()) as iterator:
        rows = ids(next(iterator)) + ids(next(iterator))
        state = iterator.state_dict()
    assert make().to_table().num_rows == ROWS
    with iter(make()) as iterator:
        iterator.load_state_dict(state)
        rows += [row for batch in iterator for row in ids(batch)]
    assert sorted(rows) == list(range(ROWS))


@pytest.mark.parametrize("name", ["repeat", "concatenate", "interleave", "split_by_rank"])
def test_operators_with_several_inputs_name_themselves(name: str, files: Path) -> None:
    ds = {
        "repeat": lambda: rows_in_files(files).repeat(2),
        "concatenate": lambda: rows_in_files(files).concatenate(rows_in_files(files)),
        "interleave": lambda: af.range(3).interleave(lambda row: af.range(5)).with_options(OPTIONS),
        "split_by_rank": lambda: rows_in_files(files).batch(32).split_by_rank(0, 2),
    }[name]()
    refused(af.StateError, lambda: state_after_one(ds), name, "deterministic=False")


def test_data_that_shrank_is_noticed() -> None:
    rows = [200]

    def elements() -> Iterator[dict[str, int]]:
        for row in range(rows[0]):
            yield {"id": row}

    ds = af.from_generator(elements).with_options(OPTIONS).shuffle(80, seed=1).batch(10)
    with iter(ds) as iterator:
        for _ in range(9):
            next(iterator)
        state = iterator.state_dict()
    rows[0] = 50
    refused(af.StateError, lambda: loaded(ds, state), "fewer rows", "deterministic=False")
