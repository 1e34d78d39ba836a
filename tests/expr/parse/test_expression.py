"""What is accepted as an expression, and what is refused because it is not element-wise."""

from __future__ import annotations

from typing import Any, Final

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrowflow.errors import PlanError
from arrowflow.expr import Expr, Where, compile_steps, expand, output_fields, parse_expression, parse_many
from arrowflow.expr.parse import polars_tree
from arrowflow.expr.parse.tree import Literal
from tests import warm

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
    _, lines, _ = warm.plain().run(script)
    here = [
        parse_expression(source, operator="t").digest()
        for source in (c("a").is_in([1, 2]), f("a").isin([1, 2]))
    ]
    assert lines.split() == here


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


@pytest.mark.parametrize(("length", "shown"), [(200, 200), (201, 199)])
def test_an_error_shows_at_most_200_characters_of_an_expression(length: int, shown: int) -> None:
    source = c("x" * (length - len(str(c("").sum())))).sum()
    with pytest.raises(PlanError) as caught:
        parse_expression(source, operator="t")
    assert len(str(source)) == length
    assert f" in {str(source)[:shown]}{'…' * (shown < length)}. A chunk" in str(caught.value)
