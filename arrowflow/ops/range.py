"""`range`: whole numbers in one column, `id`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from arrowflow.ops.base import KernelSpec, Made, Operator, Origin, Position, SourceKernel, Task
from arrowflow.options import MAX_CHUNK_ROWS, ResolvedOptions
from arrowflow.plan.traits import Borders, Traits
from arrowflow.records import dataclass

SCHEMA = pa.schema([pa.field("id", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Range(Operator):
    """The numbers of `range(start, stop, step)` as int64 in the column `id`.

    Row order: counting. Memory: one chunk of at most 65,536 rows a call. Deterministic. Resume: seeks to the
    split. A split is 65,536 rows.
    """

    name: ClassVar[str] = "range"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE)

    start: int
    stop: int
    step: int

    def arguments(self) -> Mapping[str, Any]:
        """Returns start, stop and step."""
        return {"start": self.start, "stop": self.stop, "step": self.step}

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Returns the one column `id`."""
        return SCHEMA

    def count_rows(self, inputs: Sequence[int | None]) -> int:
        """Returns how many numbers there are."""
        return len(range(self.start, self.stop, self.step))

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
    """One task per split; the position is the number of the next split."""

    def __init__(self, node: Range) -> None:
        self._numbers = range(node.start, node.stop, node.step)

    def tasks(self, position: Position) -> Iterator[Task]:
        """Yields the splits from `position` on."""
        first = 0 if position is None else position[0]
        for split in range(first, -(-len(self._numbers) // MAX_CHUNK_ROWS)):
            yield Task(split, Origin(split), MAX_CHUNK_ROWS * 8)

    def read(self, task: Task) -> Iterator[Made]:
        """Yields the split's numbers as one chunk."""
        part = self._numbers[task.payload * MAX_CHUNK_ROWS : (task.payload + 1) * MAX_CHUNK_ROWS]
        values = np.arange(len(part), dtype=np.int64)
        values *= part.step
        values += part.start
        # Not Arrow's own memory: the first buffer of that takes a process 0.5 ms.
        column = pa.Array.from_buffers(pa.int64(), len(part), [None, pa.py_buffer(values)])
        yield Made(pa.RecordBatch.from_arrays([column], schema=SCHEMA), (task.payload + 1,))
