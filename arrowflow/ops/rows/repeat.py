"""`repeat`: its input again and again, each time as the next epoch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

from arrowflow.errors import DataError
from arrowflow.kernels.context import Context, StreamHandle
from arrowflow.kernels.held import join
from arrowflow.kernels.items import Item
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.ops.combine.concatenate import InTurnKernel
from arrowflow.ops.combine.same_columns import FirstSchema
from arrowflow.options import ResolvedOptions, check_size, whole_number
from arrowflow.plan.access import RowAccess, SourceOrder, with_source_order
from arrowflow.plan.lane import InLanes, Lane, Obstacle, dealt_rows, in_lane, obstacle_of
from arrowflow.plan.node import Count, Node
from arrowflow.plan.position import Position
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import SharedByEpochs, Traits
from arrowflow.plan.walk import fold, post_order, rows_in_lanes

EPOCH_BITS = 32
ENDLESS_EPOCHS = 1 << EPOCH_BITS
"""Epochs of the input that each epoch of an endless `repeat` is given, so that no epoch ever comes twice."""

MAX_KEPT_ITEMS = 16
MAX_KEPT_BYTES = 1 << 20
"""The longest epoch that is kept: to run it again takes 0.3 ms, to pass on an item 0.02 ms."""

JOINED_ROWS = 16_384
"""Rows of short epochs that come together: as many as `choose_from_datasets` reads at a time."""

Empty = Literal["ends", "goes on", "fails"]
"""The meaning of an epoch without rows: in the plan the end, in a lane perhaps that other lanes have its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat(RowOperator, InLanes, RowAccess):
    """Its input `count` times, or without end. Its epoch e runs epochs e * count, e * count + 1, … of the input.

    The next epoch starts while the last rows of the epoch before are still under way. A short epoch from memory, which is
    the same each time, is kept and not run again. `repeat` ends after an epoch without rows. Row order: as its input.
    Memory: its input's, for two epochs at most. Deterministic. Resume: (number
    of the epoch, whether any epoch had rows so far, position in the epoch).

    Attributes:
        count: How often; None without end.
        empty: The meaning of an epoch without rows.
        joins: Whether several short epochs may come as one chunk, since its reader sees no borders.
    """

    name: ClassVar[str] = "repeat"
    traits: ClassVar[Traits] = Traits(counts_alone=True, local=True)

    count: int | None = None
    empty: Empty = dataclasses.field(default="ends", compare=False)
    joins: bool = dataclasses.field(default=False, compare=False)

    @classmethod
    def of(cls, below: Node, count: int | None) -> Self:
        endless = count is None or whole_number(count) == -1
        return cls(inputs=(below,), count=None if endless else check_size(cls.name, "count", count, least=0))

    def arguments(self) -> Mapping[str, Any]:
        return {"count": self.count}

    @property
    def noop(self) -> bool:
        return self.count == 1

    def describe(self) -> str:
        return f"repeat({'' if self.count is None else self.count})"

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        return 0 if self.count == 0 else _times(inputs[0], self.count)

    def count_batches(self, rows: Sequence[Count], batches: Sequence[Count]) -> Count:
        return 0 if rows[0] == 0 else _times(batches[0], self.count)

    def rows_again(self, rows: int) -> int | None:
        """Returns none, if none are asked for: the split at a position may be the first one of the next epoch."""
        return None if rows else 0

    def with_source_order(self, order: SourceOrder) -> Node:
        """Orders the source: each repetition is an epoch of its own."""
        return dataclasses.replace(self, inputs=(with_source_order(self.inputs[0], order),))

    def obstacle(self, lanes: int, times: Count) -> Obstacle | None:
        """Its rows are dealt anew each time."""
        return obstacle_of(self.inputs[0], lanes, _times(times, self.count))

    def in_lane(self, lane: Lane) -> Node:
        """Deals the rows of each repetition after those of the repetition before.

        A lane that has no row of one repetition goes on. Where only a run tells the rows, it cannot know whether the other
        lanes have any.
        """
        (child,) = self.inputs
        rows = rows_in_lanes(child)
        own = lane.repeated(self.count or ENDLESS_EPOCHS, dealt_rows(child))
        empty: Empty = "fails" if rows is None else "goes on" if rows else "ends"
        return dataclasses.replace(self, empty=empty).on(in_lane(child, own))

    def dealt_rows(self) -> int:
        """Returns the rows of all repetitions; nothing is dealt after an endless one."""
        return (self.count or 0) * dealt_rows(self.inputs[0])

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        return KernelSpec(
            "boundary",
            lambda context: RepeatKernel(
                self.count,
                context,
                self.empty,
                keeps=options.deterministic and self._is_alike(),
                joins=self.joins,
            ),
            position=Shape(RepeatPosition),
        )

    def _is_alike(self) -> bool:
        """Whether all epochs of its input are the same chunks of the same splits, and no user function makes them."""
        (plan,) = self.inputs
        share = fold(
            plan, lambda node, inputs: node.shared_by_epochs(max(inputs, default=SharedByEpochs.ORDER))
        )
        return (
            share is SharedByEpochs.ORDER
            and plan.in_memory
            and self.empty == "ends"
            and not any(node.traits.opaque or node.functions() for node in post_order(plan))
        )


class RepeatPosition(NamedTuple):
    """Position of a `RepeatKernel`: the epoch, whether any had rows so far, and the input's position in it."""

    epoch: int
    had_rows: bool
    input: Position


def _times(once: Count, count: int | None) -> Count:
    """Returns so many times a count; no number of times means that there is no end, unless there is nothing."""
    if once is None or once == 0:
        return once
    return math.inf if count is None else once * count


class RepeatKernel(InTurnKernel):
    """Opens one stream per epoch."""

    def __init__(
        self,
        count: int | None,
        context: Context,
        empty: Empty = "ends",
        *,
        keeps: bool = False,
        joins: bool = False,
    ) -> None:
        super().__init__(context)
        self._count = count
        self._empty = empty
        self._first = FirstSchema()
        self._first_epoch = 0
        self._had_rows = False
        self._joins = joins
        self._keeps = keeps  # as long as no epoch was too long
        self._kept: list[Item] | None = None  # the items of the current epoch, if it runs from its start

    def open(self, position: Position, epoch: int) -> Position:
        """Restores the epoch and the position in this epoch; `next_input` opens the streams."""
        self._first_epoch = epoch * (self._count or ENDLESS_EPOCHS)
        if position is not None:
            self._index, self._had_rows, self._resumed_at = RepeatPosition._make(position)
        return None

    def next_input(self) -> StreamHandle | None:
        """Returns the current epoch's stream; None after the last epoch, or after an epoch without rows."""
        if self._current is None:
            self._kept = [] if self._keeps and self._resumed_at is None else None
        return super().next_input()

    def exhausted_at(self, index: int) -> bool:
        return self.done or (self._count is not None and index >= self._count)

    def _open(self, index: int, position: Position) -> StreamHandle:
        return self._context.open(0, self._first_epoch + index, position)

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        """Passes the item on, after a check that its columns are those of the epochs before."""
        self._first.checked(
            item.chunk,
            "an epoch",
            "each epoch has the same columns; where `map` makes them, schema= declares them",
        )
        if self._kept is not None:
            self._keep(item)
        yield self._placed(item)

    def _placed(self, item: Item) -> Item:
        """Returns an item of the input as one of the current epoch."""
        self._had_rows = self._had_rows or item.chunk.num_rows > 0
        # A split belongs to one epoch: a kernel that counts its rows must not go on in the next, nor repeat numbers.
        origin = item.origin
        if self._count != 1:  # a count of 1 is no operation, and may be left out
            origin = origin._replace(split=origin.split << EPOCH_BITS | self._index)
        position = RepeatPosition(self._index, self._had_rows, item.position)
        return item._replace(position=position, origin=origin)

    def _keep(self, item: Item) -> None:
        """Keeps an item for the later epochs, unless the epoch is long."""
        assert self._kept is not None
        self._kept.append(item)
        num_bytes = sum(kept.chunk.nbytes for kept in self._kept)
        if len(self._kept) > MAX_KEPT_ITEMS or num_bytes > MAX_KEPT_BYTES:
            self._keeps, self._kept = False, None

    def ended(self, stream: StreamHandle) -> Iterator[Item] | None:
        """Moves to the next epoch, unless the current epoch had no rows. Returns the epochs that need no run."""
        if not self._had_rows and self._empty == "fails":
            raise DataError(
                "one of the parts in which split_by_rank runs the plan has no row in this repetition, while others may have "
                'some; use split_by_rank(how="whole"), fewer lanes=, or count the rows once, by '
                ".assert_cardinality(af.count_rows(dataset)) after the filter"
            )
        self.done = not self._had_rows and self._empty == "ends"
        self._current = None
        self._index += 1
        self._had_rows = False
        if self.done or self._kept is None:
            return None
        if self._next is not None:
            self._context.close(self._next)
            self._next = None
        return self._again(self._kept)

    def _again(self, kept: Sequence[Item]) -> Iterator[Item]:
        """Yields the items of all later epochs."""
        times = JOINED_ROWS // max(1, sum(item.chunk.num_rows for item in kept)) if self._joins else 1
        together: list[Item] = []
        if times > 1:
            epoch = join([item.chunk for item in kept])
            together = [kept[-1]._replace(chunk=join(times * [epoch]), ticket=None)]
        while not self.exhausted_at(self._index):
            if together and not self.exhausted_at(self._index + times - 1):
                self._index += times - 1  # the position is that after the last of them
                yield from map(self._placed, together)
            else:
                yield from map(self._placed, kept)
            self._index += 1
            self._had_rows = False
