"""What is accepted as an expression, and what is refused because it is not element-wise."""

from __future__ import annotations

import datetime
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrowflow.errors import PlanError
from arrowflow.expr import (
    Expr,
    Where,
    compile_steps,
    expand,
    output_fields,
    parse_expression,
    parse_many,
)
from arrowflow.expr.parse import arrow_tree, polars_tree
from arrowflow.expr.parse.tree import Call, Column, Literal, Node, walk

c, f = pl.col, pc.field
SCHEMA: Final = pa.schema(
    [
        ("a", pa.int32()),
        ("b", pa.float64()),
        ("s", pa.string()),
        ("l", pa.list_(pa.int64())),
        ("w", pa.decimal256(50, 1)),
    ]
)


def where_known(make: Callable[[], pl.Expr]) -> list[pl.Expr]:
    """Returns an expression, or none where this Polars does not take its arguments."""
    try:
        return [make()]
    except TypeError:
        return []


SPLIT: Final = inspect.signature(c("s").str.split).parameters
ELEMENT_WISE: Final[list[Any]] = [
    c("a") + 1,
    c("s").str.to_date("%Y-%m-%d"),
    c("s").str.strip_chars().str.len_chars(),
    c("s").str.json_decode(pl.Int64),
    c("a").is_in([1, 2]),
    c("a").is_in(pl.Series([1, 2])),
    c("a").replace({1: 2}),
    c("a").replace_strict([1], [2], default=0),
    c("a").replace([1], [2]),
    c("a").replace(pl.Series([1]), pl.lit(2, pl.Int64)),
    c("a").fill_null(strategy="zero"),
    c("l").list.sum(),
    c("s").cast(pl.Enum(["", "1"]), strict=False).cat.len_bytes(),
    c("t").dt.date().dt.is_business_day(holidays=[datetime.date(2001, 2, 3)]),
    c("t").dt.add_business_days(c("a"), roll="forward"),
    pl.business_day_count(c("t").dt.date(), datetime.date(2001, 2, 3)),
    pl.linear_spaces("a", "b", 3),
    c("x").struct.drop(["z"]) if hasattr(c("x").struct, "drop") else c("x"),
    c("a").erf() + c("a").erfc() if hasattr(c("a"), "erf") else c("a"),
    c("a").truncdiv(2) if hasattr(c("a"), "truncdiv") else c("a"),
    c("s").str.split(r"\d", literal=False) if "literal" in SPLIT else c("s"),
    pl.concat_arr("a", "b").arr.to_struct(["p", "q"]),
    pl.concat_arr("a", "b").arr.dot(pl.concat_arr("a", "b")) if hasattr(c("a").arr, "dot") else c("a"),
    c("l").list.eval(pl.element() - pl.element().mean()),
    c("l").list.eval(pl.element().sort()),
    c("x").struct.with_fields(pl.field("z") + 1),
    c("x").struct.field("z"),
    pl.struct("a", "b"),
    pl.concat_list("a", "b"),
    pl.max_horizontal("a", "b"),
    pl.when(c("a") > 1).then(c("b")).otherwise(0),
    c("a").name.suffix("_"),
    c("a").alias("q").name.keep(),
    c("a").round(1),
    pl.lit(3),
    c("t").dt.truncate("1d"),
    c("a").xor(c("b")),
    c("a").clip(0, 1).sin(),
    f("a") + 1,
    pc.if_else(f("a") > 0, f("a"), 0),
    pc.list_value_length(f("l")),
    f("x", "y") > 1,
    f("a").cast("int64"),
]
NOT_ELEMENT_WISE: Final[list[Any]] = [
    c("x") - c("x").mean(),
    c("x").sort(),
    c("x").sort_by("y"),
    c("x").cum_sum(),
    c("x").shift(),
    c("x").sum().over("y"),
    c("x").mean().over("y") + 1,
    c("x").sum(),
    c("x").first(),
    c("x").n_unique() > 1,
    c("x").quantile(0.5),
    pl.len(),
    c("x").count(),
    c("x").unique(),
    c("x").explode(),
    c("x").map_batches(lambda series: series),
    c("x").map_elements(lambda value: value),
    pl.int_range(3),
    pl.int_range(pl.len()),
    c("x").rank(),
    c("x").sample(1),
    c("x").shuffle(),
    c("x").filter(c("y")),
    c("x").head(2),
    c("x").gather(0),
    c("x").reverse(),
    c("x").diff(),
    c("x").fill_null(strategy="forward"),
    c("x").fill_null(strategy="mean"),
    c("x").interpolate(),
    c("x").rolling_mean(3),
    c("x").ewm_mean(com=1),
    c("x").is_unique(),
    c("x").is_first_distinct(),
    c("x").is_in(c("y")),
    c("x").replace(c("y"), 1),
    c("x").replace([1, 2], c("y")),
    c("x").replace_strict(c("y"), c("z"), default=0),
    *where_known(lambda: c("x").dt.is_business_day(holidays=c("y"))),
    c("x").implode(),
    c("x").any(),
    c("x").hash().cum_max(),
    c("x").cast(pl.Categorical),
    c("x").set_sorted(),
    c("x").rle_id(),
    c("x").str.join(","),
    c("x").str.to_date(),
    c("x").str.to_datetime(),
    c("x").name.map(str.upper),
    c("x").list.sample(1),
    c("x").list.eval(pl.element().shuffle()),
    c("x").cumulative_eval(pl.element().sum()),
    c("x").is_in(c("y").implode()),
    c("x").cast(pl.dtype_of("y")) if hasattr(pl, "dtype_of") else c("x").rle(),
    pl.lit(pl.Series([1, 2])),
    c("x") + pl.lit(pl.Series([1, 2])),
    pl.when(c("x").sum() > 1).then(1),
    pl.struct(c("x").max()),
    c("x").struct.with_fields(c("y").max()),
    pl.corr("x", "y"),
    pl.arg_where(c("x")),
    pc.sum(f("x")),
    f("x") - pc.mean(f("x")),
    pc.cumulative_sum(f("x")),
    pc.unique(f("x")),
    pc.rank(f("x")),
    pc.Expression._call("random", [], pc.RandomOptions()),
    pc.Expression._call("no_such_function", [f("x")]),
]


@pytest.mark.parametrize("source", ELEMENT_WISE, ids=lambda source: str(source)[:50])
def test_element_wise_expressions_are_accepted(source: Any) -> None:
    expr = parse_expression(source, operator="select")
    again = pickle.loads(pickle.dumps(expr))
    assert again == expr
    assert hash(again) == hash(expr)
    assert again.digest() == expr.digest()
    assert list(walk(expr.tree()))
    assert repr(expr)


@pytest.mark.parametrize("source", NOT_ELEMENT_WISE, ids=lambda source: str(source)[:50])
def test_other_expressions_are_refused(source: Any) -> None:
    with pytest.raises(PlanError, match=r"(?s)^select: .*element-wise.*map") as caught:
        parse_expression(source, operator="select")
    assert caught.value.operator == "select"


@pytest.mark.parametrize("value", [3, None, pl.Series([1]), lambda batch: batch, object])
def test_other_things_are_refused(value: Any) -> None:
    with pytest.raises(PlanError, match="expected an expression of Polars"):
        parse_expression(value, operator="filter")


def test_names() -> None:
    assert parse_expression("a", operator="select", allow_name=True).columns == ("a",)
    with pytest.raises(PlanError, match="expected an expression"):
        parse_expression("a", operator="filter")
    with pytest.raises(PlanError, match="name of a column"):
        parse_expression(3, operator="select", allow_name=True)
    assert parse_expression(c("b") * c("a"), operator="t").columns == ("a", "b")
    assert parse_expression(c("b").alias("q"), operator="t").name == "q"
    assert parse_expression(f("a"), operator="t").name == "a"
    assert parse_expression(f("a") + 1, operator="t").name is None
    assert parse_expression(f("x", "y"), operator="t").columns == ("x",)
    assert parse_expression(pl.all(), operator="t").name is None
    assert parse_expression(c("l").list.eval(pl.element() + 1), operator="t").columns == ("l",)
    with pytest.raises(PlanError, match="name columns by name"):
        parse_expression(f(0), operator="t")


def test_many() -> None:
    found = parse_many([c("a"), [f("b"), ("s",)]], operator="t", allow_name=True)
    assert [expr.name for expr in found] == ["a", "b", "s"]
    assert len(parse_many(c("a"), operator="t")) == 1


def test_equality_is_of_meaning() -> None:
    def make(source: Any) -> Expr:
        return parse_expression(source, operator="t")

    assert make(c("a") + 1) == make(c("a") + 1)
    assert make(c("a") + 1) != make(c("a") + 2)
    assert make(f("a") > 1) == make(f("a") > 1)
    assert make(f("a") > 1) != make(f("a") > pa.scalar(1, pa.int8()))
    assert make(f("a")) != make(c("a"))
    assert make(c("a") > 1) != "a"
    floats = [make(pl.lit(value) + c("b")) for value in (float("nan"), float("inf"), 1.0)]
    assert len(set(floats)) == 3


def test_digests_are_the_same_in_every_process() -> None:
    script = """
import polars as pl, pyarrow.compute as pc
from arrowflow.expr import parse_expression
print(parse_expression(pl.col("a").is_in([1, 2]), operator="t").digest())
print(parse_expression(pc.field("a").isin([1, 2]), operator="t").digest())
"""
    lines = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout.split()
    here = [
        parse_expression(source, operator="t").digest()
        for source in (c("a").is_in([1, 2]), f("a").isin([1, 2]))
    ]
    assert lines == here


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (c("a", "b") * 2, ["a", "b"]),
        (cs.numeric() + 1, ["a", "b"]),
        (pl.all().exclude("w").is_null(), ["a", "b", "s", "l"]),
        (c("^[ab]$").cast(pl.Float32).name.suffix("_"), ["a_", "b_"]),
        (c("a", "b") / c("b", "a"), ["a", "b"]),
        (pl.max_horizontal(cs.numeric()), ["a"]),
        (pl.max_horizontal(pl.all().exclude("w", "s", "l")) + 1, ["a"]),
        (c("a"), ["a"]),
        (f("a"), ["a"]),
    ],
)
def test_expansion(source: Any, names: list[str]) -> None:
    parts = expand(parse_expression(source, operator="t"), SCHEMA)
    assert [part.name for part in parts] == names
    assert all(part.columns for part in parts)
    assert [field.name for field in output_fields(parse_expression(source, operator="t"), SCHEMA)] == names
    if len(parts) > 1:
        assert all(len(part.columns) <= 2 for part in parts)


def test_expansion_that_is_not_one_to_one() -> None:
    with pytest.raises(PlanError, match="one expression for each column"):
        expand(parse_expression(pl.all() * float("inf"), operator="t"), SCHEMA.remove(4).remove(3).remove(2))
    both = expand(parse_expression(pl.all(), operator="t"), SCHEMA)
    assert [part.columns for part in both] == [(name,) for name in SCHEMA.names]


def test_output_fields() -> None:
    fields = output_fields(parse_expression(c("s") + "x", operator="t"), SCHEMA)
    assert fields == [pa.field("s", pa.string())]
    assert output_fields(parse_expression(c("l").list.sort(), operator="t"), SCHEMA)[0].type == pa.list_(
        pa.int64()
    )
    assert output_fields(parse_expression(f("a") + 1, operator="t"), SCHEMA) == [pa.field("", pa.int32())]
    with pytest.raises(PlanError, match="did you mean 's'"):
        output_fields(parse_expression(c("ss"), operator="t"), SCHEMA)


def call(node: Node) -> Call:
    assert isinstance(node, Call)
    return node


def text_of(node: Node) -> str:
    source = call(node).source
    assert isinstance(source, bytes)
    return str(arrow_tree.deserialise(source))


def test_trees() -> None:
    tree = call(parse_expression(c("a") + 1 > pl.lit(2.5), operator="t").tree())
    assert (tree.function, tree.args[1]) == ("greater", Literal(2.5, None))
    folded = call(parse_expression(pl.date(1995, 1, 1) > c("a"), operator="t").tree()).args[0]
    assert isinstance(folded, Literal)
    assert folded.type == pa.date32()
    nested = call(parse_expression(pc.is_in(f("x", "y"), value_set=pa.array([1])), operator="t").tree())
    assert dict(nested.options)["value_set"] == Literal([1], pa.list_(pa.int64()))
    assert call(nested.args[0]).args == (Column("x"),)


def test_parts_of_a_tree_are_expressions() -> None:
    nested = call(parse_expression(pc.is_in(f("x", "y"), value_set=pa.array([1])), operator="t").tree())
    assert text_of(nested.args[0]) == str(f("x", "y"))
    deep = call(parse_expression((f("a") + 1).cast("float64"), operator="t").tree())
    assert text_of(deep.args[0]) == str(f("a") + 1)
    assert polars_tree.deserialise("{}") is None


FLOATS: Final = [-969.7639365551287, 5.632716546085506e-56, 0.1, 1e300, 5e-324, -0.0]


@pytest.mark.parametrize("value", FLOATS)
def test_floats_come_back_from_json_to_the_bit(value: float) -> None:
    back = polars_tree.deserialise(polars_tree.serialise(pl.lit(value, pl.Float64) * c('\\ " 1.5e3 x')))
    assert back is not None
    assert back.meta.root_names() == ['\\ " 1.5e3 x']
    assert polars_tree.read(polars_tree.serialise(pl.lit(value, pl.Float64))) == Literal(value, pa.float64())
    single = polars_tree.deserialise(polars_tree.serialise(pl.lit(value)))
    assert single is not None
    assert pl.select(single).item() == value


def test_floats_beside_selectors_keep_their_bits() -> None:
    (part,) = expand(
        parse_expression(cs.float() * FLOATS[0], operator="test"), pa.schema([("b", pa.float64())])
    )
    frame = pl.DataFrame({"b": [1.0]})
    assert frame.select(part.source).item() == FLOATS[0]


@pytest.mark.parametrize("value", [*FLOATS, 9.755039720136093e-296, -4.851128810816257e232])
def test_typed_floats_are_compared_to_the_bit(value: float) -> None:
    """Also those that nothing makes Polars read back: they never leave it."""
    batch = pa.RecordBatch.from_pydict({"b": pa.array([value, 7.0])})
    source = parse_expression(c("b") == pl.lit(value, pl.Float64), operator="test")
    assert compile_steps([Where(source)], batch.schema).run(batch).num_rows == 1
