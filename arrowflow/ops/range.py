"""`range`: whole numbers in one column, `id`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from arrowflow.ops.base import KernelSpec, Made, Operator, Origin, Position, SourceKernel, Task
from arrowflow.ops.spans import Places
from arrowflow.options import MAX_CHUNK_ROWS, ResolvedOptions
from arrowflow.plan.node import Node
from arrowflow.plan.traits import Borders, Traits
from arrowflow.records import dataclass

SCHEMA = pa.schema([pa.field("id", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Range(Operator):
    """The numbers of `range(start, stop, step)` as int64 in the column `id`.

    Row order: counting. Memory: one chunk of at most 65,536 rows a call. Deterministic. Resume: seeks to the
    split. A split is 65,536 rows.

    Attributes:
        start: The first number.
        stop: The number to stop before.
        step: From one number to the next.
        in_place: Whether a global `shuffle` above says which numbers it wants.
    """

    name: ClassVar[str] = "range"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE)

    start: int
    stop: int
    step: int
    in_place: bool = False

    def arguments(self) -> Mapping[str, Any]:
        """Returns start, stop and step."""
        return {"start": self.start, "stop": self.stop, "step": self.step}

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Returns the one column `id`."""
        return SCHEMA

    def count_rows(self, inputs: Sequence[int | None]) -> int:
        """Returns how many numbers there are."""
        return len(range(self.start, self.stop, self.step))

    def random_access(self) -> Node:
        """A number follows from its place."""
        return dataclasses.replace(self, in_place=True)

    def owns_buffers(self, inputs: Sequence[bool]) -> bool:
        """Each chunk is new memory."""
        return True

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        """Returns a source of one task per split."""
        return (
            KernelSpec(
                operator=self.name, kind="source", make=lambda context: RangeKernel(self), engine="numpy"
            ),
        )


class RangeKernel(SourceKernel):
    """One task per split, or one at all if rows stay in place; the position is the number of the next split."""

    def __init__(self, node: Range) -> None:
        self._numbers = range(node.start, node.stop, node.step)
        self._in_place = node.in_place

    def tasks(self, position: Position) -> Iterator[Task]:
        """Yields the splits from `position` on."""
        first = 0 if position is None else position[0]
        if self._in_place:
            yield Task(0, Origin(0))
            return
        for split in range(first, -(-len(self._numbers) // MAX_CHUNK_ROWS)):
            yield Task(split, Origin(split), MAX_CHUNK_ROWS * 8)

    def read(self, task: Task) -> Iterator[Made]:
        """Yields the split's numbers as one chunk."""
        if self._in_place:
            yield Made(Uncounted(self._numbers), (1,))
            return
        part = self._numbers[task.payload * MAX_CHUNK_ROWS : (task.payload + 1) * MAX_CHUNK_ROWS]
        yield Made(Uncounted(part).gather(np.arange(len(part), dtype=np.int64)), (task.payload + 1,))


class Uncounted(NamedTuple):
    """Numbers that are made when they are asked for; see `Rows`."""

    numbers: range
    buffers: tuple[pa.Buffer, ...] = ()

    @property
    def num_rows(self) -> int:
        """How many they are."""
        return len(self.numbers)

    @property
    def num_bytes(self) -> int:
        """Bytes that they will take."""
        return 8 * len(self.numbers)

    def slice(self, offset: int, length: int | None = None) -> Uncounted:
        """See `Rows.slice`."""
        return Uncounted(self.numbers[offset:][:length])

    def gather(self, places: Places) -> pa.RecordBatch:
        """See `Rows.gather`."""
        values = places * self.numbers.step
        values += self.numbers.start
        # Not Arrow's own memory: the first buffer of that takes a process 0.5 ms.
        column = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
        return pa.RecordBatch.from_arrays([column], schema=SCHEMA)
