"""`concatenate`: the rows of one dataset after those of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.optimizer import RULES
from arrowflow.testing import Fault, batches_of, check_dataset, check_operator, check_resume, chunked, raising
from tests.ops.tables import ALL_TYPES_INSIDE, NUMBERS, ids, numbers, refused, rows_of, sizes

pytestmark = pytest.mark.any_version

ALL_RULES = tuple(rule.name for rule in RULES)


def test_contracts() -> None:
    check_operator(lambda ds: ds.concatenate(ds), NUMBERS)
    check_operator(lambda ds: ds.concatenate(ds.take(2), ds.skip(11)), ALL_TYPES_INSIDE)


def test_contracts_of_batches() -> None:
    check_operator(lambda ds: ds.batch(4).concatenate(ds.batch(3)), NUMBERS)
    assert sizes(af.range(5).batch(2).concatenate(af.range(4).batch(3))) == [2, 2, 1, 3, 1]
    assert len(af.range(5).batch(2).concatenate(af.range(4).batch(3)).to_polars()) == 5


def test_contracts_of_epochs() -> None:
    """Each input runs the epoch of the whole."""
    check_operator(lambda ds: ds.shuffle(5, seed=1).concatenate(ds), NUMBERS, epochs_differ=True)
    below = af.range(9).shuffle(9, seed=2)
    for epoch in (0, 3):
        assert ids(below.concatenate(af.range(2)), epoch=epoch) == [*ids(below, epoch=epoch), 0, 1]


def test_rows_come_in_the_order_of_the_arguments() -> None:
    ds = af.range(3).concatenate(af.range(0), af.range(10, 12), af.range(0), af.range(5, 6))
    assert ids(ds) == [0, 1, 2, 10, 11, 5]
    assert ds.num_rows == 6
    assert af.range(3).concatenate(af.range(3).filter(pl.col("id") > 1)).num_rows is None
    assert ids(af.range(2).repeat(2).concatenate(af.range(7, 8)).repeat(2)) == [0, 1, 0, 1, 7] * 2


def test_columns_are_matched_by_name() -> None:
    first = af.range(2).with_columns(x=pl.col("id") + 1)
    second = af.range(3, 4).with_columns(x=pl.col("id") * 2).select("x", "id")
    assert first.concatenate(second).to_table().to_pydict() == {"id": [0, 1, 3], "x": [1, 2, 6]}
    assert second.concatenate(first).schema.names == ["x", "id"]


@pytest.mark.parametrize("disabled", [(), ALL_RULES])
def test_rules_prune_through_all_inputs(disabled: tuple[str, ...]) -> None:
    """An input that has to read more columns than another leaves them out again."""
    plain, filtered = af.from_arrow(NUMBERS), af.from_arrow(NUMBERS).filter(pl.col("n") > 3)
    ds = plain.concatenate(filtered).select("x", "row").skip(1).filter(pl.col("x") > 1)
    ds = ds.with_options(af.Options(disabled_rules=disabled))
    whole = pl.concat([pl.DataFrame(NUMBERS), pl.DataFrame(NUMBERS).filter(pl.col("n") > 3)])
    expected = whole.select("x", "row").slice(1).filter(pl.col("x") > 1)
    assert pl.DataFrame(ds).equals(expected, null_equal=True)
    if not disabled:
        assert "prune_columns" in ds._ready().applied


@pytest.mark.parametrize("disabled", [(), ALL_RULES])
def test_only_the_number_of_rows_is_wanted(disabled: tuple[str, ...]) -> None:
    ds = (
        af.from_arrow(NUMBERS)
        .concatenate(af.from_arrow(NUMBERS).skip(15))
        .with_columns(pl.lit(1).alias("one"))
    )
    ds = ds.select("one").with_options(af.Options(disabled_rules=disabled))
    assert rows_of(ds, "one") == [1] * 19


def test_errors_come_in_order() -> None:
    """An input that is opened ahead brings no error forward, and a satisfied `take` hides it."""

    def failing() -> af.Dataset:
        fault = Fault(raising(ValueError("the last one")), at=0)
        return numbers(2, 3).concatenate(numbers(4).map(fault, schema=numbers(1).schema))

    assert rows_of(failing().take(5)) == [0, 1, 2, 3, 4]
    with iter(failing()) as iterator:
        assert [next(iterator).num_rows, next(iterator).num_rows] == [2, 3]
        refused(af.FunctionError, lambda: next(iterator), "the last one")


def test_a_function_above_sees_splits_of_one_input_each() -> None:
    """Their numbers differ, so equal splits of two inputs do not get the same random numbers."""

    def noisy(batch: pa.RecordBatch, rng: Any) -> pa.RecordBatch:
        return batch.append_column("noise", pa.array(rng.random(batch.num_rows)))

    def make() -> af.Dataset:
        return numbers(3, 4).concatenate(numbers(3), numbers(4)).map(noisy, seed=1)

    assert sizes(make()) == [3, 4, 3, 4]
    assert len(set(rows_of(make(), "noise"))) == 14
    check_resume(make)


def test_a_cache_may_stand_in_it_twice() -> None:
    below = af.range(6).shuffle(6, seed=1).cache()
    check_dataset(lambda: af.range(6).cache().concatenate(af.range(3)).batch(4))
    assert ids(below.concatenate(below)) == ids(below) * 2


def test_unknown_schemas_are_compared_when_rows_come() -> None:
    def plus(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    assert ids(af.range(3).map(plus).concatenate(af.range(2))) == [0, 1, 2, 0, 1]
    check_resume(lambda: numbers(3, 2).map(plus).concatenate(numbers(4)).batch(2))
    other = af.range(3).map(plus).concatenate(af.range(2).rename({"id": "other"}))
    refused(af.SchemaError, lambda: batches_of(other), "dataset 2", "other", "id")
    turned = numbers(2).with_columns(x=pl.col("row")).map(plus)
    swapped = turned.concatenate(turned.select("x", "row"))
    refused(af.SchemaError, lambda: batches_of(swapped), "one order", "select")


def test_nullability_is_not_compared() -> None:
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    batch = pa.record_batch([pa.array([7])], schema=strict)
    assert ids(af.range(2).concatenate(chunked([[batch]], strict))) == [0, 1, 7]


def test_bad_arguments() -> None:
    ds = af.range(3)
    bad: Any = "rows"
    refused(af.PlanError, ds.concatenate, "concatenate", "at least one")
    refused(af.PlanError, lambda: ds.concatenate(ds, bad), "concatenate", "argument 2", "str")
    refused(af.PlanError, lambda: ds.concatenate(ds.batch(2)), "concatenate", "dataset 2 is in batches")
    renamed = ds.concatenate(ds, ds.rename({"id": "row"}))
    refused(af.PlanError, lambda: renamed.schema, "concatenate", "dataset 3", "lacks ['id']", "'row'")
    cast = ds.concatenate(ds.cast({"id": pa.int32()}))
    refused(af.PlanError, lambda: cast.schema, "concatenate", "'id'", "int64", "int32", "dataset 2")


MIXED: dict[str, Callable[[af.Dataset, af.Dataset], af.Dataset]] = {
    "concatenate": lambda one, other: one.concatenate(other),
    "sample_from_datasets": lambda one, other: af.sample_from_datasets([one, other], seed=1),
    "choose_from_datasets": lambda one, other: af.choose_from_datasets(
        [one, other], af.range(6).select(c=pl.col("id") % 2)
    ),
}
READING: dict[str, Callable[[af.Dataset], af.Dataset]] = {
    "map": lambda ds: ds.map(lambda batch: batch, columns=["b"]),
    "map_rows": lambda ds: ds.map_rows(lambda row: row, columns=["b"]),
    "scan": lambda ds: ds.scan(0, lambda state, batch: (state, batch), columns=["b"]),
}


@pytest.mark.parametrize("reading", READING)
@pytest.mark.parametrize("mixed", MIXED)
@pytest.mark.parametrize("unknown", [0, 1])
def test_rules_prune_no_input_where_another_has_unknown_columns(
    mixed: str, reading: str, unknown: int
) -> None:
    known = numbers(3).with_columns(b=pl.col("row"))
    inputs = [known, known]
    inputs[unknown] = known.map(lambda batch: batch)
    ds = READING[reading](MIXED[mixed](*inputs))
    found = ds.to_table()
    assert (
        found.column_names == ["b"] and sorted(found["b"].to_pylist()) == [0, 0, 1, 1, 2, 2][: found.num_rows]
    )
