"""Whole numbers that do not fit int64: pyarrow infers float64 for their column, and so rounds all numbers in it.

Such a column is refused if a sample shows it: rounded identifiers are other identifiers, and nobody would notice. A
column that also holds fractions stays a float64 column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from arrowflow.errors import SchemaError
from arrowflow.lazy import compute as pc

_BETWEEN: Final = re.compile(r"[\s,\]]*")


def may_be_rounded(schema: pa.Schema, sample: Any) -> list[str]:
    """Returns the columns that may hold such numbers, by a quick look at the inferred types, and at digits."""
    names = [field.name for field in schema if _has_fractions(field.type)]
    return names if names and re.search(rb"[0-9]{19}", sample) is not None else []


def _has_fractions(type: pa.DataType) -> bool:
    inner = (type.field(index).type for index in range(type.num_fields))
    return pa.types.is_floating(type) or any(map(_has_fractions, inner))


def check_texts(table: pa.Table) -> None:
    """Raises `SchemaError` if a column inferred as float64, here as texts, holds whole numbers alone."""
    for name in table.column_names:
        column = table.column(name)
        if pc.all(pc.match_substring_regex(column, r"^\s*[-+]?[0-9]+\s*$")).as_py():
            _check(name, column.drop_null().to_pylist())


def check_objects(sample: bytes, schema: pa.Schema) -> None:
    """Makes the same check for JSON objects, one after the other, with their inferred types."""
    found: dict[str, list[Any]] = {}
    for value in _objects(sample.decode("utf-8", "replace")):
        for path, leaf in _fractions(value, pa.struct(list(schema)), ""):
            found.setdefault(path, []).append(leaf)
    for path, leaves in found.items():
        if all(isinstance(leaf, str) for leaf in leaves):
            _check(path, leaves)


def _objects(text: str) -> Iterator[Any]:
    """Yields the objects of a sample, whole numbers as texts; ends where Python and pyarrow read differently."""
    decoder = json.JSONDecoder(parse_int=str, strict=False)
    start = _BETWEEN.match(text).end()  # type: ignore[union-attr]  # it also matches no text
    while start < len(text):
        try:
            value, stop = decoder.raw_decode(text, start)
        except ValueError:
            return
        yield value
        start = _BETWEEN.match(text, stop).end()  # type: ignore[union-attr]


def _fractions(value: Any, type: pa.DataType, path: str) -> Iterator[tuple[str, Any]]:
    """Yields the values of columns that were inferred as fractions, and their paths."""
    if pa.types.is_struct(type) and isinstance(value, dict):
        for field in type.fields:
            yield from _fractions(value.get(field.name), field.type, f"{path}.{field.name}".lstrip("."))
    elif pa.types.is_list(type) and isinstance(value, list):
        for each in value:
            yield from _fractions(each, type.value_type, f"{path}[]")
    elif pa.types.is_floating(type) and value is not None:
        yield path, value


def _check(name: str, texts: list[str]) -> None:
    for text in map(str.strip, texts):
        num_digits = len(text.lstrip("+-").lstrip("0"))
        if num_digits > 19 or (num_digits == 19 and not -(1 << 63) <= int(text) < 1 << 63):
            raise SchemaError(
                f"column {name!r}: {text[:40]} does not fit int64, and as float64 it would be rounded with all "
                "others of the column; pass schema= with uint64, decimal128 or string, or float64 where that is right"
            )
