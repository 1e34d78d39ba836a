"""`range`: whole numbers in one column, `id`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import pyarrow as pa

from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.order.spans import Places
from arrowflow.ops.sources.dealt import BlockSource, NumberedKernel, NumberedRows, equal_splits
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import Count
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Traits

SCHEMA = pa.schema([pa.field("id", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Range(BlockSource):
    """The numbers of `range(start, stop, step)` as int64 in the column `id`.

    Row order: counting; before a windowed `shuffle` in blocks, ordered by (seed, epoch). Memory: one chunk of at most
    65,536 rows a call. Deterministic. Resume: seeks to the split. A split is 65,536 rows, or a block.

    Attributes:
        start: The first number.
        stop: The number to stop before.
        step: The difference from a number to the next.
    """

    name: ClassVar[str] = "range"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, new_memory=True)

    start: int
    stop: int
    step: int

    @property
    def numbers(self) -> range:
        """The numbers."""
        return range(self.start, self.stop, self.step)

    def arguments(self) -> Mapping[str, Any]:
        return {"start": self.start, "stop": self.stop, "step": self.step}

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return SCHEMA

    def count_rows(self, inputs: Sequence[Count]) -> int:
        return len(self.numbers)

    def part(self, first: int, before: int) -> Self:
        numbers = self.numbers[first:before]
        return dataclasses.replace(self, start=numbers.start, stop=numbers.stop)

    def position_behind(self, rows: int, epoch: int | None = None) -> tuple[tuple[int], int] | None:
        """Returns the position of the split with this row; blocks have an order of each epoch."""
        if self.in_place or (self.blocks is not None and epoch is None):
            return None
        if self.blocks is None or epoch is None:
            return (rows // self.split_rows,), rows - rows % self.split_rows
        turn, before = self.blocks.behind(rows, len(self.numbers), epoch)
        return (turn,), before

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        return KernelSpec(
            "source",
            lambda context: self.of_epoch(context.epoch).kernel(context.epoch),
            position=Shape(tuple[int]),
            engine="numpy",
        )

    def kernel(self, epoch: int) -> NumberedKernel:
        """Returns the kernel of these rows in an epoch."""
        num_rows, blocks = self.count_rows(()), self.blocks
        if blocks is None:
            splits = partial(equal_splits, num_rows, self.split_rows)
        else:
            splits = partial(blocks.of_epoch, num_rows, epoch)
        return NumberedKernel(self.numbered(), splits, in_place=self.in_place)

    def numbered(self) -> NumberedRows:
        """Returns the rows."""
        return Uncounted(self.numbers)


@dataclass(frozen=True, slots=True)
class Uncounted(NumberedRows):
    """Numbers that are made when a reader asks for them."""

    numbers: range

    @property
    def num_rows(self) -> int:
        return len(self.numbers)

    @property
    def num_bytes(self) -> int:
        return 8 * len(self.numbers)

    def slice(self, offset: int, length: int | None = None) -> Uncounted:
        return Uncounted(self.numbers[offset:][:length])

    def gather(self, places: Places) -> pa.RecordBatch:
        values = places * self.numbers.step
        values += self.numbers.start
        # Not Arrow's own memory: its first buffer takes a process 0.5 ms.
        column = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
        return pa.RecordBatch.from_arrays([column], schema=SCHEMA)
