"""TFRecord files: read back by this library and by protobuf; what an example cannot hold is refused."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from tests.formats.tfrecords import crc
from tests.ops.tables import refused

example_class = pytest.importorskip("arrowflow.formats.tfrecord.proto").example_class
pytest.importorskip("google.protobuf")
pytest.importorskip("google_crc32c")

TABLE = pa.table(
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
)


def features(file: str) -> Iterator[dict[str, Any]]:
    """Yields the features of each record, with its checksums compared."""
    data = Path(file).read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        record = data[12 : 12 + length]
        assert data[8:12] == crc(data[:8]) and data[12 + length : 16 + length] == crc(record)
        yield {
            name: list(getattr(feature, feature.WhichOneof("kind")).value)
            for name, feature in example_class().FromString(record).features.feature.items()
        }
        data = data[16 + length :]


def test_rows_are_read_back_by_two_readers(tmp_path: Path) -> None:
    written = af.from_arrow(TABLE).write_tfrecord(tmp_path / "out", shard_rows=3)
    assert [Path(file).name for file in written.files] == [
        f"part-0000{number}.tfrecord" for number in range(2)
    ]
    assert written.num_bytes == sum(Path(file).stat().st_size for file in written.files)
    assert af.read_tfrecord(tmp_path / "out", schema=TABLE.schema).to_table().equals(TABLE)
    stored = [record for file in written.files for record in features(file)]
    for row, found in zip(TABLE.to_pylist(), stored, strict=True):
        values = {
            name: value if isinstance(value, list) else [value]
            for name, value in row.items()
            if value is not None
        }
        for name in ("text", "words"):
            values |= {name: [text.encode() for text in values[name]]} if name in values else {}
        assert found == values


def test_no_rows_make_an_empty_file(tmp_path: Path) -> None:
    (file,) = af.from_arrow(TABLE.slice(0, 0)).write_tfrecord(tmp_path / "out").files
    assert Path(file).read_bytes() == b""


@pytest.mark.parametrize(
    "type",
    [
        pa.float64(),
        pa.uint64(),
        pa.timestamp("s"),
        pa.list_(pa.float64()),
        pa.list_(pa.list_(pa.int64())),
    ],
    ids=str,
)
def test_types_that_examples_lack_are_refused(tmp_path: Path, type: pa.DataType) -> None:
    ds = af.from_arrow(pa.table({"x": [1], "y": pa.nulls(1, type)}))
    refused(af.WriteError, lambda: ds.write_tfrecord(tmp_path / "out"), "write_tfrecord", "'y'", "Parquet")
    assert not list(tmp_path.iterdir())


def test_nulls_in_lists_are_refused(tmp_path: Path) -> None:
    ds = af.from_arrow(pa.table({"y": pa.array([[1], [None]])}))
    refused(af.WriteError, lambda: ds.write_tfrecord(tmp_path / "out"), "'y'", "null value")
    assert not list(tmp_path.iterdir())
