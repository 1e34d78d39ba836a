"""`with_columns`: columns added or replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pyarrow as pa

from arrowflow.expr import Keep, Output, Project, Step
from arrowflow.ops.columns.column_program import ColumnOperator, check_unique
from arrowflow.ops.columns.select import Named, describe_named, expand_named, given_expressions
from arrowflow.plan.node import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class WithColumns(ColumnOperator):
    """Its input with columns added, or replaced in their places. All expressions see the input's columns.

    Row order: as its input. Memory: the columns it writes, one chunk a call. Deterministic. Resume: as its input.
    """

    name: ClassVar[str] = "with_columns"

    exprs: Named

    @classmethod
    def of(cls, below: Node, exprs: tuple[Any, ...], named: Mapping[str, Any]) -> Self:
        """Returns the node, with arguments as users write them."""
        return cls(inputs=(below,), exprs=given_expressions(cls.name, exprs, named))

    def arguments(self) -> Mapping[str, Any]:
        """Returns names and digests of the expressions."""
        return {"exprs": [[name, expr.digest()] for name, expr in self.exprs]}

    def describe(self) -> str:
        """Returns the expressions as text."""
        return f"with_columns({describe_named(self.exprs)})"

    def steps(self, schema: pa.Schema) -> tuple[Step, ...]:
        """Returns one projection: all columns, some of them rewritten, then the new columns."""
        new = expand_named(self.exprs, schema)
        check_unique([name for name, _ in new])
        outputs: dict[str, Output] = {name: Keep(name) for name in schema.names}
        outputs.update(new)
        return (Project(tuple(outputs.items())),)
