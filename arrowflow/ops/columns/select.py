"""`select`: just these columns, in this order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import polars as pl
import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.expr import Expr, Project, Step, expand, parse_expression, parse_many
from arrowflow.ops.columns.column_program import ColumnOperator, check_columns, check_unique
from arrowflow.plan.node import Node

Named = tuple[tuple[str | None, Expr], ...]
"""Expressions with the names that a user gave; None stands for the expression's own name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpressionOperator(ColumnOperator):
    """A column operator with expressions, some of which have names: the base of `select` and `with_columns`."""

    exprs: Named

    @classmethod
    def of(cls, below: Node, exprs: tuple[Any, ...], named: Mapping[str, Any]) -> Self:
        return cls(inputs=(below,), exprs=given_expressions(cls.name, exprs, named))

    def arguments(self) -> Mapping[str, Any]:
        return {"exprs": [[name, expr.digest()] for name, expr in self.exprs]}

    def describe(self) -> str:
        """Returns the expressions as text; a column that passes as it is has its name alone."""
        texts = []
        for name, expr in self.exprs:
            text = repr(expr if expr.column is None else expr.column)
            texts.append(text if name is None else f"{name}={text}")
        return f"{self.name}({', '.join(texts)})"

    def carrying(self, columns: Sequence[str]) -> Self:
        """Names the columns that its selectors mean, so that they mean no more."""
        schema = self.inputs[0].schema
        assert schema is not None
        return dataclasses.replace(self, exprs=tuple(expand_named(self.exprs, schema)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(ExpressionOperator):
    """The given expressions as columns, in the given order.

    Row order: as its input. Memory: the columns it writes, one chunk a call. Deterministic. Resume: as its input.

    Attributes:
        operator: Name of the method whose argument names the columns, for errors.
    """

    name: ClassVar[str] = "select"

    operator: str = field(default="select", compare=False)

    @classmethod
    def named_by(cls, operator: str, below: Node, columns: Sequence[str]) -> Self:
        """Returns the node for the columns that an argument of a method names."""
        return dataclasses.replace(cls.of(below, tuple(columns), {}), operator=operator)

    def carrying(self, columns: Sequence[str]) -> Self:
        own = ExpressionOperator.carrying(self, columns)
        return dataclasses.replace(own, exprs=(*own.exprs, *given_expressions(self.name, tuple(columns), {})))

    def steps(self, schema: pa.Schema) -> tuple[Step, ...]:
        try:
            outputs = expand_named(self.exprs, schema)
            check_unique([name for name, _ in outputs])
        except PlanError as error:
            error.locate(operator=self.operator)
            raise
        return (Project(tuple(outputs)),)


def given_expressions(operator: str, exprs: tuple[Any, ...], named: Mapping[str, Any]) -> Named:
    """Returns expressions that a user gave by place and by name; raises `PlanError` unless there is an expression."""
    if not exprs and not named:
        raise PlanError(f"{operator}: expected at least one column")
    listed = [(None, expr) for expr in parse_many(exprs, operator=operator, allow_name=True)]
    return (*listed, *((name, _parsed(operator, value)) for name, value in named.items()))


def _parsed(operator: str, value: Any) -> Expr:
    if isinstance(value, bool | int | float):
        value = pl.lit(value)
    return parse_expression(value, operator=operator, allow_name=True)


def expand_named(exprs: Named, schema: pa.Schema) -> list[tuple[str, Expr]]:
    """Returns expressions with their names on a schema: selectors become one expression per column.

    Raises:
        PlanError: A column is unknown, or an expression has no name of its own and was given none.
    """
    outputs: list[tuple[str, Expr]] = []
    for given, expr in exprs:
        check_columns(expr.columns, schema)
        singles = expand(expr, schema)
        if given is not None and len(singles) != 1:
            raise PlanError(f"{given}={expr!r} makes {len(singles)} columns, and one keyword names one")
        for single in singles:
            name = single.name if given is None else given
            if name is None:
                raise PlanError(f"{single!r} has no name of its own; pass it by keyword, as name=…")
            outputs.append((name, single))
    return outputs
