"""The fields of structs that a Polars expression reads."""

from __future__ import annotations

from typing import Any

from arrowflow.expr.parse.lifted import loads

Json = Any


def struct_fields(text: str) -> dict[str, frozenset[str]]:
    """Returns the columns of which the expression with the JSON form `text` reads single fields alone, with the fields.

    Examples:
        >>> import polars as pl
        >>> text = (pl.col("s").struct.field("a") + pl.col("x")).meta.serialize(format="json")
        >>> struct_fields(text)
        {'s': frozenset({'a'})}
    """
    found: dict[str, frozenset[str]] = {}
    whole: set[str] = set()
    _find_fields(loads(text), found, whole)
    return {column: fields for column, fields in found.items() if column not in whole}


def _find_fields(node: Json, found: dict[str, frozenset[str]], whole: set[str]) -> None:
    match node:
        case {
            "Function": {
                "input": [{"Column": str(column)}],
                "function": {"StructExpr": {"FieldByName": str(field)}},
            }
        }:
            found[column] = found.get(column, frozenset()) | {field}
        case {"Column": str(column)}:
            whole.add(column)
        case dict():
            for part in node.values():
                _find_fields(part, found, whole)
        case list():
            for part in node:
                _find_fields(part, found, whole)
