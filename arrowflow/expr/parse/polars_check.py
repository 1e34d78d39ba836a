"""The check that a Polars expression is element-wise: an allow-list over the tree that Polars serialises.

`Expr.meta.is_row_separable()` says True for `x - x.mean()`, and every release adds functions. So only the functions
listed here pass. Names are the names in Polars' own serialisation, of the oldest and the newest supported release.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Final

import polars as pl

from arrowflow.expr.parse.lifted import Json, OwnFunction, loads, words

# The functions that each family allows; those without a family come first.
_FAMILIES: Final = {
    "": "Abs Negate Sign Atan2 Clip Round RoundSF Floor Ceil Truncate Exp Log Log1p Erf Erfc FillNull"
    " Coalesce MinHorizontal MaxHorizontal SumHorizontal MeanHorizontal ToPhysical Reinterpret"
    " Replace ReplaceStrict Hash AsStruct RepeatBy Cut Bin",
    "Pow": "Generic Sqrt Cbrt",
    "Trigonometry": "Cos Cot Sin Tan ArcCos ArcSin ArcTan Cosh Sinh Tanh ArcCosh ArcSinh ArcTanh Degrees Radians",
    "Bitwise": "CountOnes CountZeros LeadingOnes LeadingZeros TrailingOnes TrailingZeros",
    "Boolean": "IsNull IsNotNull IsNan IsNotNan IsFinite IsInfinite IsBetween IsIn IsClose AnyHorizontal"
    " AllHorizontal Not",
    "FillNullWithStrategy": "Zero One",
    "StringExpr": "Contains ContainsAny CountMatches EndsWith Extract ExtractAll ExtractGroups Find Head Tail"
    " LenBytes LenChars Lowercase Uppercase Titlecase Normalize PadStart PadEnd ZFill Replace ReplaceMany Reverse"
    " Slice Split SplitRegex SplitExact SplitN StartsWith StripChars StripCharsStart StripCharsEnd StripPrefix StripSuffix"
    " ToInteger HexEncode HexDecode Base64Encode Base64Decode ConcatHorizontal Strptime JsonDecode JsonPathMatch"
    " EscapeRegex Format ToDecimal ExtractMany FindMany",
    "BinaryExpr": "Contains StartsWith EndsWith HexEncode HexDecode Base64Encode Base64Decode Size Reinterpret"
    " Slice Head Tail Get",
    "TemporalExpr": "Millennium Century Year IsLeapYear IsoYear Quarter Month DaysInMonth Week WeekDay Day"
    " OrdinalDay Time Date Datetime Duration Hour Minute Second Millisecond Microsecond Nanosecond TotalDays"
    " TotalHours TotalMinutes TotalSeconds TotalMilliseconds TotalMicroseconds TotalNanoseconds ToString"
    " CastTimeUnit WithTimeUnit ConvertTimeZone TimeStamp Truncate OffsetBy MonthStart MonthEnd BaseUtcOffset"
    " DSTOffset Round Replace ReplaceTimeZone Combine DatetimeFunction",
    "ListExpr": "Concat Contains DropNulls Slice Shift Get Gather GatherEvery CountMatches Sum Length Max Min Mean"
    " Median Std Var ArgMin ArgMax Diff Sort Reverse Unique NUnique SetOperation Any All Join ToArray ToStruct",
    "ArrayExpr": "Length Min Max Sum ToList Unique NUnique Std Var Mean Median Any All Sort Reverse ArgMin ArgMax"
    " Get Join Contains CountMatches Shift Slice Concat Dot ToStruct",
    "StructExpr": "FieldByName RenameFields PrefixFields SuffixFields JsonEncode WithFields Drop",
    "Range": "IntRanges DateRanges DatetimeRanges TimeRanges LinearSpaces",
    "Business": "IsBusinessDay AddBusinessDay BusinessDayCount",
    "Sql": "IsIn Binary",
    "Categorical": "StartsWith EndsWith LenBytes LenChars Slice Physical",
}
_ALLOWED: Final = {family: frozenset(names.split()) for family, names in _FAMILIES.items()}
_OPERATORS: Final = frozenset(
    [
        "Eq",
        "EqValidity",
        "NotEq",
        "NotEqValidity",
        "Lt",
        "LtEq",
        "Gt",
        "GtEq",
        "Plus",
        "Minus",
        "Multiply",
        "Divide",
        "TrueDivide",
        "RustDivide",
        "FloorDivide",
        "TruncDivide",
        "Modulus",
        "And",
        "Or",
        "Xor",
        "LogicalAnd",
        "LogicalOr",
    ]
)
# Inside `list.eval` and `list.agg`, an aggregate sees the list of one row alone, so it is per row. These functions are
# not element-wise even there.
_NEVER: Final = frozenset(
    ("Random", "Sample", "AnonymousFunction", "Hash", "Window", "Series", "RenameAlias")
)


@lru_cache(maxsize=1024)
def check(text: str) -> str | None:
    """Returns the reason why the expression with the JSON form `text` is not element-wise, None if it is."""
    return next(_faults(loads(text)), None)


def _faults(node: Json) -> Iterator[str]:
    if isinstance(node, str):  # `pl.len()`, and `pl.element()` outside of `list.eval`
        yield f"`{node.lower()}`"
        return
    (kind, body), *_ = node.items()
    visit = _VISITORS.get(kind)
    yield from [_describe(kind, body)] if visit is None else visit(body)


def _describe(kind: str, body: Json) -> str:
    if kind == "Agg" and isinstance(body, dict):
        return f"the aggregate `{next(iter(body)).lower()}`"
    if kind == "Window":
        return "`over`"
    return "a Python function" if kind == "AnonymousFunction" else f"`{kind.lower()}`"


def _literal(body: Json) -> Iterator[str]:
    if isinstance(body, dict) and "Series" in body:
        yield "a whole Series as a literal"


def _cast(body: Json) -> Iterator[str]:
    dtype = body["dtype"]
    target = dtype.get("Literal") if isinstance(dtype, dict) else None
    if target is None:
        yield "a cast to a type that is computed"
    elif isinstance(target, dict) and "Categorical" in target:
        yield "a cast to Categorical (its codes depend on the data; take pl.Enum or pl.String)"
    are_texts = target == "String" or (isinstance(target, dict) and "Enum" in target)
    match body["expr"]:
        # The texts of the intervals are all that is read of them.
        case {"Function": {"input": [value], "function": {"Cut": {"include_breaks": False}}}} if are_texts:
            yield from _faults(value)
        case node:
            yield from _faults(node)


def _has_breaks(settings: Json) -> bool:
    match settings:
        case {"method": {"Intervals": {"spec": {"Breaks": _}}}}:
            return True
    return False


@cache
def _cuts_to_enum() -> bool:
    """Polars 1 makes a Categorical."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Polars 2 has another name for it
        return isinstance(pl.Series([0.0]).cut([1.0]).dtype, pl.Enum)


def _all(*nodes: Json) -> Iterator[str]:
    for node in nodes:
        yield from _faults(node)


def _binary(body: Json) -> Iterator[str]:
    if body["op"] not in _OPERATORS:
        yield f"the operator `{body['op']}`"
    yield from _all(body["left"], body["right"])


def _rename(body: Json) -> Iterator[str]:
    function = body["function"]
    if isinstance(function, dict) and "Map" in function:
        yield "`name.map` with a Python function"
    yield from _faults(body["expr"])


def _agg(body: Json) -> Iterator[str]:
    if not is_literal_list({"Agg": body}):
        yield _describe("Agg", body)


def _eval(body: Json) -> Iterator[str]:
    if body["variant"] not in ("List", "ListAgg", "Array", "ArrayAgg") and not (
        isinstance(body["variant"], dict) and "Array" in body["variant"]
    ):
        yield "`cumulative_eval`"
    yield from _faults(body["expr"])
    for word in words(body["evaluation"]):
        if word in _NEVER:
            yield f"`{word}` inside `eval`"


def _python(body: Json) -> Iterator[str]:
    if not isinstance(body["function"], OwnFunction):
        yield _describe("AnonymousFunction", body)
    else:
        yield from _faults(body["input"][0])  # after it come constants


def function_path(function: Json) -> tuple[str, str, Json]:
    """Returns family (or ""), name and settings of the serialised `function`.

    Examples:
        >>> function_path({"Boolean": {"IsIn": {"nulls_equal": False}}})
        ('Boolean', 'IsIn', {'nulls_equal': False})
    """
    if isinstance(function, str):
        return "", function, None
    ((name, body),) = function.items()
    if name not in _ALLOWED:
        return "", name, body
    if isinstance(body, dict):
        return name, *next(iter(body.items()))
    return name, str(body), None


def _function(body: Json) -> Iterator[str]:
    family, name, settings = function_path(body["function"])
    if name not in _ALLOWED[family]:
        yield f"`{name.lower()}`"
    elif name == "Strptime" and settings[1]["format"] is None:
        yield "parsing text without `format=` (it is guessed from the first values)"
    elif name == "Bin" and not _has_breaks(settings):
        yield "bins whose borders depend on the values (take `bin_intervals` with a list of borders)"
    elif name == "Cut" and not _cuts_to_enum():
        yield "`cut` to a Categorical (its codes depend on the data; add `.cast(pl.String)` or `.cast(pl.Enum([…]))`)"
    args = body["input"]
    first, last = _CONSTANTS.get((family, name), (0, 0))
    for arg in args[first:last]:
        if not _is_constant(arg):
            hint = " (for a list column, take `list.contains`)" if name == "IsIn" else ""
            yield f"`{_SPELLED.get(name, name.lower())}` of another expression{hint}"
    yield from _all(*args[:first], *args[last:])


# Every row sees all values of these arguments: sets, mappings, and holidays.
_CONSTANTS: Final = {
    ("Boolean", "IsIn"): (1, 2),
    ("Sql", "IsIn"): (1, 2),
    ("", "Replace"): (1, 3),
    ("", "ReplaceStrict"): (1, 3),
    ("Business", "IsBusinessDay"): (1, 2),
    ("Business", "AddBusinessDay"): (2, 3),
    ("Business", "BusinessDayCount"): (2, 3),
}
_SPELLED: Final = {"IsIn": "is_in", "ReplaceStrict": "replace_strict"}


def _is_constant(node: Json) -> bool:
    """Whether `node` is a constant, a list of constants, or a cast of either."""
    if isinstance(node, dict) and "Cast" in node:
        return next(_cast(node["Cast"]), None) is None and _is_constant(node["Cast"]["expr"])
    return is_literal_list(node)


def is_literal_list(node: Json) -> bool:
    """Returns whether `node` is a constant list: a literal, or the implode of a literal."""
    if not isinstance(node, dict):
        return False
    if "Literal" in node:
        return True
    body = node.get("Agg")
    if not isinstance(body, dict) or "Implode" not in body:
        return False
    inner = body["Implode"]
    return "Literal" in inner or (isinstance(inner.get("input"), dict) and "Literal" in inner["input"])


_VISITORS: Final[dict[str, Callable[[Json], Iterator[str]]]] = {
    **dict.fromkeys(("Column", "Field", "Selector"), lambda body: iter(())),
    "Literal": _literal,
    "Alias": lambda body: _faults(body[0]),
    "KeepName": _faults,
    "RenameAlias": _rename,
    "Cast": _cast,
    "BinaryExpr": _binary,
    "Ternary": lambda body: _all(body["predicate"], body["truthy"], body["falsy"]),
    "Function": _function,
    "Agg": _agg,
    "AnonymousFunction": _python,
    "Eval": _eval,
    "StructEval": lambda body: _all(body["expr"], *body["evaluation"]),
}
