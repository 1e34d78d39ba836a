"""`cast`: other types for columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa

from arrowflow.expr import Cast as CastStep
from arrowflow.expr import Keep, Project, Step
from arrowflow.ops.columns.column_program import ColumnOperator, check_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast(ColumnOperator):
    """Its input with some columns in other types; a value that does not fit is a `DataError`.

    Row order: as its input. Memory: the columns it writes, one chunk a call. Deterministic. Resume: as its input.
    """

    name: ClassVar[str] = "cast"

    types: tuple[tuple[str, pa.DataType | pl.Enum], ...]

    def arguments(self) -> Mapping[str, Any]:
        """Returns the pairs of column and type."""
        return {"types": [[name, str(type)] for name, type in self.types]}

    def describe(self) -> str:
        """Returns the types as text."""
        return f"cast({', '.join(f'{name}: {type}' for name, type in self.types)})"

    def steps(self, schema: pa.Schema) -> tuple[Step, ...]:
        """Returns one projection."""
        types = dict(self.types)
        check_columns(list(types), schema)
        return (
            Project(
                tuple(
                    (name, CastStep(name, types[name]) if name in types else Keep(name))
                    for name in schema.names
                )
            ),
        )
