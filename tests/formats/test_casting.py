"""Casts at the scan: shards whose columns drifted come as the types of `schema=`, if no value loses anything."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.formats.casting import cast_exactly, casts
from arrowflow.run import prepare
from arrowflow.testing import check_dataset
from tests.formats.reading import write_table
from tests.ops.tables import refused

NOON = datetime.datetime(2024, 2, 29, 12)
DAY = datetime.datetime(2024, 2, 29)

EXACT: list[tuple[pa.Array, pa.DataType, list[Any]]] = [
    (pa.array([1.0, None, -(2.0**53)]), pa.int64(), [1, None, -(2**53)]),
    (pa.array([2**53]), pa.float64(), [2.0**53]),
    (pa.array([0.5, None, np.nan]), pa.float32(), [0.5, None, np.nan]),
    (pa.array([300]), pa.uint16(), [300]),
    (pa.array([1, 0]), pa.bool_(), [True, False]),
    (pa.array(["7", None]), pa.int8(), [7, None]),
    (pa.array([7]), pa.string(), ["7"]),
    (pa.array([DAY]), pa.date32(), [DAY.date()]),
    (pa.array([NOON], pa.timestamp("ns")), pa.timestamp("s"), [NOON]),
    (pa.array([[1.0, np.nan], None, []]), pa.list_(pa.float32()), [[1.0, np.nan], None, []]),
    (pa.array([{"a": 1.0}, None]), pa.struct({"a": pa.int8()}), [{"a": 1}, None]),
]

LOSSY: list[tuple[pa.Array, pa.DataType]] = [
    (pa.array([1.0, 2.5]), pa.int64()),
    (pa.array([1.0, np.nan]), pa.int64()),
    (pa.array([1, 2**53 + 1]), pa.float64()),
    (pa.array([0.5, 0.1]), pa.float32()),
    (pa.array([0.5, 1e300]), pa.float32()),
    (pa.array([1, 128]), pa.int8()),
    (pa.array([1, 5]), pa.bool_()),
    (pa.array(["7", "x"]), pa.int64()),
    (pa.array(["7", "07"]), pa.int64()),
    (pa.array([DAY, NOON]), pa.date32()),
    (pa.array([datetime.datetime(2000, 1, 1), datetime.datetime(3000, 1, 1)]), pa.timestamp("ns")),
    (pa.array([[1.0], [0.5, 0.1]]), pa.list_(pa.float32())),
    (pa.array([{"a": 1.0}, {"a": 0.1}]), pa.struct({"a": pa.float32()})),
]


def test_values_that_lose_nothing() -> None:
    for array, type, values in EXACT:
        assert casts(array.type, type), (array.type, type)
        found = cast_exactly("x", array, type)
        assert found.type == type
        assert repr(found.to_pylist()) == repr(values)


@pytest.mark.parametrize(("array", "type"), LOSSY, ids=lambda value: str(getattr(value, "type", "")))
def test_the_first_value_that_would_lose_something_is_named(array: pa.Array, type: pa.DataType) -> None:
    many = pa.concat_arrays([array[:1]] * 70 + [array[1:]] + [array[:1]] * 30 + [array[1:]])
    refused(af.DataError, lambda: cast_exactly("x", many, type, 1000), "'x'", "in row 1070", str(type))


def test_types_that_are_not_cast() -> None:
    assert not casts(pa.int64(), pa.list_(pa.int64()))
    assert not casts(pa.struct({"a": pa.int8()}), pa.int8())
    assert not casts(pa.month_day_nano_interval(), pa.int64())


def shards(folder: Path, format: str, *columns: pa.Array) -> Path:
    suffix = "parquet" if format == "parquet" else "arrow"
    for number, column in enumerate(columns):
        write_table(folder / f"{number}.{suffix}", pa.table({"x": column}), rows=2)
    return folder


DRIFTED = pa.array([1, 2, 3]), pa.array([4.0, None, 6.0]), pa.array([7, 8], pa.int8())
VALUES = [1, 2, 3, 4, None, 6, 7, 8]


@pytest.mark.parametrize("format", ["parquet", "ipc"])
@pytest.mark.parametrize("type", [pa.int64(), pa.float64(), pa.float32(), pa.int8()])
def test_shards_that_drifted(tmp_path: Path, format: str, type: pa.DataType) -> None:
    shards(tmp_path, format, *DRIFTED)
    refused(af.SchemaError, lambda: af.read(tmp_path, format=format).to_table(), "pass schema= with double")
    ds = af.read(tmp_path, format=format, schema=pa.schema({"x": type}))
    assert ds.to_table()["x"].to_pylist() == VALUES
    assert ds.schema.field("x").type == type
    if type == pa.int64():
        check_dataset(lambda: af.read(tmp_path, format=format, schema=pa.schema({"x": type})).batch(3))


def test_a_global_shuffle_gathers_rows_that_are_cast(tmp_path: Path) -> None:
    shards(tmp_path, "ipc", *DRIFTED)
    ds = af.read_ipc(tmp_path, schema={"x": pl.Float32}).shuffle(seed=1)
    found = ds.to_table()["x"]
    assert found.type == pa.float32()
    assert sorted(found.to_pylist(), key=str) == sorted(
        [None if value is None else float(value) for value in VALUES], key=str
    )


@pytest.mark.parametrize("format", ["parquet", "ipc"])
def test_a_value_that_does_not_fit_names_file_row_group_and_row(tmp_path: Path, format: str) -> None:
    shards(tmp_path, format, pa.array([1, 2, 3]), pa.array([4.0, 5.0, 6.0, 7.5]))
    ds = af.read(tmp_path, format=format, schema=pa.schema({"x": pa.int64()}))
    taken = []
    with pytest.raises(af.DataError, match=r"'x': 7\.5 \(double\) in row 1 cannot be int64") as caught:
        taken += [batch.num_rows for batch in ds]
    assert str(caught.value.file).endswith(("1.parquet", "1.arrow"))
    assert caught.value.row_group == 1
    assert ds.take(5).to_table()["x"].to_pylist() == [1, 2, 3, 4, 5]
    refused(af.DataError, lambda: ds.skip(6).to_table(), "in row 1 cannot be int64")


@pytest.mark.parametrize(
    "predicate", [pl.col("x") > "3", pc.field("x") > "3", (pl.col("x") < "3") & pl.col("x").is_not_null()]
)
def test_statistics_of_the_stored_type_do_not_prune(tmp_path: Path, predicate: Any) -> None:
    """As numbers 9 to 40 are all above 3; as texts 9 and 4 are above "3", and 10 below it."""
    shards(
        tmp_path, "parquet", pa.array(["1", "4"]), pa.array([9, 10]), pa.array([30, 40]), pa.array([100, 200])
    )
    ds = af.read_parquet(tmp_path, schema=pa.schema({"x": pa.string()}))
    assert ds.filter(predicate).to_table() == af.from_arrow(ds.to_table()).filter(predicate).to_table()


def test_statistics_of_a_cast_column_are_hidden_and_others_prune(tmp_path: Path) -> None:
    table = pa.table({"x": [1.0, 2.0, 3.0, 4.0], "y": pa.array([1, 2, 3, 4], pa.int32())})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    ds = af.read_parquet(tmp_path, schema=pa.schema({"x": pa.int64(), "y": pa.float64()}))
    assert "prune 0 of 4" in ds.filter(pl.col("x") > 2).explain()
    assert "prune 2 of 4" in ds.filter(pl.col("y") < 3).explain()
    assert ds.filter(pl.col("x") > 2).to_table()["x"].to_pylist() == [3, 4]


@pytest.mark.parametrize(("schema", "holds"), [(None, True), (pa.schema({"x": pa.int64()}), False)])
def test_files_that_may_be_cast_are_not_read_under_the_lock(
    tmp_path: Path, schema: pa.Schema | None, holds: bool
) -> None:
    shards(tmp_path, "ipc", *DRIFTED)
    stages = prepare(af.read_ipc(tmp_path, schema=schema)._plan).chain.stages
    assert [spec.holds_lock for stage in stages for spec in stage.specs if spec.kind == "reader"] == [holds]
