"""Every construct of Polars and pyarrow that the parser reads, as this release of the engine writes it.

A line of `constructs` that fails says that a release changed its form, and shows the new one. A construct without a line
fails, too.
"""

from __future__ import annotations

import datetime
import json
import pickle
import warnings
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowflow as af
from arrowflow.errors import PlanError
from arrowflow.expr import expand, parse_expression
from arrowflow.expr.compile.lower_arrow import ArrowLowering
from arrowflow.expr.compile.lower_polars import PolarsLowering
from arrowflow.expr.parse import arrow_tree, polars_check, polars_tree
from arrowflow.expr.parse.tree import Call, Column, Literal, Node, walk
from arrowflow.expr.pruning import RULES
from tests.expr.parse.constructs import (
    ARROW,
    ARROW_REFUSED,
    POLARS,
    POLARS_BEFORE_2,
    POLARS_REFUSED,
    POLARS_REFUSED_BEFORE_2,
    POLARS_REFUSED_SINCE_2,
    POLARS_SINCE_2,
)

c, f = pl.col, pc.field
DAY: Final = datetime.date(2001, 2, 3)
ENUM: Final = c("s").cast(pl.Enum(["", "a"]))
POLARS_2: Final = int(pl.__version__.split(".")[0]) >= 2


def hashed() -> pl.Expr:
    """A function of this library's own; others are refused."""
    return af.hash_bucket("n", 8)


def binary(operator: str) -> pl.Expr | None:
    """Returns an expression with an operator that Polars reads, but writes from SQL or by itself alone."""
    return polars_tree.deserialise(polars_tree.serialise(c("n") + c("m")).replace("Plus", operator))


# The settings of a call; a rule refuses a setting that it does not name, and the engine then runs the call.
SETTINGS: Final[dict[str, dict[str, object]]] = {
    "node Cast": {"options": "Strict"},
    "function Boolean.IsBetween": {"closed": "Both"},
    "function Boolean.IsIn": {"nulls_equal": False},
    "is_null": {"nan_is_null": False},
    "is_in": {"null_matching_behavior": 0, "value_set": Literal([1, 2], pa.list_(pa.int64()))},
    "cast": {
        "to_type": pa.int64(),
        **{
            f"allow_{what}": False
            for what in (
                "decimal_truncate",
                "float_truncate",
                "int_overflow",
                "invalid_utf8",
                "time_overflow",
                "time_truncate",
            )
        },
    },
}
LITERALS: Final[list[tuple[Any, Literal]]] = [
    (pl.lit(3), Literal(3, None)),
    (pl.lit(1.5), Literal(1.5, None)),
    (pl.lit(3, pl.Int8), Literal(3, pa.int8())),
    (pl.lit(1.5, pl.Float32), Literal(1.5, pa.float32())),
    (pl.lit(None), Literal(None, pa.null())),
    (pl.lit(None, pl.Int64), Literal(None, pa.int64())),
    (pl.lit(True), Literal(True, pa.bool_())),
    (pl.lit("a"), Literal("a", pa.string())),
    (pl.lit(b"a"), Literal(b"a", pa.binary())),
    (pl.lit(Decimal("1.5")), Literal(Decimal("1.5"), pa.decimal128(38, 1))),
    (pl.lit(DAY), Literal(11356, pa.date32())),
    (pl.date(2001, 2, 3), Literal(11356, pa.date32())),
    (pl.lit(datetime.datetime(2001, 2, 3)), Literal(981158400000000, pa.timestamp("us"))),
    (pl.datetime(2001, 2, 3), Literal(981158400000000, pa.timestamp("us"))),
    (pl.lit(datetime.time(1)), Literal(3600 * 10**9, pa.time64("ns"))),
    (pl.lit(datetime.timedelta(1)), Literal(86400 * 10**6, pa.duration("us"))),
    (pl.lit([1, 2]), Literal([1, 2], pa.list_(pa.int64()))),
    (pc.scalar(3), Literal(3, pa.int64())),
    (pc.scalar(pa.scalar(3, pa.int8())), Literal(3, pa.int8())),
    (pc.scalar(1.5), Literal(1.5, pa.float64())),
    (pc.scalar(pa.scalar(None, pa.int64())), Literal(None, pa.int64())),
    (pc.scalar(True), Literal(True, pa.bool_())),
    (pc.scalar("a"), Literal("a", pa.string())),
    (pc.scalar(b"a"), Literal(b"a", pa.binary())),
    (pc.scalar(pa.scalar(Decimal("1.5"))), Literal(Decimal("1.5"), pa.decimal128(2, 1))),
    (pc.scalar(DAY), Literal(11356, pa.date32())),
    (pc.scalar(datetime.datetime(2001, 2, 3)), Literal(981158400000000, pa.timestamp("us"))),
]


def rows(*tables: str) -> list[tuple[str, str]]:
    """Returns the constructs and expressions of `tables`."""
    lines = [line.partition(": ") for table in tables for line in table.strip().splitlines()]
    return [(construct, text) for construct, _, text in lines]


def named(row: object) -> str:
    return str(row)[:50]


def source_of(text: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an old release warns of methods that it will drop
        return eval(text)


def constructs(form: Any) -> set[str]:
    """Returns the constructs in the JSON of Polars."""
    if isinstance(form, list):
        return set().union(*map(constructs, form))
    if not isinstance(form, dict):
        return set()
    found = set().union(*map(constructs, form.values()))
    for key, part in form.items():
        found.add(f"node {key}")
        if key == "Function":
            found |= {f"function {'.'.join(path)}" for path in paths(part["function"])}
        elif key == "op":
            found.add(f"operator {part}")
        elif key in ("variant", "Literal"):
            found |= {f"{key.lower()} {path[0]}" for path in paths(part)}
    return found


def paths(form: Any) -> list[tuple[str, ...]]:
    """Returns the name that `form` is or begins with, and the same with the name that follows."""
    if isinstance(form, str):
        return [(form,)]
    if not isinstance(form, dict):
        return []
    ((name, body),) = form.items()
    inner = next(iter(body), None) if isinstance(body, dict) else body
    return [(name,), *([(name, inner)] if isinstance(inner, str) else [])]


NOW: Final = rows(POLARS, POLARS_SINCE_2 if POLARS_2 else POLARS_BEFORE_2)
REFUSED_NOW: Final = rows(POLARS_REFUSED, POLARS_REFUSED_SINCE_2 if POLARS_2 else POLARS_REFUSED_BEFORE_2)
NAMES: Final[dict[str, str]] = {
    "node Cast": "cast",
    "node Ternary": "if_else",
    **{f"operator {name}": function for name, function in polars_tree._OPERATORS.items()},
    **{
        f"function {family + '.' if family else ''}{name}": function
        for (family, name), function in polars_tree._FUNCTIONS.items()
    },
}


@pytest.mark.parametrize(("construct", "text"), NOW, ids=named)
def test_polars_writes_what_the_parser_reads(construct: str, text: str) -> None:
    source = source_of(text)
    assert source is not None, f"Polars {pl.__version__} does not know {construct} any more"
    form = polars_tree.serialise(source)
    where = f"{construct}: Polars {pl.__version__} writes {text} as {form}"
    assert construct in constructs(json.loads(form)), where
    assert polars_check.check(form) is None, where
    back = polars_tree.deserialise(form)
    assert back is not None and polars_tree.serialise(back) == form, where
    if construct in NAMES:
        check_call(polars_tree.read(form), construct, NAMES[construct], where)
    check_expression(source)


def check_call(tree: Node, construct: str, function: str, where: str) -> None:
    found = [node for node in walk(tree) if isinstance(node, Call) and node.function == function]
    assert found, f"{where}, read as {tree}"
    assert all(isinstance(arg, Column | Literal) for arg in found[0].args), f"{where}, read as {tree}"
    settings: Mapping[str, object] = SETTINGS.get(
        construct, {"checked": True} if "_checked" in construct else {}
    )
    assert dict(found[0].options) == settings, f"{where}, read as {tree}, but SETTINGS has {settings}"


def check_expression(source: Any) -> None:
    expr = parse_expression(source, operator="select")
    again = pickle.loads(pickle.dumps(expr))
    assert (again, hash(again), again.digest()) == (expr, hash(expr), expr.digest())
    assert repr(expr)


def test_every_construct_of_polars_has_a_line() -> None:
    known = {
        *(f"node {kind}" for kind in polars_check._VISITORS),
        *(f"operator {name}" for name in polars_check._OPERATORS),
        *(
            f"function {family}.{name}" if family else f"function {name}"
            for family, names in polars_check._ALLOWED.items()
            for name in names
        ),
    }
    tried = {construct for construct, _ in rows(POLARS, POLARS_BEFORE_2, POLARS_SINCE_2)}
    beside = {construct for construct in tried if construct.split()[0] in ("variant", "literal")}
    assert (tried - beside) ^ known == set(), (
        "each construct has a line in constructs.py, and no other has one"
    )
    assert set(NAMES) <= known


def test_some_rule_reads_each_name_of_a_call() -> None:
    assert set(NAMES.values()) <= {*PolarsLowering.rules, *RULES}
    assert set(arrow_tree._FUNCTIONS.values()) <= {*ArrowLowering.rules, *RULES}


def test_some_expression_has_the_name_of_each_rule() -> None:
    """A rule whose name no parser gives is never asked, and the engine runs the expression."""
    for rules, names in (
        (PolarsLowering.rules, NAMES.values()),
        (ArrowLowering.rules, arrow_tree._FUNCTIONS.values()),
    ):
        assert set(rules) <= set(names), "`_FUNCTIONS` of the parser lacks the spelling of a rule's name"


@pytest.mark.parametrize(("reason", "text"), REFUSED_NOW, ids=named)
def test_polars_writes_what_the_parser_refuses(reason: str, text: str) -> None:
    source = source_of(text)
    form = polars_tree.serialise(source)
    found = polars_check.check(form)
    assert found is not None and reason in found, f"Polars {pl.__version__} writes {text} as {form}: {found}"
    check_refused(source)


def check_refused(source: Any) -> None:
    with pytest.raises(PlanError, match=r"(?s)^select: .*element-wise.*map") as caught:
        parse_expression(source, operator="select")
    assert caught.value.operator == "select"


def test_every_refusal_has_a_line() -> None:
    reasons = {reason for reason, _ in rows(POLARS_REFUSED, POLARS_REFUSED_BEFORE_2, POLARS_REFUSED_SINCE_2)}
    assert {f"`{name}` inside `eval`" for name in polars_check._NEVER} <= reasons
    spelled = [polars_check._SPELLED.get(name, name.lower()) for _, name in polars_check._CONSTANTS]
    assert {f"`{name}` of another expression" for name in spelled} <= reasons


@pytest.mark.parametrize(("function", "text"), rows(ARROW), ids=named)
def test_pyarrow_writes_what_the_parser_reads(function: str, text: str) -> None:
    source = source_of(text)
    data = arrow_tree.serialise(source)
    parts = arrow_tree.entries(data)
    where = f"{function}: pyarrow {pa.__version__} writes {text} as {parts}"
    assert {key for key, _ in parts} <= {"call", "field_ref", "literal", "options", "end"}, where
    assert parts[0] == ("call", function) and parts[-1] == ("end", function), where
    assert arrow_tree.check(data) is None, where
    check_call(arrow_tree.read(data), function, arrow_tree._FUNCTIONS[function], where)
    for form in (data, arrow_tree.written(parts, arrow_tree.constants(data).columns)):
        assert arrow_tree.deserialise(form).equals(source), where
    check_expression(source)


def test_every_function_of_pyarrow_has_a_line() -> None:
    assert {function for function, _ in rows(ARROW)} == set(arrow_tree._FUNCTIONS), (
        "each function of `_FUNCTIONS` has a line in constructs.py, and no other has one"
    )
    assert set(arrow_tree._NOT_DETERMINISTIC) <= {function for function, _ in rows(ARROW_REFUSED)}


@pytest.mark.parametrize(("function", "text"), rows(ARROW_REFUSED), ids=named)
def test_pyarrow_writes_what_the_parser_refuses(function: str, text: str) -> None:
    source = source_of(text)
    found = arrow_tree.check(arrow_tree.serialise(source))
    assert found is not None and f"`{function}`" in found, f"pyarrow {pa.__version__}: {found}"
    check_refused(source)


def test_other_functions_of_pyarrow_are_left_whole() -> None:
    source = pc.round(pc.list_value_length(f("x", "y")) + 1, 2)
    tree = arrow_tree.read(arrow_tree.serialise(source))
    calls = [node for node in walk(tree) if isinstance(node, Call)]
    assert [call.function for call in calls] == [
        "arrow:round",
        "add",
        "arrow:list_value_length",
        "arrow:field",
    ]
    assert calls[0].options == (("ndigits", 2), ("round_mode", 8))
    assert calls[-1].args == (Column("x"),)
    texts = [str(arrow_tree.deserialise(call.source)) for call in calls if isinstance(call.source, bytes)]
    assert texts[-1] == str(f("x", "y"))
    assert texts[0] == str(source)
    check_expression(source)


@pytest.mark.parametrize(("source", "literal"), LITERALS, ids=named)
def test_literals_are_read(source: Any, literal: Literal) -> None:
    expr = parse_expression(source, operator="test")
    assert expr.tree() == literal, f"{expr.engine} writes {expr.form!r}"


def test_parts_that_are_looked_for_are_found() -> None:
    """Where a form changes, nobody finds these parts, and nothing else fails."""
    choice = pl.when(c("p")).then(2).otherwise(3)
    day = polars_tree.serialise(c("s").cast(pl.Date) + c("n").cast(pl.Int8))
    assert [part.columns for part in polars_tree.cast_to(day, *polars_tree.TEMPORAL)] == [("s",)]
    struct = polars_tree.serialise(c("s").cast(pl.Struct({"z": pl.Int8})))
    assert [part.columns for part in polars_tree.cast_to(struct, "Struct")] == [("s",)]
    chosen = polars_tree.choices(polars_tree.serialise(c("n") + choice))
    assert [part.columns for part in chosen] == [("p",)]
    (field,) = polars_tree.choices(
        polars_tree.serialise(c("x").struct.with_fields(pl.when(pl.field("z")).then(2)))
    )
    assert field.columns == ("x",)
    for constant in (choice, pl.coalesce("m", 2)):
        assert polars_tree.spread(polars_tree.serialise(c("n") / constant)) is not None
    assert polars_tree.spread(polars_tree.serialise(c("n") / c("m"))) is None
    assert '{"Eval":' in polars_tree.serialise(c("l").list.eval(pl.element() + 1))
    assert '"Float":null' in polars_tree.serialise(pl.lit(float("nan")))
    schema = pa.schema([("n", pa.int64()), ("s", pa.string()), ("m", pa.int8())])
    parts = expand(parse_expression(cs.numeric() + 1, operator="test"), schema)
    assert [part.columns for part in parts] == [("n",), ("m",)]
