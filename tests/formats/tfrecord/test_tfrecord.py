"""TFRecord: what TensorFlow wrote reads back equal, odd records mean what protobuf says, broken files say where."""

from __future__ import annotations

import gzip
import math
import re
import struct
import sys
import zlib
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import fsspec
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.errors import (
    ArrowflowError,
    DataError,
    MissingPackageError,
    PlanError,
    SchemaError,
    SourceError,
)
from arrowflow.formats.tfrecord import framing, proto
from arrowflow.formats.tfrecord.example import ExampleDecoder, joined
from arrowflow.formats.tfrecord.tfrecord import TfrecordFormat
from arrowflow.testing.contracts import check_dataset
from tests.effort import scaled
from tests.formats.make_tfrecords import DATA, FILES, NUM_BLOCKS_ROWS, PAD_BYTES, TYPES
from tests.formats.reading import KINDS, count_fetched, open_footer, read_all
from tests.formats.tfrecords import crc, encoded, framed, message, plain, varint

RECORD = struct.Struct("<f")


def inferred(values: dict[str, list[Any] | None], name: str, *, is_list: bool) -> Any:
    """Returns a cell as it is read without a schema."""
    found = values.get(name)
    if found is None:
        return None
    stored = [value.encode() if isinstance(value, str) else value for value in found]
    stored = [RECORD.unpack(RECORD.pack(value))[0] if isinstance(value, float) else value for value in stored]
    return stored if is_list else stored[0]


def same(found: Any, expected: Any) -> bool:
    """Returns whether two cells are equal, where NaN equals NaN and 0.0 not -0.0."""
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(found, float) and isinstance(expected, float):
        return RECORD.pack(found) == RECORD.pack(expected) or (math.isnan(found) and math.isnan(expected))
    return bool(found == expected)


LISTS = {"numbers", "vector", "words"}


# ---------------------------------------------------------------- files of TensorFlow


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("types")])
def test_what_tensorflow_wrote(name: str) -> None:
    for kind in KINDS:
        table = read_all(TfrecordFormat(), DATA / name, kind=kind)
        assert {field.name: str(field.type) for field in table.schema} == {
            "": "int64",
            "blob": "binary",
            "numbers": "list<item: int64>",
            "rare": "int64",
            "real": "float",
            "text": "binary",
            "vector": "list<item: float>",
            "whole": "int64",
            "words": "list<item: binary>",
        }
        for column in table.column_names:
            expected = [inferred(row, column, is_list=column in LISTS) for row in TYPES]
            assert same(table[column].to_pylist(), expected), column


def test_many_blocks_of_tensorflow(tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    path.write_bytes(gzip.decompress((DATA / "blocks.tfrecord.gz").read_bytes()))
    table = read_all(TfrecordFormat(), path)
    assert table["id"].to_pylist() == list(range(NUM_BLOCKS_ROWS))
    assert set(table["pad"].to_pylist()) == {bytes(PAD_BYTES)}
    _, footer = open_footer(TfrecordFormat(), path)
    assert [split.num_rows for split in footer.splits] == [34, 34, 12]
    for kind in KINDS:
        store, whole = open_footer(TfrecordFormat(), path, kind)
        glanced = TfrecordFormat().footer(store, whole.file, is_sample=True)
        assert glanced.schema == whole.schema
        assert glanced.splits == whole.splits[:1]
    assert read_all(TfrecordFormat(), DATA / "blocks.tfrecord.gz").equals(table)
    _, footer = open_footer(TfrecordFormat(), DATA / "blocks.tfrecord.gz")
    assert [split.num_rows for split in footer.splits] == [NUM_BLOCKS_ROWS]


def test_through_the_public_function() -> None:
    whole = af.read_tfrecord(DATA / "types.tfrecord*", columns=["whole"])
    expected = [row.get("whole") for row in TYPES]
    assert whole.to_table()["whole"].to_pylist() == 3 * [value and value[0] for value in expected]
    assert whole.num_rows == 18
    with_filter = af.read_tfrecord(DATA / "types.tfrecord", filter=pl.col("whole") > 0, columns=["real"])
    assert with_filter.to_table()["real"].to_pylist() == [3.4028234663852886e38, -1.5]
    assert af.read_tfrecord(DATA / "types.tfrecord").skip(5).to_table()["rare"].to_pylist() == [8]
    assert af.read_tfrecord(DATA / "types.tfrecord").take(4).num_rows == 4


def test_a_schema() -> None:
    schema = pa.schema(
        {
            "text": pa.string(),
            "words": pa.large_list(pa.large_string()),
            "vector": pa.list_(pa.float64(), 2),
            "rare": pa.int8(),
            "absent": pa.list_(pa.float32(), 3),
            "missing": pa.binary(),
            "blob": pa.large_binary(),
            "whole": pa.list_(pa.int64()),
        }
    )
    format = TfrecordFormat().typed(schema)
    assert format.arguments() == {"raw": False}
    for kind in KINDS:
        found = read_all(format, DATA / "types.tfrecord", kind=kind)
        assert found.schema == schema
        assert found["text"].to_pylist() == [row.get("text", [None])[0] for row in TYPES]  # type: ignore[index]
        assert found["words"].to_pylist() == [row.get("words") for row in TYPES]
        assert found["rare"].to_pylist() == [7, None, None, None, None, 8]
        assert found["vector"].null_count == 2
        assert found["vector"].to_pylist()[5] == [4.0, 5.0]
        assert found["absent"].null_count == found["missing"].null_count == 6
        assert found["blob"].to_pylist()[2] == bytes(range(256))
        assert found["whole"].to_pylist() == [row.get("whole") for row in TYPES]


def test_no_column_is_only_counted() -> None:
    for format in (TfrecordFormat(), TfrecordFormat(raw=True)):
        store, footer = open_footer(format, DATA / "types.tfrecord")
        (batch,) = format.read(store, footer, footer.splits[0], pa.schema([]))
        assert batch.num_rows == 6


@pytest.mark.parametrize("name", ["types.tfrecord", "types.tfrecord.gz"])
def test_raw_records(name: str) -> None:
    found = af.read_tfrecord(DATA / name, raw=True).to_table()
    schema = pa.schema({"whole": pa.int64()})
    values = [plain(record, schema)["whole"] for record in found["record"].to_pylist()]
    assert values == [0, -1, 2**63 - 1, -(2**63), None, 300]
    assert found.schema == pa.schema({"record": pa.binary()})


def test_raw_records_of_a_block_without_a_good_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(framed([b"x"])[:-1] + b"?")
    format = TfrecordFormat(raw=True)
    store, footer = open_footer(format, tmp_path / "a")
    (part,) = format.sift(store, footer, footer.splits[0], footer.schema, 0, keep=False, hints=set())
    assert (part.batch.num_rows, part.rows, part.numbers) == (0, 1, [0])


def test_an_empty_file_has_no_rows_but_needs_a_schema(tmp_path: Path) -> None:
    path = DATA / "empty.tfrecord"
    schema = pa.schema({"x": pa.int64()})
    assert af.read_tfrecord(path, schema=schema).to_table().num_rows == 0
    assert af.read_tfrecord(path, raw=True).num_rows == 0
    for compression in ("gzip", "zlib"):
        assert af.read_tfrecord(path, raw=True, compression=compression).num_rows == 0
    with pytest.raises(SchemaError, match="no records to infer a schema from; pass schema="):
        _ = af.read_tfrecord(path).schema
    (tmp_path / "a").write_bytes(framed([encoded({"x": [1]})]))
    (tmp_path / "b").write_bytes(b"")
    (tmp_path / "c").write_bytes(gzip.compress(b""))
    assert af.read_tfrecord(tmp_path).to_table().to_pydict() == {"x": [1]}


# ---------------------------------------------------------------- the pipeline's contracts


def numbers(rows: int) -> list[bytes]:
    return [
        encoded({"x": [row], "y": list(range(row % 3))} | ({"z": [0.5]} if row % 2 else {}))
        for row in range(rows)
    ]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPLIT_BYTES", "MAX_SPLIT_BYTES"):
        monkeypatch.setattr(framing, name, 200)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("compress", [bytes, gzip.compress, zlib.compress])
def test_it_keeps_the_contracts_of_a_source(tmp_path: Path, compress: Any) -> None:
    for number, rows in enumerate((7, 0, 9)):
        (tmp_path / str(number)).write_bytes(compress(framed(numbers(rows))))
    if compress is bytes:
        schema = pa.schema({"x": pa.int64(), "y": pa.list_(pa.int64()), "z": pa.float32()})
        read = partial(af.read_tfrecord, tmp_path, schema=schema)
        check_dataset(lambda: read().batch(3))
        check_dataset(lambda: read().shuffle(4, seed=1), epochs_differ=True, in_full=False)
    assert af.read_tfrecord(tmp_path).to_table()["x"].to_pylist() == [*range(7), *range(9)]
    for start in (1, 5, 6, 7, 8, 14, 16):
        rest = af.read_tfrecord(tmp_path).skip(start).take(3).to_table()
        assert rest["x"].to_pylist() == [*range(7), *range(9)][start : start + 3]


@pytest.mark.usefixtures("small_blocks")
def test_files_that_are_not_local() -> None:
    for compress in (bytes, gzip.compress):
        fsspec.filesystem("memory").pipe("/tfrecords/a", compress(framed(numbers(9))))
        found = af.read_tfrecord("memory://tfrecords/a").skip(2).to_table()
        assert found["x"].to_pylist() == list(range(2, 9))


def test_headers_are_found_across_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [encoded({"x": [row], "pad": [bytes(row % 50)]}) for row in range(100)]
    (tmp_path / "a").write_bytes(framed(records))
    expected = read_all(TfrecordFormat(), tmp_path / "a")
    for size in (12, 13, 40, 1000):
        monkeypatch.setattr(framing, "WINDOW_BYTES", size)
        assert read_all(TfrecordFormat(), tmp_path / "a", kind="fsspec").equals(expected)
    (tmp_path / "b").write_bytes(
        gzip.compress(framed(records[:50])) + gzip.compress(framed(records[50:])) + bytes(9)
    )
    for size in (1, 12, 100, 1000):
        monkeypatch.setattr(framing, "WINDOW_BYTES", size)
        monkeypatch.setattr(framing, "INFLATED_BYTES", size)
        assert read_all(TfrecordFormat(), tmp_path / "b").equals(expected)


def test_a_mapped_file_is_not_fetched_and_others_come_in_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(framed(numbers(20)))
    monkeypatch.setattr(framing, "WINDOW_BYTES", 100)
    fetched = count_fetched(monkeypatch)
    for kind in KINDS:
        fetched.clear()
        open_footer(TfrecordFormat(raw=True), path, kind)
        assert (max(fetched), len(fetched) > 1) == ((12, False) if kind == "mapped" else (100, True)), kind


# ---------------------------------------------------------------- broken files


def outcome(path: Path, schema: pa.Schema | None = None) -> tuple[list[int], ArrowflowError | None]:
    """Returns the column `x` as far as it comes, and the error behind it."""
    rows: list[int] = []
    try:
        for batch in af.read_tfrecord(path, schema=schema):
            rows += batch.column("x").to_pylist()
    except ArrowflowError as error:
        return rows, error
    return rows, None


X = pa.schema({"x": pa.int64()})


@pytest.mark.usefixtures("small_blocks")
def test_a_file_that_is_cut_off_anywhere(tmp_path: Path) -> None:
    stored = framed(numbers(2))
    borders = np.cumsum([0] + [len(record) + 16 for record in numbers(2)]).tolist()
    path = tmp_path / "a"
    for size in range(1, len(stored)):
        path.write_bytes(stored[:size])
        rows, error = outcome(path, X)
        whole = sum(border <= size for border in borders) - 1
        assert rows == list(range(whole))
        if size in borders:
            assert error is None
        else:
            assert isinstance(error, SourceError)
            assert f"record {whole} at byte {borders[whole]}: expected" in str(error)
            assert "the file is truncated" in str(error)
            assert error.file == str(path)


def test_a_file_that_ends_behind_a_header_lacks_the_bytes_that_it_announces() -> None:
    (record,) = numbers(1)
    fsspec.filesystem("memory").pipe("/tfrecords/cut", framed([record])[:12])
    with pytest.raises(
        SourceError, match=f"expected {len(record) + 16} bytes, found 12; the file is truncated"
    ):
        af.read_tfrecord("memory://tfrecords/cut", schema=X).to_table()


@pytest.mark.usefixtures("small_blocks")
def test_a_compressed_file_that_is_cut_off_anywhere(tmp_path: Path) -> None:
    stored = gzip.compress(framed(numbers(40)))
    path = tmp_path / "a"
    for size in range(3, len(stored), 17):
        path.write_bytes(stored[:size])
        rows, error = outcome(path, X)
        assert rows == list(range(len(rows)))
        assert isinstance(error, SourceError)
        assert f"record {len(rows)} at byte" in str(error)
        assert "gzip stream has no end; the file is truncated" in str(error)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_no_flipped_bit_gives_a_wrong_row(tmp_path: Path, compress: Any) -> None:
    stored = compress(framed(numbers(2)))
    path = tmp_path / "a"
    for place in range(len(stored)):
        broken = bytearray(stored)
        broken[place] ^= 1 << (place % 8)
        path.write_bytes(broken)
        rows, error = outcome(path, X)
        assert rows == list(range(len(rows)))
        # Some bytes of a gzip header mean nothing.
        assert isinstance(error, SourceError) or (compress is not bytes and len(rows) == 2)


def test_a_wrong_crc_names_the_record(tmp_path: Path) -> None:
    path = tmp_path / "a"
    records = numbers(5)
    stored = framed(records[:3])
    path.write_bytes(stored + framed(records[3:4])[:-4] + b"\0\0\0\0" + framed(records[4:]))
    rows, error = outcome(path)
    assert rows == [0, 1, 2]
    assert str(error).startswith(
        f"read_tfrecord: record 3 at byte {len(stored)}: its {len(records[3])} bytes do not have"
    )


@pytest.mark.parametrize("length", [2**31, 2**63, 2**64 - 1])
def test_a_garbage_length(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a"
    header = struct.pack("<Q", length)
    path.write_bytes(framed(numbers(2)) + header + crc(header) + bytes(100))
    rows, error = outcome(path)
    assert rows == [0, 1]
    assert "protobuf reads less than 2 GiB" in str(error)
    path.write_bytes(framed(numbers(2)) + header + bytes(100))
    rows, error = outcome(path)
    assert rows == [0, 1]
    assert "of its length" in str(error)


def test_what_is_no_tfrecord_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for data in (
        b"PAR1" + bytes(100),
        b"{}",
        b"x" * 1000,
        gzip.compress(b"hello, this is text" * 9),
        b"\x1f\x8b",
    ):
        path.write_bytes(data)
        rows, error = outcome(path)
        assert rows == []
        assert isinstance(error, SourceError)
    path.write_bytes(framed([b"hello", b"\xff\xff"]))
    with pytest.raises(SourceError, match=r"expected a tf\.train\.Example, found 5 bytes .*raw=True"):
        _ = af.read_tfrecord(path).schema
    with pytest.raises(SourceError, match=r"record 0: expected a tf\.train\.Example"):
        af.read_tfrecord(path, schema=X).to_table()
    assert af.read_tfrecord(path, raw=True).to_table()["record"].to_pylist() == [b"hello", b"\xff\xff"]


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(framed(numbers(5)))
    store, footer = open_footer(TfrecordFormat(), path, "read")
    path.write_bytes(framed(numbers(4)) + bytes(100))
    with pytest.raises(SourceError):
        list(TfrecordFormat().read(store, footer, footer.splits[0], footer.schema))


def test_options_that_make_no_sense() -> None:
    with pytest.raises(PlanError, match="compression is 'none', 'gzip', 'zlib' or None"):
        af.read_tfrecord("x", compression="snappy")
    with pytest.raises(PlanError, match="raw is True or False"):
        af.read_tfrecord("x", raw=1)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="no schema= to give"):
        af.read_tfrecord("x", raw=True, schema=X)
    for type in (pa.date32(), pa.list_(pa.list_(pa.int64())), pa.float16(), pa.struct([])):
        with pytest.raises(SchemaError, match="no feature can be read as"):
            _ = af.read_tfrecord(DATA / "types.tfrecord", schema=pa.schema({"whole": type})).schema
    with pytest.raises(SourceError, match="cannot be inflated"):
        af.read_tfrecord(DATA / "types.tfrecord", compression="gzip", schema=X).to_table()


@pytest.mark.parametrize("package", ["google.protobuf.descriptor_pb2", "google_crc32c"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proto.example_class.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=r"pip install 'arrowflow\[tfrecord\]'"):
        _ = af.read_tfrecord(DATA / "types.tfrecord").schema


# ---------------------------------------------------------------- records that do not fit


@pytest.mark.parametrize(
    ("later", "text"),
    [
        ({"x": [1.0]}, r"int64_list \(int64\), found float_list"),
        ({"x": [1, 2]}, r"1 of int64 \(int64\), found 2"),
        ({"x": []}, r"1 of int64 \(int64\), found 0"),
    ],
)
def test_a_later_record_that_does_not_fit(
    tmp_path: Path, later: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arrowflow.formats.tfrecord.tfrecord.INFERRED_ROWS", 2)
    (tmp_path / "a").write_bytes(framed([*numbers(3), encoded(later), *numbers(2)]))
    rows, error = outcome(tmp_path)
    assert rows == [0, 1, 2]
    assert isinstance(error, SchemaError)
    assert re.search(f"record 3: feature 'x': expected {text}; take a type in schema=", str(error))
    assert error.file == str(tmp_path / "a")
    # What is not read need not fit.
    assert af.read_tfrecord(tmp_path, columns=["z"]).to_table().num_rows == 6


@pytest.mark.parametrize(
    ("type", "good", "bad", "text"),
    [
        (pa.int8(), [127], [128], "expected int8 .-128 to 127., found 128"),
        (pa.uint64(), [2**63 - 1], [-1], "expected uint64 .0 to 9223372036854775807., found -1"),
        (pa.bool_(), [1], [2], "expected bool .0 to 1., found 2"),
        (pa.list_(pa.uint8()), [1, 2], [3, 4, 256], "expected uint8 .0 to 255., found 256"),
        (pa.string(), [b"\xc3\xa4"], [b"\xc3"], "expected UTF-8 text"),
        (pa.list_(pa.string()), [b"a", b""], [b"b", b"\xff"], "expected UTF-8 text"),
    ],
)
def test_a_value_that_its_type_cannot_hold(
    tmp_path: Path, type: pa.DataType, good: Any, bad: Any, text: str
) -> None:
    schema = pa.schema({"x": type})
    (tmp_path / "a").write_bytes(
        framed([encoded({"x": good}), encoded({}), encoded({"x": bad}), encoded({"x": [0.5]})])
    )
    found, error = outcome(tmp_path, schema)
    assert len(found) == 2
    assert isinstance(error, DataError)
    assert re.search(f"record 2: feature 'x': {text}", str(error))


def test_a_feature_of_two_kinds_cannot_be_inferred(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(framed([encoded({"x": [1]}), encoded({"x": [1.0]})]))
    with pytest.raises(
        SourceError, match="record 1: feature 'x' is float_list here, and int64_list in a record before"
    ):
        _ = af.read_tfrecord(tmp_path).schema


@pytest.mark.parametrize(("columns", "suffix"), [(1, ""), (160, ""), (160, ".gz"), (2_000, "")])
def test_estimates_count_cells(tmp_path: Path, columns: int, suffix: str) -> None:
    """A record without a feature takes 16 bytes in the file, and a null in each column."""
    rows = 70_000
    data = framed([b""]) * rows
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(data, 1) if suffix else data)
    types = [pa.int64(), pa.list_(pa.float32()), pa.list_(pa.int64(), 3), pa.binary()]
    schema = pa.schema([(f"c{number}", types[number % 4]) for number in range(columns)])
    format = TfrecordFormat().typed(schema)
    store, footer = open_footer(format, path)
    assert footer.num_rows == rows
    split = footer.splits[0]
    batch = next(format.read(store, footer, split, schema))
    assert batch.num_rows == (65_536 if columns == 1 else 6_553 if columns == 160 else 1_024)
    estimate = format.column_bytes(footer, split, schema.names)
    assert batch.nbytes <= estimate <= 2 * batch.nbytes + (2 << 20)
    assert format.column_bytes(footer, split, schema.names[:1]) >= batch.column(0).nbytes
    assert split.num_bytes >= batch.nbytes
    assert format.scratch_bytes(footer, split, schema.names) >= 8 * batch.num_rows * columns


def test_a_state_knows_how_blocks_were_cut(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(framed([encoded({"x": [1]})]))
    wide = pa.schema([("x", pa.int64()), *((f"c{number}", pa.int64()) for number in range(160))])
    with iter(af.read_tfrecord(tmp_path, schema=wide)) as rows:
        next(rows)
        state = rows.state_dict()
    narrow = iter(af.read_tfrecord(tmp_path, schema=wide.remove(1)))
    with narrow, pytest.raises(af.StateError, match="block_rows"):
        narrow.load_state_dict(state)


def test_sequence_examples_are_refused(tmp_path: Path) -> None:
    """They would be read as half of themselves: the context is where an example has its features."""
    feature = message(1, b"words") + message(2, message(1, message(1, bytes_list([b"a"]))))
    record = encoded({"x": [1]}) + message(2, message(1, feature))
    (tmp_path / "a").write_bytes(framed([record]))
    with pytest.raises(SourceError, match=r"record 0: .*tf\.train\.SequenceExample.*raw=True"):
        _ = af.read_tfrecord(tmp_path).schema
    (tmp_path / "a").write_bytes(framed([encoded({"x": [0]}), record]))
    found, error = outcome(tmp_path, pa.schema({"x": pa.int64()}))
    assert len(found) == 1
    assert isinstance(error, SourceError)
    assert re.search("record 1: .*tf.train.SequenceExample", str(error))
    assert af.read_tfrecord(tmp_path, raw=True).to_table()["record"].to_pylist()[1] == record


def test_a_broken_record_among_those_that_tell_the_schema(tmp_path: Path) -> None:
    """It is found when the dataset is bound; with `schema=`, behind the rows in front of it."""
    (tmp_path / "a").write_bytes(framed([encoded({"x": [0]}), encoded({"x": [1]}), b"\xff"]))
    with pytest.raises(SourceError, match=r"record 2: expected a tf\.train\.Example") as caught:
        _ = af.read_tfrecord(tmp_path).schema
    assert caught.value.file == str(tmp_path / "a")
    found, error = outcome(tmp_path, pa.schema({"x": pa.int64()}))
    assert len(found) == 2
    assert "record 2" in str(error)


# ---------------------------------------------------------------- records as protobuf reads them

NAMES = st.sampled_from(["share", "a", "b", "a-rather-long-name-of-a-feature", "ä", ""])
INTS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-300, 300))
FLOATS = st.floats(width=32, allow_nan=False)
SCHEMA = pa.schema(
    {
        "a": pa.list_(pa.int64()),
        "b": pa.list_(pa.float32()),
        "a-rather-long-name-of-a-feature": pa.list_(pa.binary()),
        "": pa.int64(),
        "share": pa.float32(),
        "never": pa.float32(),
    }
)


def int_list(values: list[int], packed: bool) -> bytes:
    each = [varint(value % 2**64) for value in values]
    return message(1, b"".join(each)) if packed else b"".join(b"\x08" + one for one in each)


def float_list(values: list[float], packed: bool) -> bytes:
    each = [struct.pack("<f", value) for value in values]
    return message(1, b"".join(each)) if packed else b"".join(b"\x0d" + one for one in each)


def bytes_list(values: list[bytes]) -> bytes:
    return b"".join(message(1, value) for value in values)


def parts_of(make: Any, values: Any) -> Any:
    """Draws a list of numbers in up to two parts, packed or not."""
    return st.lists(st.builds(make, st.lists(values, max_size=5), st.booleans()), max_size=2).map(b"".join)


UNKNOWN = st.sampled_from([b"", b"", b"", b"\x50\x05", b"\x7a\x02hi", b"\x5d1234"])
LIST = st.one_of(
    st.tuples(st.just(3), parts_of(int_list, INTS)),
    st.tuples(st.just(2), parts_of(float_list, FLOATS)),
    st.tuples(st.just(1), st.builds(bytes_list, st.lists(st.binary(max_size=200), max_size=12))),
)


@st.composite
def odd_records(draw: Any) -> bytes:
    """Draws an example by its bytes: lists in parts or not packed, features twice or in parts, unknown fields."""
    entries = []
    for _ in range(draw(st.integers(0, 5))):
        parts = draw(st.lists(LIST, max_size=2 if draw(st.booleans()) else 1))
        feature = b"".join(message(number, data + draw(UNKNOWN)) for number, data in parts) + draw(UNKNOWN)
        fields = [message(1, draw(NAMES).encode()), message(2, feature)]
        if draw(st.integers(0, 9)) == 0:
            fields = draw(st.permutations([*fields, draw(UNKNOWN)]))[: draw(st.integers(1, 3))]
        entries.append(message(1, b"".join(fields)) + draw(UNKNOWN))
    cut = draw(st.integers(0, len(entries)))
    halves = [entries] if draw(st.booleans()) else [entries[:cut], entries[cut:]]
    return b"".join(message(1, b"".join(half)) for half in halves) + draw(UNKNOWN)


def check_like_protobuf(records: list[bytes], schema: pa.Schema = SCHEMA) -> None:
    """Decodes the rows that fit, which are those that protobuf makes a row of."""
    expected = [read_slowly(record, schema) for record in records]
    found, errors = decoded(ExampleDecoder(schema), records)
    assert sorted(errors) == [row for row, value in enumerate(expected) if isinstance(value, Exception)]
    assert all(isinstance(error, ArrowflowError) for error in errors.values())
    assert same(found, [list(row.values()) for row in expected if not isinstance(row, Exception)])


@settings(max_examples=scaled(60))
@given(st.lists(odd_records(), min_size=1, max_size=30))
def test_odd_records_mean_what_protobuf_says(records: list[bytes]) -> None:
    check_like_protobuf(records)


FEATURES = st.fixed_dictionaries(
    {},
    optional={
        "a": st.lists(INTS, min_size=1, max_size=40),
        "b": st.lists(FLOATS, min_size=1, max_size=40),
        "a-rather-long-name-of-a-feature": st.lists(st.binary(max_size=20), min_size=1, max_size=40),
        "": st.lists(INTS, min_size=1, max_size=1),
        "share": st.lists(FLOATS, min_size=1, max_size=1),
        "unread": st.lists(INTS, min_size=1, max_size=3),
    },
)


@settings(max_examples=scaled(30))
@given(st.lists(st.tuples(FEATURES, st.randoms(use_true_random=False)), min_size=1, max_size=60))
@example([({"a": [7, -1], "share": [0.5], "unread": [3], "": [2]}, Random(seed)) for seed in range(4)])
def test_usual_records_in_any_order(drawn: list[tuple[dict[str, Any], Any]]) -> None:
    records = []
    for features, random in drawn:
        names = list(features)
        random.shuffle(names)
        records.append(encoded({name: features[name] for name in names}))
    check_like_protobuf(records)


@settings(max_examples=scaled(60))
@given(
    st.lists(FEATURES, min_size=1, max_size=20),
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4
    ),
)
def test_garbled_records_with_good_crcs(
    drawn: list[dict[str, Any]], edits: list[tuple[int, int, int]]
) -> None:
    """Never a crash, and never a row that protobuf reads otherwise."""
    records = [encoded(features) for features in drawn]
    for row, place, value in edits:
        record = bytearray(records[row % len(records)])
        if record:
            record[place % len(record)] = value
        records[row % len(records)] = bytes(record)
    check_like_protobuf_if_it_reads(records)


@settings(max_examples=scaled(60))
@given(st.lists(st.binary(max_size=30), min_size=1, max_size=20))
def test_garbage_with_good_crcs(records: list[bytes]) -> None:
    check_like_protobuf_if_it_reads(records)


def check_like_protobuf_if_it_reads(records: list[bytes]) -> None:
    """Compares each record by itself, and decodes all of them together."""
    decoder = ExampleDecoder(SCHEMA)
    for record in records:
        (found, errors), expected = decoded(decoder, [record]), read_slowly(record)
        if errors:
            assert isinstance(expected, Exception)
        elif isinstance(expected, Exception):
            # A key or an unread feature that protobuf refuses may be passed over.
            assert "DecodeError" in type(expected).__name__
        else:
            assert same(found, [list(expected.values())])
    decoded(decoder, records)


def decoded(
    decoder: ExampleDecoder, records: list[bytes]
) -> tuple[list[list[Any]], dict[int, ArrowflowError]]:
    batch, errors = decoder.decode(joined(records))
    batch.validate(full=True)
    return [list(row.values()) for row in batch.to_pylist()], errors


def read_slowly(record: bytes, schema: pa.Schema = SCHEMA) -> dict[str, Any] | Exception:
    try:
        return plain(record, schema)
    except Exception as error:  # noqa: BLE001  (`DecodeError`, which only the package knows)
        return error


def test_names_that_differ_in_little_are_told_apart() -> None:
    names = ["x", "x\0", "x" * 8, "x" * 9, "x" * 16, "x" * 15 + "y", "y" * 3, *map(str, range(200))]
    schema = pa.schema([(name, pa.int64()) for name in names])
    records = [
        encoded({name: [number] for number, name in enumerate(names) if number % (row + 1) == 0})
        for row in range(9)
    ]
    check_like_protobuf([*records, encoded({"x" * 17: [1], "x\0\0": [2]})], schema)


def test_one_long_list_among_short_ones() -> None:
    rows: list[dict[str, Any]] = [
        {"a": [1], "a-rather-long-name-of-a-feature": [b"x"] * (5000 if row == 7 else row)}
        for row in range(1, 40)
    ]
    check_like_protobuf([encoded(row) for row in rows])


def test_numbers_of_any_length_behind_each_other() -> None:
    random = np.random.default_rng(1)
    mixed = random.integers(-(2**63), 2**63 - 1, 30_000) >> random.integers(0, 64, 30_000)
    small = random.integers(0, 1 << 20, 100_000)
    check_like_protobuf([encoded({"a": mixed.tolist()}), encoded({"a": small.tolist()}), encoded({"a": [1]})])
    endless = message(
        1, message(1, message(1, b"a") + message(2, message(3, message(1, b"\x80" * 100_000 + b"\x01"))))
    )
    _, errors = ExampleDecoder(SCHEMA).decode(joined([endless]))
    assert isinstance(errors[0], af.SourceError)


def test_lengths_of_several_bytes() -> None:
    rows: list[dict[str, Any]] = [
        {"a-rather-long-name-of-a-feature": [bytes(size), b"end"], "a": [size]}
        for size in (126, 127, 128, 20_000, 2_100_000)
    ]
    check_like_protobuf([encoded(row) for row in rows])
