"""`shuffle` without a size: all rows of a source that stays in place.

A source with random access (`RowAccess.random_access`) has all its rows permuted in place. A serial kernel collects the
source's descriptors, without a copy, and a reader gathers one part of the output a call. The order is a function of the
place, so the state is the number of rows delivered. Column operators before the shuffle then run on the gathered rows.
For the same reason lanes cost nothing here: a lane gathers its places of each batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from arrowflow.errors import BudgetError, PlanError
from arrowflow.kernels.context import Context
from arrowflow.kernels.gather import too_large
from arrowflow.kernels.items import Item, Made, Origin, Ticket
from arrowflow.kernels.kinds import ReaderKernel, SerialKernel
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.ops.order.random_access import AllRows, InPlaceRows, Rows
from arrowflow.ops.order.source_order import bound_seed
from arrowflow.ops.order.spans import Places
from arrowflow.ops.rows.shard import Shard
from arrowflow.options import ResolvedOptions
from arrowflow.plan.access import RowAccess
from arrowflow.plan.lane import InLanes, Lane, Obstacle, too_few
from arrowflow.plan.node import BindContext, Count, Node
from arrowflow.plan.position import Position
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, SharedByEpochs, Traits
from arrowflow.plan.walk import rows_in_lanes
from arrowflow.plan.widths import RowWidth, row_width
from arrowflow.random import GLOBAL_ORDER, Permutation

PART_BYTES: Final = 4 << 20
NUMBERS_BYTES: Final = 48
"""Bytes for the numbers of a row while it is gathered: its place in the input, its record batch, its place there, …"""
MAX_PART_ROWS = 1 << 17
"""Most rows of a part: gathering batch by batch takes 10 µs for each record batch, so larger parts need fewer steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfAllRows(RowOperator, InLanes):
    """An operator that gathers rows of a source in an order of its own: the base of `shuffle` without a size and of `sample`.

    Attributes:
        seed: The seed of the order; None until bound, then derived from `Options.seed` and the operator's place.
        reshuffle_each_iteration: Whether each epoch has its own order.
        width: Bound: bytes of a row by the plan as written.
        lane: The lane that takes its places of each batch, or None for all places.
    """

    seed: int | None = None
    reshuffle_each_iteration: bool = True
    width: RowWidth = dataclasses.field(default=RowWidth(), compare=False)
    lane: Lane | None = None

    def obstacle(self, lanes: int, times: Count) -> Obstacle | None:
        """It deals the places of its order, and reads its input where that lies."""
        return too_few(self.name, rows_in_lanes(self), lanes, times)

    def in_lane(self, lane: Lane) -> Node:
        """Takes the lane's places of each batch, so that the batches are those of one process."""
        return dataclasses.replace(self, lane=lane)

    def dealt_rows(self) -> int:
        rows = rows_in_lanes(self)
        return rows if isinstance(rows, int) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalShuffle(OfAllRows, RowAccess):
    """All rows of its input, permuted.

    Row order: a pure function of (seed, epoch). Memory: a few parts of the output; the source's rows stay in place.
    Deterministic. Resume: (rows delivered,).
    """

    name: ClassVar[str] = "shuffle"
    # The shuffle does gather, but nothing may be moved before it: its input has to stay in place.
    traits: ClassVar[Traits] = Traits(
        borders=Borders.FREE, needs_rows=True, collects=True, new_memory=True, keeps_number=True
    )

    def arguments(self) -> Mapping[str, Any]:
        return {"size": None, "seed": self.seed, "reshuffle_each_iteration": self.reshuffle_each_iteration}

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Fixes the seed, and changes places with the operators that can work on gathered rows."""
        rows, above = split_source(inputs[0], _UNFIT)
        seed = bound_seed(self.seed, context)
        plan: Node = dataclasses.replace(self, seed=seed, width=row_width(rows.schema)).on(rows)
        return reduce(lambda below, node: node.on(below), above, plan)

    def shared_by_epochs(self, share: SharedByEpochs) -> SharedByEpochs:
        """Returns the number of rows, if all epochs have that."""
        return max(share, SharedByEpochs.NUMBER)

    def position_behind(self, rows: int, epoch: int | None = None) -> tuple[Any, int]:
        return (rows,), rows

    def _order(self, context: Context) -> Callable[[AllRows], Order]:
        assert self.seed is not None
        key = (self.seed, GLOBAL_ORDER, context.epoch if self.reshuffle_each_iteration else 0)

        def order(rows: AllRows) -> Order:
            whole = Permutation(rows.num_rows, key)
            return whole if self.lane is None else LaneOrder(whole, self.lane, context.epoch)

        return order

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        return (
            KernelSpec(
                "serial",
                lambda context: RowCollectKernel(self.width, self._order(context), options.ram_budget),
                position=Shape(tuple[int]),
                pins_order=True,
                splits=True,
                facts="collect all rows where they lie, no copy",
            ),
            gather_spec(f"permute and gather, one call for up to {MAX_PART_ROWS:,} rows"),
        )


def gather_spec(fact: str) -> KernelSpec:
    """Returns the kernel that gathers the parts of the output; `fact` is its line in `explain`."""
    return KernelSpec(
        "reader",
        lambda context: OutputPartKernel(),
        phase="gather",
        random=True,
        engine="numpy+arrow",
        facts=fact,
    )


_UNFIT: Final = (
    "shuffle: without buffer_size it permutes all rows",
    "use shuffle(buffer_size), or put `.cache()` right before it",
)


def split_source(node: Node, unfit: tuple[str, str]) -> tuple[Node, list[Node]]:
    """Returns the source of the rows, cut by `take`, `skip` and `shard`, and the operators after it, from the source on.

    Args:
        node: The input of an operator that gathers rows.
        unfit: The work of the operator, and the alternative, for the error.

    Raises:
        PlanError: The source has no random access, or an operator in between needs the rows in their order.
    """
    source = node.random_access() if isinstance(node, RowAccess) else None
    if source is not None:
        return source, []
    if node.row_range is not None or isinstance(node, Shard):
        source, above = split_source(node.inputs[0], unfit)
        picks = dataclasses.replace(node, in_place=True) if isinstance(node, Shard) else node
        return picks.on(source), above
    if node.traits.one_to_one and not node.traits.opaque and len(node.inputs) == 1:
        source, above = split_source(node.inputs[0], unfit)
        return source, [*above, node]
    what, advice = unfit
    raise PlanError(
        f"{what}, which has to find each of them: in memory (from_arrow, "
        "from_numpy, range, cache), in files that are mapped (uncompressed local files of read_ipc, and of formats "
        "with the methods of arrowflow.formats.InPlaceFormat), as whole files (read_images, read_files) or by number "
        "(read_lance), with column operators, take, skip or shard in between; "
        f"{node.describe()} is none of these: {advice}"
    )


class Order(Protocol):
    """The places of the output: for each of them the number of a row."""

    num_rows: int

    @property
    def buffers(self) -> tuple[pa.Buffer, ...]:
        """Memory that grows with the rows, which the ledger counts."""

    def part(self, start: int, stop: int) -> Places:
        """Returns the rows at the places from `start` to before `stop`. Any worker, several at once."""


class WholeOrder(Order, Protocol):
    """An order that lanes can have their places of."""

    def at(self, places: Places) -> Places:
        """Returns the rows at some places. Any worker, several at once."""


class LaneOrder(Order):
    """The places of one lane in an order that is cut into batches of all lanes."""

    def __init__(self, order: WholeOrder, lane: Lane, epoch: int) -> None:
        self._order = order
        self._part = lane.step_rows or 1  # its places in a whole batch
        self._size = self._part * lane.count  # rows of a whole batch
        batches, short = divmod(order.num_rows, self._size)
        first, before = lane.rows(short, epoch)
        self._first = lane.number * self._part  # its first place in a whole batch
        self._whole = batches * self._part  # its places in all whole batches
        self._rest = batches * self._size + first  # its first place in the short batch at the end
        self.num_rows = self._whole + before - first

    @property
    def buffers(self) -> tuple[pa.Buffer, ...]:
        return self._order.buffers

    def part(self, start: int, stop: int) -> Places:
        numbers = np.arange(start, stop, dtype=np.int64)
        batch, place = np.divmod(numbers, self._part)
        whole = batch * self._size + self._first + place
        return self._order.at(np.where(numbers < self._whole, whole, self._rest + numbers - self._whole))


class OutputPart(NamedTuple):
    """Places of the output to fill."""

    rows: AllRows
    order: Order
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        """Rows of the output."""
        return self.stop - self.start

    @property
    def buffers(self) -> tuple[pa.Buffer, ...]:
        """The memory of the order."""
        return self.order.buffers


class RowCollectKernel(SerialKernel):
    """Collects the source's descriptors, then finds the order of the output and cuts the output into parts."""

    def __init__(self, width: RowWidth, find: Callable[[AllRows], Order], budget_bytes: int) -> None:
        self._width = width
        self._find = find
        self._budget_bytes = budget_bytes
        self._parts: list[Rows] = []
        self._tickets: list[Ticket] = []
        self._copied_bytes = 0
        self._delivered = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Restores how many rows were delivered; all of the source is collected again."""
        if position is not None:
            (self._delivered,) = position
        return None

    def push(self, item: Item) -> Iterator[Item]:
        if item.chunk.num_rows:
            rows: Rows = InPlaceRows(item.chunk) if isinstance(item.chunk, pa.RecordBatch) else item.chunk
            self._parts.append(rows)
            self._tickets.append(item.ticket)
            self._copied_bytes += sum(buffer.size for buffer in rows.buffers)
            if self._copied_bytes > self._budget_bytes:
                raise BudgetError(
                    f"the columns that are decoded or cast take more than {self._copied_bytes:,} bytes, and "
                    f"ram_budget allows {self._budget_bytes:,}; raise ram_budget, use shuffle(buffer_size), or write "
                    "the rows to files of the types that are read"
                )
        return iter(())

    def finish(self) -> Iterator[Item]:
        if not self._parts:
            return
        rows = AllRows(self._parts, self._tickets)
        order = self._find(rows)
        size = min(MAX_PART_ROWS, self._width.rows_in(PART_BYTES, rows.num_bytes, rows.num_rows))
        for start in range(self._delivered, order.num_rows, size):
            part = OutputPart(rows, order, start, min(start + size, order.num_rows))
            # The whole output is one split, as a window is.
            yield Item(part, (part.stop,), None, Origin(0, 0, part.stop == order.num_rows))


class OutputPartKernel(ReaderKernel):
    """Gathers parts of the output."""

    def num_bytes(self, payload: OutputPart) -> int:
        """Returns the bytes of the part, of copies that are not in its order yet, and of the numbers of its rows."""
        rows = payload.rows
        return payload.num_rows * (3 * rows.num_bytes // rows.num_rows + NUMBERS_BYTES)

    def read(self, payload: OutputPart) -> Iterator[Made]:
        try:
            chunk = payload.rows.gather(payload.order.part(payload.start, payload.stop))
        except pa.ArrowInvalid as error:
            what = f"{payload.num_rows:,} rows cannot be gathered at once"
            raise too_large(error, what, "that many", "cast the column to a large type") from error
        yield Made(chunk, (payload.stop,), payload.stop == payload.order.num_rows, 0)
