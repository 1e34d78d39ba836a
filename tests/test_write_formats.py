"""CSV, JSON lines, TFRecord and WebDataset: read back by this library and by others; what they cannot hold is refused."""

from __future__ import annotations

import datetime
import json
import random
import struct
import tarfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.csv
import pytest

import arrowflow as af
from tests.ops.tables import refused

DAY = datetime.datetime(1969, 1, 1)
TIMES = pa.array([datetime.datetime(2020, 1, 2, 3, 4, 5, 678), None, DAY, DAY, DAY])
COMMON = {
    "whole": pa.array([1, None, -3, 4, 2**62]),
    "yes": [True, None, False, True, False],
    "time": TIMES,
    "money": pa.array([Decimal("1.50"), None, *[Decimal("-0.01")] * 3], pa.decimal128(9, 2)),
    "zone": pa.array([0, None, 1, 2, 3], pa.timestamp("us", "UTC")),
}
TABLES = {
    "csv": pa.table(
        {
            "text": ["x", None, "", 'a"b,c', "two\nlines"],
            "part": pa.array([0.1, None, float("inf"), -0.0, 1e300]),
            "day": pa.array([datetime.date(2020, 2, 29), None, *[datetime.date(1969, 1, 1)] * 3]),
            **COMMON,
        }
    ),
    "json": pa.table(
        {
            "row": range(5),
            "text": ["x", None, "", 'a"b\\c', "two\nlines é"],
            "large": pa.array([1, None, 3, 4, 2**64 - 1], pa.uint64()),
            "part": pa.array([0.1, None, 3.5, -0.0, 1e300]),
            "single": pa.array([0.1, None, 3.5, -0.0, 1e30], pa.float32()),
            "nanos": pa.array([1, None, 10**9 + 1, 3, 4], pa.timestamp("ns")),
            "list": pa.array([[0.5, None], None, [], [2], [3]]),
            "pair": pa.array([[1, 2], None, [3, 4], [5, 6], [7, 8]], pa.list_(pa.int32(), 2)),
            "pairs": pa.array(
                [[[1, 2], None, [3, 4]], None, [], [None], [[5, 6]]], pa.list_(pa.list_(pa.int32(), 2))
            ),
            "inner": pa.array(
                [{"a": [True]}, None, {"a": [False]}, {"a": None}, {"a": [True]}],
                pa.struct({"a": pa.list_(pa.bool_(), 1)}),
            ),
            "struct": pa.array(
                [{"a": 1, "b": ["x"]}, None, {"a": None, "b": []}, {"a": 2, "b": None}, {"a": 3, "b": [""]}]
            ),
            "nothing": pa.nulls(5),
            **COMMON,
        }
    ),
    "tfrecord": pa.table(
        {
            "id": range(4),
            "small": pa.array([1, None, -3, 4], pa.int8()),
            "yes": [True, None, False, True],
            "real": pa.array([0.1, None, -0.0, float("inf")], pa.float32()),
            "text": ["x", None, "", "é"],
            "data": [b"\0", None, b"", b"z"],
            "whole": pa.array([[1], None, [], [2, -(2**63)]]),
            "vector": pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
            "words": pa.array([["a", ""], None, [], ["b"]]),
        }
    ),
    "webdataset": pa.table(
        {
            "__key__": ["a", "folder.d/b", "c" * 150, "d-1"],
            "jpg": [b"\0" * 512, b"", None, b"x" * 513],
            "seg.png": [None, b"1", None, b"2"],
            "cls": [1, None, -3, 2**62],
            "txt": ["x", None, "", "é\n"],
            "real": pa.array([0.1, None, -0.0, float("inf")]),
            "yes": [True, None, False, True],
        }
    ),
}
ENDINGS = {"csv": "csv", "json": "jsonl", "tfrecord": "tfrecord", "webdataset": "tar"}


@pytest.fixture(autouse=True)
def _packages(request: pytest.FixtureRequest) -> None:
    """Skips tests of TFRecord without its packages."""
    if "tfrecord" in request.node.name:
        pytest.importorskip("google.protobuf")
        pytest.importorskip("google_crc32c")


def write(format: str, table: pa.Table, folder: Path) -> list[Path]:
    """Writes shards of three rows."""
    written = getattr(af.from_arrow(table), f"write_{format}")(folder, shard_rows=3)
    assert written.num_bytes == sum(Path(file).stat().st_size for file in written.files)
    return [Path(file) for file in written.files]


def check_refused(format: str, columns: dict[str, Any], folder: Path, *texts: str) -> None:
    ds = af.from_arrow(pa.table(columns))
    refused(af.WriteError, lambda: getattr(ds, f"write_{format}")(folder / "out"), f"write_{format}", *texts)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("format", TABLES)
def test_rows_are_read_back(tmp_path: Path, format: str) -> None:
    table = TABLES[format]
    files = write(format, table, tmp_path / "out")
    assert [file.name for file in files] == [f"part-0000{number}.{ENDINGS[format]}" for number in range(2)]
    found = getattr(af, f"read_{format}")(tmp_path / "out", schema=table.schema).to_table()
    assert found.combine_chunks().equals(table)
    name = tmp_path / f"one.{ENDINGS[format]}"
    refused(af.PlanError, lambda: getattr(af.range(4), f"write_{format}")(name), "folder of files", name.name)


NO_ROWS = {"csv": None, "json": b"", "tfrecord": b"", "webdataset": None}
"""Bytes of files without rows; CSV has a header, and archives have an end."""


@pytest.mark.parametrize("format", TABLES)
def test_no_rows_make_one_file(tmp_path: Path, format: str) -> None:
    empty = TABLES[format].slice(0, 0)
    (file,) = write(format, empty, tmp_path / "out")
    assert NO_ROWS[format] in (None, file.read_bytes())
    if format != "tfrecord":
        assert getattr(af, f"read_{format}")(file, schema=empty.schema).to_table().equals(empty)
    if format == "csv":
        assert pa.csv.read_csv(file).column_names == empty.column_names
    if format == "webdataset":
        with tarfile.open(file) as archive:
            assert archive.getnames() == []


SIZED = [pa.duration("s"), pa.time64("us"), pa.float16()]
LACKING: dict[str, list[pa.DataType]] = {
    "csv": [pa.list_(pa.int8()), pa.struct({"a": pa.int8()}), pa.binary(), *SIZED],
    "json": [
        *(pa.binary(), pa.date32(), pa.list_(pa.binary()), pa.struct({"a": pa.date32()}), pa.struct([])),
        *(pa.map_(pa.string(), pa.int8()), *SIZED),
    ],
    "tfrecord": [
        *(pa.float64(), pa.uint64(), pa.timestamp("s"), pa.list_(pa.float64())),
        pa.list_(pa.list_(pa.int64())),
    ],
}


@pytest.mark.parametrize("format", LACKING)
def test_types_that_formats_lack_are_refused(tmp_path: Path, format: str) -> None:
    for type in LACKING[format]:
        check_refused(format, {"x": [1], "y": pa.nulls(1, type)}, tmp_path, "'y'", "Parquet")


@pytest.mark.parametrize(
    ("format", "values", "text"),
    [
        ("csv", [1, None], "empty line"),
        ("json", [None, float("nan")], "NaN and infinity"),
        ("json", [None, float("-inf")], "NaN and infinity"),
        ("json", [None, [1.0, float("inf")]], "NaN and infinity"),
        ("json", [None, {"a": [float("nan")]}], "NaN and infinity"),
        ("json", [None, [{"b": float("inf")}]], "NaN and infinity"),
        ("tfrecord", [[1], [None]], "null value"),
    ],
)
def test_values_that_formats_lack_are_refused(
    tmp_path: Path, format: str, values: list[Any], text: str
) -> None:
    check_refused(format, {"y": pa.array(values)}, tmp_path, "'y'", text)


# ---------------------------------------------------------------------------------- other readers


def test_others_read_csv(tmp_path: Path) -> None:
    table = TABLES["csv"]
    files = write("csv", table, tmp_path / "out")
    parse = pa.csv.ParseOptions(newlines_in_values=True)
    convert = pa.csv.ConvertOptions(
        column_types=table.schema, strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    theirs = [pa.csv.read_csv(file, parse_options=parse, convert_options=convert) for file in files]
    assert pa.concat_tables(theirs).equals(table)
    columns = ["text", "part", "whole", "yes"]
    types = {"whole": pl.Int64, "part": pl.Float64, "yes": pl.Boolean}
    polars = pl.concat(pl.read_csv(file, columns=columns, schema_overrides=types) for file in files)
    assert polars.equals(pl.DataFrame(table.select(columns)))


def test_others_read_json(tmp_path: Path) -> None:
    table = TABLES["json"]
    names = ["text", "whole", "large", "part", "yes", "list", "pair", "pairs", "inner"]
    names += ["struct", "nothing"]
    files = write("json", table, tmp_path / "out")
    theirs = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    assert [{name: row[name] for name in names} for row in theirs] == table.select(names).to_pylist()


def nested_type(draw: random.Random, depth: int) -> pa.DataType:
    if not depth:
        return pa.int64()
    one, other = (nested_type(draw, depth - 1) for _ in range(2))
    size = draw.randrange(1, 4)
    return draw.choice([pa.list_(one, size), pa.list_(one), pa.struct({"a": one, "b": other})])


def nested_value(draw: random.Random, type: pa.DataType) -> Any:
    if draw.random() < 0.3:
        return None
    if pa.types.is_struct(type):
        return {field.name: nested_value(draw, field.type) for field in type}
    if pa.types.is_int64(type):
        return draw.randrange(100)
    size = type.list_size if pa.types.is_fixed_size_list(type) else draw.randrange(4)
    return [nested_value(draw, type.value_type) for _ in range(size)]


def test_python_reads_nested_columns_of_json(tmp_path: Path) -> None:
    draw = random.Random(3)
    for number in range(30):
        type = nested_type(draw, draw.randrange(4))
        rows = [nested_value(draw, type) for _ in range(7)]
        files = write("json", pa.table({"x": pa.array(rows, type)}), tmp_path / str(number))
        found = [json.loads(line)["x"] for file in files for line in file.read_text("utf-8").splitlines()]
        assert found == rows, type


def features(file: Path) -> Iterator[dict[str, Any]]:
    """Yields the features of each record, with its checksums compared."""
    from arrowflow.formats.tfrecord.proto import example_class
    from tests.formats.tfrecords import crc

    data = file.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        record = data[12 : 12 + length]
        assert data[8:12] == crc(data[:8]) and data[12 + length : 16 + length] == crc(record)
        yield {
            name: list(getattr(feature, feature.WhichOneof("kind")).value)
            for name, feature in example_class().FromString(record).features.feature.items()
        }
        data = data[16 + length :]


def test_others_read_tfrecord(tmp_path: Path) -> None:
    table = TABLES["tfrecord"]
    stored = [record for file in write("tfrecord", table, tmp_path / "out") for record in features(file)]
    for row, found in zip(table.to_pylist(), stored, strict=True):
        values = {
            name: value if isinstance(value, list) else [value]
            for name, value in row.items()
            if value is not None
        }
        for name in ("text", "words"):
            values |= {name: [text.encode() for text in values[name]]} if name in values else {}
        assert found == values


def test_others_read_webdataset(tmp_path: Path) -> None:
    table = TABLES["webdataset"]
    found: list[tuple[str, bytes]] = []
    for file in write("webdataset", table, tmp_path / "out"):
        with tarfile.open(file) as archive:
            found += [(member.name, archive.extractfile(member).read()) for member in archive]  # type: ignore[union-attr]
    expected = [
        (f"{row['__key__']}.{name}", row[name])
        for row in table.to_pylist()
        for name in table.column_names[1:]
        if row[name] is not None
    ]
    texts = {True: b"true", False: b"false"}
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (name, data), (_, value) in zip(found, expected, strict=True):
        if name.endswith(("jpg", "png")):
            assert data == value
        elif name.endswith("real"):
            assert float(data) == value
        else:
            assert data == (texts[value] if isinstance(value, bool) else str(value).encode())


# -------------------------------------------------------------------------------- keys of archives


def test_equal_rows_make_equal_archives(tmp_path: Path) -> None:
    one, other = (write("webdataset", TABLES["webdataset"], tmp_path / name)[0] for name in ("a", "b"))
    assert one.read_bytes() == other.read_bytes()


def test_numbers_are_keys(tmp_path: Path) -> None:
    rows = af.from_arrow(TABLES["webdataset"].drop(["__key__"])).enumerate(name="__key__")
    written = rows.write_webdataset(tmp_path / "out")
    assert af.read_webdataset(written.files).to_table()["__key__"].to_pylist() == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"jpg": [b"x"]}, ["__key__", "enumerate"]),
        ({"__key__": ["a"], "json": [{"a": 1}]}, ["'json'", "struct", "map"]),
        ({"__key__": [0.5], "txt": ["a"]}, ["'__key__'", "double"]),
        ({"__key__": ["a"], "x/y": ["a"]}, ["'x/y'", "rename"]),
        ({"__key__": ["a"], "": ["a"]}, ["''", "rename"]),
        ({"__key__": ["a"], "txt": ["a"], "TXT": ["b"]}, ["'TXT'", "lower case", "rename it to 'txt'"]),
        ({"__key__": ["a", None], "txt": ["a", "b"]}, ["None is no key"]),
        ({"__key__": ["a.b"], "txt": ["a"]}, ["'a.b' is no key"]),
        ({"__key__": ["a/"], "txt": ["a"]}, ["'a/' is no key"]),
        ({"__key__": ["/a"], "txt": ["a"]}, ["'/a' is no key"]),
        ({"__key__": ["b/../../a"], "txt": ["a"]}, ["'b/../../a' is no key"]),
        ({"__key__": [""], "txt": ["a"]}, ["'' is no key"]),
        ({"__key__": ["a", "a"], "txt": ["a", "b"]}, ["'a' comes twice"]),
        ({"__key__": ["a"], "txt": pa.nulls(1, pa.string())}, ["'a' has nulls alone"]),
    ],
)
def test_what_an_archive_lacks_is_refused(tmp_path: Path, columns: dict[str, Any], words: list[str]) -> None:
    check_refused("webdataset", columns, tmp_path, *words)
