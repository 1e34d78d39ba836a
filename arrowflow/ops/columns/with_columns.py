"""`with_columns`: columns added or replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from arrowflow.expr import Keep, Output, Project, Step
from arrowflow.ops.columns.column_program import check_unique
from arrowflow.ops.columns.select import ExpressionOperator, expand_named


@dataclass(frozen=True, slots=True, kw_only=True)
class WithColumns(ExpressionOperator):
    """Its input with columns added, or replaced in their places. All expressions see the input's columns.

    Row order: as its input. Memory: the columns it writes, one chunk a call. Deterministic. Resume: as its input.
    """

    name: ClassVar[str] = "with_columns"

    def steps(self, schema: pa.Schema) -> tuple[Step, ...]:
        """Returns one projection: all columns, some of them rewritten, then the new columns."""
        new = expand_named(self.exprs, schema)
        check_unique([name for name, _ in new])
        outputs: dict[str, Output] = {name: Keep(name) for name in schema.names}
        outputs.update(new)
        return (Project(tuple(outputs.items())),)
