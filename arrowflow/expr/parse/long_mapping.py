"""The long mapping of a `replace_strict`, found in the JSON form of an expression."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from arrowflow.expr.parse.lifted import Json, Text, loads
from arrowflow.expr.parse.polars_tree import value_of


class LongMapping(NamedTuple):
    """The arguments of `replace_strict`.

    Attributes:
        column: The column.
        old: The values that are replaced.
        new: Their new values, as many or one for all.
        default: The new value of all others; None if there is none.
    """

    column: str
    old: pl.Series
    new: pl.Series
    default: pl.Series | None = None


def long_mapping(text: str) -> LongMapping | None:
    """Returns the mapping of an expression that is nothing but `replace_strict` of a column by a long list of constants."""
    if not isinstance(text, Text) or '"ReplaceStrict"' not in text:
        return None
    ((kind, body),) = loads(text).items()
    while kind in ("Alias", "KeepName"):
        ((kind, body),) = (body[0] if kind == "Alias" else body).items()
    if kind != "Function" or body["function"] != {"ReplaceStrict": {"return_dtype": None}}:
        return None
    column, *constants = body["input"]
    if list(column) != ["Column"] or not all(map(_is_value, constants[2:])):
        return None
    series = [found for found in map(listed_series, constants) if found is not None]
    return LongMapping(column["Column"], *series) if len(series) == len(constants) else None


def _is_value(node: Json) -> bool:
    """Whether a node is a single value, perhaps cast to another type: a selector, for one, depends on the frame."""
    while list(node) == ["Cast"]:
        node = node["Cast"]["expr"]
    return list(node) == ["Literal"] and "Series" not in node["Literal"]


def listed_series(node: Json) -> pl.Series | None:
    """Returns the values of a constant, or of the one list that it holds; None if it has another form."""
    try:
        series = value_of(node)
    except pl.exceptions.PolarsError:
        return None
    if series is None or not isinstance(series.dtype, pl.List):
        return series
    return series.explode() if len(series) == 1 and series.list.len().item() else None
