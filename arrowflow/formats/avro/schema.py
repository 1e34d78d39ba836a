"""The schema of an Avro file as columns.

Polars refuses some schemas whose bytes are those of others, so it gets the others. An enum is the number of its symbol, a map is a
list of keys and values, times are whole numbers. A name that stands for a definition is that definition.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl
import pyarrow as pa

from arrowflow.errors import SchemaError
from arrowflow.formats.protocol import check_names
from arrowflow.lazy import compute as pc

_WORDS: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final[dict[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    **{
        ("long", f"{kind}-{word}"): pa.timestamp(unit, zone)
        for kind, zone in (("timestamp", "UTC"), ("local-timestamp", None))
        for word, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
}
"""Types of numbers that have a logical type. All other values with one, such as UUIDs, are what they are stored as."""

_MAX_DIGITS: Final = 38
"""Digits of a decimal of 16 bytes."""


_OTHERWISE: Final = "read the file by `fastavro`, and give rows with one type a column to `af.from_generator`"


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a part of one.

    Attributes:
        name: Its name in what holds it.
        type: Its type.
        stored: The schema by which Polars decodes it; None for a column without a value, which takes no byte.
        symbols: The texts that its numbers stand for, if it is an enum.
        parts: The fields of a record; the values of an array; keys and values of a map.
    """

    name: str
    type: pa.DataType
    stored: Any
    symbols: tuple[str, ...] = ()
    parts: tuple[Column, ...] = ()

    def built(self, array: pa.Array) -> pa.Array:
        """Returns what Polars decoded as the type of this column.

        Raises:
            IndexError: A number stands for no symbol.
        """
        if self.symbols:
            texts = pl.Series(self.symbols, dtype=pl.String).to_arrow(compat_level=pl.CompatLevel.oldest())
            return pc.take(texts, array).cast(self.type)
        if not self.parts:
            return array.cast(self.type)
        mask = array.is_null() if array.null_count else None
        if pa.types.is_struct(self.type):
            fields = [part.built(array.field(number)) for number, part in enumerate(self.parts)]
            return pa.StructArray.from_arrays(fields, fields=list(self.type), mask=mask)
        offsets = array.offsets.cast(pa.int32())
        if pa.types.is_map(self.type):
            values = [part.built(array.values.field(number)) for number, part in enumerate(self.parts)]
            return pa.MapArray.from_arrays(offsets, *values, type=self.type, mask=mask)
        return pa.ListArray.from_arrays(offsets, self.parts[0].built(array.values), type=self.type, mask=mask)


_Named = dict[str, Column | None]
"""Definitions by their full name; None for a record while its fields are read."""


def columns_of(text: bytes) -> tuple[Column, ...]:
    """Returns the columns of a file, from its schema.

    Raises:
        SchemaError: It is none, is not one of records, or has a type that no column has.

    Examples:
        >>> schema = b'{"type": "record", "name": "r", "fields": [{"name": "x", "type": ["null", "int"]}]}'
        >>> columns_of(schema)
        (Column(name='x', type=DataType(int32), stored=['null', 'int'], symbols=(), parts=()),)
    """
    try:
        schema = json.loads(text)
        kind = schema.get("type") if isinstance(schema, dict) else schema
        if kind != "record":
            raise SchemaError(f"expected records, whose fields are columns, found {kind!r}; {_OTHERWISE}")
        namespace, full = _names(schema, "")
        columns = _fields(schema, namespace, {full: None}, of_file=True)
        if all(column.stored is None for column in columns):
            raise SchemaError(f"expected records with values, found fields of null alone; {_OTHERWISE}")
        return columns
    except SchemaError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise SchemaError(
            f"the schema in the file is none of Avro ({type(error).__name__}: {error}); write the file anew, or leave it out"
        ) from error


def record(columns: Sequence[Column]) -> Any:
    """Returns the schema by which Polars decodes records of these columns."""
    fields = [{"name": each.name, "type": each.stored} for each in columns if each.stored is not None]
    return {"type": "record", "name": "r", "fields": fields}


def _fields(schema: Any, namespace: str, named: _Named, *, of_file: bool = False) -> tuple[Column, ...]:
    """Returns the fields of a record; those of a file may be null."""
    check_names([field["name"] for field in schema["fields"]])
    return tuple(
        Column(field["name"], pa.null(), None)
        if of_file and field["type"] == "null"
        else _column(field["name"], field["type"], namespace, named)
        for field in schema["fields"]
    )


def _column(name: str, avro: Any, namespace: str, named: _Named) -> Column:
    """Returns a column of a type, which may use the definitions before it, and adds its own."""
    if isinstance(avro, list):
        return _nullable(name, avro, namespace, named)
    if isinstance(avro, str):
        return Column(name, _WORDS[avro], avro) if avro in _WORDS else _known(name, avro, namespace, named)
    kind, logical = avro["type"], avro.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(name, avro, namespace, named)
    if (kind, logical) in _LOGICAL:
        return Column(name, _LOGICAL[kind, logical], kind)
    if kind == "array":
        part = _column("element", avro["items"], namespace, named)
        stored = {"type": "array", "items": part.stored}
        return Column(name, pa.list_(pa.field("element", part.type)), stored, parts=(part,))
    if kind == "map":
        parts = (Column("key", pa.string(), "string"), _column("value", avro["values"], namespace, named))
        stored = {"type": "array", "items": record(parts)}
        return Column(name, pa.map_(pa.string(), parts[1].type), stored, parts=parts)
    if kind in ("record", "enum", "fixed"):
        return _definition(name, avro, namespace, named)
    return _column(name, kind, namespace, named)


def _nullable(name: str, union: Sequence[Any], namespace: str, named: _Named) -> Column:
    """Returns a column of a union, of null and one type."""
    others = [each for each in union if each != "null"]
    if len(union) != 2 or len(others) != 1:
        words = [str(each.get("name", each["type"]) if isinstance(each, dict) else each) for each in union]
        raise _unreadable(name, f"a union of {' and '.join(words)}, expected one of null and one other type")
    found = _column(name, others[0], namespace, named)
    stored = [each if each == "null" else found.stored for each in union]
    return replace(found, stored=stored)


def _known(name: str, word: str, namespace: str, named: _Named) -> Column:
    """Returns a column whose type is the name of a definition."""
    full = next((each for each in (f"{namespace}.{word}", word) if each in named), None)
    if full is None:
        why = " alone" if word == "null" else ", which nothing defines"
        raise _unreadable(name, f"the type {word!r}{why}")
    found = named[full]
    if found is None:
        raise _unreadable(name, f"records {word!r} that hold themselves")
    return replace(found, name=name)


def _definition(name: str, avro: Any, namespace: str, named: _Named) -> Column:
    """Returns a column whose type gets a name."""
    inner, full = _names(avro, namespace)
    if avro["type"] == "enum":
        found = Column(name, pa.string(), "int", symbols=tuple(avro["symbols"]))
    elif avro["type"] == "fixed":
        found = Column(name, pa.binary(avro["size"]), {"type": "fixed", "name": "f", "size": avro["size"]})
    else:
        named[full] = None
        parts = _fields(avro, inner, named)
        if not parts:
            raise _unreadable(name, "records without fields")
        type = pa.struct([pa.field(part.name, part.type) for part in parts])
        found = Column(name, type, record(parts), parts=parts)
    named[full] = found
    return found


def _decimal(name: str, avro: Any, namespace: str, named: _Named) -> Column:
    digits, scale = avro["precision"], avro.get("scale", 0)
    if digits > _MAX_DIGITS:
        raise _unreadable(name, f"decimals of {digits} digits, expected at most {_MAX_DIGITS}")
    stored = {key: avro[key] for key in ("type", "size", "precision") if key in avro}
    stored |= {"name": "d", "logicalType": "decimal", "scale": scale}
    found = Column(name, pa.decimal128(digits, scale), stored)
    if "name" in avro:
        named[_names(avro, namespace)[1]] = found
    return found


def _names(definition: Any, namespace: str) -> tuple[str, str]:
    """Returns the namespace of a definition, and its full name."""
    before, _, word = definition["name"].rpartition(".")
    space = before or definition.get("namespace", namespace)
    return space, f"{space}.{word}"


def _unreadable(name: str, found: str) -> SchemaError:
    return SchemaError(f"column {name!r}: {found}; {_OTHERWISE}")
