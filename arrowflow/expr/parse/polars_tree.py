"""Polars expressions, read from their JSON form into `tree` nodes.

An expression without a counterpart becomes a `polars:` call: it runs on Polars as a whole and is never taken apart.
"""

from __future__ import annotations

import decimal
import io
import re
import warnings
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Final, NamedTuple

import polars as pl
import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.expr.parse.lifted import (
    Json,
    constant_series,
    dumps,
    items,
    like,
    loads,
    serialised,
    whole,
    words,
)
from arrowflow.expr.parse.many import many_values
from arrowflow.expr.parse.polars_check import function_path, is_literal_list
from arrowflow.expr.parse.tree import Call, Column, Literal, Node, column_names
from arrowflow.types import convert, exact_values, normalise

_OPERATORS: Final = {
    "Eq": "equal",
    "NotEq": "not_equal",
    "Lt": "less",
    "LtEq": "less_equal",
    "Gt": "greater",
    "GtEq": "greater_equal",
    "Plus": "add",
    "Minus": "subtract",
    "Multiply": "multiply",
    "TrueDivide": "divide",
    "FloorDivide": "floor_divide",
    "Modulus": "modulo",
    "And": "and",
    "LogicalAnd": "and",
    "Or": "or",
    "LogicalOr": "or",
}
# Family and name as `function_path` gives them, and the name of the call. Polars runs all others but constants.
_FUNCTIONS: Final = {
    **{("", name): name.lower() for name in ("Abs", "Negate", "Exp", "Log", "Log1p", "Floor", "Ceil")},
    ("", "FillNull"): "fill_null",
    ("", "ToPhysical"): "to_physical",
    ("Pow", "Sqrt"): "sqrt",
    ("Pow", "Generic"): "power",
    ("Boolean", "Not"): "not",
    ("Boolean", "IsNull"): "is_null",
    ("Boolean", "IsNotNull"): "is_not_null",
    ("Boolean", "IsNan"): "is_nan",
    ("Boolean", "IsNotNan"): "is_not_nan",
    ("Boolean", "IsFinite"): "is_finite",
    ("Boolean", "IsInfinite"): "is_infinite",
    ("Boolean", "IsBetween"): "is_between",
    ("Boolean", "IsIn"): "is_in",
}


def serialise(expr: pl.Expr) -> str:
    """Returns the JSON form of `expr`, in which names stand for long constants.

    Raises:
        PlanError: Polars cannot serialise the expression, because it holds a Python function.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return serialised(expr)
        except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
            raise PlanError(
                f"the expression is not element-wise, or cannot be proven to be: Polars cannot serialise it"
                f" ({error}). Use `map` for Python functions"
            ) from error


def deserialise(text: str) -> pl.Expr | None:
    """Returns the expression whose JSON form is `text`, None if JSON cannot express it (JSON has no NaN)."""
    floats = {found for found in _FLOAT_OR_TEXT.findall(text) if found[0] != '"'}
    spelled = {found: _spelled(found) for found in floats}
    if None in spelled.values():
        return None
    exact = _FLOAT_OR_TEXT.sub(lambda found: spelled.get(found[0]) or found[0], text)
    return _deserialised(whole(like(text, exact)))


def _deserialised(text: str) -> pl.Expr | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return pl.Expr.deserialize(io.BytesIO(text.encode()), format="json")
        except pl.exceptions.ComputeError:
            return None


_FLOAT_OR_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+(?:[eE][-+]?\d+)?|[eE][-+]?\d+)')


@lru_cache(maxsize=1024)
def _spelled(text: str) -> str | None:
    """Returns a spelling of the float `text` that Polars reads back exactly, None if there is none.

    Polars (1.35 to 2.1) reads one in seventy floats of 15 digits, and one in ten of 17, as a neighbouring float. With
    more digits Polars reads nearly all floats exactly.
    """
    value = decimal.Decimal(float(text))
    for spelling in (text, *(format(value, f".{digits}e") for digits in range(14, 25))):
        expr = _deserialised(f'{{"Literal":{{"Scalar":{{"Float64":{spelling}}}}}}}')
        if expr is not None and pl.select(expr).item() == float(text):
            return spelling
    return None


@lru_cache(maxsize=1024)
def read(text: str) -> Node:
    """Returns the tree of the expression with the JSON form `text`."""
    return _read(loads(text))


@lru_cache(maxsize=1024)
def spread(text: str) -> str | None:
    """Returns the JSON form of an expression whose value for a row does not depend on the rows beside it.

    All rows of a chunk may take the same constant from `when` or `coalesce`. Polars then goes on with this constant
    instead of a column: it divides by the constant's reciprocal, and compares the constant as a single row. So these
    constants become columns, if anything is computed from them. Returns None if the expression has no such constant.
    """
    tree = loads(text)
    found = _spread(tree, used=False)
    return None if found == tree else dumps(found)


def _spread(node: Json, *, used: bool) -> Json:
    if isinstance(node, list):
        return [_spread(part, used=used) for part in node]
    if not isinstance(node, dict):
        return node
    (kind, body), *_ = node.items()
    if kind == "Ternary" and not _is_constant(body["predicate"]):
        branches = {part: _branch(body[part], used=used) for part in ("truthy", "falsy")}
        return {kind: {"predicate": _spread(body["predicate"], used=True)} | branches}
    if kind == "Function" and body["function"] == "Coalesce":
        return {kind: body | {"input": [_branch(part, used=used) for part in body["input"]]}}
    return {key: _spread(part, used=used or kind != "Alias") for key, part in node.items()}


def _branch(node: Json, *, used: bool) -> Json:
    if not used or not _is_constant(node):
        return _spread(node, used=used)
    # Neither a cast nor a call, so that a bare number still takes its type from the expression around it.
    return {"Ternary": {"predicate": loads(_every_other()), "truthy": node, "falsy": node}}


@cache
def _every_other() -> str:
    return serialise(pl.int_range(pl.len()) % 2 == 0)


class Subexpression(NamedTuple):
    """A part of an expression, which can be evaluated alone.

    Attributes:
        expr: The part by itself.
        text: Its JSON form.
        columns: The columns that it reads.
    """

    expr: pl.Expr
    text: str
    columns: tuple[str, ...]


TEMPORAL: Final = ("Date", "Datetime", "Time", "Duration")


@lru_cache(maxsize=2048)  # each expression is asked for two kinds of types
def cast_to(text: str, *types: str) -> tuple[Subexpression, ...]:
    """Returns the parts that the expression with the JSON form `text` casts to types that have one of these names in them."""
    casts = (body for kind, body in items(loads(text), evaluated=False) if kind == "Cast")
    found = (body["expr"] for body in casts if not set(types).isdisjoint(words(body["dtype"])))
    return parts(node for node in found if _roots(node))


@lru_cache(maxsize=1024)
def own_calls(text: str) -> tuple[tuple[Call, Subexpression], ...]:
    """Returns the calls of this library's own functions in an expression, and what each of them is given."""
    if '"AnonymousFunction"' not in text:
        return ()
    nodes = items(loads(text), evaluated=False)
    found = [{kind: body} for kind, body in nodes if kind == "AnonymousFunction"]
    calls = [node for node in map(_read, found) if isinstance(node, Call)]
    given = parts(node["AnonymousFunction"]["input"][0] for node in found)
    return tuple(zip(calls, given, strict=True))


@lru_cache(maxsize=1024)
def choices(text: str) -> tuple[Subexpression, ...]:
    """Returns each `when` with bare numbers, which take their types from the nodes around them, in an expression."""
    if '"Ternary"' not in text or '"Dyn"' not in text:
        return ()
    # Polars writes NaN and infinity as null, but cannot read this null. Any other float has the same type.
    text = like(text, text.replace('{"Dyn":{"Float":null}}', '{"Dyn":{"Float":0.5}}'))
    nodes = items(loads(text), evaluated=False)
    found = ({kind: body} for kind, body in nodes if _chooses(kind, body))
    return parts(node for node in found if {"Ternary", "Dyn"} <= set(words(node)))


def _chooses(kind: str, body: Json) -> bool:
    if kind == "Ternary":
        return "Field" not in words(body)  # a field of a struct, which the node around it knows
    return kind == "StructEval" or (kind == "Function" and body["function"] == {"StructExpr": "WithFields"})


def parts(nodes: Iterable[Json]) -> tuple[Subexpression, ...]:
    """Returns the nodes that JSON can express, each as an expression of its own."""
    found = ((deserialise(text), text) for text in map(dumps, nodes))
    return tuple(
        Subexpression(expr, text, column_names(read(text))) for expr, text in found if expr is not None
    )


def struct_fields(text: str) -> dict[str, frozenset[str]]:
    """Returns the columns of which the expression with the JSON form `text` reads single fields alone, with the fields.

    Examples:
        >>> struct_fields(serialise(pl.col("s").struct.field("a") + pl.col("x")))
        {'s': frozenset({'a'})}
    """
    found: dict[str, frozenset[str]] = {}
    whole: set[str] = set()
    _find_fields(loads(text), found, whole)
    return {column: fields for column, fields in found.items() if column not in whole}


def _find_fields(node: Json, found: dict[str, frozenset[str]], whole: set[str]) -> None:
    match node:
        case {
            "Function": {"input": [{"Column": column}], "function": {"StructExpr": {"FieldByName": field}}}
        }:
            found[column] = found.get(column, frozenset()) | {field}
        case {"Column": column}:
            whole.add(column)
        case dict() | list():
            for part in node.values() if isinstance(node, dict) else node:
                _find_fields(part, found, whole)


def _read(node: Json) -> Node:
    if isinstance(node, str):
        return _opaque(node)
    (kind, body), *_ = node.items()
    if kind == "Column":
        return Column(body)
    if kind == "Literal":
        return _read_literal(node)
    if kind == "Alias":
        return _read(body[0])
    if kind in ("KeepName", "RenameAlias"):
        return _read(body if kind == "KeepName" else body["expr"])
    if kind == "Cast":
        folded = _folded(node)
        return folded or Call("cast", (_read(body["expr"]),), _rest(body, "expr", "dtype"), dumps(node))
    if kind == "BinaryExpr" and body["op"] in _OPERATORS:
        sides = (_read(body["left"]), _read(body["right"]))
        return Call(_OPERATORS[body["op"]], sides, _rest(body, "left", "op", "right"), dumps(node))
    if kind == "Ternary":
        parts = ("predicate", "truthy", "falsy")
        args = tuple(_read(body[part]) for part in parts)
        return Call("if_else", args, _rest(body, *parts), dumps(node))
    if kind == "AnonymousFunction":  # of this library's own; `check` refuses all others
        value, *constants = body["input"]
        return Call(body["function"], (_read(value), *map(_read_literal, constants)), (), dumps(node))
    return _read_function(node, body) if kind == "Function" else _opaque(node)


def _rest(body: Json, *read: str) -> tuple[tuple[str, object], ...]:
    """The settings in `body` besides the keys `read`."""
    return tuple((name, value) for name, value in body.items() if name not in read)


def _read_function(node: Json, body: Json) -> Node:
    family, name, settings = function_path(body["function"])
    function = _FUNCTIONS.get((family, name))
    if function is None:
        return (_folded(node) if family == "TemporalExpr" else None) or _opaque(node)
    args = [
        _read_literal(arg, is_set=True) if place and name == "IsIn" else _read(arg)
        for place, arg in enumerate(body["input"])
    ]
    own = settings if isinstance(settings, dict) else {} if settings is None else {"settings": settings}
    return Call(function, tuple(args), (*own.items(), *_rest(body, "function", "input")), dumps(node))


def _folded(node: Json) -> Literal | None:
    """A constant such as `pl.date(1995, 1, 1)`, which Polars writes as a cast of another constant."""
    return _constant(node) if _is_constant(node) else None


def _is_constant(node: Json) -> bool:
    return not _roots(node) and {"Series", "Selector", "Element", "Field"}.isdisjoint(words(node))


def value_of(node: Json) -> pl.Series | None:
    """Returns the value of a node without columns; None if Polars cannot read the node.

    Raises:
        polars.exceptions.PolarsError: Polars cannot compute it.
    """
    series = constant_series(node)
    if series is None and (expr := deserialise(dumps(node))) is not None:
        series = pl.select(expr).to_series()
    return series


def _constant(node: Json, *, is_set: bool = False) -> Literal | None:
    try:
        series = value_of(node)
        if series is None or series.len() != 1:
            return None
        inner = series.dtype.inner if isinstance(series.dtype, pl.List) else series.dtype
        if inner.is_nested() or inner == pl.Object:
            return None
        many = many_values(series) if is_set else None
        found = (series if many is None else series.clear()).to_arrow()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowException):
        return None  # Polars fails at run time with its own message, or Arrow lacks the type
    type = normalise(found.type)
    return Literal(exact_values(convert(found, type))[0] if many is None else many, type)


def _opaque(node: Json) -> Node:
    return Call("polars:opaque", tuple(map(Column, sorted(set(_roots(node))))), (), dumps(node))


def _roots(node: Json) -> list[str]:
    if isinstance(node, list):
        return [name for part in node for name in _roots(part)]
    if not isinstance(node, dict):
        return []
    if "Column" in node:
        return [node["Column"]]
    # Names inside `list.eval` mean the element of the list, not a column.
    hidden = ("evaluation",) if "variant" in node and "StructEval" not in node else ()
    return [name for key, part in node.items() if key not in hidden for name in _roots(part)]


def _read_literal(node: Json, *, is_set: bool = False) -> Node:
    dynamic = node["Literal"].get("Dyn") if isinstance(node.get("Literal"), dict) else None
    if dynamic is not None:
        ((_, value),) = dynamic.items()
        # JSON has no NaN and no infinity. Polars writes null for both, and only Polars itself knows which of them was
        # meant.
        return _opaque(node) if value is None or isinstance(value, str) else Literal(value, None)
    found = _constant(node, is_set=is_set) if is_literal_list(node) else None
    return found or _opaque(node)
