"""`flat_map`: one dataset after the other; what it shares with `interleave` is tested there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest

import arrowflow as af
from arrowflow.testing import Fault, batches_of, check_operator, raising
from tests.ops.combine.test_interleave import children, pairs, sizes_of
from tests.ops.tables import NUMBERS, Apply, numbers, refused, rows_of, sizes, stands_for_all

pytestmark = pytest.mark.any_version

SMALL = af.Options(max_chunk_rows=3)


def shuffled(row: dict[str, Any]) -> af.Dataset:
    return children(row).shuffle(4)


def nested(row: dict[str, Any]) -> af.Dataset:
    return numbers(row["row"] % 3).flat_map(children)


CASES: dict[str, Apply] = {
    "plain": lambda ds: ds.flat_map(children),
    "one at a time": lambda ds: ds.flat_map(children, num_parallel_calls=1),
    "small pieces": lambda ds: ds.with_options(SMALL).flat_map(children),
    "nested": lambda ds: ds.flat_map(nested),
    "batched": lambda ds: ds.flat_map(children).batch(7),
    "repeated": lambda ds: ds.flat_map(children).repeat(2),
    "random elements": lambda ds: ds.flat_map(shuffled),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_contracts(case: str) -> None:
    check_operator(
        CASES[case],
        NUMBERS,
        epochs_differ=case == "random elements",
        in_full=stands_for_all(case, CASES),
    )


def test_rows_come_one_dataset_after_the_other() -> None:
    expected = [(row, i) for row in range(15) for i in range(sum(sizes_of(row)))]
    for workers in (1, 4):
        options = af.Options(cpu_budget=workers, max_chunk_rows=3)
        assert pairs(numbers(9, 6).with_options(options).flat_map(children)) == expected
    assert pairs(numbers(9, 6).interleave(children, cycle_length=1)) == expected


def test_with_one_call_nothing_is_begun_ahead() -> None:
    begun: list[int] = []

    def fn(row: dict[str, Any]) -> af.Dataset:
        def generate() -> Iterator[dict[str, int]]:
            begun.append(row["row"])
            yield {"row": row["row"], "begun": len(begun)}

        return af.from_generator(generate)

    assert rows_of(numbers(6).flat_map(fn, num_parallel_calls=1), "begun") == [1, 2, 3, 4, 5, 6]
    assert begun == list(range(6))


def test_a_resumed_run_calls_the_function_for_what_is_left() -> None:
    seen: list[int] = []

    def fn(row: dict[str, Any]) -> af.Dataset:
        seen.append(row["row"])
        return children({"row": row["row"] + 1})

    ds = numbers(5).flat_map(fn)
    with iter(ds) as iterator:
        found = pairs(itertools.islice(iterator, 3))
        state = iterator.state_dict()
        rest = pairs(iterator)
    seen.clear()
    with iter(ds) as iterator:
        iterator.load_state_dict(state)
        assert pairs(iterator) == rest
    assert min(seen) == found[-1][0] - 1 > 0


def test_errors_name_it() -> None:
    broken = ValueError("no such shard")
    fault = Fault(raising(broken), when=lambda row: row["row"] == 3, fn=children)
    with iter(numbers(6).flat_map(fault)) as iterator, pytest.raises(af.FunctionError) as caught:
        list(iterator)
    assert str(caught.value).startswith("flat_map: ") and caught.value.__cause__ is broken
    refused(af.FunctionError, lambda: batches_of(numbers(3).flat_map(lambda row: 3)), "flat_map", "Dataset")  # type: ignore[arg-type,return-value]
    batched = numbers(3).flat_map(lambda row: af.range(4).batch(2))
    refused(af.FunctionError, lambda: batches_of(batched), "flat_map", "put `batch` after `flat_map`")


def test_bad_arguments() -> None:
    refused(af.PlanError, lambda: numbers(3).flat_map(3), "flat_map", "function")  # type: ignore[arg-type]
    refused(af.PlanError, lambda: numbers(3).batch(2).flat_map(children), "flat_map", "batch")
    refused(af.PlanError, lambda: numbers(3).flat_map(children, num_parallel_calls=0), "flat_map")


def test_a_state_of_interleave_is_refused() -> None:
    with iter(numbers(3).interleave(children, cycle_length=1)) as iterator:
        next(iterator)
        state = iterator.state_dict()
    with iter(numbers(3).flat_map(children)) as iterator:
        refused(af.StateError, lambda: iterator.load_state_dict(state), "flat_map")


def test_what_is_above_it_knows_its_columns_when_it_runs() -> None:
    ds = numbers(4).flat_map(children).filter(pl.col("i") > 2).select("i")
    assert rows_of(ds, "i") == [3, 4, 5, 6, 7, 8]
    assert sizes(ds)
