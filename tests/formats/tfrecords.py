"""Shared by the tests of TFRecord files: writing them by hand, odd encodings among them, and reading them slowly."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from arrowflow.formats.tfrecord.framing import masked_crc
from arrowflow.formats.tfrecord.proto import example_class

KINDS = {int: "int64_list", float: "float_list", bytes: "bytes_list"}


def framed(records: Iterable[bytes]) -> bytes:
    """Returns a TFRecord file."""
    parts = []
    for record in records:
        length = struct.pack("<Q", len(record))
        parts += [length, crc(length), record, crc(record)]
    return b"".join(parts)


def crc(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc(data))


def encoded(features: Mapping[str, Sequence[Any] | None]) -> bytes:
    """Returns an example as protobuf writes it."""
    example = example_class()()
    for name, values in features.items():
        feature = example.features.feature[name]
        if values is not None:
            kind = KINDS[type(values[0])] if values else "int64_list"
            getattr(feature, kind).SetInParent()
            getattr(feature, kind).value.extend(values)
    return bytes(example.SerializeToString())


def plain(record: bytes, schema: pa.Schema) -> dict[str, Any]:
    """Returns a row of a schema by a loop over protobuf's messages; a feature of another kind or number is an error."""
    example = example_class().FromString(record)
    if example.feature_lists:
        raise ValueError("a SequenceExample")
    features = example.features.feature
    row: dict[str, Any] = {}
    for field in schema:
        row[field.name] = None
        if field.name not in features or features[field.name].WhichOneof("kind") is None:
            continue
        feature = features[field.name]
        is_list = pa.types.is_list(field.type)
        value = field.type.value_type if is_list else field.type
        kind = {pa.int64(): "int64_list", pa.float32(): "float_list", pa.binary(): "bytes_list"}[value]
        if feature.WhichOneof("kind") != kind:
            raise ValueError(f"{field.name} is a {feature.WhichOneof('kind')}")
        values = list(getattr(feature, kind).value)
        if not is_list and len(values) != 1:
            raise ValueError(f"{field.name} has {len(values)} values")
        row[field.name] = values if is_list else values[0]
    return row


def varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


def message(number: int, data: bytes) -> bytes:
    """Returns a field with a length."""
    return varint(number << 3 | 2) + varint(len(data)) + data
