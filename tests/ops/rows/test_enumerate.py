"""`enumerate`: the rows of an epoch, numbered."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.optimizer import RULES
from arrowflow.testing import batches_of, check_operator, check_resume
from tests.ops.tables import ALL_TYPES_INSIDE, NUMBERS, ids, numbers, refused, rows_of, sizes

pytestmark = pytest.mark.any_version

ALL_RULES = tuple(rule.name for rule in RULES)


def test_contracts() -> None:
    check_operator(lambda ds: ds.enumerate(), ALL_TYPES_INSIDE, ordered_by="row")
    check_operator(lambda ds: ds.enumerate(start=-3, name="n°").batch(4), NUMBERS)


def test_it_stands_in_front() -> None:
    ds = numbers(2, 0, 3).enumerate()
    assert ds.schema.names == ["index", "row"]
    assert ds.schema.field("index").type == pa.int64()
    assert ds.to_table().to_pydict() == {"index": [0, 1, 2, 3, 4], "row": [0, 1, 2, 3, 4]}
    assert ds.num_rows == 5
    assert sizes(ds) == [2, 3]


def test_each_epoch_counts_anew() -> None:
    ds = af.range(4).shuffle(4, seed=1).enumerate()
    assert rows_of(ds, "index", epoch=3) == [0, 1, 2, 3]
    assert rows_of(af.range(3).enumerate().repeat(2), "index") == [0, 1, 2] * 2
    assert rows_of(af.range(3).repeat(2).enumerate(), "index") == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("disabled", [(), ALL_RULES])
def test_rules_do_not_renumber(disabled: tuple[str, ...]) -> None:
    """Neither may a `skip` or a `filter` pass it, nor the order of a source follow a `shuffle` above it."""
    options = af.Options(disabled_rules=disabled)
    given = af.range(10).with_options(options)
    numbered = given.enumerate(start=100)
    assert rows_of(numbered.skip(7), "index") == [107, 108, 109]
    assert rows_of(numbered.filter(pl.col("id") > 7), "index") == [108, 109]
    assert rows_of(given.filter(pl.col("id") > 7).enumerate(), "index") == [0, 1]
    assert rows_of(numbered.take(2).select("index"), "index") == [100, 101]
    alone = af.from_arrow(NUMBERS).enumerate().select("index").with_options(options)
    assert rows_of(alone, "index") == list(range(17)), "no column of the source is wanted"
    shuffled = numbered.shuffle(10, seed=1)
    assert rows_of(shuffled, "index") == [100 + value for value in ids(shuffled)]


def test_the_column_is_nobody_elses() -> None:
    (batch,) = af.range(3).enumerate().to_numpy()
    assert batch["index"].flags.writeable and batch["id"].flags.writeable
    (batch,) = af.from_arrow(NUMBERS).select("row").enumerate().to_numpy()
    assert not batch["row"].flags.writeable


def test_twice_under_two_names() -> None:
    ds = af.range(6).enumerate().filter(pl.col("id") % 2 == 1).enumerate(name="odd")
    assert ds.to_table().to_pydict() == {"odd": [0, 1, 2], "index": [1, 3, 5], "id": [1, 3, 5]}
    check_resume(lambda: numbers(4, 4).enumerate().shuffle(3, seed=1).enumerate(name="second").batch(3))
    refused(af.PlanError, lambda: af.range(3).enumerate().enumerate(), "enumerate", "'index'", "name=")
    late = af.range(3).map(lambda batch: batch.rename_columns(["index"])).enumerate()
    refused(af.PlanError, lambda: batches_of(late), "enumerate", "'index'")


@pytest.mark.parametrize("start", [1.0, True, "3", None, 1 << 63])
def test_bad_arguments(start: Any) -> None:
    refused(af.PlanError, lambda: af.range(3).enumerate(start), "enumerate", "start")


def test_a_name_is_a_text() -> None:
    bad: Any = 3
    refused(af.PlanError, lambda: af.range(3).enumerate(name=bad), "enumerate", "name")


def test_batches_are_refused() -> None:
    refused(af.PlanError, lambda: af.range(3).batch(2).enumerate(), "enumerate", "batch")


def test_numbers_end_with_64_bits() -> None:
    last = (1 << 63) - 1
    assert rows_of(af.range(3).enumerate(last - 2), "index") == [last - 2, last - 1, last]
    for start in (last - 1, last):
        late = af.range(3).enumerate(start)
        refused(af.DataError, lambda late=late: batches_of(late), "enumerate", "64 bits", f"{start:,}")  # type: ignore[misc]
