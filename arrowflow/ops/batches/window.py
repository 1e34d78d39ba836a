"""`window`: several rows become one row, by fixed-size lists; of the whole stream, or of each series (`series.py`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from arrowflow.expr import Expr, parse_expression
from arrowflow.kernels.cutting import Parts
from arrowflow.kernels.gather import GatherKernel, gathered
from arrowflow.kernels.held import Held, join
from arrowflow.kernels.items import Item, Origin
from arrowflow.kernels.kinds import SerialKernel
from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.ops.batches.group_by_window import key_program, with_key
from arrowflow.ops.batches.series import (
    MAX_KEYS,
    SeriesGatherKernel,
    SeriesKernel,
    SeriesShape,
    SeriesWindowKernel,
    as_lists,
)
from arrowflow.options import MAX_CHUNK_ROWS, MAX_LIST_SIZE, ResolvedOptions, check_flag, check_size
from arrowflow.plan.node import Columns, Count, Node
from arrowflow.plan.position import MAX_GONE, Mark, Position
from arrowflow.plan.shape import Shape, below
from arrowflow.plan.traits import Borders, Resume, Traits
from arrowflow.plan.widths import row_bytes
from arrowflow.types import is_untyped


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Operator):
    """Rows that hold, in each column, the values of `size` rows of the input as a fixed-size list.

    Row order: as its input, by the first row of a window; of series by the last one, and short windows at the end by the
    first one. Memory: the rows of one window beyond the chunk, and up to 65,536 rows a call where windows overlap or leave
    rows out; of series fewer rows than a window spans for each, twice, not charged to the ledger. Deterministic. Resume:
    (position before the oldest row of the next window, rows gone from there); the rows that windows share are read again.
    Of series: (windows,); the epoch is run again from its start.

    Attributes:
        size: Rows of a window.
        shift: Rows from the start of a window to the start of the next.
        stride: Rows from one row of a window to the next.
        drop_remainder: Whether windows that the end cuts short are left out; otherwise null fills them up.
        by: The expression that tells series apart; None for one series.
        max_keys: Series at most.
    """

    name: ClassVar[str] = "window"

    size: int
    shift: int
    stride: int = 1
    drop_remainder: bool = True
    by: Expr | None = None
    max_keys: int = MAX_KEYS

    @classmethod
    def of(
        cls,
        below: Node,
        size: int,
        *,
        shift: int | None,
        stride: int,
        drop_remainder: bool,
        by: Any,
        max_keys: int,
    ) -> Self:
        rows = check_size(cls.name, "size", size, most=MAX_LIST_SIZE)
        return cls(
            inputs=(below,),
            size=rows,
            shift=rows if shift is None else check_size(cls.name, "shift", shift),
            stride=check_size(cls.name, "stride", stride, most=MAX_LIST_SIZE),
            drop_remainder=check_flag(cls.name, "drop_remainder", drop_remainder),
            by=None if by is None else parse_expression(by, operator=cls.name, allow_name=True),
            max_keys=check_size(cls.name, "max_keys", max_keys, most=MAX_KEYS),
        )

    @property
    def traits(self) -> Traits:  # type: ignore[override]  # what a position holds depends on the arguments
        """Rows in their order; series are more than a position holds."""
        resume = Resume.SEEK if self.by is None else Resume.REPLAY
        return Traits(borders=Borders.FREE, needs_rows=True, resume=resume)

    def arguments(self) -> Mapping[str, Any]:
        told = {
            "size": self.size,
            "shift": self.shift,
            "stride": self.stride,
            "drop_remainder": self.drop_remainder,
        }
        return told if self.by is None else {**told, "by": self.by.digest()}

    def describe(self) -> str:
        text = Operator.describe(dataclasses.replace(self, by=None))
        return text if self.by is None else f"{text[:-1]}, by={self.by!r})"

    @property
    def span(self) -> int:
        """Rows from the first to the last of a window."""
        return (self.size - 1) * self.stride + 1

    @property
    def tiles(self) -> bool:
        """Whether windows lie side by side, so that the rows themselves are the windows."""
        return self.size == self.shift and self.stride == 1

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        if self.by is not None:
            key_program(self.name, self.by, inputs[0])
        if is_untyped(inputs[0]):
            return inputs[0]
        return pa.schema([(field.name, pa.list_(field.type, self.size)) for field in inputs[0]])

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        return (wanted if self.by is None else with_key(wanted, self.by, self.inputs[0].schema),)

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        """Returns how many windows start in its input's rows; with `drop_remainder` these must also end there."""
        rows = inputs[0]
        if self.by is not None:
            return 0 if rows == 0 else None
        if not isinstance(rows, int):
            return rows
        return self.full(rows) if self.drop_remainder else -(-rows // self.shift)

    def full(self, rows: int) -> int:
        """Returns how many whole windows there are in so many rows."""
        return 0 if rows < self.span else (rows - self.span) // self.shift + 1

    def owns_buffers(self, inputs: Sequence[bool]) -> bool:
        """Windows side by side are the input's rows; others are new memory."""
        return inputs[0] or not self.tiles or self.by is not None

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        if self.by is not None:
            return self._lower_series(self.by)
        collect = KernelSpec(
            "serial",
            lambda context: CollectKernel(self),
            # Rows between windows that do not touch are gone, too.
            position=Shape(tuple[Position, int], lambda at: below("offset", at[1], MAX_GONE + self.shift)),
            floor_bytes=row_bytes(self.inputs[0].schema) * self.span,
            facts="collect whole windows, no copy",
        )
        how = "wrap rows as lists, no copy within a chunk" if self.tiles else "gather, one call a chunk"
        make = KernelSpec(
            "stateless",
            lambda context: WindowKernel(self),
            engine="arrow" if self.tiles else "numpy+arrow",
            facts=how,
        )
        return collect, make

    def _lower_series(self, by: Expr) -> tuple[KernelSpec, ...]:
        shape = SeriesShape(self.size, self.shift, self.stride, self.drop_remainder)
        return (
            KernelSpec(
                "stateless",
                lambda context: SeriesKernel(partial(key_program, self.name, by)),
                engine="numpy+arrow",
                facts="find the series of each row",
            ),
            KernelSpec(
                "serial",
                lambda context: SeriesWindowKernel(shape, self.max_keys),
                position=Shape(tuple[int]),
                pins_order=True,
                engine="numpy+arrow",
                facts=f"hold up to {self.span - 1:,} rows of each of {self.max_keys:,} series",
            ),
            KernelSpec(
                "stateless",
                lambda context: SeriesGatherKernel(self.size),
                engine="numpy+arrow",
                facts="gather windows",
            ),
        )


@dataclass(slots=True)
class WindowRows(Parts):
    """Rows with the windows that start in them.

    Attributes:
        windows: How many windows to make of the rows, from the first row on.
    """

    windows: int


class CollectKernel(SerialKernel):
    """Finds the rows of the next windows. A window belongs to the split of its last row."""

    def __init__(self, node: Window) -> None:
        self._node = node
        self._held = Held()
        self._split = 0
        # Overlapping windows multiply rows: a chunk's rows are not all gathered at once.
        self._most = max(1, MAX_CHUNK_ROWS // node.size)

    def open(self, position: Position, epoch: int) -> Position:
        if position is None:
            return None
        at = Mark._make(position)
        self._held = Held(*at)
        return at.before

    def push(self, item: Item) -> Iterator[Item]:
        node, held = self._node, self._held
        held.add(item)
        if item.chunk.num_rows:
            # Rules may leave out splits without rows; the last windows have to belong to the same split all the same.
            self._split = item.origin.split
        # With `drop_remainder=False` the last windows follow when all splits have ended.
        ends = item.origin.last and node.drop_remainder
        while windows := min(node.full(held.rows), self._windows_at_once()):
            rows = (windows - 1) * node.shift + node.span
            yield self._made(rows, windows, last=ends and node.full(held.rows) == windows)

    def finish(self) -> Iterator[Item]:
        node, held = self._node, self._held
        while held.rows and not node.drop_remainder:
            windows = min(-(-held.rows // node.shift), self._most)
            rows = min((windows - 1) * node.shift + node.span, held.rows)
            yield self._made(rows, windows, last=False)

    def _windows_at_once(self) -> int:
        """Returns how many windows one call makes; side by side, all of a chunk, since nothing is copied for them."""
        if self._node.tiles and self._held.rows:
            return max(1, self._held.first_rows() // self._node.size)
        return self._most

    def _made(self, rows: int, windows: int, *, last: bool) -> Item:
        chunks, tickets = self._held.peek(rows)
        self._held.drop(windows * self._node.shift)
        made = WindowRows(chunks, rows, windows)
        return Item(made, self._held.mark(), tickets, Origin(self._split, last=last))


class WindowKernel(GatherKernel):
    """Makes lists of rows."""

    def __init__(self, node: Window) -> None:
        self._node = node

    def gather(self, chunk: WindowRows, origin: Origin) -> pa.RecordBatch:
        node = self._node
        rows = join(chunk.chunks)
        if not (node.tiles and chunk.num_rows == chunk.windows * node.size):
            starts = np.arange(chunk.windows, dtype=np.int64) * node.shift
            places = (starts[:, None] + np.arange(node.size, dtype=np.int64) * node.stride).ravel()
            rows = gathered(rows, places, places < chunk.num_rows)  # past the end there is no row
        return as_lists(rows, node.size)

    def limit(self, chunk: WindowRows) -> tuple[str, str, str]:
        what = f"window: {chunk.windows:,} windows of {self._node.size:,} rows cannot be gathered"
        return what, "65,536 rows", "use smaller windows"
