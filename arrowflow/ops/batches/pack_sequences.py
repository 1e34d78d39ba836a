"""`pack_sequences`: documents into rows of exactly as many tokens as a model takes.

Each window of `window_rows` documents is packed alone, or cut alone, and makes one batch. So the rows are a pure
function of the input's rows, the state is a cursor, and several windows are packed at the same time. When documents
are cut, only two numbers cross windows, no data: the document in which the next row begins, and how many tokens of
this document are in rows already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa

from arrowflow.errors import DataError, PlanError, shown
from arrowflow.kernels.cutting import CutPosition, CuttingKernel, Parts
from arrowflow.kernels.items import Item, Origin
from arrowflow.kernels.kinds import SerialKernel, StatelessKernel
from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.ops.batches.overlap import Overlap
from arrowflow.ops.batches.packing import Pieces, cut, document_lengths, documents_of, fitted, lay_out
from arrowflow.ops.batches.padding import padding_value, plain
from arrowflow.ops.columns.column_program import check_columns, column_names
from arrowflow.options import MAX_LIST_SIZE, ResolvedOptions, check_size
from arrowflow.plan.lane import InLanes, Obstacle, small_windows
from arrowflow.plan.node import Columns, Count, Node
from arrowflow.plan.position import Position
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Traits
from arrowflow.plan.widths import row_bytes
from arrowflow.types import is_number, is_untyped, untyped

Strategy = Literal["first_fit", "concat_then_split"]
"""Grain and MaxText give the strategies these names."""

STRATEGIES: tuple[str, ...] = ("first_fit", "concat_then_split")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSequences(Operator, InLanes):
    """Rows of exactly `length` tokens that hold several documents each, with segment ids and positions.

    Row order: by the first document of a row; windows in order, one batch each. Memory: the documents of two windows,
    and the rows of the windows that are being packed. Deterministic. Resume: (position before the window, rows of the
    window to drop, window number). With `concat_then_split`: (position before the document that is being cut, rows,
    its tokens in earlier rows, documents of earlier windows from there on, window number).

    Attributes:
        column: The column of documents, lists of numbers.
        length: Tokens of a row.
        strategy: Whether documents stay whole where they can, or fill all rows.
        window_rows: Documents that are packed together.
        pad_value: The value that fills a row after its last document.
        segment_ids: Name of the column of segment ids, or None for no such column.
        positions: Name of the column of positions, or None for no such column.
    """

    name: ClassVar[str] = "pack_sequences"
    traits: ClassVar[Traits] = Traits(
        borders=Borders.CUT, local=True, row_sizes=("window_rows",), new_memory=True
    )

    column: str
    length: int
    strategy: Strategy = "first_fit"
    window_rows: int = 4096
    pad_value: float = 0
    segment_ids: str | None = "segment_ids"
    positions: str | None = "positions"

    @classmethod
    def of(
        cls,
        below: Node,
        column: str,
        length: int,
        *,
        strategy: Strategy,
        window_rows: int,
        pad_value: float,
        segment_ids: str | None,
        positions: str | None,
    ) -> Self:
        """Returns the node, with arguments as users write them."""
        if strategy not in STRATEGIES:
            raise PlanError(
                f"pack_sequences: strategy is one of {', '.join(STRATEGIES)}, got {shown(strategy)}"
            )
        pad_value = plain(pad_value)
        if isinstance(pad_value, bool) or not isinstance(pad_value, int | float):
            raise PlanError(f"pack_sequences: pad_value is a number, got {shown(pad_value)}")
        made = [name for name in (segment_ids, positions) if name is not None]
        names = column_names(cls.name, (column, *made))
        if len(set(names)) < len(names):
            raise PlanError(
                f"pack_sequences: column, segment_ids and positions have different names, got {', '.join(names)}"
            )
        return cls(
            inputs=(below,),
            column=column,
            length=check_size(cls.name, "length", length, most=MAX_LIST_SIZE),
            strategy=strategy,
            window_rows=check_size(cls.name, "window_rows", window_rows),
            pad_value=pad_value,
            segment_ids=segment_ids,
            positions=positions,
        )

    def arguments(self) -> Mapping[str, Any]:
        """Returns all arguments, the padding as text: NaN is not equal to itself, and JSON has no NaN."""
        return {
            "column": self.column,
            "length": self.length,
            "strategy": self.strategy,
            "window_rows": self.window_rows,
            "pad_value": repr(self.pad_value),
            "segment_ids": self.segment_ids,
            "positions": self.positions,
        }

    def obstacle(self, lanes: int, times: Count) -> Obstacle | None:
        """A lane packs its part of a window, which has to be large enough to fill rows well."""
        small = small_windows(self.name, self.window_rows, lanes) if self.strategy == "first_fit" else None
        return InLanes.obstacle(self, lanes, times) or small

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Returns the columns of tokens, segment ids and positions, as lists of `length`."""
        check_columns((self.column,), inputs[0])
        others = [name for name in inputs[0].names if name != self.column]
        if others:
            raise PlanError(
                f"pack_sequences: a row of several documents has no single value of {', '.join(map(repr, others))}; "
                f"leave them out first, as in select({self.column!r}).pack_sequences(…)"
            )
        made = [name for name in (self.segment_ids, self.positions) if name is not None]
        if is_untyped(inputs[0]):
            return untyped([self.column, *made])
        type = inputs[0].field(self.column).type
        if not (pa.types.is_list(type) or pa.types.is_large_list(type)) or not is_number(type.value_type):
            raise PlanError(
                f"pack_sequences: expected a column of lists of numbers, {self.column!r} is {type}; `cast` it"
            )
        try:
            padding_value(self.column, type.value_type, self.pad_value)
        except PlanError as error:
            raise PlanError(
                f"pack_sequences: pad_value is a value of {self.column!r} ({type.value_type}), got {shown(self.pad_value)}"
            ) from error
        columns = [(self.column, pa.list_(type.value_type, self.length))]
        return pa.schema(columns + [(name, pa.list_(pa.int32(), self.length)) for name in made])

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        """Returns the documents."""
        return (frozenset([self.column]),)

    def rows_again(self, rows: int) -> int | None:
        """Returns the rows of the window at its position; where documents are cut, a row may reach over many of them."""
        return self.window_rows + 1 if rows <= 1 and self.strategy == "first_fit" else None

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        """Returns the collector of windows and the packer."""
        fits = self.strategy == "first_fit"
        collect = KernelSpec(
            operator=self.name,
            kind="serial",
            make=lambda context: CuttingKernel(self.window_rows) if fits else SplitKernel(self),
            position=Shape(CutPosition if fits else SplitPosition),
            splits=True,
            buffer_items=1,
            floor_bytes=row_bytes(self.inputs[0].schema) * self.window_rows,
            facts=lambda: (f"collect windows of {self.window_rows:,} rows, no copy",),
        )
        pack = KernelSpec(
            operator=self.name,
            kind="stateless",
            make=lambda context: PackKernel(self),
            engine="numpy+arrow",
            floor_bytes=row_bytes(self.schema),
            facts=lambda: (f"{self.strategy} into rows of {self.length:,}, one call a window",),
        )
        return collect, pack


@dataclass(slots=True)
class DocumentRows:
    """Documents to cut: like a window, but earlier or later rows may hold some of the tokens.

    Attributes:
        chunks: The documents.
        num_rows: How many documents; the documents travel as a chunk of so many rows.
        skip: Tokens of the first document that are in earlier rows.
        packed_rows: Rows to make.
    """

    chunks: list[pa.RecordBatch]
    num_rows: int
    skip: int
    packed_rows: int


class SplitPosition(NamedTuple):
    """Position of a `SplitKernel`.

    Attributes:
        before: Position of the input before the document that is being cut, or before rows that precede this document.
        offset: Rows from there on that are gone.
        used: Tokens of the document that are in earlier rows.
        left: Documents from there on that earlier windows were counted with.
        number: Number of the next window.
    """

    before: Position
    offset: int
    used: int
    left: int
    number: int


class SplitKernel(SerialKernel):
    """Collects windows, and counts how many full rows each window ends."""

    def __init__(self, node: PackSequences) -> None:
        self._node = node
        self._held = Overlap()
        self._used = 0  # tokens of the oldest document that are in earlier rows
        self._left = 0  # oldest documents that earlier windows were counted with
        self._number = 0
        self._known = node.schema is not None

    def open(self, position: Position, epoch: int) -> Position:
        """Restores the used tokens of the document that is being cut, and how far the last window reached."""
        if position is None:
            return None
        before, offset, self._used, self._left, self._number = SplitPosition._make(position)
        self._held = Overlap(before, offset)
        return before

    def push(self, item: Item) -> Iterator[Item]:
        """Yields the windows that are full."""
        if not self._known and item.chunk.num_rows:
            self._node.output_schema([item.chunk.schema])
            self._known = True
        self._held.add(item)
        while self._held.rows >= self._left + self._node.window_rows:
            yield self._cut(self._left + self._node.window_rows, last=False)

    def finish(self) -> Iterator[Item]:
        """Yields the last window, whose last row may be short."""
        if self._held.rows:
            yield self._cut(self._held.rows, last=True)

    def _cut(self, rows: int, *, last: bool) -> Item:
        chunks, tickets = zip(*self._held.peek(rows), strict=True)
        ends = np.cumsum(document_lengths([chunk.column(self._node.column) for chunk in chunks]))
        num_tokens, length = int(ends[-1]) - self._used, self._node.length
        packed_rows = -(-num_tokens // length) if last else num_tokens // length
        documents = DocumentRows(list(chunks), rows, self._used, packed_rows)
        stop = min(self._used + packed_rows * length, int(ends[-1]))
        done = rows if last else int(np.searchsorted(ends, stop, side="right"))
        self._held.drop(done)
        self._used = 0 if last else stop - (int(ends[done - 1]) if done else 0)
        self._left = rows - done
        self._number += 1
        position = SplitPosition(*self._held.mark(), self._used, self._left, self._number)
        return Item(documents, position, list(tickets), Origin(self._number - 1))


class PackKernel(StatelessKernel):
    """Packs a window: decides by lengths, then copies each document once."""

    def __init__(self, node: PackSequences) -> None:
        self._node = node
        self._known = node.schema is not None

    def apply(self, chunk: Parts | DocumentRows, origin: Origin) -> pa.RecordBatch:
        """Returns the window's rows.

        Raises:
            PlanError: The schema was unknown before the first chunk, and these columns cannot be packed.
            DataError: A token is null.
        """
        node = self._node
        if not self._known:
            # Several workers may check it; all chunks have one schema.
            node.output_schema([chunk.chunks[0].schema])
            self._known = True
        documents = documents_of([part.column(node.column) for part in chunk.chunks])
        pieces: Pieces
        if isinstance(chunk, DocumentRows):
            pieces = cut(documents, node.length, chunk.skip, chunk.packed_rows)
        else:
            pieces = fitted(documents, node.length)
        packed = lay_out(documents.values, pieces, node.length, node.pad_value)
        if packed.tokens.null_count:
            raise DataError(
                f"pack_sequences: expected tokens, found {packed.tokens.null_count:,} nulls within the documents of "
                f"{node.column!r}; leave them out of the lists, or put a token in their place"
            ).locate(operator=node.name)
        named = zip((node.column, node.segment_ids, node.positions), packed, strict=True)
        lists = {
            name: pa.FixedSizeListArray.from_arrays(values, node.length)
            for name, values in named
            if name is not None
        }
        return pa.RecordBatch.from_arrays(list(lists.values()), names=list(lists))
