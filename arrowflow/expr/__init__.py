"""Expressions of Polars and of `pyarrow.compute`: parsed, checked, compiled, and run over record batches.

`parse_expression` takes an expression as a user wrote it, and refuses it if it is not element-wise. `compile_steps`
turns filters and projections into a `Program`. A program runs on NumPy if NumPy gives the same values, else on the
engine that owns the expression. `prunable` says which row groups a predicate rules out by their statistics.
"""

from __future__ import annotations

from arrowflow.expr.compile.steps import Cast, FillNull, Keep, Output, Project, Stack, Step, Where, columns_of
from arrowflow.expr.parse.expression import Expr, expand, parse_expression, parse_many
from arrowflow.expr.pruning import ColumnStatistics, prunable
from arrowflow.expr.run.foreign import empty_batch
from arrowflow.expr.run.program import Program, compile_steps, forget_compiled, output_fields
from arrowflow.types import convert, normalise

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
    "compile_steps",
    "convert",
    "empty_batch",
    "expand",
    "forget_compiled",
    "normalise",
    "output_fields",
    "parse_expression",
    "parse_many",
    "prunable",
]
