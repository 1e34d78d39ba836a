"""The long sets of `is_in`, found in the JSON form of an expression and taken out of it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from typing import NamedTuple

import polars as pl

from arrowflow.expr.parse.lifted import Constant, Json, Text, dumps, loads
from arrowflow.expr.parse.long_mapping import listed_series
from arrowflow.expr.parse.many import ManyTexts
from arrowflow.expr.parse.polars_check import is_literal_list
from arrowflow.expr.parse.polars_tree import Subexpression, deserialise, read
from arrowflow.expr.parse.tree import Call, Literal, Node, column_names, walk

_RENAMING = ('"KeepName"', '"RenameAlias"')


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
        return listed_series(loads(self.keys)) if self.known is None else self.known.series


def long_sets(text: str) -> tuple[LongSet, ...]:
    """Returns the calls of `is_in` with long lists in an expression, except for calls inside of others."""
    if not isinstance(text, Text) or '"IsIn"' not in text:
        return ()
    found = {_name(node): node for node in _calls(_inner(loads(text)))}
    known = {part.source: part.args[-1] for part in walk(read(text)) if isinstance(part, Call) and part.args}
    sets = (_read(name, node["Function"], known.get(dumps(node))) for name, node in found.items())
    return tuple(one for one in sets if one is not None)


def _name(node: Json) -> str:
    # People see it in messages. Polars would cut a name at a zero byte, so only the digest tells it from those of users.
    return f"is_in list {hashlib.sha256(dumps(node).encode()).hexdigest()[:24]}"


def without(text: str, sets: Collection[LongSet]) -> Subexpression | None:
    """Returns an expression with columns in place of these calls; None if Polars cannot read it."""
    # Such functions would take the names of these columns.
    names = {one.name: one.value.expr.meta.output_name(raise_if_undetermined=False) for one in sets}
    shorter = dumps(_without(_inner(loads(text)), names))
    if None in names.values() or any(each in shorter for each in _RENAMING):
        return None
    expr = deserialise(shorter)
    return None if expr is None else Subexpression(expr, shorter, column_names(read(shorter)))


def _inner(node: Json) -> Json:
    """Returns a tree without the name of its result."""
    while isinstance(node, dict) and (
        found := next((kind for kind in ("Alias", "KeepName", "RenameAlias") if kind in node), None)
    ):
        body = node[found]
        node = body[0] if found == "Alias" else body if found == "KeepName" else body["expr"]
    return node


def _calls(node: Json) -> Iterator[Json]:
    if isinstance(node, list):
        for part in node:
            yield from _calls(part)
    elif isinstance(node, dict):
        if _is_long(node):
            yield node
            return
        for key, part in node.items():
            if key != "evaluation":  # which runs on the values inside of lists
                yield from _calls(part)


def _is_long(node: Json) -> bool:
    body = node.get("Function")
    function = body["function"] if isinstance(body, dict) else None
    call = function.get("Boolean") if isinstance(function, dict) else None
    if not isinstance(call, dict) or "IsIn" not in call:
        return False
    return len(body["input"]) == 2 and is_literal_list(body["input"][1]) and _has_constant(body["input"][1])


def _has_constant(node: Json) -> bool:
    if isinstance(node, dict):
        return any(map(_has_constant, node.values()))
    return isinstance(node, Constant)


def _read(name: str, body: Json, literal: Node | None) -> LongSet | None:
    value, keys = body["input"]
    many = literal.value if isinstance(literal, Literal) else None
    known = many if isinstance(many, ManyTexts) else None
    settings = body["function"]["Boolean"]["IsIn"]
    if list(settings) != ["nulls_equal"]:
        return None
    text = dumps(value)
    expr, columns = deserialise(text), column_names(read(text))
    if expr is None or not columns:
        return None
    return LongSet(name, Subexpression(expr, text, columns), dumps(keys), settings["nulls_equal"], known)


def _without(node: Json, names: dict[str, str | None]) -> Json:
    if isinstance(node, list):
        return [_without(part, names) for part in node]
    if not isinstance(node, dict):
        return node
    if _is_long(node) and (name := _name(node)) in names:
        return {"Alias": [{"Column": name}, names[name]]}
    return {key: part if key == "evaluation" else _without(part, names) for key, part in node.items()}
