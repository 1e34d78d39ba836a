"""ORC: rows are those of pyarrow's reader; stripes are splits; a file that is cut short or foreign is a typed error that names it."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.orc
import pytest

import arrowflow as af
from arrowflow.formats import decoded_schema, find
from arrowflow.formats.orc.orc import Stripe, stripes
from arrowflow.testing import check_dataset
from tests.formats.reading import open_footer, read_split
from tests.ops.tables import refused

ROWS = 3_000


def every(make: Any, type: pa.DataType) -> pa.Array:
    return pa.array([None if row % 4 == 1 else make(row) for row in range(ROWS)], type)


TABLE = pa.table(
    {
        "bool": every(lambda row: row % 3 == 0, pa.bool_()),
        "int8": every(lambda row: row % 100 - 50, pa.int8()),
        "int64": every(lambda row: row << 40, pa.int64()),
        "float": every(lambda row: row / 4, pa.float32()),
        "double": every(lambda row: row / 3, pa.float64()),
        "text": every(lambda row: "ü" * (row % 9), pa.string()),
        "bytes": every(lambda row: bytes(row % 5), pa.binary()),
        "date": every(lambda row: dt.date(1950, 1, 1) + dt.timedelta(row), pa.date32()),
        "time": every(lambda row: row * 10**9 + row, pa.timestamp("ns")),
        "instant": every(lambda row: row * 10**9, pa.timestamp("ns", "UTC")),
        "decimal": every(lambda row: decimal.Decimal(row) / 100, pa.decimal128(20, 2)),
        "list": every(lambda row: [row, None] * (row % 3), pa.list_(pa.int32())),
        "struct": every(
            lambda row: {"a": row, "b": str(row)}, pa.struct({"a": pa.int16(), "b": pa.string()})
        ),
        "map": every(lambda row: [(str(row), row)] * (row % 2), pa.map_(pa.string(), pa.int64())),
    }
)


def write(path: Path, table: pa.Table = TABLE, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.orc.write_table(table, path, **({"stripe_size": 1_000, "batch_size": 256} | options))
    return path


@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
def test_rows_of_all_types_are_those_of_pyarrow(tmp_path: Path, compression: str) -> None:
    path = write(tmp_path / "a.orc", compression=compression)
    expected = pyarrow.orc.read_table(path)
    expected = expected.cast(decoded_schema(expected.schema))
    ds = af.read_orc(path)
    assert ds.to_table().equals(expected)
    assert ds.num_rows == ROWS
    if compression == "zlib":
        for name in TABLE.column_names:
            part = ds.select(name).skip(700).take(900).to_table()
            assert part.equals(expected.select([name]).slice(700, 900))


@pytest.mark.slow
def test_contracts(tmp_path: Path) -> None:
    write(tmp_path / "a.orc")
    write(tmp_path / "b.orc", TABLE.slice(0, 500))
    check_dataset(lambda: af.read_orc(tmp_path).batch(300))
    check_dataset(lambda: af.read_orc(tmp_path).shuffle(64, seed=1).batch(300), epochs_differ=True)


def test_stripes_are_the_splits(tmp_path: Path) -> None:
    path = write(tmp_path / "a.orc")
    _, footer = open_footer(find("orc"), path)
    opened = pyarrow.orc.ORCFile(path)
    rows = [opened.read_stripe(index).num_rows for index in range(opened.nstripes)]
    assert len(rows) > 3 and [split.num_rows for split in footer.splits] == rows
    assert footer.num_rows == ROWS


def test_rows_are_counted_and_skipped_without_reading_stripes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.orc")
    expected = pyarrow.orc.read_table(path).select(["int64"])
    _, footer = open_footer(find("orc"), path)
    first = footer.details.stripes[0]
    data = bytearray(path.read_bytes())
    data[first.start : first.stop] = b"\xff" * (first.stop - first.start)
    path.write_bytes(data)
    ds = af.read_orc(path).select("int64")
    assert ds.num_rows == ROWS
    assert ds.skip(first.num_rows).to_table().equals(expected.slice(first.num_rows))
    refused(af.SourceError, lambda: ds.to_table(), "cannot read it", "stripe 0", str(path))
    kept = af.read_orc(path, on_error="skip").select("int64").to_table()
    assert kept.equals(expected.slice(first.num_rows))


def test_a_stripe_of_another_file_system_is_fetched_alone(tmp_path: Path) -> None:
    table = pa.table({"x": random.Random(0).choices(range(1 << 40), k=20_000)})
    path = write(tmp_path / "a.orc", table, stripe_size=20_000)
    format = find("orc")
    store, footer = open_footer(format, path, "subtree")
    assert len(footer.splits) > 3
    split = footer.splits[1]
    ranges = format.ranges(footer, split, ["x"])
    assert sum(stop - start for start, stop in ranges) < footer.file.size / 2
    found = read_split(format, store, footer, split, footer.schema)
    assert found.equals(pa.Table.from_batches([pyarrow.orc.ORCFile(path).read_stripe(1)]))


def test_names_with_dots_are_no_fields_of_structs(tmp_path: Path) -> None:
    table = pa.table({"a": [{"b": 1}, {"b": 2}], "a.b": ["x", "y"], "c": [3, 4]})
    ds = af.read_orc(write(tmp_path / "a.orc", table))
    for name in table.column_names:
        assert ds.select(name).to_table().equals(table.select([name]))


def test_columns_that_share_a_name(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "b", "a"])
    path = write(tmp_path / "a.orc", table)
    refused(af.SchemaError, lambda: af.read_orc(path).schema, "several called ['a']", str(path))
    assert af.read_orc(path, columns="b").to_table().to_pydict() == {"b": [2]}


def test_files_without_rows(tmp_path: Path) -> None:
    write(tmp_path / "a.orc", TABLE.slice(0, 0))
    write(tmp_path / "b.orc", TABLE.slice(0, 9))
    assert af.read_orc(tmp_path / "a.orc").to_table().num_rows == 0
    assert af.read_orc(tmp_path).num_rows == 9


def test_schema_and_folders(tmp_path: Path) -> None:
    write(tmp_path / "day=1" / "a.orc", pa.table({"x": pa.array([1, 2], pa.int32())}))
    write(tmp_path / "day=2" / "a.orc", pa.table({"y": [0]}))
    ds = af.read_orc(tmp_path, schema={"x": pa.int64(), "day": pa.int64()}, filter=pl.col("day") > 0)
    assert ds.to_table().to_pydict() == {"x": [1, 2, None], "day": [1, 1, 2]}


def test_files_that_are_cut_short_or_foreign(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.orc", TABLE.slice(0, 600)).read_bytes()
    path = tmp_path / "a.orc"
    for size in [0, 1, 2, 3, *random.Random(1).sample(range(4, len(whole)), 15)]:
        path.write_bytes(whole[:size])
        refused(af.SourceError, lambda: af.read_orc(path).to_table(), str(path))
    path.write_bytes(b"PAR1" + bytes(999) + b"PAR1")
    refused(af.SourceError, lambda: af.read_orc(path).to_table(), "cannot read it", str(path))


@pytest.mark.parametrize("tail", [b"\x12\x02\x1a", b"\x12\xff", b"\x10\x01", b"\x13", b"\xff" * 12])
def test_tails_that_are_none(tail: bytes) -> None:
    with pytest.raises(af.SourceError, match="the footer"):
        stripes(tail)


def test_a_stripe_that_tells_no_rows_has_none() -> None:
    """Protocol buffers leave out what is 0."""
    found = stripes(b"\x12\x06" + b"\x1a\x04" + b"\x08\x03\x18\x14")
    assert found == (Stripe(start=3, stop=23, num_rows=0),)
