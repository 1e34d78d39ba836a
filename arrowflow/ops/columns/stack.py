"""`stack`: several columns as one tensor column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from arrowflow.expr import Keep, Output, Project, Step
from arrowflow.expr import Stack as StackStep
from arrowflow.ops.columns.column_program import ColumnOperator, check_columns, check_unique


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack(ColumnOperator):
    """Its input with each group of columns replaced by one `fixed_size_list` column, behind the others.

    A null is a `DataError` that names `fill_null`. Row order: as its input. Memory: the columns it writes, one chunk
    a call. Deterministic. Resume: as its input.
    """

    name: ClassVar[str] = "stack"

    groups: tuple[tuple[str, tuple[str, ...]], ...]
    dtype: pa.DataType | None = None

    def arguments(self) -> Mapping[str, Any]:
        """Returns the groups and the type."""
        groups = [[name, list(columns)] for name, columns in self.groups]
        return {"groups": groups, "dtype": None if self.dtype is None else str(self.dtype)}

    def describe(self) -> str:
        """Returns the groups as text."""
        groups = [f"{name}=[{_shown(columns)}]" for name, columns in self.groups]
        return f"stack({', '.join(groups + ([] if self.dtype is None else [f'dtype={self.dtype}']))})"

    def steps(self, schema: pa.Schema) -> tuple[Step, ...]:
        """Returns one projection: the columns in no group, then the groups."""
        used = {column for _, columns in self.groups for column in columns}
        check_columns([column for _, columns in self.groups for column in columns], schema)
        rest: list[tuple[str, Output]] = [(name, Keep(name)) for name in schema.names if name not in used]
        stacked: list[tuple[str, Output]] = [
            (name, StackStep(columns, self.dtype)) for name, columns in self.groups
        ]
        check_unique([name for name, _ in rest + stacked])
        return (Project(tuple(rest + stacked)),)


def _shown(columns: tuple[str, ...]) -> str:
    return ", ".join(columns if len(columns) <= 6 else (*columns[:3], "…", columns[-1]))
