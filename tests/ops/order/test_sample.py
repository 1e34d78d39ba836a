"""`sample`: that rows are drawn by their weights, that draws follow from (seed, epoch), and what is refused."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowflow as af
from arrowflow.ops.order import global_shuffle
from arrowflow.ops.order import sample as sample_module
from arrowflow.random import exponentials, uniforms
from arrowflow.testing import batches_of, check_dataset, check_operator, check_resume
from tests.ops.tables import NUMBERS, Apply, identity, ids, refused, rows_of

pytestmark = pytest.mark.any_version


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some rows each, so that a few dozen rows are several parts."""
    monkeypatch.setattr(global_shuffle, "MAX_PART_ROWS", 4)
    monkeypatch.setattr(sample_module, "BLOCK_ROWS", 3)


def weighted(weights: Any) -> af.Dataset:
    return af.from_arrow(pa.table({"row": range(len(weights)), "w": weights}))


# ------------------------------------------------------------------------------------------- contracts


CASES: dict[str, Apply] = {
    "once": lambda ds: ds.cache().sample(min(7, len(ds)), weights=pl.col("row") % 3 + 1, seed=1),
    "again": lambda ds: (
        ds.cache()
        .with_columns(w=pl.col("row") % 3 + 1)
        .rename({"row": "was"})
        .prefetch(1)
        .sample(min(7, len(ds)), weights="w", replacement=True, seed=1)
        .drop("w")
        .batch(3)
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_contracts(case: str) -> None:
    check_operator(CASES[case], NUMBERS, epochs_differ=True)


@pytest.mark.parametrize("source", ["files", "memory", "some rows", "numbers"])
def test_contracts_of_other_sources(tmp_path: Path, source: str) -> None:
    weighted(np.arange(20.0)).write_ipc(tmp_path)
    sources = {
        "files": af.read_ipc(tmp_path),
        "memory": weighted(np.arange(20)),
        "some rows": weighted(np.arange(30)).skip(3).take(20),
        "numbers": af.range(20).with_columns(w="id"),
    }
    again = source in ("memory", "some rows")

    def drawn(replacement: bool) -> af.Dataset:
        return sources[source].sample(11, weights="w", replacement=replacement, seed=3).drop("w").batch(2)

    check_dataset(lambda: drawn(again), epochs_differ=True)
    check_resume(lambda: drawn(not again))


@pytest.mark.parametrize("batch_size", [3, 7])
@pytest.mark.parametrize("replacement", [False, True])
def test_it_resumes_inside_a_part(batch_size: int, replacement: bool) -> None:
    check_resume(
        lambda: af.range(30).sample(23, weights="id", replacement=replacement, seed=1).batch(batch_size),
        epoch=2,
    )


# ------------------------------------------------------------------------------------------- the draws


def within(found: int, tries: int, chance: float) -> bool:
    """Returns whether a count lies within four standard deviations."""
    return abs(found - tries * chance) <= 4 * math.sqrt(tries * chance * (1 - chance))


@pytest.mark.parametrize("dtype", [np.int8, np.float32, np.float64, np.uint64])
def test_shares_with_replacement(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_shuffle, "MAX_PART_ROWS", 300)
    monkeypatch.setattr(sample_module, "BLOCK_ROWS", 200)
    weights = np.array([1, 0, 5, 2, 0, 12], dtype)
    rows = rows_of(weighted(weights).sample(4_000, weights="w", replacement=True, seed=5))
    assert len(rows) == 4_000
    for row, weight in enumerate(weights.tolist()):
        assert within(rows.count(row), 4_000, weight / 20)


@pytest.mark.slow
def test_orders_without_replacement() -> None:
    """Each order of two rows is as frequent as if they were drawn one after the other."""
    weights, tries = [1, 2, 5], 600
    ds = weighted(weights).sample(2, weights="w", seed=5)
    found = [tuple(rows_of(ds, epoch=epoch)) for epoch in range(tries)]
    for first, second in itertools.permutations(range(3), 2):
        chance = weights[first] / 8 * weights[second] / (8 - weights[first])
        assert within(found.count((first, second)), tries, chance)


def test_without_replacement_no_row_comes_twice() -> None:
    rows = rows_of(weighted([0, *range(40)]).sample(39, weights="w", seed=2))
    assert sorted(rows) == list(range(2, 41))


ONCE = [6, 17, 19, 8, 16, 15, 13, 7]
AGAIN = [15, 13, 14, 13, 13, 19, 17, 18]


def test_draws_are_pinned() -> None:
    """A state says nothing of the draws: they have to be the same in every release."""
    assert ids(af.range(20).sample(8, weights="id", seed=7)) == ONCE
    assert ids(af.range(20).sample(8, weights="id", replacement=True, seed=7)) == AGAIN


def test_epochs_draw_anew_unless_told_not_to() -> None:
    ds = af.range(50).sample(10, weights="id", seed=1)
    assert ids(ds) != ids(ds, epoch=1)
    assert ids(ds.repeat(2)) == ids(ds) + ids(ds, epoch=1)
    kept = af.range(50).sample(10, weights="id", seed=1, reshuffle_each_iteration=False)
    assert ids(kept) == ids(kept, epoch=1) == ids(ds)


def test_weights_may_be_computed_and_need_not_be_kept() -> None:
    def drawn(ds: af.Dataset, weights: Any = "w") -> list[Any]:
        return rows_of(ds.sample(9, weights=weights, seed=1))

    named, plain = drawn(weighted(range(1, 21))), weighted(range(20))
    before = plain.with_columns(v=pl.col("w") + 1).drop("w").rename({"v": "w"})
    decimals = weighted(pa.array(range(1, 21), pa.decimal128(9, 2)))
    assert named == drawn(plain, pl.col("w") + 1) == drawn(plain, pc.field("w") + pc.scalar(1))
    assert named == drawn(before) == drawn(decimals)
    left = before.sample(9, weights="w", seed=1).select("row")
    assert batches_of(left)[0].schema.names == ["row"]
    assert drawn(plain, pl.lit(1)) == drawn(weighted([1] * 20))


def test_extreme_weights() -> None:
    tiny = weighted([0.0, 5e-324, 0.0, 5e-324]).sample(2, weights="w", seed=1)
    assert sorted(rows_of(tiny)) == [1, 3]
    huge = weighted([0.0, 1e308, 1e308, 1e308]).sample(50, weights="w", replacement=True, seed=1)
    assert set(rows_of(huge)) == {1, 2, 3}
    whole = weighted([2**62, 0, 0]).sample(5, weights="w", replacement=True, seed=1)
    assert rows_of(whole) == [0] * 5


def test_numbers_by_place() -> None:
    for numbers in (uniforms, exponentials):
        whole = numbers((3, 9), 0, 40)
        for start, stop in itertools.combinations(range(0, 40, 3), 2):
            np.testing.assert_array_equal(numbers((3, 9), start, stop), whole[start:stop])
    many = exponentials((3, 9), 0, 50_000)
    assert many.min() > 0
    for limit in (0.01, 0.3, 1, 2.5):
        assert within(int((many > limit).sum()), 50_000, math.exp(-limit))


# ------------------------------------------------------------------------------------------- lengths, memory, errors


def test_the_number_of_rows_is_known() -> None:
    ds = af.range(50).sample(10, weights="id", seed=1)
    assert (ds.num_rows, len(ds.batch(4).to_numpy())) == (10, 3)
    assert af.range(0).sample(0, weights="id").to_table().num_rows == 0


def test_many_draws_hold_no_numbers() -> None:
    ds = af.range(2).sample(10**15, weights="id", replacement=True, seed=1).batch(4)
    with iter(ds) as batches:
        assert next(batches).column("id").to_pylist() == [1] * 4


def test_the_budget_holds_the_weights() -> None:
    budget = af.Options(ram_budget="16MiB")
    many = af.range(10**7).sample(5, weights="id").with_options(budget)
    refused(af.BudgetError, lambda: batches_of(many), "sample")
    unknown = af.range(400_000).filter(pl.col("id") >= 0).cache().sample(5, weights="id")
    refused(af.BudgetError, lambda: batches_of(unknown.with_options(budget)), "sample", "400,000 rows")


@pytest.mark.parametrize(
    ("weights", "n", "texts"),
    [
        ([1.0, 2.0, 3.0, -0.5, 1.0], 1, ["-0.5 in row 3"]),
        ([1.0, 2.0, 3.0, 4.0, math.nan], 1, ["nan in row 4"]),
        ([1.0, math.inf], 1, ["inf in row 1"]),
        ([1, 2, 3, 4, None], 1, ["null in row 4", "fill_null"]),
        ([0, 0, 0, 0], 1, ["zero in all 4 rows"]),
        ([0, 1, 0, 2], 3, ["2 rows", "at least 3", "replacement=True"]),
        (pa.array([], pa.int64()), 1, ["no rows"]),
    ],
)
def test_weights_that_are_refused(weights: Any, n: int, texts: list[str]) -> None:
    ds = weighted(weights).sample(n, weights="w")
    refused(af.DataError, lambda: batches_of(ds), "sample", *texts, *(() if len(weights) == 0 else ("w",)))


BAD: dict[str, tuple[Any, tuple[str, ...]]] = {
    "a list": ([1, 2], ("name of a column",)),
    "unknown": ("x", ("'x'",)),
    "two columns": (pl.all(), ("2 columns",)),
    "texts": (pl.lit("a"), ("string", "numbers")),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_weights(case: str) -> None:
    weights, texts = BAD[case]
    refused(af.PlanError, lambda: weighted([1, 2]).sample(1, weights=weights).schema, "sample", *texts)


@pytest.mark.parametrize("n", [-1, 1.0, True, None])
def test_bad_numbers(n: Any) -> None:
    refused(af.PlanError, lambda: weighted([1, 2]).sample(n, weights="w"), "sample: n ")


WITHOUT_ACCESS: dict[str, Apply] = {
    "filter": lambda ds: ds.filter(pl.col("w") > 0),
    "shuffle": lambda ds: ds.shuffle(2),
    "map": lambda ds: ds.map(identity),
}


@pytest.mark.parametrize("name", WITHOUT_ACCESS)
def test_a_source_without_random_access_is_refused(name: str) -> None:
    ds = WITHOUT_ACCESS[name](weighted([1, 2]))
    refused(af.PlanError, lambda: ds.sample(1, weights="w").schema, "sample", ".cache()")


def test_batches_are_refused() -> None:
    refused(af.PlanError, lambda: weighted([1]).batch(1).sample(1, weights="w"), "sample", "batch")


def test_columns_that_only_a_run_tells_are_refused() -> None:
    ds = af.range(9).map(lambda batch: batch).cache().sample(3, weights="id")
    refused(af.PlanError, lambda: list(ds), "sample", "pass schema= to the function before")
