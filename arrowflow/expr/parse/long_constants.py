"""Long constants in the JSON form of an expression: the mapping of a `replace_strict`, and the sets of `is_in`.

The sets are taken out of the expression. Columns stand in their place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import polars as pl

from arrowflow.expr.parse.lifted import Constant, Json, Text, dumps, items, loads
from arrowflow.expr.parse.many import ManyTexts
from arrowflow.expr.parse.polars_check import is_literal_list
from arrowflow.expr.parse.polars_tree import Subexpression, parts, read, value_of
from arrowflow.expr.parse.tree import Call, Literal, Node, walk

_NAMING = ("Alias", "KeepName", "RenameAlias")


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


class LongSet(NamedTuple):
    """A call of `is_in` with a long list of constants.

    Attributes:
        name: The name of the column that stands for the call; equal for equal calls.
        value: The values that are looked up.
        keys: The JSON form of the list.
        nulls_equal: The setting of the call.
        known: The list, if it is read already: that takes 0.1 s for a million long texts.
    """

    name: str
    value: Subexpression
    keys: str
    nulls_equal: bool
    known: ManyTexts | None

    def series(self) -> pl.Series | None:
        """Returns the values of the list; None if it has another form."""
        return _listed_series(loads(self.keys)) if self.known is None else self.known.series


def long_mapping(text: str) -> LongMapping | None:
    """Returns the mapping of an expression that is nothing but `replace_strict` of a column by a long list of constants."""
    if not isinstance(text, Text) or '"ReplaceStrict"' not in text:
        return None
    body = _unnamed(text, ("Alias", "KeepName")).get("Function")
    if body is None or body["function"] != {"ReplaceStrict": {"return_dtype": None}}:
        return None
    column, *constants = body["input"]
    if list(column) != ["Column"] or not all(map(_is_value, constants[2:])):
        return None
    series = [found for found in map(_listed_series, constants) if found is not None]
    return LongMapping(column["Column"], *series) if len(series) == len(constants) else None


def long_sets(text: str) -> tuple[LongSet, ...]:
    """Returns the calls of `is_in` with long lists in an expression, except for calls inside of others."""
    if not isinstance(text, Text) or '"IsIn"' not in text:
        return ()
    found: dict[str, Json] = {}
    _rebuilt(_unnamed(text), lambda node: found.setdefault(_name(node), node))
    known = {part.source: part.args[-1] for part in walk(read(text)) if isinstance(part, Call) and part.args}
    sets = (_read(name, node["Function"], known.get(dumps(node))) for name, node in found.items())
    return tuple(one for one in sets if one is not None)


def without(text: str, sets: Collection[LongSet]) -> Subexpression | None:
    """Returns an expression with columns in place of these calls; None if Polars cannot read it."""
    names = {one.name: one.value.expr.meta.output_name(raise_if_undetermined=False) for one in sets}
    if None in names.values():
        return None

    def column(node: Json) -> Json:
        name = _name(node)
        return {"Alias": [{"Column": name}, names[name]]} if name in names else node

    found = parts([_rebuilt(_unnamed(text), column)])
    # Functions that rename would take the names of these columns.
    return found[0] if found and not any(f'"{kind}"' in found[0].text for kind in _NAMING[1:]) else None


def _unnamed(text: str, naming: Sequence[str] = _NAMING) -> Json:
    """Returns the tree of an expression without the nodes around it that name its result."""
    node = loads(text)
    while isinstance(node, dict) and (kind := next(iter(node))) in naming:
        body = node[kind]
        node = body[0] if kind == "Alias" else body["expr"] if kind == "RenameAlias" else body
    return node


def _rebuilt(node: Json, instead: Callable[[Json], Json]) -> Json:
    """Returns a tree with other nodes in place of calls of `is_in` with long lists."""
    if isinstance(node, list):
        return [_rebuilt(part, instead) for part in node]
    if not isinstance(node, dict):
        return node
    if _is_long(node):
        return instead(node)
    # The node `evaluation` runs on the values inside of lists.
    return {key: part if key == "evaluation" else _rebuilt(part, instead) for key, part in node.items()}


def _is_long(node: Json) -> bool:
    match node:
        case {"Function": {"input": [_, keys], "function": {"Boolean": {"IsIn": _}}}}:
            return is_literal_list(keys) and any(isinstance(part, Constant) for _, part in items(keys))
    return False


def _name(node: Json) -> str:
    # People see it in messages. Polars would cut a name at a zero byte, so only the digest tells it from those of users.
    return f"is_in list {hashlib.sha256(dumps(node).encode()).hexdigest()[:24]}"


def _read(name: str, body: Json, literal: Node | None) -> LongSet | None:
    value, keys = body["input"]
    many = literal.value if isinstance(literal, Literal) else None
    settings = body["function"]["Boolean"]["IsIn"]
    found = parts([value]) if list(settings) == ["nulls_equal"] else ()
    if not found or not found[0].columns:
        return None
    known = many if isinstance(many, ManyTexts) else None
    return LongSet(name, found[0], dumps(keys), settings["nulls_equal"], known)


def _is_value(node: Json) -> bool:
    """Whether a node is a single value, perhaps cast to another type: a selector, for one, depends on the frame."""
    while list(node) == ["Cast"]:
        node = node["Cast"]["expr"]
    return list(node) == ["Literal"] and "Series" not in node["Literal"]


def _listed_series(node: Json) -> pl.Series | None:
    """Returns the values of a constant, or of the one list that it holds; None if it has another form."""
    try:
        series = value_of(node)
    except pl.exceptions.PolarsError:
        return None
    if series is None or not isinstance(series.dtype, pl.List):
        return series
    return series.explode() if len(series) == 1 and series.list.len().item() else None
