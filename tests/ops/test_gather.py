"""How operators take rows: the right ones, also of what Arrow misreads in slices."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.testing import batches_of, chunked

NESTED = pa.list_(pa.list_(pa.int16(), 2), 2)
COUNT = 24
ROWS = [[[number, 1], [2, number]] for number in range(COUNT)]
TABLE = pa.record_batch({"row": pa.array(range(COUNT)), "nested": pa.array(ROWS, NESTED)})

TAKING: dict[str, Callable[[af.Dataset], af.Dataset]] = {
    "shuffle": lambda ds: ds.shuffle(5, seed=1),
    "global shuffle": lambda ds: ds.cache().shuffle(seed=1),
    "filter": lambda ds: ds.filter(pl.col("row") % 3 == 1),
    "filter by function": lambda ds: ds.filter(
        lambda batch: pa.array([row % 3 == 1 for row in batch["row"].to_pylist()])
    ),
    "shard": lambda ds: ds.shard(3, 1),
    "unique": lambda ds: ds.unique("row", max_rows=100).filter(pl.col("row") > 3),
    "rejection_resample": lambda ds: ds.rejection_resample(pl.col("row") % 2, [0.3, 0.7], [0.5, 0.5], seed=1),
    "mixed": lambda ds: af.sample_from_datasets([ds.skip(3), ds.skip(7)], seed=1),
    "group_by_window": lambda ds: ds.group_by_window(pl.col("row") % 4, 2),
}


@pytest.mark.parametrize("name", TAKING)
def test_rows_of_nested_lists_stay_with_their_numbers(name: str) -> None:
    slices = [TABLE.slice(start, 6) for start in range(0, COUNT, 6)]
    found = pa.Table.from_batches(batches_of(TAKING[name](chunked([slices], TABLE.schema))))
    assert found.num_rows
    assert found["nested"].to_pylist() == [ROWS[row] for row in found["row"].to_pylist()]


def test_windows_of_nested_lists() -> None:
    slices = [TABLE.slice(start, 6) for start in range(0, COUNT, 6)]
    found = chunked([slices], TABLE.schema).window(3, shift=2).to_table()
    assert found["nested"].to_pylist() == [[ROWS[row] for row in rows] for rows in found["row"].to_pylist()]
