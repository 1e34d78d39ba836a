"""Avro: rows are those of fastavro; runs of blocks are splits; what is damaged, foreign or no column is a typed error that names it."""

from __future__ import annotations

import bz2
import datetime as dt
import decimal
import io
import json
import lzma
import random
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.formats import find
from arrowflow.formats.avro import avro, blocks
from arrowflow.formats.varints import written_number
from arrowflow.testing import check_dataset
from tests.formats.reading import open_footer, read_split
from tests.ops.tables import refused

MARK = b"0123456789abcdef"
NOON = dt.datetime(2020, 2, 3, 12, 0, 0, 7_000, tzinfo=dt.UTC)
ENUM = {"type": "enum", "name": "e", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "f", "size": 3}
PAIR = {
    "type": "record",
    "name": "p",
    "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": ["null", ENUM]}],
}
SCHEMA = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "map", "values": ["null", "double"]}},
        {"name": "pair", "type": ["null", PAIR]},
    ],
}
ROWS: list[dict[str, Any]] = [
    {
        "id": row,
        "text": None if row % 5 == 2 else "ü" * (row % 9),
        "tags": {"x": row / 4, "y": None} if row % 3 else {},
        "pair": None if row % 4 == 1 else {"a": row, "b": None if row % 2 else "AB"[row // 2 % 2]},
    }
    for row in range(600)
]


def write(path: Path, rows: list[dict[str, Any]] = ROWS, schema: Any = SCHEMA, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, sync_marker=MARK, **({"sync_interval": 700} | options))
    return path


def of(type: Any) -> dict[str, Any]:
    """Returns the schema of records with one field."""
    return {"type": "record", "name": "row", "namespace": "n.s", "fields": [{"name": "x", "type": type}]}


def rows(ds: af.Dataset) -> list[dict[str, Any]]:
    return ds.to_table().to_pylist(maps_as_pydicts="strict")


def logical(type: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"type": type, "logicalType": kind, **more}


TYPES: dict[str, tuple[Any, list[Any], pa.DataType]] = {
    "boolean": ("boolean", [True, False], pa.bool_()),
    "int": ("int", [1, -(1 << 31)], pa.int32()),
    "long": ({"type": "long"}, [1 << 62, -1], pa.int64()),
    "float": ("float", [1.5], pa.float32()),
    "double": (["double", "null"], [1 / 3, None], pa.float64()),
    "bytes": ("bytes", [b"\xff\0", b""], pa.binary()),
    "string": (["null", "string"], ["ü", None, ""], pa.string()),
    "fixed": (["null", FIXED], [b"abc", None], pa.binary(3)),
    "enum": (["null", ENUM], ["B", None, "A"], pa.string()),
    "array": ({"type": "array", "items": ["null", "long"]}, [[1, None], []], pa.list_(pa.int64())),
    "arrays of enums": (
        ["null", {"type": "array", "items": {"type": "array", "items": ENUM}}],
        [[["A"], []], None, [["B", "A"]]],
        pa.list_(pa.list_(pa.string())),
    ),
    "maps of records": (
        ["null", {"type": "map", "values": PAIR}],
        [{"k": {"a": 1, "b": "A"}}, None, {}],
        pa.map_(pa.string(), pa.struct({"a": pa.int32(), "b": pa.string()})),
    ),
    "records": (["null", PAIR], [{"a": 1, "b": None}, None], pa.struct({"a": pa.int32(), "b": pa.string()})),
    "date": (["null", logical("int", "date")], [dt.date(1960, 1, 2), None], pa.date32()),
    "time-millis": (logical("int", "time-millis"), [dt.time(1, 2, 3, 4000)], pa.time32("ms")),
    "time-micros": (logical("long", "time-micros"), [dt.time(1, 2, 3, 4005)], pa.time64("us")),
    "timestamp-millis": (logical("long", "timestamp-millis"), [NOON], pa.timestamp("ms", "UTC")),
    "timestamp-micros": (logical("long", "timestamp-micros"), [NOON], pa.timestamp("us", "UTC")),
    "local-timestamp-micros": (
        {"type": "array", "items": logical("long", "local-timestamp-micros")},
        [[NOON.replace(tzinfo=None)]],
        pa.list_(pa.timestamp("us")),
    ),
    "decimal": (
        ["null", logical("bytes", "decimal", precision=10, scale=2)],
        [decimal.Decimal("-1.25"), None],
        pa.decimal128(10, 2),
    ),
    "decimal of fixed width": (
        logical("fixed", "decimal", precision=38, name="d", size=16),
        [decimal.Decimal(10**37)],
        pa.decimal128(38, 0),
    ),
    "of no meaning here": (logical("string", "of-my-own"), ["a"], pa.string()),
}


@pytest.mark.parametrize("name", TYPES)
def test_types(name: str, tmp_path: Path) -> None:
    type, values, expected = TYPES[name]
    path = write(tmp_path / "a.avro", [{"x": value} for value in values], of(type))
    with path.open("rb") as file:
        read = list(fastavro.reader(file))
    assert [row["x"] for row in read] == values  # type: ignore[index,call-overload]
    ds = af.read_avro(path)
    assert ds.schema.field("x").type == expected
    assert rows(ds) == read


def test_types_that_fastavro_has_otherwise(tmp_path: Path) -> None:
    schema = of(logical("long", "timestamp-nanos"))
    schema["fields"] += [
        {"name": "y", "type": logical("string", "uuid")},
        {"name": "z", "type": "null"},
        {"name": "e", "type": ENUM},
        {"name": "again", "type": {"type": "array", "items": "n.s.e"}},
        {"name": "short", "type": ["null", "e"]},
    ]
    key = uuid.UUID(int=7)
    row = {"x": 1_500_000_000_000_000_001, "y": key, "z": None, "e": "B", "again": ["A", "B"], "short": "A"}
    ds = af.read_avro(write(tmp_path / "a.avro", [row], schema))
    assert ds.schema.field("x").type == pa.timestamp("ns", "UTC") and ds.schema.field("z").type == pa.null()
    table = ds.to_table()
    assert table["x"].cast(pa.int64()).to_pylist() == [row["x"]]
    assert table.drop_columns("x").to_pylist() == [
        {"y": str(key)} | {each: row[each] for each in list(row)[2:]}
    ]
    assert ds.select("z").to_table().to_pydict() == {"z": [None]}


def snappy(data: bytes) -> bytes:
    return pa.compress(data, codec="snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big")


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "snappy": snappy,
    "zstandard": lambda data: pa.compress(data, codec="zstd", asbytes=True),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "deflate": lambda data: zlib.compress(data, wbits=-15),
    "null": lambda data: data,
}


def recoded(path: Path, codec: str, change: Callable[[bytes], bytes] = lambda data: data) -> Path:
    """Writes a file that is not compressed with a codec that `fastavro` needs further packages for."""
    data = path.read_bytes()
    found = open_footer(find("avro"), path)[1].details.blocks
    old, new = b"\x08null", written_number(len(codec)) + codec.encode()
    parts = [data[: data.index(MARK)].replace(old, new), MARK]
    for count, start, stop in zip(found.rows, found.starts, found.stops, strict=True):
        block = change(CODECS[codec](data[start:stop]))
        parts += [written_number(int(count)), written_number(len(block)), block, MARK]
    path.write_bytes(b"".join(parts))
    return path


@pytest.mark.parametrize("codec", CODECS)
def test_codecs(codec: str, tmp_path: Path) -> None:
    path = recoded(write(tmp_path / "a.avro"), codec)
    assert rows(af.read_avro(path)) == ROWS
    if codec in ("null", "deflate"):
        with path.open("rb") as file:
            assert list(fastavro.reader(file)) == ROWS
    recoded(write(tmp_path / "b.avro"), codec, lambda data: data[:-9])
    refused(af.SourceError, lambda: af.read_avro(tmp_path / "b.avro").to_table(), "b.avro", "run of blocks 0")


@pytest.mark.parametrize("codec", ["uncompressed", "deflate", "snappy"])
def test_files_of_polars(codec: Any, tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {"x": range(99), "text": [f"row {row}" for row in range(99)], "list": [[1.5, None]] * 99}
    )
    frame.write_avro(tmp_path / "a.avro", compression=codec)
    assert af.read_avro(tmp_path).to_table().to_pydict() == frame.to_dict(as_series=False)


def test_a_block_of_snappy_with_another_checksum(tmp_path: Path) -> None:
    path = recoded(write(tmp_path / "a.avro"), "snappy", lambda data: data[:-1] + b"?")
    refused(af.SourceError, lambda: af.read_avro(path).to_table(), "is damaged", str(path))


@pytest.mark.parametrize("codec", ["deflate", "snappy", "zstandard", "xz"])
def test_blocks_that_are_too_large(codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recoded(write(tmp_path / "a.avro"), codec)
    monkeypatch.setattr(blocks, "MAX_BYTES", 500)
    refused(af.SourceError, lambda: af.read_avro(path).to_table(), "more than 500 bytes", str(path))


def test_blocks_that_are_too_large_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kB of stored blocks may become gigabytes: as many bytes are made as may be decoded together, and no more."""
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": "string"}]}
    path = tmp_path / "a.avro"
    with path.open("wb") as opened:
        fastavro.writer(opened, schema, [{"x": "a" * 10_000}] * 50, codec="deflate", sync_interval=1)
    assert path.stat().st_size < 5_000
    assert af.read_avro(path).num_rows == 50
    monkeypatch.setattr(blocks, "MAX_BYTES", 200_000)
    made: list[int] = []
    deflate = blocks.CODECS["deflate"]

    def counted(data: memoryview, most: int) -> tuple[Any, bool]:
        found = deflate(data, most)
        made.append(len(found[0]))
        return found

    monkeypatch.setitem(blocks.CODECS, "deflate", counted)
    text = "after 19 blocks that are decoded with it"
    refused(af.SourceError, lambda: af.read_avro(path).to_table(), text, str(path))
    assert sum(made) == 200_001
    monkeypatch.setattr(blocks, "MAX_BYTES", 600_000)
    assert af.read_avro(path).to_table()["x"].to_pylist() == ["a" * 10_000] * 50


@pytest.mark.slow
def test_contracts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "SPLIT_BYTES", 2_000)
    write(tmp_path / "a.avro")
    write(tmp_path / "b.avro", ROWS[:100])
    check_dataset(lambda: af.read_avro(tmp_path).batch(90))
    check_dataset(lambda: af.read_avro(tmp_path).shuffle(64, seed=1).batch(90), epochs_differ=True)


def test_splits_are_runs_of_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "SPLIT_BYTES", 2_000)
    path = write(tmp_path / "a.avro")
    with path.open("rb") as opened:
        counts = [block.num_records for block in fastavro.block_reader(opened)]
    format = find("avro")
    store, footer = open_footer(format, path, "subtree")
    assert footer.num_rows == sum(counts) == 600
    assert 3 < len(footer.splits) < len(counts)
    assert [int(rows) for rows in footer.details.blocks.rows] == counts
    split, first = footer.splits[2], sum(split.num_rows for split in footer.splits[:2])
    ranges = format.ranges(footer, split, ["id"])
    assert sum(stop - start for start, stop in ranges) < footer.file.size / 3
    found = read_split(format, store, footer, split, footer.schema)
    assert found["id"].to_pylist() == list(range(first, first + split.num_rows))


def test_rows_are_counted_and_skipped_without_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro, "SPLIT_BYTES", 2_000)
    path = recoded(write(tmp_path / "a.avro"), "deflate")
    _, footer = open_footer(find("avro"), path)
    first = footer.splits[0].num_rows
    data = bytearray(path.read_bytes())
    start = int(footer.details.blocks.starts[0])
    data[start : start + 9] = b"\xff" * 9
    path.write_bytes(data)
    ds = af.read_avro(path, columns=["id"])
    assert ds.num_rows == 600
    assert ds.skip(first).to_table()["id"].to_pylist() == list(range(first, 600))
    refused(af.SourceError, lambda: ds.to_table(), "run of blocks 0", str(path))
    kept = af.read_avro(path, columns=["id"], on_error="skip").to_table()
    assert kept["id"].to_pylist() == list(range(first, 600))


def test_a_later_file_of_another_schema(tmp_path: Path) -> None:
    write(tmp_path / "a.avro", [{"x": 1}], of("int"))
    write(tmp_path / "b.avro", [{"x": 1 << 40}], of("long"))
    ds = af.read_avro(tmp_path)
    refused(af.SchemaError, ds.to_table, "column 'x': expected int32, found int64", "b.avro")
    assert rows(af.read_avro(tmp_path, schema={"x": pa.int64()})) == [{"x": 1}, {"x": 1 << 40}]
    write(tmp_path / "b.avro", [{"y": 1}], of("int") | {"fields": [{"name": "y", "type": "int"}]})
    refused(af.SchemaError, ds.to_table, "column 'x' (int32) is missing", "b.avro")
    assert rows(af.read_avro(tmp_path, missing_columns="null")) == [{"x": 1, "y": None}, {"x": None, "y": 1}]


NONE = {
    "union": (of(["null", "int", "string"]), "column 'x': a union of null and int and string"),
    "union of one": (of(["int"]), "a union of int"),
    "nothing": (of({"type": "array", "items": "null"}), "column 'element': the type 'null' alone"),
    "name": (of("nowhere"), "column 'x': the type 'nowhere', which nothing defines"),
    "itself": (of(["null", "row"]), "column 'x': records 'row' that hold themselves"),
    "empty": (of({"type": "record", "name": "q", "fields": []}), "records without fields"),
    "digits": (of(logical("bytes", "decimal", precision=40)), "decimals of 40 digits, expected at most 38"),
    "nulls": (of("null"), "fields of null alone"),
    "no records": ("long", "expected records, whose fields are columns, found 'long'"),
    "twice": (of("int") | {"fields": [{"name": "x", "type": "int"}] * 2}, "['x']"),
    "none": ({"type": "record", "name": "r"}, "none of Avro"),
}


@pytest.mark.parametrize("name", NONE)
def test_schemas_that_are_no_columns(name: str, tmp_path: Path) -> None:
    schema, text = NONE[name]
    path = write(tmp_path / "a.avro", [{"x": 1}], of("int"))
    data = path.read_bytes()
    head = [b"avro.schema", json.dumps(schema).encode()]
    path.write_bytes(
        b"Obj\x01"
        + written_number(1)
        + b"".join(written_number(len(each)) + each for each in head)
        + b"\0"
        + data[data.index(MARK) :]
    )
    refused(af.SchemaError, lambda: af.read_avro(path).schema, text, str(path))


def test_files_that_are_cut_short_or_foreign(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.avro").read_bytes()
    path = tmp_path / "a.avro"
    for size in [0, 1, 4, 5, whole.index(MARK) + 3, *random.Random(1).sample(range(6, len(whole)), 15)]:
        path.write_bytes(whole[:size])
        if not whole[:size].endswith(MARK):  # behind a block nothing tells that more blocks came
            refused(af.SourceError, lambda: af.read_avro(path).to_table(), str(path))
    path.write_bytes(b"PAR1" + bytes(999))
    refused(af.SourceError, lambda: af.read_avro(path).to_table(), "the file is none of Avro", str(path))
    write(path, codec="null")
    path.write_bytes(path.read_bytes().replace(b"\x08null", b"\x08lzma", 1))
    texts = "compressed by 'lzma', expected one of 'null'", str(path)
    refused(af.SourceError, lambda: af.read_avro(path).to_table(), *texts)
    packed = af.read_avro(write(tmp_path / "a.avro.gz"))
    refused(af.SourceError, packed.to_table, "compressed as a whole (gzip)")


def test_changed_bytes_are_rows_or_a_typed_error(tmp_path: Path) -> None:
    """Polars ends the process where a block says that it has very many records; so none such gets there."""
    whole = write(tmp_path / "a.avro", ROWS[:40], sync_interval=200).read_bytes()
    path, drawn, refusals = tmp_path / "b.avro", random.Random(3), 0
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(drawn.choice([1, 1, 4])):
            data[drawn.randrange(whole.index(MARK), len(data))] = drawn.randrange(256)
        path.write_bytes(data)
        try:
            af.read_avro(path).to_table()
        except (af.SourceError, af.SchemaError):
            refusals += 1
    assert refusals > 12


def test_a_block_that_says_too_many_records(tmp_path: Path) -> None:
    path = write(tmp_path / "a.avro", ROWS[:1], codec="deflate")
    data = path.read_bytes()
    at = data.index(MARK) + 16
    assert data[at] == 2
    for count in (1 << 50, 3_000):
        path.write_bytes(data[:at] + written_number(count) + data[at + 1 :])
        refused(af.SourceError, lambda: af.read_avro(path).to_table(), f"{count:,} records", str(path))


def test_files_without_rows_and_long_headers(tmp_path: Path) -> None:
    write(tmp_path / "a.avro", [])
    write(tmp_path / "b.avro", ROWS[:9], metadata={"note": "x" * 200_000})
    assert af.read_avro(tmp_path / "a.avro").to_table().num_rows == 0
    assert rows(af.read_avro(tmp_path)) == ROWS[:9]


def test_numbers() -> None:
    for value in (0, 1, 63, 64, 1 << 20, 1 << 62):
        data = io.BytesIO()
        fastavro.schemaless_writer(data, {"type": "long"}, value)
        assert written_number(value) == data.getvalue()
        assert blocks.number(data.getvalue() + b"\0", 0) == (value, len(data.getvalue()))
    with pytest.raises(af.SourceError, match="stands no number"):
        blocks.number(b"\xff" * 12, 0)
