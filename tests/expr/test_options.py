"""No lowering, and no test of statistics, ignores an argument or an option of a call."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import textwrap
from collections.abc import Callable
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrowflow.expr import ColumnStatistics, Project, compile_steps, parse_expression, prunable, pruning
from arrowflow.expr.compile.graph import Graph
from arrowflow.expr.compile.lower_arrow import ArrowLowering
from arrowflow.expr.compile.lower_polars import PolarsLowering
from arrowflow.expr.parse.tree import Call, Column, Literal, Node, Unsupported, apply
from arrowflow.types import numpy_dtype
from tests.expr.test_kernels import ARROW, POLARS, SCHEMA, TRANSCENDENTAL, by_engine, same

c, f = pl.col, pc.field
TABLES: Final[dict[str, dict[str, Callable[..., Any]]]] = {
    "polars": PolarsLowering.rules,
    "arrow": ArrowLowering.rules,
    "statistics": pruning.RULES,
}


@pytest.mark.parametrize("table", TABLES)
def test_a_rule_reads_what_it_takes(table: str) -> None:
    for function, rule in TABLES[table].items():
        tree = ast.parse(textwrap.dedent(inspect.getsource(rule)))
        read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        _, _, *taken = inspect.signature(rule).parameters  # besides the owner and the call
        assert set(taken) <= read, f"the rule of {function} takes what it does not read"


def test_an_unknown_option_or_argument_is_refused() -> None:
    class Owner:
        def rule(self, call: Call, value: Node, *, known: bool = False) -> tuple[str, Node, bool]:
            return call.function, value, known

    x = Column("x")
    assert apply(Owner.rule, Owner(), Call("f", (x,))) == ("f", x, False)
    assert apply(Owner.rule, Owner(), Call("f", (x,), (("known", True),))) == ("f", x, True)
    for args, options in (
        ((x,), (("new", False),)),
        ((x, x), ()),
        ((), ()),
        ((x,), (("value", x),)),
        ((x,), (("call", x),)),
    ):
        with pytest.raises(Unsupported):
            apply(Owner.rule, Owner(), Call("f", args, options))


def test_the_engine_runs_what_says_more_than_is_known() -> None:
    def type_of(call: Call) -> pa.DataType:
        raise AssertionError("a rule that asks for the type has taken the option")

    graph = Graph()
    fields = [field for field in SCHEMA if numpy_dtype(field.type) is not None]
    env = {field.name: graph.input(field.name, field.type) for field in fields}
    taken = []
    for source in (*POLARS, *ARROW, *TRANSCENDENTAL):
        tree = parse_expression(source, operator="test").tree()
        if isinstance(tree, Call):
            lowering = (PolarsLowering if isinstance(source, pl.Expr) else ArrowLowering)(
                graph, env.get, type_of
            )
            with contextlib.suppress(Unsupported):
                lowering.lower(dataclasses.replace(tree, options=(*tree.options, ("new", True))))
                taken.append(str(source))
    assert taken == []


@pytest.mark.parametrize(
    "source",
    [
        c("x").is_in([1, 2], nulls_equal=True),
        c("x").is_in([1, None], nulls_equal=True),
        ~c("x").is_in([1, 2], nulls_equal=True),
        pc.is_in(f("x"), value_set=pa.array([1, None]), skip_nulls=True),
        pc.is_in(f("x"), value_set=pa.array([1, None])),
        c("x").cast(pl.Int8, wrap_numerical=True),
        f("x").cast("int8", safe=False),
        f("f").cast("float32", safe=False),
        f("f").is_null(nan_is_null=True),
        c("f").round(mode="half_away_from_zero"),
        c("x").clip(2, 1),
        c("x").clip(upper_bound=1),
        c("f").log(0.5),
        c("x").is_between(1, 3, closed="none"),
        pc.add_checked(f("x"), 1),
        pc.max_element_wise(f("x"), f("y"), skip_nulls=False),
        pc.divide_checked(f("f"), 0.0),
    ],
    ids=str,
)
def test_options(source: Any) -> None:
    columns = {"x": [1, None, 300, 2], "y": [None, 1, 2, 3], "f": [0.5, float("nan"), None, 2.5]}
    batch = pa.RecordBatch.from_pydict(columns)
    program = compile_steps([Project((("out", parse_expression(source, operator="test")),))], batch.schema)
    try:
        expected = by_engine(source, batch)
    except pa.ArrowInvalid:
        with pytest.raises(ValueError, match="cannot evaluate"):
            program.run(batch)
    else:
        assert same(program.run(batch).column("out"), expected, 0)


def test_statistics_of_calls_that_say_more_prune_nothing() -> None:
    schema = pa.schema([("x", pa.int64())])
    statistics = {"x": ColumnStatistics(1, 5, 0)}
    for source in (
        c("x") > 7,
        c("x").is_null(),
        c("x").is_between(7, 8),
        c("x").is_in([7]),
        f("x").isin([7]),
    ):
        expr = parse_expression(source, operator="test")
        skip = prunable(expr, schema)
        assert skip is not None and skip(statistics, 10)
        tree = expr.tree()
        assert isinstance(tree, Call)
        reader = pruning._Reader(expr.engine == "polars", schema)
        assert reader.test(dataclasses.replace(tree, options=(*tree.options, ("new", True)))) is None
        assert reader.test(dataclasses.replace(tree, args=(*tree.args, *[Literal(1, None)] * 3))) is None
