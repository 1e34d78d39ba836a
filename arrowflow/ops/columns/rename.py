"""`rename`: other names for columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pyarrow as pa

from arrowflow.errors import PlanError, shown
from arrowflow.expr import Keep, Project, Step
from arrowflow.ops.columns.column_program import ColumnOperator, check_columns, check_unique
from arrowflow.plan.node import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename(ColumnOperator):
    """Its input with some columns under other names, in their places.

    Row order: as its input. Memory: nothing new. Deterministic. Resume: as its input.
    """

    name: ClassVar[str] = "rename"

    mapping: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, below: Node, mapping: Any) -> Self:
        if not isinstance(mapping, Mapping) or not all(
            isinstance(name, str) for pair in mapping.items() for name in pair
        ):
            raise PlanError(f"rename: expected a mapping from old to new names, got {shown(mapping)}")
        return cls(inputs=(below,), mapping=tuple(mapping.items()))

    def arguments(self) -> Mapping[str, Any]:
        return {"mapping": [list(pair) for pair in self.mapping]}

    def describe(self) -> str:
        return f"rename({dict(self.mapping)})"

    def steps(self, schema: pa.Schema) -> tuple[Step, ...]:
        names = dict(self.mapping)
        check_columns(list(names), schema)
        outputs = tuple((names.get(name, name), Keep(name)) for name in schema.names)
        check_unique([name for name, _ in outputs])
        return (Project(outputs),)
