"""`shuffle`: windows of rows, each permuted.

A window is exactly `size` rows of the input sequence, whatever its chunk borders, and its permutation is a pure
function of (seed, epoch, window number). So the state is a cursor and not the buffer: a resumed shuffle collects the
window again and permutes it to the same order. Two kernels: a serial one collects windows without a copy, and a
stateless one gathers a window, so that the next windows are made while one is consumed.

Where nothing in between forbids it the source below is ordered by (seed, epoch) too, see `Node.with_source_order`;
that is decided on the plan as written, so that no rule changes an order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

import pyarrow as pa

from arrowflow.errors import DataError
from arrowflow.ops.base import (
    Context,
    Held,
    Item,
    KernelSpec,
    Origin,
    Position,
    RowOperator,
    SerialKernel,
    StatelessKernel,
    join,
)
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import BindContext, Node, SourceOrder
from arrowflow.plan.traits import Borders, Traits
from arrowflow.plan.widths import row_bytes
from arrowflow.random import permutation, philox
from arrowflow.records import dataclass

WINDOW_ORDER = 3
"""Tells a window's permutation from those of a source order with the same seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle(RowOperator):
    """Its input's rows, permuted within windows of `size` rows.

    Row order: a pure function of (seed, epoch, window). Memory: two windows, and one that is gathered. Deterministic.
    Resume: (position before the window, rows of it to drop, window number); the window is collected again.

    Attributes:
        size: Rows of a window.
        seed: What the order follows from; None until bound, then derived from `Options.seed` and its place.
        reshuffle_each_iteration: Whether each epoch has an order of its own.
    """

    name: ClassVar[str] = "shuffle"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, gathers=True, needs_rows=True)

    size: int
    seed: int | None = None
    reshuffle_each_iteration: bool = True

    def arguments(self) -> Mapping[str, Any]:
        """Returns window, seed and whether epochs differ."""
        return {
            "size": self.size,
            "seed": self.seed,
            "reshuffle_each_iteration": self.reshuffle_each_iteration,
        }

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Fixes the seed, and orders the source below by it where it can."""
        seed = self.seed
        if seed is None:
            seed = int(philox((context.options.seed, context.place)).random_raw())
        order = SourceOrder(seed=seed, reshuffle=self.reshuffle_each_iteration)
        return dataclasses.replace(self, seed=seed).on(inputs[0].with_source_order(order))

    def count_rows(self, inputs: Sequence[int | None]) -> int | None:
        """Returns its input's rows."""
        return inputs[0]

    def owns_buffers(self, inputs: Sequence[bool]) -> bool:
        """A gathered window is new memory."""
        return True

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        """Returns the collector of windows and the gatherer."""
        window_bytes = row_bytes(self.schema) * self.size
        return (
            KernelSpec(
                operator=self.name,
                kind="serial",
                make=lambda context: WindowKernel(self.size),
                splits=True,
                buffer_items=1,
                floor_bytes=window_bytes,
                facts=lambda: (f"collect windows of {self.size:,} rows, no copy",),
            ),
            KernelSpec(
                operator=self.name,
                kind="stateless",
                make=lambda context: GatherKernel(self, context),
                engine="numpy+arrow",
                floor_bytes=window_bytes,
                facts=lambda: ("permute and gather, one call a window",),
            ),
        )


@dataclass(slots=True)
class Window:
    """The chunks of one window, in input order; they stand on the tickets of their chunks."""

    chunks: list[pa.RecordBatch]
    num_rows: int


class WindowKernel(SerialKernel):
    """Collects windows of an exact number of rows; the last may be short."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held = Held()
        self._number = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Restores the window number and the rows to drop."""
        if position is None:
            return None
        before, offset, self._number = position
        self._held = Held(before, offset)
        return cast(Position, before)

    def push(self, item: Item) -> Iterator[Item]:
        """Yields the windows that are full."""
        self._held.add(item)
        while self._held.rows >= self._size:
            yield self._cut(self._size)

    def finish(self) -> Iterator[Item]:
        """Yields the last, short window."""
        if self._held.rows:
            yield self._cut(self._held.rows)

    def _cut(self, rows: int) -> Item:
        chunks, tickets = self._held.pop(rows)
        self._number += 1
        return Item(
            Window(chunks, rows), (*self._held.mark(), self._number), tickets, Origin(self._number - 1)
        )


class GatherKernel(StatelessKernel):
    """Permutes a window and gathers its rows into new memory."""

    def __init__(self, node: Shuffle, context: Context) -> None:
        assert node.seed is not None
        self._key = (node.seed, WINDOW_ORDER, context.epoch if node.reshuffle_each_iteration else 0)

    def apply(self, chunk: Window, origin: Origin) -> pa.RecordBatch:
        """Returns the window's rows in their new order."""
        order = permutation(chunk.num_rows, (*self._key, origin.split))
        indices = pa.Array.from_buffers(
            pa.uint32() if order.itemsize == 4 else pa.int64(), len(order), [None, pa.py_buffer(order)]
        )
        try:
            return join(chunk.chunks).take(indices)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"a window of {chunk.num_rows:,} rows cannot be gathered ({error}); texts or lists of one window "
                "may hold 2 GiB a column: use a smaller window"
            ) from error
