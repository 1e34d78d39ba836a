"""`stack`: several columns as one tensor column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import polars as pl
import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.expr import Keep, Output, Project, Step
from arrowflow.expr import Stack as StackStep
from arrowflow.ops.columns.column_program import (
    ColumnOperator,
    as_texts,
    check_unique,
    chosen_columns,
    some_names_on,
)
from arrowflow.plan.node import Node
from arrowflow.types import arrow_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack(ColumnOperator):
    """Its input with each group of columns replaced by one `fixed_size_list` column, after the other columns.

    A null is a `DataError` that names `fill_null`. Row order: as its input. Memory: the columns it writes, one chunk
    a call. Deterministic. Resume: as its input.
    """

    name: ClassVar[str] = "stack"

    groups: tuple[tuple[str, tuple[Any, ...]], ...]
    dtype: pa.DataType | None = None

    @classmethod
    def of(cls, below: Node, groups: Mapping[str, Any], dtype: Any) -> Self:
        if not groups:
            raise PlanError("stack: name at least one group, as in stack(dense=['a', 'b'])")
        pairs = tuple((name, chosen_columns(cls.name, (columns,))) for name, columns in groups.items())
        type = None if dtype is None else arrow_type(dtype, operator=cls.name)
        if isinstance(type, pl.Enum):
            raise PlanError(f"stack: dtype is a type of numbers, got {dtype}")
        return cls(inputs=(below,), groups=pairs, dtype=type)

    def arguments(self) -> Mapping[str, Any]:
        groups = [[name, as_texts(columns)] for name, columns in self.groups]
        return {"groups": groups, "dtype": None if self.dtype is None else str(self.dtype)}

    def describe(self) -> str:
        groups = [f"{name}=[{_shown(columns)}]" for name, columns in self.groups]
        return f"stack({', '.join(groups + ([] if self.dtype is None else [f'dtype={self.dtype}']))})"

    def steps(self, schema: pa.Schema) -> tuple[Step, ...]:
        """Returns one projection: the columns in no group, then the groups."""
        groups = [(name, some_names_on(columns, schema)) for name, columns in self.groups]
        used = {column for _, columns in groups for column in columns}
        rest: list[tuple[str, Output]] = [(name, Keep(name)) for name in schema.names if name not in used]
        stacked: list[tuple[str, Output]] = [
            (name, StackStep(columns, self.dtype)) for name, columns in groups
        ]
        check_unique([name for name, _ in rest + stacked])
        return (Project(tuple(rest + stacked)),)


def _shown(chosen: tuple[Any, ...]) -> str:
    columns = tuple(one if isinstance(one, str) else repr(one) for one in chosen)
    return ", ".join(columns if len(columns) <= 6 else (*columns[:3], "…", columns[-1]))
