"""`reduce`: one value of all rows."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.dataset import Dataset
from arrowflow.ops.functions.reduce import Reduce
from arrowflow.testing import Fault, check_operator, chunked, chunkings, raising
from tests.ops.tables import NUMBERS, numbers, refused

SMALL = af.Options(max_chunk_rows=3)


def listed(state: list[list[int]], batch: pa.RecordBatch) -> list[list[int]]:
    return [*state, batch["row"].to_pylist()]


def counted(state: int, batch: pa.RecordBatch) -> int:
    return state + batch.num_rows


def test_contracts_of_what_is_below_it() -> None:
    check_operator(lambda ds: Dataset(Reduce(inputs=(ds._plan,))), NUMBERS, ordered_by="row")


def test_it_sees_pieces_in_order_however_the_input_is_cut() -> None:
    assert numbers(4, 0, 2).with_options(SMALL).reduce([], listed) == [[0, 1, 2], [3], [4, 5]]
    for splits in chunkings(NUMBERS).values():
        ds = chunked(splits, NUMBERS.schema).with_options(SMALL)
        assert ds.reduce([], listed) == [list(range(start, min(start + 3, 17))) for start in range(0, 17, 3)]


def test_above_batch_it_sees_the_batches() -> None:
    assert numbers(4, 3).batch(5).with_options(SMALL).reduce([], listed) == [[0, 1, 2, 3, 4], [5, 6]]


@pytest.mark.parametrize("format", ["arrow", "numpy", "polars"])
def test_formats(format: Any) -> None:
    seen = af.range(3).reduce(None, lambda state, batch: batch, format=format)
    assert type(seen) is {"arrow": pa.RecordBatch, "numpy": dict, "polars": pl.DataFrame}[format]


def test_without_rows_the_state_stays_as_it_is() -> None:
    state = object()
    assert numbers(0, 0).reduce(state, lambda state, batch: None) is state


def test_it_runs_epoch_0_and_does_not_count() -> None:
    ds = numbers(9).shuffle(9, seed=1)
    first = ds.reduce([], listed)
    assert ds.reduce([], listed) == first
    assert [batch["row"].to_pylist() for batch in ds] == first


def test_only_its_columns_are_read() -> None:
    ds = af.from_arrow(NUMBERS)
    assert ds.reduce(set(), lambda state, batch: state | set(batch.schema.names), columns=["row"]) == {"row"}
    assert ds.reduce(0, counted, columns=["row"]) == 17


def test_a_class_is_instantiated_once() -> None:
    class Counter:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, state: int, batch: pa.RecordBatch) -> int:
            self.calls += 1
            return self.calls

    assert numbers(1, 1, 1).reduce(0, Counter) == 3


def test_an_error_stops_the_run() -> None:
    broken = ValueError("bad")
    fault = Fault(raising(broken), at=1, fn=lambda state: state)
    with pytest.raises(af.FunctionError, match=r"reduce: .*ValueError: bad") as caught:
        numbers(1, 1, 1).reduce(0, fault)
    assert caught.value.__cause__ is broken
    assert fault.calls == 2
    refused(af.FunctionError, lambda: numbers(1).map(raising(broken)).reduce(0, counted), "map")


def test_bad_arguments() -> None:
    refused(af.PlanError, lambda: numbers(1).reduce(0, 3), "reduce", "function")  # type: ignore[arg-type]
    refused(af.PlanError, lambda: numbers(1).reduce(0, counted, format="x"), "reduce", "format")  # type: ignore[arg-type]
    refused(af.PlanError, lambda: numbers(1).reduce(0, counted, columns=["no"]), "'no'")
