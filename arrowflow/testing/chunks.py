"""A source whose chunks a test cuts: no operator may let its result depend on chunk borders.

`from_arrow` takes each record batch as a split and never passes on a chunk without rows. This source takes splits and
chunks separately, and passes on chunks without rows, too.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import pyarrow as pa

from arrowflow.dataset import Dataset
from arrowflow.kernels.items import Made, Origin, Task
from arrowflow.kernels.kinds import SourceKernel
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.sources.dealt import DealtSource
from arrowflow.ops.sources.from_memory import same_batches
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import Count
from arrowflow.plan.position import Position
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Traits

Splits = Sequence[Sequence[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks(DealtSource):
    """Record batches unchanged, also without rows, in the given splits.

    Row order: as given. Memory: none of its own. Deterministic. Resume: seeks to the chunk.
    """

    name: ClassVar[str] = "chunks"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE)

    splits: tuple[tuple[pa.RecordBatch, ...], ...] = field(repr=False)
    types: pa.Schema

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Chunks)
            and self.lane == other.lane
            and list(map(len, self.splits)) == list(map(len, other.splits))
            and same_batches(list(itertools.chain(*self.splits)), list(itertools.chain(*other.splits)))
        )

    def __hash__(self) -> int:
        return hash((self.name, self.count_rows(())))

    def arguments(self) -> Mapping[str, Any]:
        """Returns the number of rows."""
        return {"rows": self.count_rows(())}

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Returns the given schema."""
        return self.types

    def count_rows(self, inputs: Sequence[Count]) -> int:
        """Returns the rows of all chunks."""
        return sum(chunk.num_rows for split in self.splits for chunk in split)

    def part(self, first: int, before: int) -> Self:
        """Returns some of the rows."""
        at, splits = 0, []
        for split in self.splits:
            chunks = []
            for chunk in split:
                start, stop = max(first - at, 0), min(before - at, chunk.num_rows)
                at += chunk.num_rows
                if start < stop:
                    chunks.append(chunk.slice(start, stop - start))
            if chunks:
                splits.append(tuple(chunks))
        return dataclasses.replace(self, splits=tuple(splits))

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        """Returns a source of one task per split."""
        return KernelSpec(
            "source",
            lambda context: ChunksKernel(self.of_epoch(context.epoch).splits),
            position=Shape(tuple[int, int]),
        )


class ChunksKernel(SourceKernel):
    """One task per split, which yields its chunks; the position is (split, chunk)."""

    def __init__(self, splits: tuple[tuple[pa.RecordBatch, ...], ...]) -> None:
        self._splits = splits

    def tasks(self, position: Position) -> Iterator[Task]:
        """Yields the splits from `position` on."""
        first, chunk = (0, 0) if position is None else position
        for split in range(first, len(self._splits)):
            yield Task((split, chunk if split == first else 0), Origin(split))

    def read(self, task: Task) -> Iterator[Made]:
        """Yields the chunks of the split."""
        split, first = task.payload
        chunks = self._splits[split]
        for number in range(first, len(chunks)):
            yield Made(chunks[number], (split, number + 1), last=number + 1 == len(chunks))


def chunked(splits: Splits, schema: pa.Schema) -> Dataset:
    """Returns a dataset of these chunks.

    Examples:
        >>> batch = pa.record_batch({"x": [1, 2, 3]})
        >>> chunked([[batch.slice(0, 0), batch.slice(0, 1)], [batch.slice(1)]], batch.schema).num_rows
        3
    """
    return Dataset(Chunks(splits=tuple(map(tuple, splits)), types=schema))


def cut(batch: pa.RecordBatch, sizes: Sequence[int]) -> list[pa.RecordBatch]:
    """Returns slices of these sizes, in turn and again from the first size, until all rows are cut.

    Examples:
        >>> [part.num_rows for part in cut(pa.record_batch({"x": [1, 2, 3, 4]}), [1, 0, 2])]
        [1, 0, 2, 1]
    """
    parts, start, turn = [], 0, 0
    while start < batch.num_rows:
        parts.append(batch.slice(start, sizes[turn % len(sizes)]))
        start += parts[-1].num_rows
        turn += 1
    return parts


CUTS: dict[str, list[int]] = {
    "one chunk": [1 << 20],
    "single rows": [1],
    "uneven": [5, 1, 2],
    "with chunks without rows": [0, 3, 0, 0, 1],
}


def chunkings(table: pa.Table) -> dict[str, list[list[pa.RecordBatch]]]:
    """Returns the rows of a table in one split, cut into chunks in several ways, by a name for each way.

    The uneven chunks are no slices, but hold slices inside: as a window of slices does, and as Arrow misreads them.
    """
    batch = table.combine_chunks().to_batches()[0]
    found = {name: [cut(batch, sizes)] for name, sizes in CUTS.items()}
    return found | {"uneven": [[holding_slices(part) for part in chunks] for chunks in found["uneven"]]}


def holding_slices(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns a batch in which no column is a slice, but the values of its lists are.

    Examples:
        >>> batch = pa.record_batch({"x": pa.array([[1], [2]], pa.list_(pa.int8(), 1))})
        >>> column = holding_slices(batch)["x"]
        >>> column.to_pylist(), column.offset, column.values.offset
        ([[1], [2]], 0, 1)
    """
    columns = [_holding_slices(pa.concat_arrays([column])) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _holding_slices(array: pa.Array) -> pa.Array:
    type = array.type
    if not (pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type)):
        return array
    values = pa.concat_arrays([array.values[:1], array.values]).slice(1)
    return pa.Array.from_buffers(type, len(array), array.buffers()[: type.num_buffers], children=[values])
