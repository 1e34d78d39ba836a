"""The encoding of a TFRecord file: a `tf.train.Example` for each row, by the `protobuf` package.

protobuf takes about 20 µs for a row of a dozen columns. A file that is written once is read many times, so its speed does not matter
as much as that of reading, see `formats/tfrecord/example.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, ClassVar, Final, NamedTuple

import pyarrow as pa

from arrowflow.errors import WriteError
from arrowflow.formats.tfrecord.framing import masked_crc
from arrowflow.formats.tfrecord.proto import example_class
from arrowflow.interchange.to_numpy import is_ragged, is_text
from arrowflow.write.encoders import Encoder

_ROWS: Final = 1024
"""Rows that are Python objects at the same time."""

_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")


class _Column(NamedTuple):
    """How a column becomes a feature: the kind of its list, and a type of Arrow whose Python objects protobuf takes."""

    name: str
    kind: str
    type: pa.DataType
    is_list: bool


class ExampleEncoder(Encoder):
    """A TFRecord file. A null has no feature.

    Types that `read_tfrecord` could not read back are refused.
    """

    suffix: ClassVar[str] = ".tfrecord"

    def __init__(self, sink: Any, schema: pa.Schema) -> None:
        self._columns = [_column(field) for field in schema]
        self._example = example_class()
        self._sink = sink

    def write(self, group: pa.Table) -> None:
        for column in self._columns:
            if column.is_list and any(
                chunk.flatten().null_count for chunk in group.column(column.name).chunks
            ):
                raise WriteError(
                    f"column {column.name!r}: a list of a tf.train.Example has no place for a null value; leave such values "
                    "out, or write Parquet files"
                )
        for start in range(0, group.num_rows, _ROWS):
            self._sink.write(b"".join(self._records(group.slice(start, _ROWS))))

    def _records(self, rows: pa.Table) -> Iterator[bytes]:
        values = [rows.column(column.name).cast(column.type).to_pylist() for column in self._columns]
        for row in range(rows.num_rows):
            message = self._example()
            features = message.features.feature
            for column, of_rows in zip(self._columns, values, strict=True):
                value = of_rows[row]
                if value is not None:
                    found = getattr(features[column.name], column.kind)
                    found.SetInParent()  # an empty list is no null
                    found.value.extend(value if column.is_list else [value])
            data = message.SerializeToString(deterministic=True)
            length = _LENGTH.pack(len(data))
            yield b"".join((length, _CRC.pack(masked_crc(length)), data, _CRC.pack(masked_crc(data))))


def _column(field: pa.Field) -> _Column:
    types, type = pa.types, field.type
    is_list = is_ragged(type) or types.is_fixed_size_list(type)
    value = type.value_type if is_list else type
    if types.is_boolean(value) or (types.is_integer(value) and not types.is_uint64(value)):
        kind, stored = "int64_list", pa.int64()
    elif types.is_float32(value):
        kind, stored = "float_list", value
    elif is_text(value):
        kind, stored = "bytes_list", pa.large_binary()
    else:
        raise WriteError(
            f"column {field.name!r}: a tf.train.Example has no place for {type}, but for int64, float32, bytes and lists "
            "of them; drop or cast the column, or write Parquet files"
        )
    return _Column(field.name, kind, pa.large_list(stored) if is_list else stored, is_list)
