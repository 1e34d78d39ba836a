"""`cast`: other types for columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import polars as pl
import pyarrow as pa

from arrowflow.errors import PlanError, shown
from arrowflow.expr import Cast as CastStep
from arrowflow.expr import Step
from arrowflow.ops.columns.column_program import (
    ColumnOperator,
    as_text,
    chosen_columns,
    values_by_column,
    with_outputs,
)
from arrowflow.plan.node import Node
from arrowflow.types import arrow_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast(ColumnOperator):
    """Its input with some columns in other types; a value that does not fit is a `DataError`.

    Row order: as its input. Memory: the columns it writes, one chunk a call. Deterministic. Resume: as its input.
    """

    name: ClassVar[str] = "cast"

    types: tuple[tuple[Any, pa.DataType | pl.Enum], ...]

    @classmethod
    def of(cls, below: Node, types: Any) -> Self:
        if not isinstance(types, Mapping):
            raise PlanError(f"cast: expected a mapping from columns to types, got {shown(types)}")
        pairs = tuple(
            (*chosen_columns(cls.name, (name,)), arrow_type(type, operator="cast"))
            for name, type in types.items()
        )
        return cls(inputs=(below,), types=pairs)

    def arguments(self) -> Mapping[str, Any]:
        return {"types": [[as_text(name), str(type)] for name, type in self.types]}

    def describe(self) -> str:
        return f"cast({', '.join(f'{name}: {type}' for name, type in self.types)})"

    def steps(self, schema: pa.Schema) -> tuple[Step, ...]:
        types = values_by_column(self.types, schema)
        return with_outputs(schema, {name: CastStep(name, type) for name, type in types.items()})
