"""`drop`: all columns but these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.expr import Keep, Project, Step
from arrowflow.ops.columns.column_program import ColumnOperator, Columns, as_texts, chosen_columns, names_on
from arrowflow.plan.node import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop(ColumnOperator):
    """Its input without some columns.

    Row order: as its input. Memory: nothing new. Deterministic. Resume: as its input.
    """

    name: ClassVar[str] = "drop"

    columns: tuple[Any, ...]

    @classmethod
    def of(cls, below: Node, columns: Sequence[Any]) -> Self:
        return cls(inputs=(below,), columns=chosen_columns(cls.name, columns))

    def arguments(self) -> Mapping[str, Any]:
        return {"columns": as_texts(self.columns)}

    def steps(self, schema: pa.Schema) -> tuple[Step, ...]:
        dropped = frozenset(names_on(self.columns, schema))
        outputs = tuple((name, Keep(name)) for name in schema.names if name not in dropped)
        if not outputs:
            raise PlanError(
                "no column would be left, and rows without columns cannot be counted; keep at least one"
            )
        return (Project(outputs),)

    def narrow(self, wanted: frozenset[str]) -> Node:
        """Returns a projection of the remaining columns, without the columns that nothing reads any more."""
        schema = self.inputs[0].schema
        narrowed = ColumnOperator.narrow(self, wanted)
        if narrowed is not self or schema is None:
            return narrowed
        return Columns(listed=self.steps(schema), operators=(self.name,)).on(*self.inputs)
