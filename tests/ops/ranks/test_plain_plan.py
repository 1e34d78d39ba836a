"""Plans that mean something only as a whole stream: their ranks deliver the rows of the plain plan.

Each of these plans came out wrong without a word, as long as lanes were compared with lanes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowflow as af
from tests.ops.ranks.pipelines import Rows, joined, ranks, rest_of, state_after

pytestmark = pytest.mark.any_version

WORLD_SIZES = (1, 2, 4)


def plain_steps(plan: af.Dataset) -> list[Rows]:
    """Returns the batches of the plan without the split."""
    return [batch.to_pylist() for batch in plan]


def steps_of(plan: af.Dataset, size: int, **options: Any) -> list[Rows]:
    """Returns the global batches of so many ranks, which make equally many steps."""
    found = [list(dataset) for dataset in ranks(lambda: plan, size, **options)]
    assert len({len(batches) for batches in found}) == 1
    return joined(zip(*found, strict=True))


def rows_in(steps: Sequence[Rows]) -> Counter[str]:
    """Returns how often each row comes."""
    return Counter(str(row) for rows in steps for row in rows)


def assert_whole(plan: af.Dataset, expected: list[Rows] | None = None) -> None:
    """The global batches of any number of ranks are those of the plain plan, and their number is known alike."""
    expected = expected or plain_steps(plan)
    assert expected
    for size in WORLD_SIZES:
        assert steps_of(plan, size) == expected, size


def assert_same_rows(plan: af.Dataset, lanes: int = 16) -> None:
    """The rows of any number of ranks are those of the plain plan, but for a remainder of the lanes."""
    expected = rows_in(plain_steps(plan))
    for size in WORLD_SIZES:
        found = rows_in(steps_of(plan, size))
        assert not found - expected, size
        assert (expected - found).total() < lanes, size


# ------------------------------------------------------------------------------------------- dealt once


def test_a_global_shuffle_of_a_cache_is_dealt_once() -> None:
    assert_same_rows(af.range(20_000).cache().shuffle(seed=1).batch(1024))


MIXED = af.sample_from_datasets(
    [af.range(24), af.range(24, 48)], stop="all_exhausted_without_replacement", seed=1
)
ZIPS: dict[str, tuple[af.Dataset, af.Dataset]] = {
    "two sources against one": (af.range(16).concatenate(af.range(16, 48)), af.range(48)),
    "repeated": (af.range(16).repeat(3), af.range(48).with_columns(id=pl.col("id") % 16)),
    "two reads against one": (af.range(7).concatenate(af.range(7, 40), af.range(40, 48)), af.range(48)),
    "mixed": (MIXED, af.from_arrow(MIXED.to_table())),
}


@pytest.mark.parametrize("name", ZIPS)
def test_pairs_stay_pairs(name: str) -> None:
    left, right = ZIPS[name]
    plan = af.zip(left, right.rename({"id": "label"})).batch(16)
    pairs = plan.to_table()
    assert pairs["id"] == pairs["label"]
    assert_same_rows(plan)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [32, 256])
def test_a_small_class_that_is_repeated_serves_all_lanes(batch: int) -> None:
    large = range(1_000, 31_000)
    plan = af.sample_from_datasets(
        [af.range(300).repeat(), af.range(1_000, 31_000)], weights=[0.5, 0.5], seed=1
    ).batch(batch)
    ids = Counter(row["id"] for rows in steps_of(plan, 1, equal_steps="drop") for row in rows)
    assert max(ids[number] for number in large) == 1
    assert abs(ids.total() - 60_000) < 16 * batch  # of each lane, what follows the first one that ends
    expected = plain_steps(plan)
    for size in WORLD_SIZES:
        assert steps_of(plan, size, how="whole") == expected


# ------------------------------------------------------------------------------------------ schedules


@pytest.mark.parametrize("drop", [False, True])
def test_choices_keep_their_order(drop: bool) -> None:
    choices = af.from_numpy({"choice": np.repeat([0, 1], 100)})
    both = [af.range(100), af.range(1_000, 1_100)]
    plan = af.choose_from_datasets(both, choices).batch(16, drop_remainder=drop)
    expected = plain_steps(plan)
    ids = [row["id"] for rows in expected for row in rows]
    assert ids == [*range(100), *range(1_000, 1_100)][: 192 if drop else 200]
    assert_whole(plan, expected)


@pytest.mark.slow
def test_weights_that_follow_the_step_stay_a_schedule() -> None:
    def draw(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
        share = 0.1 + 0.8 * batch["id"].to_numpy() / 10_000
        return pa.record_batch({"choice": pa.array((rng.random(len(share)) < share).astype(np.int64))})

    choices = af.range(10_000).map(draw, seed=3, schema=pa.schema({"choice": pa.int64()}))
    both = [af.range(1).repeat(), af.range(1, 2).repeat()]
    plan = af.choose_from_datasets(both, choices).batch(100)
    expected = plain_steps(plan)
    shares = np.array([[row["id"] for row in rows] for rows in expected]).reshape(10, -1).mean(axis=1)
    assert np.all(np.diff(shares) > 0.01), shares
    assert_whole(plan, expected)


# ---------------------------------------------------------------------------------- windows and groups


def test_windows_of_neighbours_are_all_there() -> None:
    plan = af.range(1000).window(128, shift=1).batch(16)
    assert sum(map(len, steps_of(plan, 2))) == 873
    assert [len(dataset) for dataset in ranks(lambda: plan, 2)] == [55, 55]


def test_rounds_of_groups_go_on_in_the_next_repetition() -> None:
    plan = af.range(100).group_by_window(pl.col("id") // 5 % 7, 3).repeat(2)
    expected = plain_steps(plan)
    for size in (3, 8):
        rounds = len(expected) // size
        found = [plain_steps(dataset) for dataset in ranks(lambda: plan, size)]
        assert found == [expected[rank : rounds * size : size] for rank in range(size)]


def test_buckets_that_are_repeated_run_whole() -> None:
    """Lanes make a number of batches of their own, so one would begin the next repetition before the others."""
    lists = pa.array([[0] * (number % 6) for number in range(37)])
    table = pa.table({"id": pa.array(range(37)), "tokens": lists})
    plan = af.from_arrow(table).bucket_by_sequence_length("tokens", [2, 4], [16, 8, 4]).repeat(2)
    expected = [batch["id"].to_pylist() for batch in plan]
    found = [[batch["id"].to_pylist() for batch in dataset] for dataset in ranks(lambda: plan, 2)]
    assert found == [expected[rank : len(expected) // 2 * 2 : 2] for rank in range(2)]
    with pytest.raises(af.PlanError, match="repeat comes after bucket_by_sequence_length"):
        plan.split_by_rank(0, 1, lanes=8, how="parts").explain()


def test_a_function_after_batch_that_leaves_rows_out_keeps_the_steps_equal() -> None:
    """To each rank alone, it could leave none of some batch."""
    plan = af.range(128).unique("id").batch(8).map(lambda batch: batch.filter(pc.field("id") > 51))
    expected = plain_steps(plan)
    assert [len(rows) for rows in expected] == [4] + [8] * 9
    assert_whole(plan, expected)
    assert steps_of(plan, 8) == expected[1:]  # four rows are too few for eight ranks


# ------------------------------------------------------------------------------------------ remainders


SHORT: dict[str, af.Dataset] = {
    "ten sources": af.range(15).concatenate(*[af.range(15) for _ in range(9)]),
    "repeated ten times": af.range(15).repeat(10),
    "repeated a hundred times": af.range(31).repeat(100),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_remainders_do_not_add_up(name: str) -> None:
    plan = SHORT[name].batch(16)
    assert plan.num_rows in {150, 3_100}
    assert_same_rows(plan)


def test_files_that_are_interleaved_lose_nothing(tmp_path: Path) -> None:
    for number in range(10):
        af.range(number * 30, number * 30 + 30).write_parquet(tmp_path / str(number))
    files = af.list_files(str(tmp_path / "**" / "*.parquet"))
    plan = files.interleave(lambda row: af.read_parquet(row["path"]), cycle_length=4).batch(20)
    assert sorted(row["id"] for rows in plain_steps(plan) for row in rows) == list(range(300))
    assert_same_rows(plan)


def test_small_windows_are_shuffled() -> None:
    plan = af.range(640).shuffle(20, seed=1).batch(16)
    ids = [row["id"] for rows in steps_of(plan, 1) for row in rows]
    assert sorted(ids) == list(range(640))
    kept = sum(after == before + 1 for before, after in itertools.pairwise(ids))
    assert kept < 100, "most rows have the neighbours that they had"
    assert_whole(plan)


def test_small_windows_on_request_hide_no_other_obstacle() -> None:
    rows = af.range(640).filter(pl.col("id") > 9).shuffle(200, seed=1).batch(16)
    assert next(iter(rows.split_by_rank(0, 1, how="parts", equal_steps="drop"))).num_rows == 16
    with pytest.raises(af.PlanError, match="repeat comes after batch, and only a run counts its batches"):
        rows.repeat(2).split_by_rank(0, 1, how="parts", equal_steps="drop").explain()


# ----------------------------------------------------------------------------------- caches, and what repeats


def counts(plan: af.Dataset, size: int, epochs: int = 9) -> list[list[Counter[int]]]:
    """Returns how often each row comes on each rank, in each epoch; all ranks make as many steps, as `len` says."""
    loaders = [dataset.to_numpy() for dataset in ranks(lambda: plan, size)]
    found = []
    for _ in range(epochs):
        batches = [[batch["id"].tolist() for batch in loader] for loader in loaders]
        assert {len(each) for each in batches} == {len(loaders[0])}
        found.append([Counter(itertools.chain(*each)) for each in batches])
    return found


def numbers(first: int, stop: int, cached: bool) -> af.Dataset:
    rows = af.range(first, stop)
    return rows.cache() if cached else rows


@pytest.mark.slow
@pytest.mark.parametrize("cached", [(True, False), (False, True)])
@pytest.mark.parametrize("size", [2, 16])
def test_a_cache_beside_another_source_keeps_steps_equal(cached: tuple[bool, bool], size: int) -> None:
    one, other = numbers(0, 24, cached[0]), numbers(100, 125, cached[1])
    for plan in (
        one.concatenate(other),
        af.sample_from_datasets([one, other], stop="all_exhausted_without_replacement"),
    ):
        for epoch in counts(plan.batch(16), size):
            rows = sum(epoch, Counter())
            assert max(rows.values()) == 1
            assert rows.total() == 48


def test_repetitions_of_a_few_cached_rows_are_even() -> None:
    plan = af.range(17).cache().repeat().batch(16)
    rows = [
        row for batch in itertools.islice(plan.split_by_rank(0, 1), 170) for row in batch["id"].to_pylist()
    ]
    assert set(Counter(rows).values()) == {160}


def test_batches_that_are_repeated_lose_no_remainder_each_time() -> None:
    plan = af.range(31).batch(16).repeat(20)
    for size in WORLD_SIZES:
        assert rows_in(steps_of(plan, size)) == rows_in(plain_steps(plan))


def test_counts_after_a_cache_are_dealt_evenly(tmp_path: Path) -> None:
    af.range(456).write_parquet(tmp_path / "ids")
    rows = af.read_parquet(tmp_path / "ids").filter(pl.col("id") % 3 == 0).cache()
    plan = rows.assert_cardinality(af.count_rows(rows)).repeat(3).batch(16)
    for size in WORLD_SIZES:
        assert rows_in(steps_of(plan, size)) == Counter({str({"id": 3 * row}): 3 for row in range(152)})


def test_a_global_shuffle_asks_no_folder_how_many_rows_it_has(tmp_path: Path) -> None:
    def make(cache: str) -> af.Dataset:
        kept = af.range(100).filter(pl.col("id") % 3 == 0).cache(tmp_path / cache).shuffle(seed=1)
        return kept.concatenate(af.range(1000, 1070)).batch(16).split_by_rank(0, 1, equal_steps="drop")

    expected = list(make("one"))
    state = state_after(make("other"), 3)
    assert list(make("other")) == expected  # the folder is complete now
    assert rest_of(make("other"), state) == expected[3:]


def test_a_cache_is_filled_once() -> None:
    runs = []

    def rows() -> Any:
        runs.append(1)
        yield from ({"id": number} for number in range(64))

    def generated() -> af.Dataset:
        return af.from_generator(rows, schema=pa.schema({"id": pa.int64()})).cache().shuffle(seed=1)

    for plan in (generated().batch(16), af.range(64).concatenate(generated()).batch(16)):
        runs.clear()
        list(plan.split_by_rank(0, 1, equal_steps="drop"))
        assert len(runs) == 1


def test_elements_of_different_lanes_draw_other_numbers() -> None:
    plan = af.range(128).interleave(lambda row: af.range(8).shuffle(), cycle_length=1).batch(16)
    batches = steps_of(plan, 1, equal_steps="drop")
    assert all(len({row["id"] for row in rows}) > 1 for rows in batches)


def test_equal_inputs_that_draw_other_rows_are_no_pairs() -> None:
    def halved(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
        return batch.filter(pa.array(rng.random(batch.num_rows) < 0.5))

    drawn = af.range(640).map(halved, seed=1)
    assert_whole(af.zip(drawn, drawn.rename({"id": "other"})).batch(16))


def test_an_input_that_is_never_drawn_may_be_anything() -> None:
    never = af.range(100).filter(pl.col("id") % 2 == 0).split([0.5, 0.5], seed=1)[0]
    assert_same_rows(
        af.sample_from_datasets(
            [af.range(64), never], [1, 0], stop="all_exhausted_without_replacement"
        ).batch(16)
    )


def test_an_input_that_is_never_drawn_leaves_the_others_dealt_evenly() -> None:
    inputs = [af.range(3), af.range(100), af.range(3, 6)]
    plan = af.sample_from_datasets(inputs, [1, 0, 1], stop="all_exhausted_without_replacement").batch(2)
    assert rows_in(steps_of(plan, 2, lanes=2)) == rows_in(plain_steps(plan))


def test_repetitions_after_an_uncounted_split_are_refused() -> None:
    split = af.range(300).filter(pl.col("id") % 7 != 1).batch(16).split_by_rank(0, 1, equal_steps="drop")
    with pytest.raises(af.PlanError, match=r'put repeat before batch, or write split_by_rank\(how="whole"\)'):
        split.repeat(2).explain()
