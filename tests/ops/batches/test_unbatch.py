"""`unbatch`: the rows of batches, addressable again."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.optimizer import RULES
from arrowflow.testing import batches_of, check_operator, check_resume
from tests.ops.tables import ALL_TYPES_INSIDE, NUMBERS, ids, numbers, refused, rows_of, sizes

pytestmark = pytest.mark.any_version

ALL_RULES = tuple(rule.name for rule in RULES)


def first_row(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(0, 1)


def test_contracts() -> None:
    check_operator(lambda ds: ds.batch(3).unbatch(), ALL_TYPES_INSIDE, ordered_by="row")
    check_operator(lambda ds: ds.batch(3).unbatch().shuffle(4, seed=1), NUMBERS, epochs_differ=True)
    check_operator(lambda ds: ds.batch(5).map(first_row).unbatch().batch(2), NUMBERS, ordered_by="row")


@pytest.mark.parametrize("disabled", [(), ALL_RULES])
def test_operators_of_rows_follow_it(disabled: tuple[str, ...]) -> None:
    rows = af.range(20).batch(4).unbatch().with_options(af.Options(disabled_rules=disabled))
    assert ids(rows.take(5)) == [0, 1, 2, 3, 4]
    assert ids(rows.skip(17)) == [17, 18, 19]
    assert ids(rows.filter(pl.col("id") % 7 == 0)) == [0, 7, 14]
    assert rows_of(rows.skip(2).enumerate(), "index") == list(range(18))
    assert sorted(ids(rows.shuffle(100, seed=1))) == list(range(20)) != ids(rows.shuffle(100, seed=1))
    assert rows.num_rows == 20


@pytest.mark.parametrize("disabled", [(), ALL_RULES])
def test_batches_before_it_keep_their_rows(disabled: tuple[str, ...]) -> None:
    """A filter, a limit or the order of a shuffle after it would change what the function sees."""
    seen = (
        af.range(20)
        .batch(4)
        .map(lambda batch: batch.append_column("n", pa.repeat(batch.num_rows, batch.num_rows)))
    )
    rows = seen.unbatch().with_options(af.Options(disabled_rules=disabled))
    assert rows_of(rows.filter(pl.col("id") % 4 == 1), "n") == [4] * 5
    assert rows_of(rows.take(2), "n") == [4, 4]
    assert rows_of(rows.skip(5).shuffle(4, seed=3), "n") == [4] * 15


def test_one_row_of_each_group_shuffled() -> None:
    groups = af.range(60).group_by_window(pl.col("id") // 6 % 5, 6)
    rows = groups.map(first_row).unbatch().shuffle(100, seed=2)
    assert sorted(ids(rows)) == [0, 6, 12, 18, 24, 30, 36, 42, 48, 54]


def test_batches_are_cut_anew_after_it() -> None:
    assert sizes(af.range(10).batch(4).unbatch().batch(5)) == [5, 5]
    refused(af.PlanError, lambda: af.range(10).batch(4).unbatch().batch(2).take(1), "take", "batch")


def test_it_goes_on_anywhere() -> None:
    check_resume(lambda: numbers(4, 0, 9, 2).batch(3).unbatch().shuffle(5, seed=1).batch(2))
    check_resume(lambda: numbers(4, 0, 9, 2).batch(3).unbatch().repeat(2).skip(3).batch(4))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_split_changes_nothing(ranks: int) -> None:
    plan = af.range(41).batch(3).map(first_row).unbatch().shuffle(4, seed=1).batch(4)
    parts = [batches_of(plan.split_by_rank(rank, ranks)) for rank in range(ranks)]
    together = [
        sorted(row for part in step for row in part["id"].to_pylist()) for step in zip(*parts, strict=True)
    ]
    assert together == [sorted(batch["id"].to_pylist()) for batch in batches_of(plan)][: len(together)]
    assert sum(map(len, together)) == 14


def test_without_batches_it_is_refused() -> None:
    refused(af.PlanError, lambda: af.range(10).unbatch(), "unbatch", "leave it out")
