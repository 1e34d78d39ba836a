"""CSV files: read back by this library, pyarrow and Polars; what CSV cannot hold is refused."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.csv
import pytest

import arrowflow as af
from tests.ops.tables import refused

TABLE = pa.table(
    {
        "text": ["x", None, "", 'a"b,c', "two\nlines"],
        "whole": pa.array([1, None, -3, 4, 2**62]),
        "part": pa.array([0.1, None, float("inf"), -0.0, 1e300]),
        "yes": [True, None, False, True, False],
        "day": pa.array([datetime.date(2020, 2, 29), None, *[datetime.date(1969, 1, 1)] * 3]),
        "time": pa.array(
            [datetime.datetime(2020, 1, 2, 3, 4, 5, 678), None, *[datetime.datetime(1969, 1, 1)] * 3]
        ),
        "money": pa.array([Decimal("1.50"), None, *[Decimal("-0.01")] * 3], pa.decimal128(9, 2)),
        "zone": pa.array([0, None, 1, 2, 3], pa.timestamp("us", "UTC")),
    }
)


def test_rows_are_read_back_by_three_readers(tmp_path: Path) -> None:
    written = af.from_arrow(TABLE).write_csv(tmp_path / "out", shard_rows=2)
    assert [Path(file).name for file in written.files] == [f"part-0000{number}.csv" for number in range(3)]
    assert written.num_bytes == sum(Path(file).stat().st_size for file in written.files)
    assert af.read_csv(tmp_path / "out", schema=TABLE.schema).to_table().equals(TABLE)
    parse = pa.csv.ParseOptions(newlines_in_values=True)
    convert = pa.csv.ConvertOptions(
        column_types=TABLE.schema, strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    theirs = [pa.csv.read_csv(file, parse_options=parse, convert_options=convert) for file in written.files]
    assert pa.concat_tables(theirs).equals(TABLE)
    columns = ["text", "whole", "part", "yes"]
    polars = pl.concat(
        pl.read_csv(
            file, columns=columns, schema_overrides={"whole": pl.Int64, "part": pl.Float64, "yes": pl.Boolean}
        )
        for file in written.files
    )
    assert polars.equals(pl.DataFrame(TABLE.select(columns)))


def test_no_rows_keep_the_header(tmp_path: Path) -> None:
    (file,) = af.from_arrow(TABLE.slice(0, 0)).write_csv(tmp_path / "out").files
    assert pa.csv.read_csv(file).column_names == TABLE.column_names


@pytest.mark.parametrize(
    "type",
    [
        pa.list_(pa.int8()),
        pa.struct({"a": pa.int8()}),
        pa.binary(),
        pa.duration("s"),
        pa.time64("us"),
        pa.float16(),
    ],
    ids=str,
)
def test_types_that_csv_lacks_are_refused(tmp_path: Path, type: pa.DataType) -> None:
    ds = af.from_arrow(pa.table({"x": [1], "y": pa.nulls(1, type)}))
    refused(af.WriteError, lambda: ds.write_csv(tmp_path / "out"), "write_csv", "'y'", "Parquet")
    assert not list(tmp_path.iterdir())


def test_a_null_of_the_only_column_is_refused(tmp_path: Path) -> None:
    ds = af.from_arrow(pa.table({"x": [1, None]}))
    refused(af.WriteError, lambda: ds.write_csv(tmp_path / "out"), "'x'", "empty line")
    assert not list(tmp_path.iterdir())


def test_a_folder_is_replaced_only_when_told(tmp_path: Path) -> None:
    af.range(3).write_csv(tmp_path / "out")
    refused(af.WriteError, lambda: af.range(4).write_csv(tmp_path / "out"), "overwrite=True")
    af.range(4).write_csv(tmp_path / "out", overwrite=True)
    assert af.read_csv(tmp_path / "out").to_table().equals(af.range(4).to_table())
    refused(af.PlanError, lambda: af.range(4).write_csv(tmp_path / "one.csv"), "folder")
