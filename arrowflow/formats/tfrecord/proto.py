"""`tf.train.Example` as the `protobuf` package reads it: to infer schemas, and to decide odd encodings.

The messages are described here, so that TensorFlow is not needed. protobuf takes 20 µs for a record of a dozen
features. So `example.py` walks the usual encoding itself.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from arrowflow.errors import SourceError
from arrowflow.optional import optional

KINDS: Final = ("", "bytes_list", "float_list", "int64_list")
"""Names of a feature's kinds by their field number."""

VALUES: Final = (pa.null(), pa.binary(), pa.float32(), pa.int64())
"""Types of one value by kind."""

_SEQUENCE: Final = "feature_lists"
"""The field that a `tf.train.SequenceExample` has in addition to the fields of an `Example`."""

_TYPES: Final = {"float": 2, "int64": 3, "string": 9, "message": 11, "bytes": 12}
"""Numbers of `FieldDescriptorProto.Type`."""


@functools.cache
def example_class() -> Any:
    """Returns the class of `tf.train.Example`.

    Raises:
        MissingPackageError: The package is not installed.
    """
    descriptor_pb2, descriptor_pool, message_factory = (
        optional(f"google.protobuf.{name}", user="TFRecord", extra="tfrecord")
        for name in ("descriptor_pb2", "descriptor_pool", "message_factory")
    )
    file = descriptor_pb2.FileDescriptorProto(
        name="arrowflow/example.proto", package="arrowflow", syntax="proto3"
    )
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, type in enumerate(("bytes", "float", "int64"), 1):
        _field(file.message_type.add(name=f"{type}_list"), f"{type} value", 1, repeated=True)
        _field(feature, f".arrowflow.{type}_list {KINDS[number]}", number).oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    _field(entry, "string key", 1)
    _field(entry, ".arrowflow.Feature value", 2)
    _field(features, ".arrowflow.Features.FeatureEntry feature", 1, repeated=True)
    message = file.message_type.add(name="Example")
    _field(message, ".arrowflow.Features features", 1)
    _field(message, f"bytes {_SEQUENCE}", 2)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("arrowflow.Example"))


def _field(message: Any, text: str, number: int, *, repeated: bool = False) -> Any:
    type, name = text.split()
    field = message.field.add(name=name, number=number, label=3 if repeated else 1)
    field.type = _TYPES.get(type, _TYPES["message"])
    if type not in _TYPES:
        field.type_name = type
    return field


def parse(record: bytes) -> Any:
    """Returns a record as a message.

    Raises:
        SourceError: The record is no message.
    """
    example = example_class()
    try:
        message = example.FromString(record)
    except Exception as error:  # `DecodeError`, whose class only the package has
        text = str(error).strip() or type(error).__name__
        raise SourceError(
            f"expected a tf.train.Example, found {len(record)} bytes that protobuf cannot decode ({text}); read "
            "records of another kind with raw=True"
        ) from error
    if getattr(message, _SEQUENCE):
        raise SourceError(
            f"expected a tf.train.Example, found one with {_SEQUENCE}, which looks like a tf.train.SequenceExample, and "
            "half of it would be left out; read such records with raw=True, and decode them by map"
        )
    return message


def canonical(record: bytes) -> bytes:
    """Returns a record as protobuf writes it: lists packed, each feature once, no unknown fields."""
    message = parse(record)
    message.DiscardUnknownFields()
    return message.SerializeToString()


def infer(records: Iterable[bytes]) -> pa.Schema:
    """Returns a schema with one column for each feature, ordered by name.

    A feature that always has one value gives a column of values. Any other feature gives a column of lists.

    Raises:
        SourceError: A record is no `tf.train.Example`, or a feature occurs as two kinds. The message names the record.
    """
    kinds: dict[str, int] = {}
    lists: set[str] = set()
    for row, record in enumerate(records):
        try:
            message = parse(record)
        except SourceError as error:
            raise SourceError(f"record {row}: {error}") from error.__cause__
        for name, feature in message.features.feature.items():
            kind = feature.WhichOneof("kind")
            if kind is None:
                continue
            number = KINDS.index(kind)
            if kinds.setdefault(name, number) != number:
                raise SourceError(
                    f"record {row}: feature {name!r} is {kind} here, and {KINDS[kinds[name]]} in a record before; "
                    "name the features to read in schema="
                )
            if len(getattr(feature, kind).value) != 1:
                lists.add(name)
    types = ((name, VALUES[kinds[name]]) for name in sorted(kinds))
    return pa.schema([(name, pa.list_(type) if name in lists else type) for name, type in types])
