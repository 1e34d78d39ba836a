"""`zip`: the columns of several datasets side by side, row by row."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.optimizer import RULES
from arrowflow.testing import Fault, batches_of, check_operator, check_resume, raising
from arrowflow.testing.contracts import IN_FULL
from tests.ops.tables import ALL_TYPES_INSIDE, NUMBERS, Apply, identity, ids, numbers, refused, rows_of, sizes

pytestmark = pytest.mark.any_version

ALL_RULES = tuple(rule.name for rule in RULES)


def other(*split_sizes: int) -> af.Dataset:
    return numbers(*split_sizes).rename({"row": "other"})


CASES: dict[str, tuple[Apply, pa.Table]] = {
    "first": (lambda ds: af.zip(ds, other(4, 0, 1, 30)), NUMBERS),
    "second": (lambda ds: af.zip(other(3, 5, 1), ds), NUMBERS),
    "batched": (lambda ds: af.zip(ds, ds.select(also="row"), other(9)).batch(4), ALL_TYPES_INSIDE),
    "epochs": (lambda ds: af.zip(ds.shuffle(5, seed=1), other(40)), NUMBERS),
}


@pytest.mark.parametrize("case", CASES)
def test_contracts(case: str) -> None:
    apply, table = CASES[case]
    check_operator(
        apply,
        table,
        epochs_differ=case == "epochs",
        ordered_by="row" if case == "first" else None,
        in_full=IN_FULL and case in ("first", "epochs"),
    )


def test_it_ends_with_the_shortest() -> None:
    for lengths in itertools.product((0, 3, 5), repeat=2):
        ds = af.zip(numbers(lengths[0]), other(lengths[1]))
        assert rows_of(ds) == rows_of(ds, "other") == list(range(min(lengths)))
        assert ds.num_rows == min(lengths)
    unknown = numbers(5).filter(pl.col("row") > 2)
    assert rows_of(af.zip(unknown, other(9)), "other") == [0, 1]
    assert af.zip(unknown, other(9)).num_rows is None
    assert af.zip(unknown, other(0)).num_rows == 0
    assert ids(af.zip(af.range(3), other(2).repeat())) == [0, 1, 2]


def test_chunks_are_what_overlaps_without_a_copy() -> None:
    first, second = numbers(4, 4, 4), other(3, 5, 4)
    assert sizes(af.zip(first, second)) == [3, 1, 4, 4]
    table = NUMBERS.select(["row"]).combine_chunks()
    (batch,) = batches_of(af.zip(af.from_arrow(table), other(17)))
    address = table.column("row").chunk(0).buffers()[1].address
    assert batch.column("row").buffers()[1].address == address


def test_columns_come_in_the_order_of_the_arguments() -> None:
    ds = af.zip(other(2), numbers(2), af.range(2))
    assert ds.schema.names == ["other", "row", "id"]
    assert af.zip(numbers(2)).to_table().to_pydict() == {"row": [0, 1]}


@pytest.mark.parametrize("disabled", [(), ALL_RULES])
def test_rules_prune_each_input_by_itself(disabled: tuple[str, ...]) -> None:
    frame = pl.DataFrame(NUMBERS)
    left = af.from_arrow(NUMBERS).filter(pl.col("n") > -15)
    right = af.from_arrow(NUMBERS).rename({name: name * 2 for name in NUMBERS.column_names})
    kept = frame.filter(pl.col("n") > -15)
    wide = pl.concat([kept, frame.rename(lambda name: name * 2).head(len(kept))], how="horizontal")
    for columns in (["x", "ss"], ["nn"], ["b", "row"]):
        ds = af.zip(left, right).skip(2).select(*columns).with_options(af.Options(disabled_rules=disabled))
        assert pl.DataFrame(ds).equals(wide.slice(2).select(columns), null_equal=True)


def test_an_error_comes_where_its_rows_would() -> None:
    def failing() -> af.Dataset:
        fault = Fault(raising(ValueError("in the second chunk")), at=1)
        return other(3, 3).map(fault, schema=other(1).schema, num_parallel_calls=1)

    assert rows_of(af.zip(numbers(3), failing())) == [0, 1, 2]
    with iter(af.zip(numbers(5), failing())) as iterator:
        assert next(iterator).num_rows == 3
        refused(af.FunctionError, lambda: next(iterator), "in the second chunk")


def test_a_function_above_sees_the_splits_of_the_first() -> None:
    def noisy(batch: pa.RecordBatch, rng: Any) -> pa.RecordBatch:
        return batch.append_column("noise", pa.array(rng.random(batch.num_rows)))

    def make(*cuts: int) -> af.Dataset:
        return af.zip(numbers(5, 4, 3), other(*cuts)).map(noisy, seed=1)

    assert sizes(make(2, 4, 20)) == [5, 4, 3]
    expected = rows_of(make(20), "noise")
    assert rows_of(make(1, 5, 1, 3, 9), "noise") == expected
    check_resume(lambda: make(2, 4, 5))


def test_without_an_order_rows_stay_together() -> None:
    ds = af.zip(numbers(*[3] * 20).map(identity), other(*[4] * 15).map(identity))
    for _ in range(3):
        found = ds.with_options(af.Options(deterministic=False, cpu_budget=2)).to_table()
        assert found.column("row").equals(found.column("other")) and found.num_rows == 60


def test_it_nests_and_repeats() -> None:
    inner = af.zip(numbers(4, 3), other(2, 9).shuffle(3, seed=1))
    ds = af.zip(inner.repeat(2), af.range(13)).batch(3)
    assert rows_of(ds) == [*range(7), *range(6)]
    check_resume(lambda: ds)


def test_a_cache_may_stand_in_it_twice() -> None:
    below = numbers(3, 4).shuffle(7, seed=1).cache()
    ds = af.zip(below, below.rename({"row": "same"}))
    for _ in range(2):
        table = ds.to_table()
        assert table.column("row").equals(table.column("same")) and table.num_rows == 7


def test_inside_of_what_a_function_returns() -> None:
    def pairs(row: dict[str, Any]) -> af.Dataset:
        return af.zip(af.range(3).with_columns(x=pl.col("id") + 10 * row["id"]), other(2))

    ds = af.range(3).interleave(pairs, cycle_length=2, block_length=1)
    assert rows_of(ds, "x") == [0, 10, 1, 11, 20, 21]
    check_resume(lambda: ds)


WRONG: Any = [af.range(2), af.range(3)]
BAD: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "nothing": (af.zip, ("at least one",)),
    "a list": (lambda: af.zip(WRONG), ("got a list: put * before it",)),
    "batches": (lambda: af.zip(af.range(3), numbers(4).batch(2)), ("batch",)),
    "a name twice": (lambda: af.zip(numbers(2), af.range(2), numbers(3)).schema, ("'row'", "rename")),
    "a name twice later": (
        lambda: batches_of(af.zip(numbers(2).map(identity), numbers(3))),
        ("'row'", "rename"),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case: str) -> None:
    call, texts = BAD[case]
    refused(af.PlanError, call, "zip", *texts)


@pytest.mark.parametrize("disabled", [(), ALL_RULES])
def test_a_clash_is_found_whatever_rules_leave_out(disabled: tuple[str, ...]) -> None:
    unknown = numbers(3).with_columns(b=pl.col("row")).map(identity)
    known = numbers(3).with_columns(narrow=pl.col("row").cast(pl.Int8))
    ds = af.zip(unknown, known).map(identity, columns=["b"])
    ds = ds.with_options(af.Options(disabled_rules=disabled))
    refused(af.PlanError, lambda: batches_of(ds), "zip", "'row'")
