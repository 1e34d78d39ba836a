"""`split`: disjoint parts, the same in every epoch, whatever comes after them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.testing import check_operator, check_resume
from tests.ops.tables import NUMBERS, ids, refused

pytestmark = pytest.mark.any_version


def test_contracts() -> None:
    check_operator(lambda ds: ds.split([0.5, 0.2, 0.3], seed=3)[0], NUMBERS)
    check_operator(lambda ds: ds.split([0.5, 0.2, 0.3], seed=3)[2], NUMBERS, in_full=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("split")
    for number in range(5):
        table = pa.table({"id": np.arange(number * 1000, (number + 1) * 1000)})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=340)
    return folder


AFTER: dict[str, Callable[[af.Dataset], af.Dataset]] = {
    "nothing": lambda ds: ds,
    "a filter and a shuffle": lambda ds: ds.filter(pl.col("id") >= 0).shuffle(50, seed=1),
    "a shuffle and a repeat": lambda ds: ds.shuffle(5000, seed=1).repeat(2).take(5000),
    "batches": lambda ds: ds.batch(64),
    "a cache and a global shuffle": lambda ds: ds.cache().shuffle(seed=1),
}


@pytest.mark.parametrize("name", AFTER)
def test_parts_are_disjoint_and_the_same_in_every_epoch(files: Path, name: str) -> None:
    parts = [AFTER[name](part) for part in af.read_parquet(files).split([0.7, 0.2, 0.1], seed=5)]
    seen: list[set[int]] = [set(), set(), set()]
    for epoch in range(2):
        for rows, part in zip(seen, parts, strict=True):
            found = set(ids(part, epoch=epoch))
            assert not rows or rows == found or "repeat" in name
            rows |= found
    assert set.union(*seen) == set(range(5000))
    assert sum(map(len, seen)) == 5000
    assert [round(len(rows) / 5000, 1) for rows in seen] == [0.7, 0.2, 0.1]


def test_neither_threads_nor_chunks_nor_a_resume_change_a_part(files: Path) -> None:
    expected = ids(af.read_parquet(files).split([0.5, 0.5])[1])
    assert ids(af.from_arrow(pa.table({"id": np.arange(5000)})).split([0.5, 0.5])[1]) == expected
    options = af.Options(cpu_budget=1, max_chunk_rows=33)
    assert ids(af.read_parquet(files).split([0.5, 0.5])[1].with_options(options)) == expected
    assert ids(af.read_parquet(files).split([0.5, 0.5], seed=1)[1]) != expected
    check_resume(lambda: af.read_parquet(files).split([0.5, 0.5])[0].shuffle(99, seed=1).batch(100))


def test_sizes_are_known() -> None:
    parts = af.range(10_000).split([0.25, 0.75], seed=2)
    assert [len(part) for part in parts] == [len(ids(part)) for part in parts]
    assert [part.num_rows for part in af.range(10).filter(pl.col("id") > 1).split([0.5, 0.5])] == [None, None]


def test_a_part_of_all_rows() -> None:
    (whole,) = af.range(100).split([1.0])
    assert ids(whole) == list(range(100))


@pytest.mark.parametrize(
    "fractions",
    [[], [0.5], [0.5, 0.6], [1, 1], [0.5, -0.5, 1], [True], "ab", {"a": 1.0}, None, [float("nan"), 1]],
)
def test_bad_fractions(fractions: Any) -> None:
    refused(af.PlanError, lambda: af.range(3).split(fractions), "split", "fractions")


def shuffled(row: dict[str, Any]) -> af.Dataset:
    """Opens a dataset whose order differs by epoch, which the plan does not show."""
    return af.range(100).with_columns(id=pl.col("id") + 100 * row["id"]).shuffle(50)


BEFORE: dict[str, Callable[[af.Dataset], af.Dataset]] = {
    "shuffle": lambda ds: ds.shuffle(3),
    "repeat": lambda ds: ds.repeat(2).cache(),  # a cache does not hide copies of rows
    "rejection_resample": lambda ds: ds.rejection_resample(pl.col("id") % 2, [0.5, 0.5]),
    "sample_from_datasets": lambda ds: af.sample_from_datasets([ds, ds]),
    "map": lambda ds: ds.map(lambda batch, rng: batch, seed=1),
    "flat_map": lambda ds: ds.flat_map(shuffled),
    "interleave": lambda ds: ds.interleave(shuffled, cycle_length=2),
    "batch": lambda ds: ds.batch(3),
}


@pytest.mark.parametrize("name", BEFORE)
def test_what_would_move_rows_between_parts_is_refused_before_it(name: str) -> None:
    refused(af.PlanError, lambda: BEFORE[name](af.range(30)).split([0.5, 0.5]), "split", name)


def test_what_is_fixed_is_allowed_before_it() -> None:
    fixed = af.range(300).shuffle(30, seed=1, reshuffle_each_iteration=False)
    opened = af.range(3).interleave(shuffled, cycle_length=2, deterministic=False).cache()
    for ds in (fixed, af.range(300).shuffle(30, seed=1).cache(), opened):
        first, second = ds.split([0.5, 0.5])
        one, other = (sorted(ids(first, epoch=epoch)) for epoch in range(2))
        assert one == other
        assert sorted(one + ids(second)) == list(range(300))
    unordered = af.range(9).split([0.5, 0.5])[0].with_options(af.Options(deterministic=False))
    refused(af.PlanError, lambda: list(unordered), "deterministic=False")


def test_fractions_of_numpy() -> None:
    fractions: list[Any] = [np.array([0.5, 0.5]), [np.float32(0.5)] * 2]
    for each in fractions:
        assert sum(len(ids(part)) for part in af.range(10).split(each)) == 10


@pytest.mark.parametrize("source", ["numbers", "memory", "files"])
def test_lanes_have_the_rows_of_a_part(files: Path, source: str) -> None:
    numbers = af.range(5_000)
    sources = {
        "numbers": numbers,
        "memory": af.from_arrow(numbers.to_table()),
        "files": af.read_parquet(files).rename({}),
    }
    for part, epoch in ((0, 0), (1, 1)):
        plan = sources[source].split([0.7, 0.3], seed=5)[part].batch(64)
        expected, found = ids(plan), list[int]()
        for rank in range(2):
            found += ids(plan.split_by_rank(rank, 2, how="parts"), epoch=epoch)
        assert len(found) == len(expected) - len(expected) % 16
        assert set(found) <= set(expected)
        assert len(set(found)) == len(found)
