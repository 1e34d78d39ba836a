"""Expressions of Polars and of `pyarrow.compute`: parsed, checked, compiled, and run over record batches.

`parse` takes what a user wrote and refuses what is not element-wise. `compile` turns filters and projections into
a `Program`, which runs on NumPy where that gives the same, and on the engine that owns the expression elsewhere.
`prunable` says which row groups a predicate rules out by their statistics.
"""

from __future__ import annotations

from arrowflow.expr.expression import Expr, expand, parse, parse_many
from arrowflow.expr.program import Program, compile, forget_compiled, output_fields
from arrowflow.expr.prune import ColumnStatistics, prunable
from arrowflow.expr.steps import Cast, FillNull, Keep, Output, Project, Stack, Step, Where, columns_of
from arrowflow.expr.types import convert, normalise

__all__ = [
    "Cast",
    "ColumnStatistics",
    "Expr",
    "FillNull",
    "Keep",
    "Output",
    "Program",
    "Project",
    "Stack",
    "Step",
    "Where",
    "columns_of",
    "compile",
    "convert",
    "expand",
    "forget_compiled",
    "normalise",
    "output_fields",
    "parse",
    "parse_many",
    "prunable",
]
