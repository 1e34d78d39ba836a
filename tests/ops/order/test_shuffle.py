"""`shuffle`: windows of rows, each permuted; and the order of the source below."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.testing import check_dataset, check_operator, check_resume, cut
from tests.ops.tables import (
    ALL_TYPES,
    ALL_TYPES_INSIDE,
    NUMBERS,
    Apply,
    identity,
    ids,
    numbers,
    refused,
    rows_of,
    write_shards,
)

pytestmark = pytest.mark.any_version

GOLDEN = [16, 9, 7, 17, 0, 4, 13, 3, 8, 18, 2, 6, 5, 14, 10, 11, 1, 15, 12, 19]
GOLDEN_OF_ALL = [2, 17, 9, 14, 3, 15, 10, 0, 8, 4, 19, 6, 11, 13, 1, 7, 5, 12, 18, 16]
SHARDS = [[3, 3], [2, 4, 1], [5], [1, 1, 1], [6], [2, 2], [3]]
NUM_ROWS = sum(map(sum, SHARDS))


@pytest.mark.parametrize("size", [1, 5, 17, 18])
def test_contracts(size: int) -> None:
    check_operator(lambda ds: ds.shuffle(size, seed=3), NUMBERS, epochs_differ=size > 1, in_full=size == 5)


def test_contracts_with_one_order_for_all_epochs() -> None:
    check_operator(lambda ds: ds.shuffle(5, seed=3, reshuffle_each_iteration=False), NUMBERS)


def test_orders_are_pinned() -> None:
    """A state says nothing of the permutation: it has to be the same in every release."""
    assert ids(af.range(20).shuffle(20, seed=7)) == GOLDEN
    assert ids(af.range(20).shuffle(seed=7)) == GOLDEN_OF_ALL


@pytest.mark.parametrize("size", [1, 2, 7, 24, 100])
def test_each_window_is_a_permutation_of_its_rows(size: int) -> None:
    found = rows_of(numbers(5, 0, 1, 11, 7).shuffle(size, seed=1))
    windows = [found[start : start + size] for start in range(0, 24, size)]
    for number, window in enumerate(windows):
        assert sorted(window) == list(range(24))[number * size : (number + 1) * size]
    if size > 3:
        assert windows[0] != sorted(windows[0])


def test_windows_of_one_size_have_orders_of_their_own() -> None:
    found = ids(af.range(80).shuffle(20, seed=1))
    assert len({tuple(row % 20 for row in found[start : start + 20]) for start in range(0, 80, 20)}) == 4


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    places = itertools.product(range(3), range(3))
    assert len({tuple(ids(af.range(30).shuffle(30, seed=seed), epoch=epoch)) for seed, epoch in places}) == 9


def test_without_reshuffle_every_epoch_is_the_first() -> None:
    ds = af.range(30).shuffle(30, seed=2, reshuffle_each_iteration=False)
    assert ids(ds, epoch=3) == ids(ds) == ids(af.range(30).shuffle(30, seed=2))


@pytest.mark.parametrize("size", [30, None])
def test_without_a_seed_it_follows_from_the_options_and_the_place(size: int | None) -> None:
    def order(seed: int, *, behind: int = 0) -> tuple[Any, ...]:
        ds = af.range(30).with_options(af.Options(seed=seed))
        for _ in range(behind):
            ds = ds.prefetch(1)
        return tuple(ids(ds.shuffle(size)))

    assert order(1) == order(1)
    assert len({order(1), order(2), order(1, behind=1), order(1, behind=2)}) == 4


def test_rows_stay_whole() -> None:
    """Every column is permuted alike, nested ones and those with nulls, too."""
    table = af.from_arrow(ALL_TYPES).shuffle(6, seed=1).to_table()
    places = table.column("row").to_pylist()
    assert repr(table.to_pylist()) == repr([ALL_TYPES_INSIDE.to_pylist()[place] for place in places])


@pytest.mark.parametrize("chunks", [[13], [5, 3]])
def test_lists_of_fixed_size_inside_of_each_other_stay_whole(chunks: list[int]) -> None:
    """Arrow itself takes the wrong rows of a slice of them."""
    pairs = pa.array([[[i], [i + 1]] for i in range(13)], pa.list_(pa.list_(pa.int16(), 1), 2))
    batch = pa.record_batch({"row": range(13), "x": pairs, "in": pa.StructArray.from_arrays([pairs], ["y"])})
    for size in (4, 13, None):
        for row in af.from_arrow(cut(batch, chunks)).shuffle(size, seed=1).to_table().to_pylist():
            assert row["x"] == row["in"]["y"] == [[row["row"]], [row["row"] + 1]]


@pytest.mark.parametrize(("size", "batch_size"), [(3, 4), (6, 1), (13, 4)])
def test_it_resumes_inside_a_window_across_chunk_borders(size: int, batch_size: int) -> None:
    chunks = cut(NUMBERS.combine_chunks().to_batches()[0], [2, 5])
    check_resume(lambda: af.from_arrow(chunks).shuffle(size, seed=1).batch(batch_size))


def test_two_in_a_row() -> None:
    check_resume(lambda: numbers(4, 9, 4).shuffle(5, seed=1).shuffle(4).batch(2))
    assert sorted(rows_of(numbers(4, 9).shuffle(5).shuffle(4))) == list(range(13))


# ------------------------------------------------------------------------------- blocks of rows in memory

MANY_ROWS = 9 * 512 + 320
MANY = pa.record_batch({"row": np.arange(MANY_ROWS), "text": [str(row) for row in range(MANY_ROWS)]})


def blocks(ds: af.Dataset, *, epoch: int = 0) -> list[int]:
    """Returns the numbers of the blocks of 512 rows in their order; windows of 64 rows lie in one of them each."""
    with iter(ds.shuffle(64, seed=7).batch(64)) as iterator:
        iterator.set_epoch(epoch)
        windows = [np.sort(batch[0].to_numpy()) for batch in iterator]
    assert all((window == np.arange(window[0], window[0] + 64)).all() for window in windows)
    starts = [int(window[0]) for window in windows]
    assert sorted(starts) == list(range(0, MANY_ROWS, 64))
    found = [number for number, _ in itertools.groupby(start // 512 for start in starts)]
    assert len(found) == 10
    return found


IN_MEMORY: dict[str, Callable[[], af.Dataset]] = {
    "range": lambda: af.range(MANY_ROWS),
    "from_arrow": lambda: af.from_arrow(MANY.select(["row"])),
    "record batches": lambda: af.from_arrow(cut(MANY.select(["row"]), [1, 1000, 7, 24, 3896])),
    "from_numpy": lambda: af.from_numpy({"row": np.arange(MANY_ROWS)}),
}


@pytest.mark.parametrize("name", IN_MEMORY)
def test_rows_in_memory_come_in_blocks_whose_order_follows_from_seed_and_epoch(name: str) -> None:
    ds = IN_MEMORY[name]()
    first, second = blocks(ds), blocks(ds, epoch=1)
    assert first != second and first != sorted(first)
    assert first == blocks(af.range(MANY_ROWS))
    assert blocks(ds.filter(pl.col(ds.schema.names[0]) >= 0)) == first


def test_blocks_are_an_eighth_of_a_window() -> None:
    for size, expected in [(8192, 1024), (1 << 20, 65_536)]:
        ds = af.range(200_000).shuffle(size, seed=7)
        first = ids(ds)[:size]
        assert {row // expected for row in first} != set(range(8))
        whole = np.unique(np.array(first) // expected, return_counts=True)[1]
        assert sorted(whole.tolist())[1:] == [min(expected, 200_000)] * (len(whole) - 1)


def test_a_user_function_below_sees_rows_in_their_own_order() -> None:
    seen: list[int] = []

    def note(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.extend(batch["row"].to_pylist())
        return batch

    rows_of(af.from_arrow(MANY).map(note, num_parallel_calls=1).shuffle(100, seed=7))
    assert seen == list(range(MANY_ROWS))


RESUMED: dict[str, Callable[[], af.Dataset]] = {
    "chunks": lambda: af.from_arrow(cut(MANY, [1, 1000, 7, 3920])).shuffle(700, seed=1).batch(500),
    "numbers": lambda: af.range(MANY_ROWS).shuffle(700, seed=1).batch(1024),
    "a cache": lambda: af.from_arrow(MANY).cache().shuffle(700, seed=1).batch(512),
}


@pytest.mark.parametrize("name", RESUMED)
def test_it_resumes_inside_of_blocks(name: str) -> None:
    check_resume(RESUMED[name])


def test_blocks_below_repeat() -> None:
    twice = rows_of(af.from_arrow(MANY).repeat(2).shuffle(64, seed=7).batch(512))
    rows = twice[:MANY_ROWS], twice[MANY_ROWS:]
    assert sorted(rows[0]) == sorted(rows[1]) == list(range(MANY_ROWS))
    assert rows[0] != rows[1]


@pytest.mark.parametrize("on_disk", [False, True])
def test_one_cache_keeps_the_orders_of_windows_of_different_size_apart(tmp_path: Path, on_disk: bool) -> None:
    ds = af.from_arrow(MANY)
    cached = ds.cache()
    for size in (700, 8192, 100, 700):
        kept = ds.cache(tmp_path) if on_disk else cached
        assert rows_of(kept.shuffle(size, seed=1)) == rows_of(ds.cache().shuffle(size, seed=1))


# ------------------------------------------------------------------------------- order of the source

ORDERS_THE_SOURCE: dict[str, Apply] = {
    "nothing": lambda ds: ds,
    "column operators": lambda ds: ds.with_columns(y=pl.col("row") + 1).rename({"y": "z"}).select("row", "z"),
    "others": lambda ds: (
        ds.filter(pl.col("row") >= 0)
        .repeat(1)
        .cast({"file": pl.Int64})
        .with_options(af.Options(cpu_budget=2))
        .prefetch(2)
    ),
}
KEEPS_THE_SOURCE: dict[str, Apply] = {
    "take": lambda ds: ds.take(NUM_ROWS),
    "skip": lambda ds: ds.skip(0),
    "shard": lambda ds: ds.shard(1, 0),
    "map": lambda ds: ds.map(identity),
    "another shuffle": lambda ds: ds.shuffle(1),
}


def source_order(ds: af.Dataset, *, epoch: int = 0) -> list[Any]:
    """What a shuffle that moves no row itself makes of the order of its source."""
    return rows_of(ds.shuffle(1, seed=4), epoch=epoch)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> af.Dataset:
    return af.read_parquet(write_shards(tmp_path_factory.mktemp("shards"), SHARDS))


@pytest.mark.parametrize("between", ORDERS_THE_SOURCE)
def test_files_and_row_groups_are_permuted(shards: af.Dataset, between: str) -> None:
    """Row groups stay whole and in order inside, since here the window moves nothing."""
    found = source_order(ORDERS_THE_SOURCE[between](shards))
    assert found != list(range(NUM_ROWS)) == sorted(found)
    assert found == source_order(shards)
    starts = itertools.accumulate(itertools.chain(*SHARDS), initial=0)
    for first, last in itertools.pairwise(starts):
        at = found.index(first)
        assert found[at : at + last - first] == list(range(first, last))


@pytest.mark.parametrize("between", KEEPS_THE_SOURCE)
def test_what_depends_on_the_order_keeps_it(shards: af.Dataset, between: str) -> None:
    below = KEEPS_THE_SOURCE[between](shards)
    assert source_order(below) == rows_of(below)


def test_only_a_few_files_are_open_in_turn(shards: af.Dataset) -> None:
    """A file's row groups come close to each other: four files are mixed at a time."""
    found = source_order(shards.select("row", "file"))
    files = [number for number, rows in enumerate(SHARDS) for _ in range(sum(rows))]
    turns = [key for key, _ in itertools.groupby(files[row] for row in found)]
    first_four = set(list(dict.fromkeys(turns))[:4])
    last_of_first = max(index for index, file in enumerate(turns) if file in first_four)
    first_of_last = min(index for index, file in enumerate(turns) if file not in first_four)
    assert last_of_first < first_of_last


def test_epochs_order_the_source_anew(shards: af.Dataset) -> None:
    orders = {tuple(source_order(shards, epoch=epoch)) for epoch in range(4)}
    assert len(orders) == 4
    frozen = shards.shuffle(1, seed=4, reshuffle_each_iteration=False)
    assert rows_of(frozen, epoch=3) == rows_of(frozen) == source_order(shards)


def test_every_repetition_orders_the_source_anew(shards: af.Dataset) -> None:
    found = source_order(shards.repeat(2))
    assert found == source_order(shards) + source_order(shards, epoch=1)


def test_contracts_over_an_ordered_source(shards: af.Dataset) -> None:
    check_dataset(
        lambda: shards.filter(pl.col("row") % 5 != 0).shuffle(7, seed=1).batch(3), epochs_differ=True
    )


# ------------------------------------------------------------------------------------------ arguments


@pytest.mark.parametrize("size", [0, -1, 1.0, True, "3"])
def test_bad_sizes(size: Any) -> None:
    refused(af.PlanError, lambda: af.range(3).shuffle(size), "shuffle", "buffer_size")


@pytest.mark.parametrize("seed", [-1, 1.0, True, "3", 1 << 64])
def test_bad_seeds(seed: Any) -> None:
    for size in (3, None):
        refused(af.PlanError, lambda size=size: af.range(3).shuffle(size, seed=seed), "shuffle", "seed")  # type: ignore[misc]
