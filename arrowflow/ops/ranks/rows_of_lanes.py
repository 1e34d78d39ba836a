"""Global batches of equally many rows of each lane.

Three kernels follow each other. A boundary opens the lanes as streams and collects *parts*: as many whole steps as fit
into some megabytes, without a copy. A stateless kernel copies a part once, into the order of its batches. The kernel of
`batch` then slices the batches. So the copies run on workers, several at a time.

A lane is pulled from when it lacks rows of the next part. All lanes read ahead meanwhile, one chunk each.

Where batches are padded, a lane that has ended repeats its last row. So its position stays before that row. A part with
padding has one step only, so that no position lies in the middle of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from arrowflow.errors import DataError
from arrowflow.kernels.context import Context, StreamHandle
from arrowflow.kernels.gather import gathered
from arrowflow.kernels.held import Held
from arrowflow.kernels.items import Item, Origin, Ticket
from arrowflow.kernels.kinds import BoundaryKernel
from arrowflow.ops.ranks.merge import LaneRows, zeros
from arrowflow.ops.ranks.steps import Steps
from arrowflow.plan.position import LaneMark, LanesPosition, Position
from arrowflow.plan.widths import RowWidth

PART_BYTES = 16 << 20
PARTS_IN_BUDGET = 32
GROWTH = 4
"""The most bytes of a part; how many of them the byte budget has room for; the largest ratio of a part to the part
before. The first part is one step."""


class LanesKernel(BoundaryKernel):
    """Collects parts: the next rows of each lane, equally many.

    Args:
        lanes: The numbers of the lanes, in order; input number i is lane `lanes[i]`.
        step_rows: Rows of a lane in a whole step.
        steps: How many rows each lane delivers.
        drop: Whether a short last step is left out.
        schema: The columns of lanes, if known.
        width: Bytes of a row by the plan as written.
        part_bytes: The most bytes of a part that is more than one step.
        context: The stream's.
    """

    chunks_held = 2

    def __init__(
        self,
        lanes: Sequence[int],
        step_rows: int,
        steps: Steps,
        *,
        drop: bool,
        schema: pa.Schema | None,
        width: RowWidth,
        part_bytes: int,
        context: Context,
    ) -> None:
        self._lanes = lanes
        self._step_rows = step_rows
        self._steps = steps
        self._drop = drop
        self._schema = schema
        self._width = width
        self._part_bytes = part_bytes
        self._context = context
        self._epoch = 0
        self._streams: list[StreamHandle | None] = []  # None: it has ended
        self._held = [Held() for _ in lanes]
        self._starts: list[Position] = [None] * len(lanes)
        # The last row of a lane that is used up, and the mark before it; a lane that resumes so reads that row again.
        self._spares: list[pa.RecordBatch | None] = [None] * len(lanes)
        self._marks: list[LaneMark | None] = [None] * len(lanes)
        self._spent = [False] * len(lanes)
        self._done = 0  # rows of each lane that were put out
        self._part_steps = 1
        self._needs = [0] * len(lanes)
        self._rows = 0  # of each lane in the next part
        self._number = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Restores the place in each lane; `next_input` opens the streams."""
        self._epoch = epoch
        if position is not None:
            assert isinstance(position, LanesPosition)
            self._done = position.step * self._step_rows
            marks = {mark.lane: mark for mark in position.lanes}
            for index, lane in enumerate(self._lanes):
                # A lane that the state lacks is run from its start: where it is follows from the steps.
                mark = marks.get(lane, LaneMark(lane, None, self._done))
                self._held[index] = Held(mark.before, mark.offset)
                self._starts[index] = mark.before
                self._spent[index] = mark.spent
                self._marks[index] = mark if mark.spent else None
        self._frame()
        return None

    # ------------------------------------------------------------------ inputs to pull from

    def next_input(self) -> StreamHandle | None:
        """Returns the stream of the first lane that lacks rows of the part; None at the end."""
        if self.done:
            return None
        if not self._streams:
            self._streams = [
                self._context.open(index, self._epoch, start) for index, start in enumerate(self._starts)
            ]
        lacking = self._lacking()
        return None if lacking is None else self._streams[lacking]

    def _lacking(self) -> int | None:
        """Returns the first lane to pull from: it lacks rows, or the row that it repeats has to be read again."""
        for index, (held, need) in enumerate(zip(self._held, self._needs, strict=True)):
            # Where lanes are filled up, the last row of each has to be known as the last one.
            again = self._spent[index] and self._spares[index] is None
            if (held.rows < need + self._steps.pads or again) and self._streams[index] is not None:
                return index
        return None

    def held(self) -> list[Held]:
        """Returns the rows of each lane that wait for those of the others."""
        return self._held

    def following_bytes(self) -> int:
        """Returns the bytes of two parts: one is copied while the other is consumed."""
        widest = max(held.row_bytes() for held in self._held)
        return int(2 * max(self._part_bytes, widest * self._step_rows * len(self._lanes)))

    # ------------------------------------------------------------------ chunks that come

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        """Takes a chunk of a lane; yields the parts that are complete now."""
        index = self._streams.index(stream)
        held = self._held[index]
        held.add(item)
        if item.chunk.num_rows:
            self._schema = item.chunk.schema
        if self._spent[index] and held.rows and self._spares[index] is None:
            self._spares[index] = _copied(held.pop(1)[0][0])
        return self._parts()

    def ended(self, stream: StreamHandle) -> Iterator[Item]:
        """Cuts the part where the lane that has ended lacks rows."""
        self._streams[self._streams.index(stream)] = None
        self._frame()
        return self._parts()

    # ------------------------------------------------------------------ parts

    def _parts(self) -> Iterator[Item]:
        """Yields parts for as long as all their rows have come."""
        while not self.done and self._lacking() is None:
            yield self._put()

    def _frame(self) -> None:
        """Sets the next part: whole steps, then a step that is short or filled up, if there is one."""
        size, most, lanes = self._step_rows, self._steps.most, range(len(self._lanes))
        rows = self._part_steps * size
        if most is not None:
            rows = max(0, min(rows, most - self._done))
        left = [self._left(index, rows) for index in lanes]
        if self._steps.pads:
            full = min(left) - min(left) % size
            rows = min(rows, full or size) if max(left) > 0 or most is not None else 0
        else:
            rows = min(rows, *left)
            rows = rows - rows % size or (0 if self._drop else rows)
        self._rows = rows
        self._needs = [min(rows, left[index]) for index in lanes]
        self.done = rows == 0

    def _left(self, index: int, rows: int) -> int:
        """Returns the rows that a lane still has, as far as that matters for a part of so many rows."""
        if self._spent[index]:
            return 0
        has_ended = bool(self._streams) and self._streams[index] is None
        return self._held[index].rows if has_ended else rows

    def _put(self) -> Item:
        """Returns the part, and goes on after it."""
        taken = [self._pop(index, need) for index, need in enumerate(self._needs)]
        chunks = [list(some) for some, _ in taken]
        tickets: tuple[Ticket, ...] = tuple(ticket for _, some in taken for ticket in some)
        spares = [
            (spare or self._zeros()) if need < self._rows else None
            for spare, need in zip(self._spares, self._needs, strict=True)
        ]
        part = LaneRows(chunks, list(self._needs), self._rows, spares)
        num_bytes = sum(chunk.nbytes for some in chunks for chunk in some)
        self._done += self._rows
        self._grow(part.num_rows, num_bytes)
        self._frame()
        number, self._number = self._number, self._number + 1
        return Item(part, self._position(), tickets, Origin(number))

    def _pop(self, index: int, need: int) -> tuple[list[pa.RecordBatch], list[Ticket]]:
        """Takes rows of a lane; keeps the last one of a lane that has ended, if lanes are filled up."""
        held = self._held[index]
        if not need:
            return [], []
        ends = self._steps.pads and need == held.rows and self._streams[index] is None
        if not ends:
            return held.pop(need)
        chunks, tickets = held.pop(need - 1)
        self._marks[index] = LaneMark(self._lanes[index], *held.mark(), True)
        last, its_tickets = held.pop(1)
        self._spares[index], self._spent[index] = _copied(last[0]), True
        return [*chunks, *last], [*tickets, *its_tickets]

    def _zeros(self) -> pa.RecordBatch:
        """Returns what fills up a lane that never had a row."""
        if self._schema is None:
            raise DataError(
                "no lane of this rank has a row, and the columns of a function are only known by its rows; use fewer lanes, "
                'declare the columns with schema=, or end with the first lane by equal_steps="drop"'
            )
        return pa.RecordBatch.from_arrays([zeros(type) for type in self._schema.types], schema=self._schema)

    def _grow(self, rows: int, num_bytes: int) -> None:
        """Sets the steps of the next part."""
        step_rows = self._step_rows * len(self._lanes)
        fitting = self._width.rows_in(self._part_bytes, num_bytes, rows) // step_rows
        self._part_steps = max(1, min(fitting, GROWTH * self._part_steps))

    def _position(self) -> LanesPosition:
        marks = (
            kept or LaneMark(lane, *held.mark())
            for lane, held, kept in zip(self._lanes, self._held, self._marks, strict=True)
        )
        return LanesPosition(-(-self._done // self._step_rows), tuple(marks))


def _copied(row: pa.RecordBatch) -> pa.RecordBatch:
    """Returns one row in memory of its own, so that it does not keep its chunk alive."""
    return gathered(row, np.zeros(1, np.int64))
