"""`split_by_rank`: the same global batches for every number of processes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.testing.contracts import Apply
from tests.ops.ranks.pipelines import BATCH, PIPELINES, SIZES, UNCOUNTED, of, ranks, steps_of

pytestmark = pytest.mark.any_version

NUM_ROWS = 17_770
KEEPS_ALL = {"plain", "map", "shuffle", "zip", "cache", "function behind", "padded"}


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_global_batches_are_the_same_for_all_world_sizes(path: Path, name: str) -> None:
    plan = PIPELINES[name](path)
    expected = steps_of(ranks(lambda: plan, 1))
    assert expected
    for size in SIZES[1:] if name == "shuffle" else (2, 16):
        datasets = ranks(lambda: plan, size)
        assert [len(dataset) for dataset in datasets] == [len(expected)] * size
        assert steps_of(datasets) == expected, size


@pytest.mark.parametrize("name", sorted(KEEPS_ALL))
def test_every_row_comes_once_but_for_the_remainder_of_lanes(path: Path, name: str) -> None:
    (alone,) = ranks(lambda: PIPELINES[name](path), 1)
    ids = [row["id"] for batch in alone for row in batch.to_pylist()]
    assert len(ids) == len(set(ids)) == NUM_ROWS - NUM_ROWS % 16


def test_filled_up_batches_hold_every_row(path: Path) -> None:
    (alone,) = ranks(lambda: PIPELINES["remainder filled"](path), 1)
    batches = list(alone)
    assert {batch.num_rows for batch in batches} == {BATCH}
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert sorted(row["id"] for row in rows if row["mask"]) == list(range(NUM_ROWS))


@pytest.mark.slow
@pytest.mark.parametrize("name", UNCOUNTED)
def test_one_process_needs_no_counts(path: Path, name: str) -> None:
    plan = UNCOUNTED[name](path)
    with pytest.raises(af.PlanError, match="in which the plan runs may end at different steps"):
        next(iter(plan.split_by_rank(0, 1)))
    expected = Counter(map(str, plan.to_table().to_pylist()))
    found = Counter(map(str, plan.split_by_rank(0, 1, equal_steps="drop").to_table().to_pylist()))
    if name in ("filter", "an uneven filter", "a function filters", "explode"):
        assert found <= expected
    assert found


def test_the_global_shuffle_gives_the_batches_of_one_process() -> None:
    plan = af.range(15_000).shuffle(seed=4).batch(BATCH)
    expected = [batch["id"].to_pylist() for batch in plan]
    found = [[row["id"] for row in step] for step in steps_of(ranks(lambda: plan, 4))]
    assert found[:-1] == expected[:-1]


def test_epochs_differ_and_repeat(path: Path) -> None:
    plan = PIPELINES["shuffle"](path)
    (alone,) = ranks(lambda: plan, 1)
    first, second = ([batch.to_pydict() for batch in alone] for _ in range(2))
    assert first != second
    pairs = ranks(lambda: plan, 2)
    assert steps_of(pairs) != steps_of(pairs)


def test_each_rank_reads_its_part(path: Path) -> None:
    halves = [
        set(dataset.to_table()["id"].to_pylist()) for dataset in ranks(lambda: of(path).batch(BATCH), 2)
    ]
    assert max(halves[0]) < min(halves[1])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda ds: ds.split_by_rank(0, 1), "it comes last, after the batches"),
        (lambda ds: ds.batch(8).split_by_rank(0, 1).split_by_rank(0, 1), "split by rank already"),
        (lambda ds: ds.batch(8).split_by_rank(0), "rank and world_size together"),
        (lambda ds: ds.batch(8).split_by_rank(2, 2), "rank is at most 1"),
        (lambda ds: ds.batch(10).split_by_rank(0, 1, lanes=4), "use lanes=5, or a batch size"),
        (
            lambda ds: ds.batch(10).split_by_rank(0, 4),
            "4 processes cannot have equally many lanes each; use a batch size that is a multiple of 4",
        ),
        (lambda ds: ds.batch(24).split_by_rank(0, 8), "use lanes=8"),
        (lambda ds: ds.batch(8).split_by_rank(0, 1, how="halves"), "'parts', 'whole' or None, got 'halves'"),
        (
            lambda ds: ds.batch(8).split_by_rank(0, 1, how="whole", lanes=4),
            "lanes= is for a plan that runs in parts",
        ),
        (
            lambda ds: ds.batch(4).split_by_rank(0, 8, how="whole"),
            "8 processes cannot share a batch of 4 rows",
        ),
        (
            lambda ds: ds.batch(8).split_by_rank(0, 1, equal_steps="stop"),
            "'drop' or None, got 'stop'; to fill up the last batch",
        ),
    ],
)
def test_wrong_arguments(make: object, text: str) -> None:
    with pytest.raises(af.PlanError, match=text):
        make(af.range(100)).explain()  # type: ignore[operator]


def test_several_processes_need_counts() -> None:
    plan = af.range(100).filter(pl.col("id") > 3).batch(8).split_by_rank(0, 2, equal_steps="drop")
    with pytest.raises(af.PlanError, match="wait for each other for ever"):
        next(iter(plan))


class Alone:
    """A coordinator of a rank that is never asked."""

    def all_min(self, numbers: Sequence[int]) -> Sequence[int]:
        return numbers


def test_an_unknown_number_of_rows_is_told_with_ways_that_work(path: Path) -> None:
    rows = of(path).filter(pl.col("id") % 7 != 3)
    counts = af.count_rows(rows)
    with pytest.raises(af.PlanError) as caught:
        rows.batch(8).split_by_rank(0, 2).explain()
    assert str(caught.value).endswith(
        'write one of these: how="whole" (each process runs the whole plan); '
        ".assert_cardinality(af.count_rows(dataset)) right after filter (`dataset` is all up to there, counted once); "
        'equal_steps="drop" (the epoch ends with the first lane that ends) together with coordinator= (a process group of '
        "torch.distributed, or an object with all_min(numbers))"
    )
    rows.batch(8).split_by_rank(0, 2, how="whole").explain()
    rows.assert_cardinality(counts).batch(8).split_by_rank(0, 2).explain()
    rows.batch(8).split_by_rank(0, 2, equal_steps="drop", coordinator=Alone()).explain()


def test_ways_that_would_fail_are_not_told(path: Path) -> None:
    def told(plan: af.Dataset) -> str:
        with pytest.raises(af.PlanError) as caught:
            plan.split_by_rank(0, 2).explain()
        return str(caught.value)

    assert "assert_cardinality" not in told(af.range(1000).filter(pl.col("id") > 3).batch(8))  # no files
    function = told(of(path).map(lambda batch: batch).batch(8))
    assert "keeps_rows=True" in function and "assert_cardinality" not in function
    both = told(of(path).filter(pl.col("id") > 3).map(lambda batch: batch).batch(8))
    assert "keeps_rows" not in both and "assert_cardinality" not in both
    repeated = told(of(path).filter(pl.col("id") > 3).repeat(2).batch(8))
    assert "right after filter" in repeated
    assert "assert_cardinality" not in told(UNCOUNTED["bucket"](path))


def test_more_lanes_than_rows() -> None:
    plan = af.range(5).batch(16)
    assert [next(iter(plan.split_by_rank(rank, 2)))["id"].to_pylist() for rank in range(2)] == [
        [0, 1],
        [2, 3, 4],
    ]
    for rank, ids in enumerate(
        [[0, 1], [2, 3], [4, 4], [4, 4]]
    ):  # the last row is repeated, as in one process
        (batch,) = af.range(5).batch(8, pad_remainder=True).split_by_rank(rank, 4)
        assert batch["id"].to_pylist() == ids
        assert batch["mask"].to_pylist() == [2 * rank < 5, 2 * rank + 1 < 5]


def test_the_environment_tells_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = af.range(64).batch(16)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert plan.split_by_rank().to_table().equals(plan.split_by_rank(1, 2).to_table())
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(af.PlanError, match="WORLD_SIZE='two', expected a whole number"):
        plan.split_by_rank()


@pytest.mark.parametrize(("lane", "shuffled"), [(0, True), (7, False), (15, False), (15, True)])
def test_all_steps_before_the_error_of_a_lane_come(lane: int, shuffled: bool) -> None:
    rows, at = 16 * 2_000, 1_700

    def refuses(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 2_000 * lane + at in batch["id"].to_pylist():
            raise ValueError("the last rows of this lane")
        return batch

    plan = af.range(rows).map(refuses, keeps_rows=True).with_options(af.Options(max_chunk_rows=100))
    if shuffled:
        plan = plan.shuffle(16 * 100, seed=1)
    run = iter(plan.batch(16 * 10).split_by_rank(0, 1))
    expected = at // 100 * 100 // 10  # the call that fails has the rows from 1,700 of the lane on
    assert len(list(itertools.islice(run, expected))) == expected
    with pytest.raises(af.FunctionError, match="the last rows of this lane"):
        next(run)


@pytest.mark.parametrize(
    ("rows", "plan", "told", "added"),
    [
        (103, lambda ds: ds.batch(8), "equal steps leave out 3 rows of an epoch", -3),
        (
            101,
            lambda ds: ds.batch(8).map(same, keeps_rows=True),
            "equal steps leave out 1 row of an epoch",
            -1,
        ),
        (103, lambda ds: ds.batch(8, pad_remainder=True), "equal steps add 1 repeated row to an epoch", 1),
        (96, lambda ds: ds.batch(8), "", 0),
    ],
)
def test_explain_tells_what_equal_steps_cost(rows: int, plan: Apply, told: str, added: int) -> None:
    split = [plan(af.range(rows)).split_by_rank(rank, 2, lanes=4) for rank in range(2)]
    text = split[0].explain()
    assert told in text if told else "equal steps" not in text
    assert sum(batch.num_rows for ds in split for batch in ds) == rows + added


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch
