"""`batch`: batches of an exact number of rows.

By default one serial kernel slices batches. It joins only the few batches that cross a border between chunks. Before
the consumer the kernel does not even slice, see `SerialKernel.lazy`.

With `joins` the serial kernel hands out the parts of each batch, and parallel calls join them. That helps where chunks
are small, so that every batch is joined of many, before an operator that works on whole batches in parallel anyway.

With `mask` a last kernel adds the column of real rows, and fills the short last batch by its last row. Repeated rows keep
types, shapes of tensors and the absence of nulls; made-up values might be outside of what a model takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.errors import PlanError, shown
from arrowflow.kernels.cutting import CutPosition, CuttingKernel, Parts, cut_shape
from arrowflow.kernels.gather import GatherKernel, gathered, joined_batch
from arrowflow.kernels.items import Item, Origin, Payload, Ticket
from arrowflow.kernels.kinds import StatelessKernel
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.options import ResolvedOptions, check_flag, check_size, parallel_calls
from arrowflow.plan.access import RowAccess, position_behind
from arrowflow.plan.node import Count, Node
from arrowflow.plan.position import Position
from arrowflow.plan.traits import Borders, Traits


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(RowOperator, RowAccess):
    """Batches of exactly `size` rows across all borders of chunks; the last one may be short, or is dropped or filled.

    Row order: as its input. Memory: less than one batch beyond the chunk that is sliced; with `joins` one more batch
    for each call; with `mask` one more at the end. Deterministic. Resume: (position before the oldest held row, rows
    gone from there, batches made).

    Attributes:
        size: Rows of a batch.
        drop_remainder: Whether a short last batch is left out.
        mask: Name of the column that says which rows are real, if a short last batch is filled, else None.
        joins: Whether parallel calls join the parts of a batch.
        num_parallel_calls: How many such calls, or None for the CPU budget.
    """

    name: ClassVar[str] = "batch"
    traits: ClassVar[Traits] = Traits(borders=Borders.CUT, counts_alone=True, local=True, row_sizes=("size",))

    size: int
    drop_remainder: bool = False
    mask: str | None = None
    joins: bool = False
    num_parallel_calls: int | None = None

    @classmethod
    def of(
        cls,
        below: Node,
        batch_size: int,
        *,
        drop_remainder: bool,
        num_parallel_calls: int | None,
        pad_remainder: bool = False,
        mask: str = "mask",
        operator: str = "batch",
    ) -> Self:
        """Returns the node, with arguments as users write them; `operator` names the method that they called."""
        drops = check_flag(operator, "drop_remainder", drop_remainder)
        pads = check_flag(operator, "pad_remainder", pad_remainder)
        if pads and drops:
            raise PlanError(
                "batch: pad_remainder fills the short last batch and drop_remainder leaves it out; give one of the two"
            )
        if not isinstance(mask, str):
            raise PlanError(f"batch: mask is the name of a column, got {shown(mask)}")
        calls = None if num_parallel_calls is None else parallel_calls(operator, num_parallel_calls)
        return cls(
            inputs=(below,),
            size=check_size(operator, "batch_size", batch_size),
            drop_remainder=drops,
            mask=mask if pads else None,
            joins=num_parallel_calls is not None,
            num_parallel_calls=calls,
        )

    @property
    def title(self) -> str:
        return f"{self.name}({self.size:,})"

    def arguments(self) -> Mapping[str, Any]:
        mask = {} if self.mask is None else {"mask": self.mask}
        return {"size": self.size, "drop_remainder": self.drop_remainder, **mask}

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0] if self.mask is None else masked_schema(inputs[0], self.mask)

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        rows = inputs[0]
        if not isinstance(rows, int):
            return rows
        if self.mask is not None:
            return -(-rows // self.size) * self.size
        return rows - rows % self.size if self.drop_remainder else rows

    def count_batches(self, rows: Sequence[Count], batches: Sequence[Count]) -> Count:
        if not isinstance(rows[0], int):
            return rows[0]
        return rows[0] // self.size if self.drop_remainder else -(-rows[0] // self.size)

    def position_at(self, step: int, epoch: int) -> Position:
        found = position_behind(self.inputs[0], step * self.size, epoch)
        return None if found is None else CutPosition(found[0], step * self.size - found[1], step)

    def rows_wanted(self, rows: int | None) -> int:
        return self.size

    def rows_again(self, rows: int) -> int:
        """Returns the rows of the batch at its position and of those after it, or the split that the batch begins in."""
        return rows + self.size if rows else 1

    def copies(self) -> tuple[str, ...]:
        return ("batch: chunked: a batch whose rows lie in several chunks is joined into new memory",)

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        kernel = CuttingKernel if self.joins else BatchKernel
        cutter = KernelSpec(
            "serial",
            lambda context: kernel(self.size, self.drop_remainder),
            position=cut_shape(self.size),
            splits=True,
            engine="arrow",
        )
        joiner = KernelSpec(
            "stateless",
            lambda context: JoinKernel(),
            engine="arrow",
            max_calls=self.num_parallel_calls,
            facts="join the parts of a batch",
        )
        padder = KernelSpec(
            "stateless",
            lambda context: PadKernel(self.size, self.mask or ""),
            engine="numpy+arrow",
            facts="mark real rows, and fill the last batch",
        )
        return (cutter, *[joiner] * self.joins, *[padder] * (self.mask is not None))


def masked_schema(schema: pa.Schema, mask: str) -> pa.Schema:
    """Returns a schema with the mask after the others."""
    if mask in schema.names:
        raise PlanError(
            f"batch: there is a column {mask!r} already; name that of pad_remainder otherwise, as in "
            f"batch(…, mask={mask + '_2'!r})"
        )
    return schema.append(pa.field(mask, pa.bool_()))


def masked(batch: pa.RecordBatch, mask: str, real: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """Returns a batch with the column that says which rows are real."""
    schema = masked_schema(batch.schema, mask)
    return pa.RecordBatch.from_arrays([*batch.columns, pa.array(real)], schema=schema)


class BatchKernel(CuttingKernel):
    """Slices batches without a copy; only a batch that crosses a border between chunks is joined."""

    def _cut(self, rows: int) -> Item:
        chunk: Payload
        ticket: Ticket
        found = self._held.pop_slices(rows, self._number) if self.lazy else None
        if found is not None:
            chunk, ticket = found
            self._number += chunk.batches
        else:
            chunks, tickets = self._held.pop(rows)
            if len(chunks) == 1:
                chunk, ticket = chunks[0], tickets[0]
            else:
                # A joined batch is new memory, which the stage charges; a slice stands on its chunk's ticket.
                chunk, ticket = joined_batch(chunks, "batch_size"), None
            self._number += 1
        position = CutPosition(*self._held.mark(), self._number)
        return Item(chunk, position, ticket, Origin(self._number - 1))


class JoinKernel(StatelessKernel):
    """Joins the parts of a batch into new memory; a batch that is one part is a slice and no copy."""

    def apply(self, chunk: Parts, origin: Origin) -> pa.RecordBatch:
        return joined_batch(chunk.chunks, "batch_size")


class PadKernel(GatherKernel):
    """Adds the mask, and fills a batch that is short by its last row."""

    def __init__(self, size: int, mask: str) -> None:
        self._size = size
        self._mask = mask

    def gather(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        rows = chunk.num_rows
        if rows < self._size:
            chunk = gathered(chunk, np.minimum(np.arange(self._size, dtype=np.int64), rows - 1))
        return masked(chunk, self._mask, np.arange(self._size) < rows)

    def limit(self, chunk: pa.RecordBatch) -> tuple[str, str, str]:
        return f"a batch of {self._size:,} rows cannot be filled", "one batch", "use a smaller batch_size"
