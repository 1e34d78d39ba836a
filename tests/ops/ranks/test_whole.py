"""`split_by_rank` of plans that run whole: each rank takes its rows of the batches of the plan without the split."""

from __future__ import annotations

import itertools
import json
import logging
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from tests.ops.ranks.pipelines import Rows, joined, ranks
from tests.ops.ranks.test_coordinator import Meeting, together

pytestmark = pytest.mark.any_version

IDS = af.range(1_003)
SIZES = (1, 2, 3, 8)


def generated() -> Iterator[dict[str, int]]:
    """Rows of Python."""
    yield from ({"id": number} for number in range(200))


def summed(state: int, batch: pa.RecordBatch) -> tuple[int, pa.RecordBatch]:
    """A function with a state."""
    sums = state + np.cumsum(batch["id"].to_numpy())
    return int(sums[-1]), pa.record_batch({"id": batch["id"], "sum": sums})


WHOLE: dict[str, Callable[[], af.Dataset]] = {
    "zip": lambda: af.zip(IDS, IDS.repeat(2).skip(7).rename({"id": "other"})).batch(32),
    "choose": lambda: af.choose_from_datasets(
        [IDS, IDS.with_columns(id=-pl.col("id"))], af.from_numpy({"choice": [0] * 300 + [1] * 300})
    ).batch(32),
    "window": lambda: IDS.window(16, shift=3).batch(32),
    "scan": lambda: IDS.scan(0, summed).batch(32),
    "scan of batches": lambda: IDS.batch(32).scan(0, summed),
    "enumerate": lambda: IDS.shuffle(2_000, seed=1).enumerate().batch(32),
    "unique": lambda: IDS.with_columns(id=pl.col("id") // 3).unique("id").batch(32),
    "a shuffle of few rows": lambda: IDS.shuffle(20, seed=1).batch(32),
    "a generator": lambda: af.from_generator(generated).batch(32),
    "take of a filter": lambda: IDS.filter(pl.col("id") % 3 == 0).take(300).batch(32),
    "split": lambda: IDS.split([0.5, 0.5], seed=3)[0].shuffle(500, seed=2).batch(32),
    "columns before batch": lambda: IDS.enumerate().with_columns(x=pl.col("id") * 2).select("x").batch(32),
    "padded": lambda: IDS.enumerate().with_columns(x=pl.col("id") * 2).batch(32, pad_remainder=True),
    "filled up and cut anew": lambda: IDS.batch(8, pad_remainder=True).batch(16),
    "batches of two inputs": lambda: IDS.batch(32).concatenate(IDS.batch(16)),
    "few files or rows": lambda: af.range(3).batch(8).repeat(5),
}


def plain(name: str) -> list[Rows]:
    return [batch.to_pylist() for batch in WHOLE[name]()]


def cut(batches: Sequence[Rows], size: int) -> list[list[Rows]]:
    """Returns the rows of each rank of each batch, by the definition."""
    return [
        [rows[rank * len(rows) // size : (rank + 1) * len(rows) // size] for rank in range(size)]
        for rows in batches
        if len(rows) >= size
    ]


def check_cut(plan: af.Dataset, size: int, **options: Any) -> None:
    """Checks that each rank has its rows of each batch of the plan."""
    batches = [batch.to_pylist() for batch in plan]
    found = [[batch.to_pylist() for batch in dataset] for dataset in ranks(lambda: plan, size, **options)]
    assert [list(step) for step in zip(*found, strict=True)] == cut(batches, size)


def steps(
    name: str, size: int, state: Any = None, most: int | None = None
) -> tuple[list[list[Rows]], list[Any]]:
    """Returns the rows of each rank at each step, and the ranks' states after them."""
    found, states = [], []
    for dataset in ranks(WHOLE[name], size):
        with iter(dataset) as run:
            if state is not None:
                run.load_state_dict(state)
            found.append([batch.to_pylist() for batch in itertools.islice(run, most)])
            states.append(json.loads(json.dumps(run.state_dict())))
    assert len(set(map(len, found))) == 1
    return [list(step) for step in zip(*found, strict=True)], states


@pytest.mark.parametrize("name", WHOLE)
def test_each_rank_has_its_rows_of_each_batch(name: str) -> None:
    batches = plain(name)
    for size in (1, 3, 8):
        expected = cut(batches, size)
        if size > 1 and not expected:
            with pytest.raises(af.DataError, match="equal steps leave all of them out") as caught:
                steps(name, size)
            assert 'how="whole"' not in str(caught.value)  # it runs whole
            continue
        assert steps(name, size)[0] == expected, size


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "few files or rows"])
def test_any_rank_loads_the_state_of_any_other(name: str) -> None:
    batches = plain(name)
    for before, after, step in ((2, 3, 5), (3, 1, len(batches) - 1)):
        begun, states = steps(name, before, most=step)
        assert begun == cut(batches, before)[:step]
        for state in (states[-1], af.merge_states(states)):
            assert steps(name, after, state)[0] == cut(batches[step:], after)


@pytest.mark.parametrize("how", [None, "whole"])
def test_groups_go_whole_to_one_rank_after_another(how: Any) -> None:
    plan = IDS.group_by_window(pl.col("id") // 10, 10)
    batches = [batch["id"].to_pylist() for batch in plan]
    assert batches == [list(range(start, min(start + 10, 1_003))) for start in range(0, 1_003, 10)]
    for size in SIZES:
        found = [[batch["id"].to_pylist() for batch in each] for each in ranks(lambda: plan, size, how=how)]
        rounds = len(batches) // size
        assert found == [batches[rank : rounds * size : size] for rank in range(size)]


def test_a_state_of_groups_lies_between_rounds() -> None:
    plan = IDS.group_by_window(pl.col("id") // 10, 10)
    batches = [batch["id"].to_pylist() for batch in plan]
    with iter(plan.split_by_rank(0, 4)) as run:
        assert [next(run)["id"].to_pylist() for _ in range(3)] == batches[:12:4]
        state = run.state_dict()
    with iter(plan.split_by_rank(1, 2)) as run:
        run.load_state_dict(state)
        assert [batch["id"].to_pylist() for batch in run] == batches[13:100:2]


def test_whole_on_request_keeps_the_order_of_the_plan() -> None:
    plan = IDS.batch(32)
    check_cut(plan, 3, how="whole")
    assert [len(dataset) for dataset in ranks(lambda: plan, 3, how="whole")] == [32] * 3


def test_the_rows_of_other_ranks_are_not_computed() -> None:
    """Functions after `batch`, and column operators right before it."""
    seen: list[int] = []

    def called(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch.num_rows)
        return batch

    plan = IDS.enumerate().with_columns(x=pl.col("id") * 2).batch(64).map(called, keeps_rows=True)
    mine = plan.split_by_rank(1, 4)
    expected = [batch.to_pylist() for batch in plan]
    seen.clear()
    assert [batch.to_pylist() for batch in mine] == [rows[1] for rows in cut(expected, 4)]
    assert sorted(set(seen)) == [11, 16]  # the last batch has 43 rows
    physical = mine.explain().partition("physical plan")[2]
    assert physical.index("split_by_rank") < physical.index("with_columns")


def test_functions_with_random_numbers_or_without_keeps_rows_see_whole_batches() -> None:
    def noisy(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
        return pa.record_batch({"id": batch["id"], "x": rng.random(batch.num_rows)})

    def halved(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(0, batch.num_rows // 2)

    rows = IDS.enumerate().batch(64)
    for plan in (rows.map(noisy, seed=3, keeps_rows=True), rows.map(halved)):
        check_cut(plan, 4)
    assert "is called for all rows: with keeps_rows=True and no seed" in plan.split_by_rank(0, 2).explain()


def test_what_is_said(caplog: pytest.LogCaptureFixture) -> None:
    plan = WHOLE["a shuffle of few rows"]().split_by_rank(0, 2)
    with caplog.at_level(logging.WARNING, "arrowflow"):
        shown = plan.explain()
    why = (
        "shuffle works on 20 rows at a time, which would be 1 in each of 16 lanes (give it 1,600 rows or more"
    )
    assert f"each process runs the whole plan and takes its rows of each batch: {why}" in shown
    (line,) = (record.getMessage() for record in caplog.records)
    assert why in line
    caplog.clear()
    WHOLE["zip"]().split_by_rank(0, 1).explain()  # one process loses nothing by it
    IDS.batch(32).split_by_rank(0, 2, how="whole").explain()  # as asked
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("zip", "zip pairs rows of different inputs"),
        ("window", "window counts or compares the rows of the whole stream"),
        ("a generator", "from_generator has rows that cannot be found by their numbers"),
        ("filled up and cut anew", "batch fills up a batch that batch cuts anew"),
        ("few files or rows", "batch has 3 rows for 8 lanes"),
    ],
)
def test_parts_that_would_change_the_plan_are_refused(name: str, text: str) -> None:
    with pytest.raises(af.PlanError, match=f'how="parts" would change what the plan means: {text}'):
        WHOLE[name]().split_by_rank(0, 1, how="parts").explain()


def test_small_windows_in_parts_on_request() -> None:
    plan = IDS.shuffle(64, seed=1).batch(32)
    found = [
        row["id"] for rows in joined(zip(*ranks(lambda: plan, 2, how="parts"), strict=True)) for row in rows
    ]
    assert len(found) == len(set(found)) == 1_003 - 1_003 % 16


def test_remainders_rotate_from_epoch_to_epoch() -> None:
    (alone,) = ranks(lambda: IDS.batch(16), 1)
    run = iter(alone)
    left_out = []
    for epoch in range(3):
        run.set_epoch(epoch)
        left_out.append(set(range(1_003)) - {row for batch in run for row in batch["id"].to_pylist()})
    assert all(len(rows) == 1_003 % 16 for rows in left_out)
    assert len(set(map(frozenset, left_out))) == 3


def test_ranks_compare_their_epochs() -> None:
    def epochs(dataset: af.Dataset) -> Any:
        return [len(list(dataset)), len(list(dataset))]

    datasets = ranks(WHOLE["zip"], 2, coordinator=Meeting(2))
    assert [each.result() for each in together(datasets, epochs)] == [[32, 32]] * 2
    for plan in (WHOLE["zip"], lambda: IDS.batch(32)):  # whole, and in parts with known steps
        first, second = (each.to_numpy() for each in ranks(plan, 2, coordinator=Meeting(2)))
        next(iter(first))  # a look, on one rank alone
        second.set_epoch(1)
        found = together([first, second])  # type: ignore[list-item]  # loaders are iterated alike
        errors = [each.exception() for each in found]
        assert [type(error) for error in errors] == [af.RankError] * 2
        assert "this rank is in epoch 0 at step 1, another one in epoch 1 at step 1" in str(errors[0])
        assert "this rank is in epoch 1 at step 1, another one in epoch 0 at step 1" in str(errors[1])


def test_the_default_group_of_torch_is_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: 2, get_rank=lambda: 1
    )
    monkeypatch.setitem(__import__("sys").modules, "torch.distributed", ready)
    filtered = IDS.filter(pl.col("id") % 3 == 0).batch(32)
    shown = filtered.split_by_rank().explain()
    assert "agrees with the other ranks where to end, by the default process group" in shown
    assert "equal_steps='drop'" in shown
    assert "compares its epoch with the other ranks" in IDS.batch(32).split_by_rank().explain()
    with pytest.raises(af.PlanError, match='how="whole"'):  # another number of ranks than the group has
        filtered.split_by_rank(0, 4).explain()


def test_an_epoch_without_a_step_is_an_error() -> None:
    rare = IDS.filter(pl.col("id") < 40).batch(32)
    with pytest.raises(af.DataError, match="an epoch has rows, but equal steps leave all of them out"):
        list(rare.split_by_rank(0, 1, equal_steps="drop"))
    assert len(list(rare.split_by_rank(0, 2, how="whole"))) == 2
    none = IDS.filter(pl.col("id") < 0).batch(32)
    assert list(none.split_by_rank(0, 1, equal_steps="drop")) == []


def test_a_lane_without_rows_of_a_repetition_says_so() -> None:
    rare = IDS.filter(pl.col("id") < 40).repeat().batch(32)
    with pytest.raises(af.DataError, match=r'no row in this repetition.* use split_by_rank\(how="whole"\)'):
        list(rare.split_by_rank(0, 1, equal_steps="drop"))


def test_rows_in_any_order_are_refused() -> None:
    plan = WHOLE["zip"]().with_options(af.Options(deterministic=False))
    assert len(plan.split_by_rank(0, 1).to_table()) == 1_003
    with pytest.raises(af.PlanError, match="some would come twice and others never; leave the option out"):
        plan.split_by_rank(0, 2).explain()


def test_steps_that_are_left_out_and_rows_that_are_found(tmp_path: Path) -> None:
    IDS.write_parquet(tmp_path / "ids", row_group_rows=100)
    plan = af.read_parquet(tmp_path / "ids").with_provenance().batch(32)
    batches = [batch.to_pylist() for batch in plan]
    part = plan.split_by_rank(1, 2, how="whole").with_options(af.Options(skip_steps={0: [1, 2]}))
    expected = [rows[1] for rows in cut(batches, 2)]
    assert [batch.to_pylist() for batch in part] == [expected[0], *expected[3:]]
    found = af.locate(plan.split_by_rank(1, 2, how="whole"), epoch=0, step=4)
    assert found.to_pylist() == [{name: row[name] for name in found.schema.names} for row in expected[4]]


def test_one_rank_may_look_alone() -> None:
    """Also where ranks agree on each step: nobody else would answer."""
    plan = IDS.filter(pl.col("id") % 3 > 0).batch(32)
    loader = plan.split_by_rank(0, 2, equal_steps="drop", coordinator=Meeting(2)).to_numpy()
    first = next(iter(plan.split_by_rank(0, 1, equal_steps="drop")))["id"].to_pylist()
    assert loader.peek()["id"].tolist() == first[:16]


def test_a_look_at_datasets_of_functions() -> None:
    opened = af.range(300).interleave(lambda row: af.range(row["id"], row["id"] + 2)).batch(4)
    assert opened.to_numpy().peek()["id"].tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize("kept", [False, True])
def test_declared_rows_of_a_cache_are_those_of_each_epoch(kept: bool, tmp_path: Path) -> None:
    """A cache keeps the rows of epoch 0, and remainders do not rotate."""
    IDS.write_parquet(tmp_path / "ids")
    rows = af.read_parquet(tmp_path / "ids").filter(pl.col("id") % 3 == 0) if kept else IDS
    rows = rows.cache()
    plan = rows.assert_cardinality(af.count_rows(rows) if kept else 1_003).batch(16)
    loader = plan.split_by_rank(0, 1, how="parts").to_numpy()
    counts = {sum(len(batch["id"]) for batch in loader) for _ in range(3)}
    assert counts == {(335 if kept else 1_003) // 16 * 16}


def test_a_mix_of_rows_that_only_a_run_counts_runs_whole() -> None:
    plan = af.sample_from_datasets([IDS.filter(pl.col("id") % 2 > 0), IDS], seed=1).batch(16)
    check_cut(plan, 2)
    assert "count them once, by assert_cardinality" in plan.split_by_rank(0, 2).explain()
