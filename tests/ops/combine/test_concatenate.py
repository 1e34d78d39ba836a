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
from tests.ops.tables import ALL_TYPES_INSIDE, NUMBERS, Apply, identity, ids, numbers, refused, rows_of, sizes

pytestmark = pytest.mark.any_version

ALL_RULES = tuple(rule.name for rule in RULES)


CASES: dict[str, tuple[Apply, pa.Table]] = {
    "twice": (lambda ds: ds.concatenate(ds), NUMBERS),
    "three": (lambda ds: ds.concatenate(ds.take(2), ds.skip(11)), ALL_TYPES_INSIDE),
    "batches": (lambda ds: ds.batch(4).concatenate(ds.batch(3)), NUMBERS),
    "epochs": (lambda ds: ds.shuffle(5, seed=1).concatenate(ds), NUMBERS),
}


@pytest.mark.parametrize("case", CASES)
def test_contracts(case: str) -> None:
    apply, table = CASES[case]
    check_operator(apply, table, epochs_differ=case == "epochs")


def test_batches_end_with_their_input() -> None:
    ds = af.range(5).batch(2).concatenate(af.range(4).batch(3))
    assert sizes(ds) == [2, 2, 1, 3, 1]
    assert len(ds.to_polars()) == 5


def test_each_input_runs_the_epoch_of_the_whole() -> None:
    below = af.range(9).shuffle(9, seed=2)
    for epoch in (0, 3):
        assert ids(below.concatenate(af.range(2)), epoch=epoch) == [*ids(below, epoch=epoch), 0, 1]


def test_rows_come_in_the_order_of_the_arguments() -> None:
    ds = af.range(3).concatenate(af.range(0), af.range(10, 12), af.range(0), af.range(5, 6))
    assert ids(ds) == [0, 1, 2, 10, 11, 5]
    assert ds.num_rows == 6
    assert af.range(3).concatenate(af.range(3).filter(pl.col("id") > 1)).num_rows is None
    assert ids(af.range(2).repeat(2).concatenate(af.range(7, 8)).repeat(2)) == [0, 1, 0, 1, 7] * 2


MIXED: dict[str, Callable[[af.Dataset, af.Dataset], af.Dataset]] = {
    "concatenate": lambda one, other: one.concatenate(other),
    "sample_from_datasets": lambda one, other: af.sample_from_datasets([one, other], seed=1),
    "choose_from_datasets": lambda one, other: af.choose_from_datasets(
        [one, other], af.range(6).select(c=pl.col("id") % 2)
    ),
}
READING: dict[str, Apply] = {
    "map": lambda ds: ds.map(lambda batch: batch, columns=["b"]),
    "map_rows": lambda ds: ds.map_rows(lambda row: row, columns=["b"]),
    "scan": lambda ds: ds.scan(0, lambda state, batch: (state, batch), columns=["b"]),
}
KEPT = [row for row, n in enumerate(NUMBERS["n"].to_pylist()) if n is not None and n > 3]
IN_TURNS = {
    "concatenate": [*range(17), *KEPT],
    "choose_from_datasets": [0, KEPT[0], 1, KEPT[1], 2, KEPT[2]],
}


@pytest.mark.parametrize("mixed", MIXED)
def test_columns_are_matched_by_name(mixed: str) -> None:
    first = numbers(2).with_columns(x=pl.col("row") + 1)
    ds = MIXED[mixed](first, first.select("x", "row"))
    found = ds.to_table().to_pydict()
    assert list(found) == ["row", "x"] and found["x"] == [row + 1 for row in found["row"]]
    rows = {"concatenate": [0, 1, 0, 1], "choose_from_datasets": [0, 0, 1, 1]}
    assert found["row"] == rows.get(mixed, found["row"]) != []
    assert MIXED[mixed](first.select("x", "row"), first).schema.names == ["x", "row"]


@pytest.mark.parametrize("mixed", MIXED)
def test_rules_prune_through_all_inputs(mixed: str) -> None:
    """An input that has to read more columns than another leaves them out again."""
    ds = MIXED[mixed](af.from_arrow(NUMBERS), af.from_arrow(NUMBERS).filter(pl.col("n") > 3))
    plain = af.Options(disabled_rules=ALL_RULES)
    rows = rows_of(ds.with_options(plain))
    assert rows == IN_TURNS.get(mixed, rows)
    pruned = ds.select("x", "row").skip(1).filter(pl.col("row") % 3 < 2)
    expected = NUMBERS.select(["x", "row"]).take([row for row in rows[1:] if row % 3 < 2])
    for each in (pruned, pruned.with_options(plain)):
        assert pl.DataFrame(each).equals(pl.DataFrame(expected), null_equal=True)
    assert "prune_columns" in pruned._ready().applied


@pytest.mark.parametrize("reading", READING)
@pytest.mark.parametrize("mixed", MIXED)
@pytest.mark.parametrize("unknown", [0, 1])
def test_rules_prune_no_input_where_another_has_unknown_columns(
    mixed: str, reading: str, unknown: int
) -> None:
    known = numbers(3).with_columns(b=pl.col("row"))
    inputs = [known, known]
    inputs[unknown] = known.map(lambda batch: batch)
    found = READING[reading](MIXED[mixed](*inputs)).to_table()
    assert found.column_names == ["b"]
    assert sorted(found["b"].to_pylist()) == [0, 0, 1, 1, 2, 2][: found.num_rows]


@pytest.mark.parametrize("disabled", [(), ALL_RULES])
def test_only_the_number_of_rows_is_wanted(disabled: tuple[str, ...]) -> None:
    source = af.from_arrow(NUMBERS)
    ds = source.concatenate(source.skip(15)).with_columns(pl.lit(1).alias("one")).select("one")
    assert rows_of(ds.with_options(af.Options(disabled_rules=disabled)), "one") == [1] * 19


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
    assert ids(af.range(3).map(identity).concatenate(af.range(2))) == [0, 1, 2, 0, 1]
    check_resume(lambda: numbers(3, 2).map(identity).concatenate(numbers(4)).batch(2))
    other = af.range(3).map(identity).concatenate(af.range(2).rename({"id": "other"}))
    refused(af.SchemaError, lambda: batches_of(other), "dataset 2", "other", "id")
    turned = numbers(2).with_columns(x=pl.col("row")).map(identity)
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
