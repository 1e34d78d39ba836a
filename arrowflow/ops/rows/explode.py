"""`explode`: each element of a list as a row of its own.

A serial kernel cuts chunks where their lists make enough rows, and a stateless one gathers the rows of each piece. So a
chunk of long lists does not become one huge chunk; the list of a single row stays together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from arrowflow.errors import PlanError, shown
from arrowflow.kernels.gather import GatherKernel, gathered
from arrowflow.kernels.held import Held
from arrowflow.kernels.items import Item, Origin
from arrowflow.kernels.kinds import SerialKernel
from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.lazy import compute as pc
from arrowflow.ops.columns.column_program import check_columns
from arrowflow.options import MAX_CHUNK_ROWS, ResolvedOptions
from arrowflow.plan.node import Columns, Node
from arrowflow.plan.position import Mark, Position
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Traits
from arrowflow.types import is_list, is_untyped
from arrowflow.workarounds.slices import rebased

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explode(Operator):
    """A row for each element of a list, with the other columns repeated; null for a list that is null.

    Row order: as its input, then by the place in the list. Memory: a piece of `max_chunk_rows` rows, 65,536, a call, or the list
    of one row. Deterministic. Resume: (position before the chunk, rows of it that are gone).
    """

    name: ClassVar[str] = "explode"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, needs_rows=True, local=True, in_turn=True)

    column: str

    @classmethod
    def of(cls, below: Node, column: str) -> Self:
        if not isinstance(column, str):
            raise PlanError(f"explode: column is the name of one column, got {shown(column)}")
        return cls(inputs=(below,), column=column)

    def arguments(self) -> Mapping[str, Any]:
        return {"column": self.column}

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return exploded_schema(inputs[0], self.column)

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        """Returns the wanted columns and the lists, which say how often rows repeat."""
        return (None if wanted is None else wanted | {self.column},)

    def _counts(self, chunk: pa.RecordBatch) -> Counts:
        exploded_schema(chunk.schema, self.column)
        return rows_of(rebased(chunk[self.column]))

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        return (
            repeat_cut_spec("lists", self._counts, options),
            KernelSpec(
                "stateless",
                lambda context: ExplodeKernel(self.column),
                engine="numpy+arrow",
                facts="gather a row for each element",
            ),
        )


def exploded_schema(schema: pa.Schema, column: str) -> pa.Schema:
    """Returns a schema with the type of the elements in place of the lists."""
    check_columns([column], schema)
    if is_untyped(schema):
        return schema
    at = schema.get_field_index(column)
    type = schema.field(at).type
    if not is_list(type):
        raise PlanError(
            f"explode: column {column!r} is {type}, expected a list of any length or of a fixed one"
        )
    return schema.set(at, pa.field(column, type.value_type))


def rows_of(lists: pa.Array) -> Counts:
    """Returns the number of rows that each list makes: its elements, and one for null."""
    lengths = pl.Series(pc.list_value_length(lists))  # `pc.fill_null` with a number would import pandas
    return lengths.fill_null(1).to_numpy().astype(np.int64)


def repeat_cut_spec(what: str, counts: Callable[[Any], Counts], options: ResolvedOptions) -> KernelSpec:
    """Returns the kernel that cuts chunks whose rows become many; `what` makes rows of them."""
    size = options.max_chunk_rows or MAX_CHUNK_ROWS
    return KernelSpec(
        "serial",
        lambda context: RepeatCutKernel(counts, size),
        position=Shape(Mark),
        facts=f"cut where {what} make {size:,} rows",
    )


class RepeatCutKernel(SerialKernel):
    """Cuts chunks so that each piece makes at most `size` rows, or is one row.

    Args:
        counts: Returns how many rows each row of a chunk makes.
        size: The number of rows.
    """

    def __init__(self, counts: Callable[[Any], Counts], size: int) -> None:
        self._counts = counts
        self._size = size
        self._held = Held()

    def open(self, position: Position, epoch: int) -> Position:
        if position is None:
            return None
        at = Mark._make(position)
        self._held = Held(at.before, at.offset)
        return at.before

    def push(self, item: Item) -> Iterator[Item]:
        self._held.add(item)
        left = self._held.rows
        if not left:
            return
        ends = np.cumsum(self._counts(item.chunk.slice(item.chunk.num_rows - left)))
        first = 0
        while first < left:
            made = int(ends[first - 1]) if first else 0
            stop = max(first + 1, int(np.searchsorted(ends, made + self._size, side="right")))
            chunks, tickets = self._held.pop(stop - first)
            first = stop
            last = item.origin.last and first == left
            origin = Origin(item.origin.split, item.origin.piece, last=last)
            yield Item(chunks[0], Mark(*self._held.mark()), tickets[0], origin)


class ExplodeKernel(GatherKernel):
    """Gathers a row for each element."""

    def __init__(self, column: str) -> None:
        self._column = column

    def gather(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        schema = exploded_schema(chunk.schema, self._column)
        at = schema.get_field_index(self._column)
        lists = rebased(chunk.column(at))
        rows = np.repeat(np.arange(len(lists), dtype=np.int64), rows_of(lists))
        columns = gathered(chunk.remove_column(at), rows).columns if chunk.num_columns > 1 else []
        values = pc.list_flatten(lists)
        if lists.null_count:
            present = pl.Series(lists.is_valid()).to_numpy()[rows]
            places = np.maximum(np.cumsum(present, dtype=np.int64) - 1, 0)
            values = gathered(pa.record_batch([values], names=["values"]), places, present).column(0)
        return pa.RecordBatch.from_arrays([*columns[:at], values, *columns[at:]], schema=schema)
