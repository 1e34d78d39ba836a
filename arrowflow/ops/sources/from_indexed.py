"""`FromIndexed`: rows in memory in an order that another library decided, gathered as they are needed.

A `datasets.Dataset` has such rows: its shuffles, filters and splits only write indices. `FromMapped` stands for such a
dataset in a plan as written. So the plan pickles as that library does: by the names of mapped files.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from arrowflow.interchange.tensors import tensor_table
from arrowflow.kernels.kinds import SourceKernel
from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.ops.order.random_access import AllRows, InPlaceRows
from arrowflow.ops.order.spans import Places
from arrowflow.ops.sources.dealt import DealtSource, NumberedKernel, NumberedRows, equal_splits
from arrowflow.ops.sources.from_memory import FromMemory, MemoryKernel, from_batches
from arrowflow.options import MAX_CHUNK_ROWS, ResolvedOptions
from arrowflow.plan.node import BindContext, Count, Node
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Traits

SAMPLED_PLACES = 4096
"""Places that tell one order from another in a state. Without such a sample each state would read all places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FromIndexed(DealtSource):
    """The rows of record batches in memory at these places, in this order; a row may come several times.

    Row order: by the places. Memory: one chunk of at most 65,536 rows a call. Deterministic. Resume: seeks to the
    split. A split is 65,536 places.

    Attributes:
        memory: All rows.
        places: Numbers of the rows to yield, as int64; no number is below 0.
        in_place: Whether a global `shuffle` after it gathers from the rows, so that no row travels.
    """

    name: ClassVar[str] = "from_arrow"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, new_memory=True)

    memory: FromMemory
    places: Places = field(repr=False)
    in_place: bool = False

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, FromIndexed)
            and (self.memory, self.lane) == (other.memory, other.lane)
            and np.array_equal(self.places, other.places)
        )

    def __hash__(self) -> int:
        return hash((len(self.places), self.memory))

    def arguments(self) -> Mapping[str, Any]:
        sample = self.places[:: -(-len(self.places) // SAMPLED_PLACES) or 1]
        checksum = zlib.crc32(sample.tobytes())
        return {"rows": len(self.places), "schema": str(self.memory.types), "places": checksum}

    def describe(self) -> str:
        columns = len(self.memory.types)
        return f"from_arrow({len(self.places):,} rows, {columns} columns in memory, by their indices)"

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return self.memory.types

    def count_rows(self, inputs: Sequence[Count]) -> int:
        return len(self.places)

    def part(self, first: int, before: int) -> Self:
        return dataclasses.replace(self, places=self.places[first:before])

    def random_access(self) -> Node:
        return dataclasses.replace(self, in_place=True)

    def narrow(self, wanted: frozenset[str]) -> Node:
        """Leaves columns out, so that they are not gathered."""
        memory = self.memory.of_columns(wanted)
        return self if memory is self.memory else dataclasses.replace(self, memory=memory).on()

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        return KernelSpec(
            "source",
            lambda context: self.of_epoch(context.epoch).kernel(),
            position=Shape(tuple[int]),
            engine="arrow",
        )

    def kernel(self) -> SourceKernel:
        """Returns the kernel of these rows."""
        num_rows = len(self.places)
        if not num_rows:
            return MemoryKernel((), None)
        parts = AllRows([InPlaceRows(batch) for batch in self.memory.batches], ())
        rows = RowsAt(parts, self.places, -(-parts.num_bytes // parts.num_rows))
        splits = partial(equal_splits, num_rows, MAX_CHUNK_ROWS)
        # Two copies: columns of variable width are joined from parts and then put into their order.
        return NumberedKernel(rows, splits, in_place=self.in_place, copies=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class FromMapped(Operator):
    """A `datasets.Dataset`. Bound, it becomes the node that reads its table, with its indices mapping if it has one.

    Attributes:
        source: The dataset.
    """

    name: ClassVar[str] = "from_arrow"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE)

    source: Any = field(hash=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FromMapped) and (
            self.source is other.source or self._read() == other._read()
        )

    def __hash__(self) -> int:
        return hash((self.name, len(self.source)))

    def arguments(self) -> Mapping[str, Any]:
        return {"rows": len(self.source), "columns": list(self.source.column_names)}

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        return self._read().bind(inputs, context)

    def _read(self) -> Node:
        table = tensor_table(self.source.data.table)
        memory = from_batches(table.to_batches(), table.schema)
        indices = self.source._indices  # no public name gives the indices without a copy of the rows
        if indices is None:
            return memory
        return FromIndexed(memory=memory, places=indices.column(0).to_numpy().astype(np.int64))

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema | None:
        return None

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class RowsAt(NumberedRows):
    """Rows at some places, gathered when a reader asks for them."""

    rows: AllRows
    places: Places
    row_bytes: int

    @property
    def num_rows(self) -> int:
        return len(self.places)

    @property
    def num_bytes(self) -> int:
        """Bytes that the rows will take, by the mean of all rows."""
        return len(self.places) * self.row_bytes

    def slice(self, offset: int, length: int | None = None) -> RowsAt:
        return dataclasses.replace(self, places=self.places[offset:][:length])

    def gather(self, places: Places) -> pa.RecordBatch:
        return self.rows.gather(self.places.take(places))

    def everything(self) -> pa.RecordBatch:
        return self.rows.gather(self.places)
