"""JSON lines: read back by this library and by Python's own reader; what JSON cannot hold is refused."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from tests.ops.tables import refused

DAY = datetime.datetime(1969, 1, 1)
TABLE = pa.table(
    {
        "row": range(5),
        "text": ["x", None, "", 'a"b\\c', "two\nlines é"],
        "whole": pa.array([1, None, -3, 4, 2**62]),
        "large": pa.array([1, None, 3, 4, 2**64 - 1], pa.uint64()),
        "part": pa.array([0.1, None, 3.5, -0.0, 1e300]),
        "single": pa.array([0.1, None, 3.5, -0.0, 1e30], pa.float32()),
        "yes": [True, None, False, True, False],
        "time": pa.array([datetime.datetime(2020, 1, 2, 3, 4, 5, 678), None, DAY, DAY, DAY]),
        "nanos": pa.array([1, None, 10**9 + 1, 3, 4], pa.timestamp("ns")),
        "zone": pa.array([0, None, 1, 2, 3], pa.timestamp("us", "UTC")),
        "money": pa.array([Decimal("1.50"), None, *[Decimal("-0.01")] * 3], pa.decimal128(9, 2)),
        "list": pa.array([[0.5, None], None, [], [2], [3]]),
        "pair": pa.array([[1, 2], None, [3, 4], [5, 6], [7, 8]], pa.list_(pa.int32(), 2)),
        "struct": pa.array(
            [{"a": 1, "b": ["x"]}, None, {"a": None, "b": []}, {"a": 2, "b": None}, {"a": 3, "b": [""]}]
        ),
        "nothing": pa.nulls(5),
    }
)


def test_rows_are_read_back_by_two_readers(tmp_path: Path) -> None:
    written = af.from_arrow(TABLE).write_json(tmp_path / "out", shard_rows=2)
    assert [Path(file).name for file in written.files] == [f"part-0000{number}.jsonl" for number in range(3)]
    assert written.num_bytes == sum(Path(file).stat().st_size for file in written.files)
    assert af.read_json(tmp_path / "out", schema=TABLE.schema).to_table().equals(TABLE)
    names = ["text", "whole", "large", "part", "yes", "list", "pair", "struct", "nothing"]
    theirs = [
        json.loads(line) for file in written.files for line in Path(file).read_text("utf-8").splitlines()
    ]
    assert [{name: row[name] for name in names} for row in theirs] == TABLE.select(names).to_pylist()


def test_no_rows_make_an_empty_file(tmp_path: Path) -> None:
    (file,) = af.from_arrow(TABLE.slice(0, 0)).write_json(tmp_path / "out").files
    assert Path(file).read_bytes() == b""
    assert af.read_json(file, schema=TABLE.schema).to_table().equals(TABLE.slice(0, 0))


@pytest.mark.parametrize(
    "type",
    [
        pa.binary(),
        pa.date32(),
        pa.duration("s"),
        pa.time64("us"),
        pa.float16(),
        pa.list_(pa.binary()),
        pa.struct({"a": pa.date32()}),
        pa.struct([]),
        pa.map_(pa.string(), pa.int8()),
    ],
    ids=str,
)
def test_types_that_json_lacks_are_refused(tmp_path: Path, type: pa.DataType) -> None:
    ds = af.from_arrow(pa.table({"x": [1], "y": pa.nulls(1, type)}))
    refused(af.WriteError, lambda: ds.write_json(tmp_path / "out"), "write_json", "'y'", "Parquet")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("-inf"), [1.0, float("inf")], {"a": [float("nan")]}, [{"b": float("inf")}]],
    ids=str,
)
def test_values_that_json_lacks_are_refused(tmp_path: Path, value: Any) -> None:
    ds = af.from_arrow(pa.table({"y": pa.array([None, value])}))
    refused(af.WriteError, lambda: ds.write_json(tmp_path / "out"), "'y'", "NaN and infinity")
    assert not list(tmp_path.iterdir())


def test_a_folder_is_replaced_only_when_told(tmp_path: Path) -> None:
    af.range(3).write_json(tmp_path / "out")
    refused(af.WriteError, lambda: af.range(4).write_json(tmp_path / "out"), "overwrite=True")
    af.range(4).write_json(tmp_path / "out", overwrite=True)
    assert af.read_json(tmp_path / "out").to_table().equals(af.range(4).to_table())
    refused(af.PlanError, lambda: af.range(4).write_json(tmp_path / "one.jsonl"), "folder")
