"""How operators take rows: the right ones, also of what Arrow misreads in slices."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.kernels.gather import GatherKernel, OfSchema
from arrowflow.kernels.items import Origin
from arrowflow.testing import batches_of, chunked, cut

pytestmark = pytest.mark.any_version

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
def test_rows_of_nested_lists_stay_with_their_numbers_whatever_slices_a_chunk_holds(name: str) -> None:
    rows: list[list[int]] = []
    for sizes in ([6], [24], [1], [5, 0, 2]):
        found = pa.Table.from_batches(batches_of(TAKING[name](chunked([cut(TABLE, sizes)], TABLE.schema))))
        rows.append(found["row"].to_pylist())
        assert found["nested"].to_pylist() == [ROWS[row] for row in rows[-1]]
    assert rows[0] and rows[1:] == rows[:1] * 3


WINDOWED: dict[str, Callable[[af.Dataset], af.Dataset]] = {
    "filter": lambda ds: ds.filter(pl.col("row").arr.get(0) != 15),
    "shuffle": lambda ds: ds.shuffle(3, seed=1),
    "unique": lambda ds: ds.unique("row"),
    "group_by_window": lambda ds: ds.group_by_window(pl.col("row").arr.get(0) % 2, 2),
    "window": lambda ds: ds.window(2, shift=1).select(
        row=pl.col("row").arr.get(1), nested=pl.col("nested").arr.get(1)
    ),
}


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize("skipped", [0, 4])
def test_rows_of_windows_of_vectors(name: str, skipped: int) -> None:
    """Windows side by side are lists of fixed size around the slices that they are made of."""
    vectors = pa.array([[number, -number] for number in range(COUNT)], pa.list_(pa.int64(), 2))
    batch = pa.record_batch({"row": TABLE["row"], "nested": vectors})
    ds = chunked([[batch.slice(0, 13), batch.slice(13)]], batch.schema).skip(skipped).window(3)
    found = WINDOWED[name](ds).to_table()
    assert found.num_rows
    expected = [[[number, -number] for number in rows] for rows in found["row"].to_pylist()]
    assert found["nested"].to_pylist() == expected


def test_windows_of_nested_lists() -> None:
    slices = [TABLE.slice(start, 6) for start in range(0, COUNT, 6)]
    found = chunked([slices], TABLE.schema).window(3, shift=2).to_table()
    assert found["nested"].to_pylist() == [[ROWS[row] for row in rows] for rows in found["row"].to_pylist()]


def test_rows_that_do_not_fit_into_one_record_batch_are_a_data_error() -> None:
    class Failing(GatherKernel):
        def gather(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
            raise pa.ArrowInvalid("offset overflow")

    with pytest.raises(
        af.DataError, match=r"24 rows cannot be gathered together .offset overflow.; .* 2 GiB a column"
    ):
        Failing().apply(TABLE, Origin(0))


def test_what_is_found_in_a_schema_is_found_once() -> None:
    asked: list[pa.Schema] = []

    def num_columns(schema: pa.Schema) -> int:
        asked.append(schema)
        return len(schema.names)

    count = OfSchema(num_columns)
    one, two = pa.schema([("a", pa.int8())]), pa.schema([("a", pa.int8()), ("b", pa.list_(pa.int8()))])
    described = pa.schema([pa.field("a", pa.int8(), metadata={"of": "a field"})], metadata={"of": "a schema"})
    schemas = one, pa.schema(list(one)), described, two, two, one
    assert [count(schema) for schema in schemas] == [1, 1, 1, 2, 2, 1]
    assert asked == [one, two, one]
