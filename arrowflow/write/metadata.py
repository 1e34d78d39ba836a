"""Metadata of what was read, for what is written: they stay where their columns do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from arrowflow.formats.types import decoded_type

_GEO: Final = b"geo"
"""The key of GeoParquet's metadata."""


def with_metadata(schema: pa.Schema, sources: Sequence[pa.Schema]) -> pa.Schema:
    """Returns a schema with metadata of what its rows come from.

    A column is still there if its name and type are. A value that names columns is kept if all of them are still there.

    Args:
        schema: The columns to write.
        sources: The schemas of what was read; of two values for one key, the first is taken.

    Examples:
        >>> source = pa.schema({"x": pa.int8(), "y": pa.int8()}, metadata={"of": "me", "names": '["y"]'})
        >>> with_metadata(pa.schema({"x": pa.int8()}), [source]).metadata
        {b'of': b'me'}
    """
    found: dict[bytes, bytes] = {}
    for source in sources:
        kept = {field.name for field in source if _is_there(field, schema)}
        gone = [name for name in source.names if name not in kept]
        lost = {
            json.dumps(name, ensure_ascii=is_ascii).encode() for name in gone for is_ascii in (True, False)
        }
        for key, value in (source.metadata or {}).items():
            if not any(name in value for name in lost):
                found.setdefault(key, _of_columns(value) if key == _GEO else value)
        schema = pa.schema([_described(field, source) if field.name in kept else field for field in schema])
    return schema.with_metadata(found or None)


def _is_there(field: pa.Field, schema: pa.Schema) -> bool:
    place = schema.get_field_index(field.name)
    return place >= 0 and bool(decoded_type(field.type) == schema.field(place).type)


def _described(field: pa.Field, source: pa.Schema) -> pa.Field:
    more = source.field(field.name).metadata
    return field.with_metadata({**more, **(field.metadata or {})}) if more else field


def _of_columns(value: bytes) -> bytes:
    """Returns what GeoParquet says of columns, without what it says of the rows of one file."""
    with suppress(ValueError, TypeError, AttributeError, KeyError):
        told: dict[str, Any] = json.loads(value)
        for column in told["columns"].values():
            column.pop("bbox", None)
            column["geometry_types"] = []
        return json.dumps(told).encode()
    return value
