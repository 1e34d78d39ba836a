"""`with_columns`: columns added or replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from arrowflow.expr import Step
from arrowflow.ops.columns.column_program import check_unique, with_outputs
from arrowflow.ops.columns.select import ExpressionOperator, expand_named


@dataclass(frozen=True, slots=True, kw_only=True)
class WithColumns(ExpressionOperator):
    """Its input with columns added, or replaced in their places. All expressions see the input's columns.

    Row order: as its input. Memory: the columns it writes, one chunk a call. Deterministic. Resume: as its input.
    """

    name: ClassVar[str] = "with_columns"

    def steps(self, schema: pa.Schema) -> tuple[Step, ...]:
        new = expand_named(self.exprs, schema)
        check_unique([name for name, _ in new])
        return with_outputs(schema, dict(new))
