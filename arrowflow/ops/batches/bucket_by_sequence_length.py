"""`bucket_by_sequence_length`: batches of rows of similar length, so that little of them is padding.

Four decisions:

* **The rows alone decide the batches and their order.** Rows are numbered. A bucket is emitted by the row that fills
  it, or before the row `max_lag_rows` after its oldest row. So the rows of a batch are never further apart. At the end
  the remaining rows come bucket by bucket.
* **Buckets do not depend on each other.** So a chunk's rows are sorted by bucket once. Each bucket is then cut into
  batches alone, one step a batch. Only after that are the batches put in the order of the rows that emit them.
* **Chunks are kept, not copied**, until none of their rows is held; the row held longest bounds how many. A stateless
  kernel gathers a batch from the kept chunks.
* **A state counts.** It holds the position before the oldest chunk with a held row. It also holds how many rows of
  each bucket were emitted from that position on. A resumed run reads these rows again and drops that many of each
  bucket. It cuts the rest as before, since a batch depends on the rows of its bucket alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa

from arrowflow.errors import PlanError, shown
from arrowflow.interchange.to_numpy import is_text
from arrowflow.kernels.items import Item, Origin
from arrowflow.kernels.kinds import SerialKernel
from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.ops.batches.padded_batch import PaddedBatch, padded
from arrowflow.ops.batches.padding import is_list, lengths_of
from arrowflow.ops.batches.row_selection import (
    HeldChunks,
    RowNumbers,
    SelectionKernel,
    held_bytes,
    rows_by_code,
)
from arrowflow.ops.columns.column_program import check_columns
from arrowflow.options import ResolvedOptions, check_flag, check_size, parallel_calls
from arrowflow.plan.node import Columns, Count, Node
from arrowflow.plan.position import Position
from arrowflow.plan.shape import Shape, parts
from arrowflow.plan.traits import Borders, Traits
from arrowflow.types import is_untyped

DEFAULT_MAX_LAG_ROWS = 65_536
MAX_BUCKETS = 1024
"""Each bucket has a number in a state, which has to stay under 64 KiB."""

NEVER = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketBySequenceLength(Operator):
    """Batches of rows whose lengths in `column` (values of a list, bytes of a text) lie between the same boundaries.

    Row order: within a batch as its input; batches by the row that emits them. Memory: the chunks of the last
    `max_lag_rows` rows, and one batch a call. Deterministic. Resume: (position before the oldest chunk with a held
    row, rows of each bucket that were emitted from there on, batches made).

    Attributes:
        column: The column whose lengths sort rows into buckets.
        bucket_boundaries: The lengths at which the next bucket begins.
        bucket_batch_sizes: Rows of a batch, by bucket; there is one bucket more than there are boundaries.
        max_lag_rows: A bucket whose oldest row came this many rows ago is emitted short.
        drop_remainder: Whether short batches are left out.
        num_parallel_calls: Batches gathered at the same time, or None for the CPU budget.
    """

    name: ClassVar[str] = "bucket_by_sequence_length"
    traits: ClassVar[Traits] = Traits(
        borders=Borders.CUT, local=True, row_sizes=("max_lag_rows",), new_memory=True
    )

    column: str
    bucket_boundaries: tuple[int, ...]
    bucket_batch_sizes: tuple[int, ...]
    max_lag_rows: int
    drop_remainder: bool = False
    num_parallel_calls: int | None = None

    @classmethod
    def of(
        cls,
        below: Node,
        column: str,
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        *,
        max_lag_rows: int,
        drop_remainder: bool,
        num_parallel_calls: int,
    ) -> Self:
        if not isinstance(column, str):
            raise PlanError(f"{cls.name}: column is the name of a column, got {shown(column)}")
        boundaries = _numbers("bucket_boundaries", bucket_boundaries)
        sizes = _numbers("bucket_batch_sizes", bucket_batch_sizes)
        if list(boundaries) != sorted(set(boundaries)):
            raise PlanError(f"{cls.name}: bucket_boundaries go up, got {list(boundaries)}")
        if len(sizes) != len(boundaries) + 1:
            raise PlanError(
                f"{cls.name}: {len(boundaries)} bucket_boundaries make {len(boundaries) + 1} buckets, got "
                f"{len(sizes)} bucket_batch_sizes; the last one is for what is not shorter than the last boundary"
            )
        if len(sizes) > MAX_BUCKETS:
            raise PlanError(f"{cls.name}: at most {MAX_BUCKETS:,} buckets, got {len(sizes):,}")
        return cls(
            inputs=(below,),
            column=column,
            bucket_boundaries=boundaries,
            bucket_batch_sizes=sizes,
            max_lag_rows=check_size(cls.name, "max_lag_rows", max_lag_rows),
            drop_remainder=check_flag(cls.name, "drop_remainder", drop_remainder),
            num_parallel_calls=parallel_calls(cls.name, num_parallel_calls),
        )

    def arguments(self) -> Mapping[str, Any]:
        return {
            "column": self.column,
            "bucket_boundaries": list(self.bucket_boundaries),
            "bucket_batch_sizes": list(self.bucket_batch_sizes),
            "max_lag_rows": self.max_lag_rows,
            "drop_remainder": self.drop_remainder,
        }

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        check_measurable(self.column, inputs[0])
        return inputs[0]

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        return (None if wanted is None else wanted | {self.column},)

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        return inputs[0] if not self.drop_remainder or inputs[0] == 0 else None

    def rows_wanted(self, rows: int | None) -> int:
        return max(self.bucket_batch_sizes)

    def rows_again(self, rows: int) -> int | None:
        """Returns the rows after which the oldest held row is emitted at the latest."""
        return self.max_lag_rows + 1 if rows <= 1 else None

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        return (
            KernelSpec(
                "serial",
                lambda context: BucketKernel(self),
                position=Shape(
                    BucketPosition, lambda at: parts("emitted", at.emitted, len(self.bucket_batch_sizes))
                ),
                splits=True,
                engine="numpy",
                floor_bytes=held_bytes(self.inputs[0], self.max_lag_rows),
                facts=f"collect up to {self.max_lag_rows:,} rows by their length, no copy",
            ),
            KernelSpec(
                "stateless",
                lambda context: SelectionKernel("bucket_batch_sizes"),
                engine="arrow",
                max_calls=self.num_parallel_calls,
                facts="gather, one call a batch",
            ),
        )


def bucketed(
    below: Node,
    column: str,
    bucket_boundaries: Sequence[int],
    bucket_batch_sizes: Sequence[int],
    *,
    max_lag_rows: int,
    pad_to_bucket_boundary: bool,
    no_padding: bool,
    drop_remainder: bool,
    num_parallel_calls: int,
    **padding: Any,
) -> BucketBySequenceLength | PaddedBatch:
    """Returns the node, or the node that pads its batches, with arguments as users write them."""
    operator = BucketBySequenceLength.name
    to_boundary = check_flag(operator, "pad_to_bucket_boundary", pad_to_bucket_boundary)
    batches = BucketBySequenceLength.of(
        below,
        column,
        bucket_boundaries,
        bucket_batch_sizes,
        max_lag_rows=max_lag_rows,
        drop_remainder=drop_remainder,
        num_parallel_calls=num_parallel_calls,
    )
    if not check_flag(operator, "no_padding", no_padding):
        steps = (column, tuple(boundary - 1 for boundary in batches.bucket_boundaries))
        return padded(
            batches,
            operator=operator,
            num_parallel_calls=num_parallel_calls,
            steps=steps if to_boundary else None,
            **padding,
        )
    truncate = check_flag(operator, "truncate", padding["truncate"])
    given = {"pad_to_bucket_boundary": to_boundary, **padding, "truncate": truncate}
    named = [name for name, value in given.items() if value is not None and value is not False]
    if named:
        raise PlanError(
            f"{operator}: with no_padding=True nothing is padded, so {', '.join(named)} would do nothing; leave one or "
            "the other out"
        )
    return batches


def _numbers(argument: str, given: Any) -> tuple[int, ...]:
    operator = BucketBySequenceLength.name
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise PlanError(f"{operator}: {argument} is a list of whole numbers, got {shown(given)}")
    return tuple(check_size(operator, argument, value) for value in given)


def check_measurable(column: str, schema: pa.Schema) -> None:
    """Raises `PlanError` unless the values of a column have a length each."""
    check_columns([column], schema)
    type = schema.field(column).type
    if not (is_untyped(schema) or is_list(type) or is_text(type)):
        raise PlanError(
            f"column {column!r} has type {type}, expected lists, strings or binaries, whose length tells the bucket"
        )


class BucketPosition(NamedTuple):
    """Position of a `BucketKernel`.

    Attributes:
        before: Position of the input before the oldest chunk with a held row.
        emitted: Rows of each bucket that were emitted from there on.
        number: Batches made.
    """

    before: Position
    emitted: tuple[int, ...]
    number: int


class BucketKernel(SerialKernel):
    """Numbers the rows, and finds the rows of each batch."""

    def __init__(self, node: BucketBySequenceLength) -> None:
        self._node = node
        self._sizes = node.bucket_batch_sizes
        self._lag = node.max_lag_rows
        buckets = len(self._sizes)
        self._boundaries = np.array(node.bucket_boundaries, np.int64)
        self._held: list[RowNumbers] = [np.empty(0, np.int64)] * buckets
        self._oldest = [NEVER] * buckets
        self._emitted: RowNumbers = np.zeros(buckets, np.int64)
        self._skip = [0] * buckets  # rows that come again and were emitted before
        self._came: RowNumbers = np.zeros(buckets, np.int64)
        self._chunks = HeldChunks()  # with, by bucket, how many rows came before
        self._number = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Restores how many rows of each bucket come again, and the number of batches."""
        if position is None:
            return None
        before, emitted, self._number = BucketPosition._make(position)
        self._chunks = HeldChunks(before)
        self._skip = list(emitted)
        self._emitted[:] = emitted
        return before

    def push(self, item: Item) -> Iterator[Item]:
        """Yields the batches that a chunk's rows fill, or that waited too long, in the order of these rows."""
        first = self._chunks.rows
        self._chunks.add(item, self._came.copy())
        if not item.chunk.num_rows:
            if not first:
                yield item._replace(position=self._mark())
            return
        self._sort_in(item.chunk, first)
        buckets = [bucket for bucket, oldest in enumerate(self._oldest) if oldest != NEVER]
        for _, full, bucket, rows in sorted(batch for each in buckets for batch in self._ready(each)):
            yield from self._emit(bucket, rows, short=not full)

    def finish(self) -> Iterator[Item]:
        for bucket, held in enumerate(list(self._held)):
            if len(held):
                yield from self._emit(bucket, len(held), short=True)

    def _sort_in(self, chunk: pa.RecordBatch, first: int) -> None:
        """Adds a chunk's rows, which are counted from `first`, to their buckets."""
        check_measurable(self._node.column, chunk.schema)
        lengths = lengths_of(chunk.column(self._node.column))
        buckets = np.searchsorted(self._boundaries, lengths, side="right")
        for bucket, rows in rows_by_code(buckets, len(self._sizes), first):
            self._came[bucket] += len(rows)
            skipped = min(self._skip[bucket], len(rows))
            self._skip[bucket] -= skipped
            if skipped < len(rows):
                held = np.concatenate((self._held[bucket], rows[skipped:]))
                self._held[bucket], self._oldest[bucket] = held, int(held[0])

    def _ready(self, bucket: int) -> Iterator[tuple[int, bool, int, int]]:
        """Yields the bucket's batches so far: (row that emits it, whether it fills it, bucket, rows)."""
        held, size = self._held[bucket], self._sizes[bucket]
        start = 0
        while start < len(held):
            late = int(held[start]) + self._lag
            full = start + size <= len(held)
            if full and (at := int(held[start + size - 1])) < late:
                yield at, True, bucket, size
                start += size
            elif late < self._chunks.rows:
                rows = int(np.searchsorted(held[start:], late))
                yield late, False, bucket, rows
                start += rows
            else:
                return

    def _emit(self, bucket: int, rows: int, *, short: bool) -> Iterator[Item]:
        """Removes the bucket's oldest rows, and yields them unless short batches are dropped."""
        held = self._held[bucket]
        leaving, rest = held[:rows], held[rows:]
        self._held[bucket] = rest
        self._oldest[bucket] = int(rest[0]) if len(rest) else NEVER
        self._emitted[bucket] += rows
        batch, tickets = self._chunks.select(leaving)
        self._chunks.release(min(self._oldest))
        if short and self._node.drop_remainder:
            return
        self._number += 1
        yield Item(batch, self._mark(), tickets, Origin(self._number - 1))

    def _mark(self) -> Position:
        # All rows before the first kept chunk were emitted, so the rest of the count came from that chunk on.
        before, _, earlier = self._chunks.first(self._came)
        return BucketPosition(before, tuple((self._emitted - earlier).tolist()), self._number)
