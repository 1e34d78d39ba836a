"""`Pieces`: the rows that a user function sees in one call, where no `batch` comes before it.

Borders between chunks are free inside a plan: they depend on how a file was decoded and on what a rule moved. A user
function sees them, so in front of one the rows of each split are cut anew. A piece ends at the first of these limits:

* **rows**: `max_chunk_rows`, 65,536;
* **bytes**: `max_chunk_bytes` of one column, 4 MiB, but a piece has at least one row. Bytes are those of the values: memory
  under nulls, before a slice or of a column that the function does not read counts nothing, so neither layout nor rules
  move a border. Each column counts by itself: a hundred columns of numbers keep their 65,536 rows, and images beside them
  are cut as images alone are;
* **rows that are wanted**: where a `batch` or `shuffle` of n rows comes after a function that reads bytes, max(n, 128) rows:
  such a row costs 10 µs and more, and a call 80 µs. Paths of `list_files` come 128 at a time even if nothing follows. Where the function reads texts or
  lists, or takes row by row, max(n, 1,024) rows: to split a text into words costs 0.3 µs, and takes 3 times the CPU with
  128 rows a call and 1.1 times with 1,024. Numbers are mostly handled all at once: `range(10M).map(f).batch(64)` takes 1.2
  times the CPU with 16,384 rows a call and 4 times with 1,024, so nothing that follows cuts them. The search for n goes
  through operators that pass on rows one by one or leave some out, and ends at a `cache`: an entry does not depend on
  what comes after it;
* **the start**: 128 rows for the first piece of split 0, 32 of bytes and of paths, and then as many as came before. So the first batch is early, and
  the size of results is known before much is asked for. The nine calls more come once and not in each split: in each, they
  would cost a third of the rate of `range`.

All of these follow from the plan and from the rows of the split alone: never from tuning, from the ranks or from where
a run was resumed. Without an order, the pieces of a split are the same as with one. `Options(max_chunk_rows=)` sets the number of
rows in place of the first, the third and the fourth limit, and `Options(max_chunk_bytes=)` the second.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from arrowflow.kernels.operator import Operator
from arrowflow.kernels.value_bytes import Ends, value_ends
from arrowflow.options import MAX_CHUNK_ROWS, ResolvedOptions
from arrowflow.plan.node import Node
from arrowflow.plan.widths import holds_bytes, is_fixed, type_bits

FEW_ROWS: Final = 128
"""Rows of the first piece of an epoch, and of bytes however small the batches are: 0.2 to 1 s of images."""

FIRST_BYTE_ROWS: Final = 32
"""Rows of the first piece of an epoch where they are bytes or paths of files: a first batch of images is made by several calls."""

SOME_ROWS: Final = 1024
"""Rows of a piece of texts, lists or single rows however small the batches are: 0.08 µs of a call for each row."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Where splits are cut for a function; see the module.

    Attributes:
        max_rows: Most rows of a piece.
        max_bytes: Most bytes of one of its columns, unless it is a single row.
        text_rows: Most rows where a column holds texts or lists.
        byte_rows: Most rows where a column holds bytes.
        first_rows: Rows of the first piece of split 0; None if it is like all others.
        columns: The columns that count; None for all.
        besides: Columns that do not count, since the plan as written lacks them.
    """

    max_rows: int
    max_bytes: int
    text_rows: int
    byte_rows: int
    first_rows: int | None = None
    columns: tuple[str, ...] | None = None
    besides: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        options: ResolvedOptions,
        wanted_rows: int | None = None,
        *,
        names_files: bool = False,
        by_row: bool = False,
    ) -> Self:
        """Returns the pieces for a function.

        Args:
            options: The options of the pipeline.
            wanted_rows: How many rows are wanted at a time after it; None for any number.
            names_files: Whether it gets the paths of files.
            by_row: Whether it is called for single rows.
        """
        most, num_bytes = options.max_chunk_rows, options.max_chunk_bytes
        if most is not None:
            return cls(most, num_bytes, most, most)
        wanted = MAX_CHUNK_ROWS if wanted_rows is None else min(wanted_rows, MAX_CHUNK_ROWS)
        text_rows, byte_rows = max(wanted, SOME_ROWS), max(wanted, FEW_ROWS)
        most, first = text_rows if by_row else MAX_CHUNK_ROWS, FEW_ROWS
        if names_files:
            most, first = max(wanted_rows or 0, FEW_ROWS), FIRST_BYTE_ROWS
        return cls(most, num_bytes, min(text_rows, most), min(byte_rows, most), first)

    def told(self) -> dict[str, int]:
        """Returns the limits as JSON values: a state is compared by them."""
        told = {"max_chunk_rows": self.max_rows, "max_chunk_bytes": self.max_bytes}
        if self.byte_rows < self.max_rows:
            told |= {"text_rows": self.text_rows, "byte_rows": self.byte_rows}
        return told if self.first_rows is None else {**told, "first_rows": self.first_rows}

    def describe(self) -> str:
        """Returns the limits in words."""
        size = _shown_bytes(self.max_bytes)
        text = f"cut splits every {self.max_rows:,} rows or {size} of a column"
        if self.text_rows < self.max_rows:
            text += f"; texts and lists every {self.text_rows:,} rows"
        if self.byte_rows < self.max_rows:
            text += f"; bytes every {self.byte_rows:,} rows"
        return text if self.first_rows is None else f"{text}; the first ones after {self.first_rows}"


def _shown_bytes(num_bytes: int) -> str:
    return f"{num_bytes >> 20:,} MiB" if num_bytes % (1 << 20) == 0 else f"{num_bytes:,} bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceOperator(Operator):
    """An operator with a function that sees pieces: all columns, or those in its field `columns`.

    Attributes:
        pieces: Bound: where splits are cut; None after `batch`, where the function sees the batches.
    """

    pieces: Pieces | None = field(default=None, compare=False)

    @property
    def by_row(self) -> bool:
        """Whether the function is called for single rows of a piece."""
        return False

    def asked_for(self, again: int | None, rows: int | None, options: ResolvedOptions) -> Node:
        """Notes where splits are cut."""
        if self.batched:
            return self
        names_files = _names_files(self.inputs[0])
        pieces = Pieces.of(options, rows, names_files=names_files, by_row=self.by_row)
        besides = () if self.pieces is None else self.pieces.besides
        columns = getattr(self, "columns", None)
        return dataclasses.replace(self, pieces=dataclasses.replace(pieces, columns=columns, besides=besides))

    def carrying(self, columns: Sequence[str]) -> Node:
        """Notes that these columns move no border."""
        if self.pieces is None:
            return self
        return dataclasses.replace(self, pieces=dataclasses.replace(self.pieces, besides=tuple(columns)))

    def borders(self) -> Mapping[str, Any]:
        """Returns where splits are cut."""
        return {} if self.pieces is None else {"pieces": self.pieces.told()}


def _names_files(node: Node) -> bool:
    """Whether rows of a plan are the paths of files, as no function has changed them."""
    while len(node.inputs) == 1 and not node.traits.opaque:
        (node,) = node.inputs
    return node.traits.names_files


class PieceCutter:
    """Finds the ends of pieces in the rows of one split after the other.

    Chunks are told as they come, and rows as they go. No value is read for columns of fixed width, and of other columns
    only where they may have too many bytes.
    """

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._max_rows = 0  # 0 until the first chunk tells the types
        self._first_rows = pieces.first_rows
        self._measured: tuple[int, ...] = ()
        self._chunks: deque[_Chunk] = deque()
        self._most = 0  # bytes of these chunks or more

    def add(self, chunk: pa.RecordBatch, start: int) -> None:
        """Takes the rows of a chunk from `start` on."""
        if not self._max_rows:
            self._look_at(chunk.schema)
        if self._measured:
            self._chunks.append(_Chunk(chunk, start))
            self._most += self._chunks[-1].most

    def pop(self, rows: int) -> None:
        """Forgets the oldest rows."""
        while rows and self._chunks:
            chunk = self._chunks[0]
            here = min(rows, chunk.rows - chunk.start)
            chunk.start += here
            rows -= here
            if chunk.start == chunk.rows:
                self._most -= self._chunks.popleft().most

    def rows(self, held: int, split: int, piece: int) -> int:
        """Returns the rows of the next piece if it is complete, of so many held ones; else 0."""
        most, first = self._max_rows, self._first_rows
        if first is not None and not split and piece < 32:
            most = min(most, first << max(0, piece - 1))
        rows = fitting = min(held, most)
        if self._most > self._pieces.max_bytes:
            for column in self._measured:
                fitting = self._fitting(column, fitting)
        return fitting if fitting < rows or rows == most else 0

    def _look_at(self, schema: pa.Schema) -> None:
        pieces, measured, most = self._pieces, [], self._pieces.max_rows
        counting = frozenset(schema.names if pieces.columns is None else pieces.columns) - {*pieces.besides}
        for index, found in enumerate(schema):
            if found.name not in counting:
                continue
            if is_fixed(found.type):
                most = min(most, max(1, 8 * pieces.max_bytes // max(1, type_bits(found.type))))
            else:
                measured.append(index)
                most = min(most, pieces.text_rows)
                if holds_bytes(found.type):
                    most = min(most, pieces.byte_rows)
                    self._first_rows = self._first_rows and min(self._first_rows, FIRST_BYTE_ROWS)
        self._max_rows, self._measured = most, tuple(measured)

    def _fitting(self, column: int, rows: int) -> int:
        """Returns how many of the oldest rows have not too many bytes of a column; at least 1, if there are any."""
        if sum(chunk.most_of(column) for chunk in self._chunks) <= self._pieces.max_bytes:
            return rows
        seen, left = 0, self._pieces.max_bytes
        for chunk in self._chunks:
            start, here = chunk.start, min(chunk.rows - chunk.start, rows - seen)
            ends = chunk.ends_of(column)
            last = left + int(ends[start])
            if ends[start + here] > last:
                fits = int(np.searchsorted(ends[start : start + here + 1], last, side="right")) - 1
                return max(1, seen + fits)
            seen, left = seen + here, last - int(ends[start + here])
            if seen == rows:
                break
        return rows


class _Chunk:
    """The rows of a chunk from a row on, and what is known of their bytes."""

    __slots__ = ("_chunk", "_ends", "_most", "most", "rows", "start")

    def __init__(self, chunk: pa.RecordBatch, start: int) -> None:
        self.rows: int = chunk.num_rows
        self.start = start
        self.most: int = chunk.nbytes
        self._chunk = chunk
        self._most: dict[int, int] = {}
        self._ends: dict[int, Ends] = {}

    def most_of(self, column: int) -> int:
        """Returns the bytes of a column or more, which costs microseconds to know."""
        if column not in self._most:
            self._most[column] = self._chunk.column(column).nbytes
        return self._most[column]

    def ends_of(self, column: int) -> Ends:
        """Returns the bytes of a column before each row and before the end."""
        if column not in self._ends:
            self._ends[column] = value_ends(self._chunk.column(column))
        return self._ends[column]
