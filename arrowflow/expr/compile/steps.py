"""The steps of a program: `Where` drops rows, and `Project` says what each output column is."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from arrowflow.expr.parse.expression import Expr


@dataclass(frozen=True, slots=True)
class Keep:
    """The input column `name`, unchanged: with the same buffers if no row is dropped."""

    name: str


@dataclass(frozen=True, slots=True)
class Cast:
    """The input column `name` as `type`, by pyarrow's safe rules: a value that does not fit is a `DataError`.

    A cast to an Enum runs in Polars.
    """

    name: str
    type: pa.DataType | pl.Enum


@dataclass(frozen=True, slots=True)
class FillNull:
    """The input column `name` with its nulls replaced by `value`, which has the column's type. NaN is not null."""

    name: str
    value: object


@dataclass(frozen=True, slots=True)
class Stack:
    """The input columns `names` side by side as one `fixed_size_list` column.

    Attributes:
        names: The columns, of one fixed-width numeric or boolean type unless `type` is given.
        type: The type to which every column is cast first, by pyarrow's safe rules.
    """

    names: tuple[str, ...]
    type: pa.DataType | None = None


Output = Expr | Keep | Cast | FillNull | Stack


@dataclass(frozen=True, slots=True)
class Where:
    """Keeps the rows where `predicate` is true; null is not true."""

    predicate: Expr


@dataclass(frozen=True, slots=True)
class Project:
    """All columns of the output, in order, by name.

    Examples:
        >>> import polars as pl
        >>> from arrowflow.expr.parse.expression import parse_expression
        >>> twice = parse_expression(pl.col("x") * 2, operator="with_columns")
        >>> Project((("x", Keep("x")), ("y", twice))).outputs[0]
        ('x', Keep(name='x'))
    """

    outputs: tuple[tuple[str, Output], ...]


Step = Where | Project


def columns_of(output: Output) -> tuple[str, ...]:
    """Returns the names of the columns that `output` reads."""
    if isinstance(output, Expr):
        return output.columns
    return output.names if isinstance(output, Stack) else (output.name,)
