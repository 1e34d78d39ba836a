"""`range`: whole numbers in one column, `id`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa

from arrowflow.kernels.context import Context
from arrowflow.kernels.items import Made, Origin, Task
from arrowflow.kernels.kinds import SourceKernel
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.order.random_access import Rows
from arrowflow.ops.order.source_order import Block, Blocks
from arrowflow.ops.order.spans import Places
from arrowflow.ops.sources.dealt import DealtSource
from arrowflow.options import MAX_CHUNK_ROWS, ResolvedOptions
from arrowflow.plan.access import SourceOrder
from arrowflow.plan.lane import Lane
from arrowflow.plan.node import Count, Node
from arrowflow.plan.position import Position
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Traits

SCHEMA = pa.schema([pa.field("id", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Range(DealtSource):
    """The numbers of `range(start, stop, step)` as int64 in the column `id`.

    Row order: counting; before a windowed `shuffle` in blocks, ordered by (seed, epoch). Memory: one chunk of at most
    65,536 rows a call. Deterministic. Resume: seeks to the split. A split is 65,536 rows, or a block.

    Attributes:
        start: The first number.
        stop: The number to stop before.
        step: The difference from a number to the next.
        blocks: How a `shuffle` after it orders the numbers, or None.
        in_place: Whether a global `shuffle` after it chooses the numbers.
        split_rows: Rows of a split.
    """

    name: ClassVar[str] = "range"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, new_memory=True)

    start: int
    stop: int
    step: int
    blocks: Blocks | None = None
    in_place: bool = False
    split_rows: int = field(default=MAX_CHUNK_ROWS, compare=False, repr=False)

    def arguments(self) -> Mapping[str, Any]:
        return {"start": self.start, "stop": self.stop, "step": self.step}

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return SCHEMA

    def count_rows(self, inputs: Sequence[Count]) -> int:
        return len(range(self.start, self.stop, self.step))

    def with_source_order(self, order: SourceOrder) -> Node:
        return dataclasses.replace(self, blocks=Blocks.of(order, self.split_rows))

    def in_lane(self, lane: Lane) -> Self:
        if self.blocks is not None:
            return dataclasses.replace(self, blocks=self.blocks.in_lane(lane))
        return DealtSource.in_lane(self, lane)

    def part(self, first: int, before: int) -> Self:
        numbers = range(self.start, self.stop, self.step)[first:before]
        return dataclasses.replace(self, start=numbers.start, stop=numbers.stop)

    def position_behind(self, rows: int, epoch: int | None = None) -> tuple[tuple[int], int] | None:
        """Returns the position of the split with this row; blocks have an order of each epoch."""
        if self.in_place or (self.blocks is not None and epoch is None):
            return None
        if self.blocks is None or epoch is None:
            return (rows // self.split_rows,), rows - rows % self.split_rows
        turn, before = self.blocks.behind(rows, len(range(self.start, self.stop, self.step)), epoch)
        return (turn,), before

    def random_access(self) -> Node:
        return dataclasses.replace(self, in_place=True)

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        return (
            KernelSpec(
                operator=self.name,
                kind="source",
                make=self.kernel,
                position=Shape(tuple[int]),
                engine="numpy",
            ),
        )

    def kernel(self, context: Context) -> RangeKernel:
        """Returns the kernel of one stream."""
        node = self.of_epoch(context.epoch)
        return RangeKernel(node, context.epoch, Uncounted(range(node.start, node.stop, node.step)))


class RangeKernel(SourceKernel):
    """One task per split, or one task at all if rows stay in place; the position is (splits done,)."""

    def __init__(self, node: Range, epoch: int, rows: NumberedRows) -> None:
        self._rows = rows
        self._split_rows = node.split_rows
        self._in_place = node.in_place
        self._blocks = node.blocks
        self._epoch = epoch

    def tasks(self, position: Position) -> Iterator[Task]:
        first = 0 if position is None else position[0]
        if self._in_place:
            yield Task(0, Origin(0))
            return
        for block in self._splits():
            if block.turn >= first:
                yield Task(block, Origin(block.number), self._part(block).num_bytes)

    def _splits(self) -> Iterator[Block]:
        rows, size = self._rows.num_rows, self._split_rows
        if self._blocks is not None:
            return self._blocks.of_epoch(rows, self._epoch)
        starts = enumerate(range(0, rows, size))
        return (Block(turn, turn, start, min(start + size, rows)) for turn, start in starts)

    def _part(self, block: Block) -> NumberedRows:
        return self._rows.slice(block.start, block.stop - block.start)

    def read(self, task: Task) -> Iterator[Made]:
        if self._in_place:
            yield Made(self._rows, (1,))
            return
        block: Block = task.payload
        yield Made(self._part(block).everything(), (block.turn + 1,))


class NumberedRows(Rows, Protocol):
    """Rows that follow from their numbers."""

    def slice(self, offset: int, length: int | None = None) -> NumberedRows:
        """See `Rows.slice`."""

    def everything(self) -> pa.RecordBatch:
        """Returns all of them, in order, as new memory."""


class Uncounted(NamedTuple):
    """Numbers that are made when a reader asks for them; see `Rows`."""

    numbers: range
    buffers: tuple[pa.Buffer, ...] = ()
    check: None = None

    @property
    def num_rows(self) -> int:
        """How many numbers they are."""
        return len(self.numbers)

    @property
    def num_bytes(self) -> int:
        """Bytes that the numbers will take."""
        return 8 * len(self.numbers)

    def slice(self, offset: int, length: int | None = None) -> Uncounted:
        """See `Rows.slice`."""
        return Uncounted(self.numbers[offset:][:length])

    def everything(self) -> pa.RecordBatch:
        """See `NumberedRows.everything`."""
        return self.gather(np.arange(len(self.numbers), dtype=np.int64))

    def gather(self, places: Places) -> pa.RecordBatch:
        """See `Rows.gather`."""
        values = places * self.numbers.step
        values += self.numbers.start
        # Not Arrow's own memory: its first buffer takes a process 0.5 ms.
        column = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
        return pa.RecordBatch.from_arrays([column], schema=SCHEMA)
