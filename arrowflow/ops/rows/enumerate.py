"""`enumerate`: the rows of an epoch, numbered.

A row's number depends on how many rows came before it, so no operator that changes or counts rows may pass this one.
The one kernel is serial and adds a column of 8 bytes a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from arrowflow.errors import DataError, PlanError, shown
from arrowflow.kernels.kinds import StateKernel
from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.options import ResolvedOptions, whole_number
from arrowflow.plan.node import Columns, Node
from arrowflow.plan.position import Counted
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Traits


@dataclass(frozen=True, slots=True, kw_only=True)
class Enumerate(Operator):
    """Its input with an int64 column before the others that counts the rows of the epoch.

    Row order: as its input. Memory: 8 bytes a row of one chunk. Deterministic. Resume: (input's position, rows
    counted).

    Attributes:
        start: Number of the first row.
        column: Name of the new column.
    """

    name: ClassVar[str] = "enumerate"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, needs_rows=True, in_turn=True, keeps_number=True)

    start: int = 0
    column: str = "index"

    @classmethod
    def of(cls, below: Node, start: int, column: str) -> Self:
        number = whole_number(start)
        if number is None or not -(1 << 63) <= number < 1 << 63:
            raise PlanError(f"enumerate: start is a whole number that fits int64, got {shown(start)}")
        if not isinstance(column, str):
            raise PlanError(f"enumerate: name is a text, got {shown(column)}")
        return cls(inputs=(below,), start=number, column=column)

    def arguments(self) -> Mapping[str, Any]:
        return {"start": self.start, "name": self.column}

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return numbered_schema(inputs[0], self.column)

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        return (wanted,)

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        return KernelSpec(
            "serial",
            lambda context: EnumerateKernel(self.start, self.column),
            position=Shape(Counted),
            engine="numpy",
        )


def numbered_schema(schema: pa.Schema, column: str) -> pa.Schema:
    """Returns a schema with the new column before the others."""
    if column in schema.names:
        raise PlanError(
            f"enumerate: there is a column {column!r} already; name the new one otherwise, as in "
            f"enumerate(name={column + '_2'!r})"
        )
    return pa.schema([pa.field(column, pa.int64()), *schema], metadata=schema.metadata)


class EnumerateKernel(StateKernel):
    """Counts rows and numbers them."""

    makes_memory = True

    def __init__(self, start: int, column: str) -> None:
        self._start = start
        self._column = column
        self._schema: pa.Schema | None = None

    def step(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        rows = chunk.num_rows
        if self._schema is None:
            self._schema = numbered_schema(chunk.schema, self._column)
        first = self._start + self.state
        if first + rows > 1 << 63:
            raise DataError(
                f"row {(1 << 63) - self._start:,} has a number beyond 64 bits, since `start` is {self._start:,}; "
                "start lower"
            )
        numbers = np.arange(rows, dtype=np.int64)
        numbers += first
        column = pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(numbers)])
        self.state += rows
        return pa.RecordBatch.from_arrays([column, *chunk.columns], schema=self._schema)
