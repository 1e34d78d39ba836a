"""Global batches of equally many rows of each lane.

Three kernels follow each other. A boundary opens the lanes as streams and collects *parts*: as many whole steps as fit
into some megabytes, without a copy. A stateless kernel copies a part once, into the order of its batches. The kernel of
`batch` then slices the batches. So the copies run on workers, several at a time.

A lane is pulled from when it lacks rows of the next part. All lanes read ahead meanwhile, one chunk each.

Where all lanes end in a `shuffle`, it is not run: parts are made of its windows (see `windows_of_lanes`), whole ones as far
as the borders of steps allow.

Where batches are padded, a lane that has ended repeats its last row. So its position stays before that row. A part with
padding has one step only, so that no position lies in the middle of it.

A state of another rank lacks some lanes. Such a lane begins near its place, or at its start. Where batches are padded it may
turn out to have ended before the place. So it begins one row early, and its last row is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from arrowflow.kernels.context import Context, StreamHandle
from arrowflow.kernels.gather import gathered
from arrowflow.kernels.held import Held
from arrowflow.kernels.items import Item, Origin, Ticket
from arrowflow.kernels.kinds import BoundaryKernel
from arrowflow.ops.order.shuffle import Shuffle
from arrowflow.ops.ranks.merge import LaneRows
from arrowflow.ops.ranks.steps import Steps, no_step
from arrowflow.ops.ranks.windows_of_lanes import Window, WindowCutter
from arrowflow.plan.position import LaneMark, LanesPosition, Position, lanes_of
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
        drop_remainder: Whether the plan without lanes leaves a short last batch out.
        width: Bytes of a row by the plan as written.
        part_bytes: The most bytes of a part that is more than one step.
        behind: Returns a position of a lane with at most so many rows in front of it, in an epoch, and how many, if that
            can be told.
        shuffles: The operators that the lanes end in, which are left to this kernel; empty where they do not end in one.
        collects: Whether a lane sees all rows before it puts out the first one. Then the first lane does so alone, and fills
            the caches that the others read.
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
        drop_remainder: bool,
        width: RowWidth,
        part_bytes: int,
        behind: Callable[[int, int, int], tuple[Any, int] | None],
        shuffles: Sequence[Shuffle],
        collects: bool,
        context: Context,
    ) -> None:
        self._lanes = lanes
        self._collects = collects
        self._step_rows = step_rows
        self._steps = steps
        self._drop = drop
        self._drop_remainder = drop_remainder
        self._width = width
        self._part_bytes = part_bytes
        self._behind = behind
        self._context = context
        self._cutters = [WindowCutter(shuffle) for shuffle in shuffles]
        self._window_rows = max((shuffle.size for shuffle in shuffles), default=0)
        # Whether windows end with steps. Then parts end with windows: a window in two parts would be joined twice.
        self._is_aligned = bool(shuffles) and not self._window_rows % step_rows
        self._epoch = 0
        # The lanes that were opened, None where one has ended; those after the last one are not open yet.
        self._streams: list[StreamHandle | None] = []
        self._held = [Held() for _ in lanes]
        self._starts: list[Position] = [None] * len(lanes)
        # The last row of a lane that is used up, and the mark before it; a lane that resumes so reads that row again.
        self._spares: list[pa.RecordBatch | None] = [None] * len(lanes)
        self._marks: list[LaneMark | None] = [None] * len(lanes)
        self._spent = [False] * len(lanes)
        # Of a lane whose place was not in the state: rows that come before its place, and its position before them.
        self._early: dict[int, tuple[int, LaneMark]] = {}
        self._began = False  # a step was delivered in this epoch
        # Lanes whose error comes after the steps that are complete without it.
        self._failed: dict[int, StreamHandle] = {}
        self._done = 0  # rows of each lane that were put out
        self._part_steps = self._least_steps = max(1, -(-self._window_rows // step_rows))
        self._number = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Restores the place in each lane; `next_input` opens the streams."""
        self._epoch = epoch
        if position is not None:
            at = lanes_of(position)
            self._done = at.step * self._step_rows
            self._began = at.step > 0
            marks = {mark.lane: mark for mark in at.lanes}
            for index, lane in enumerate(self._lanes):
                mark = marks.get(lane) or self._followed(index)
                self._held[index] = Held(mark.before, mark.offset)
                self._starts[index] = mark.before
                self._spent[index] = mark.spent
                self._marks[index] = mark if mark.spent else None
        for index, cutter in enumerate(self._cutters):
            self._starts[index] = cutter.open(self._starts[index], epoch)
        return None

    def _followed(self, index: int) -> LaneMark:
        """Returns the place of a lane that the state lacks: it follows from the steps, near it or at the lane's start."""
        lane, done = self._lanes[index], self._done
        near = min(done, self._steps.least) - 1 if self._steps.pads else done
        before, rows = self._behind(lane, max(0, near), self._epoch) or (None, 0)
        if not self._steps.pads or not done:
            return LaneMark(lane, before, done - rows)
        self._early[index] = done - rows, LaneMark(lane, before, 0)
        return LaneMark(lane, before, 0)

    def begin(self) -> Iterator[Item]:
        """Yields the start of all lanes, without rows: a state from within the first part names the place of each lane."""
        if not self._done:
            yield Item(LaneRows([], [], 0, [], 0), self._position(), (), Origin(0))

    # ------------------------------------------------------------------ inputs to pull from

    def next_input(self) -> StreamHandle | None:
        """Returns the stream of the first lane that lacks rows of the next part; None at the end."""
        if self.done:
            return None
        if self._failed and not self._most_rows():
            return self._failed[min(index for index in self._failed if self._left(index) < self._step_rows)]
        lacking = self._lacking()
        if lacking is None:
            return next(filter(None, self._streams), None)  # to tell whether there is a step at all
        if lacking >= len(self._streams):
            stop = 1 if self._collects and not self._streams else len(self._lanes)
            for index in range(len(self._streams), stop):
                self._streams.append(self._context.open(index, self._epoch, self._starts[index]))
        return self._streams[lacking]

    def _goes_on(self, index: int) -> bool:
        """Whether more rows of a lane may come."""
        return index >= len(self._streams) or self._streams[index] is not None

    def _lacking(self) -> int | None:
        """Returns the first lane to pull from: it lacks rows, or the row that it repeats has to be read again.

        Where lanes are filled up, the last row of each has to be known as the last one: so one more row has to be there.
        """
        need = self._most_rows()
        for index, held in enumerate(self._held):
            again = self._spent[index] and self._spares[index] is None
            lacks = held.rows < need + self._steps.pads or again
            if lacks and self._goes_on(index) and index not in self._failed:
                return index
        return None

    def held(self) -> list[Held]:
        """Returns the rows of each lane that wait for those of the others."""
        return [*self._held, *(cutter.held for cutter in self._cutters)]

    def following_bytes(self) -> int:
        """Returns the bytes of two parts: one is copied while the other is consumed."""
        widest = max(held.row_bytes() for held in self._held)
        least_rows = self._least_steps * self._step_rows * len(self._lanes)
        return int(2 * max(self._part_bytes, widest * least_rows))

    # ------------------------------------------------------------------ chunks that come

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        """Takes a chunk of a lane; yields the parts that are complete now."""
        index = self._streams.index(stream)
        self._keep(index, self._cutters[index].push(item) if self._cutters else (item,))
        return self._parts()

    def ended(self, stream: StreamHandle) -> Iterator[Item]:
        """Puts out what the lanes can make now without the lane that has ended."""
        index = self._streams.index(stream)
        self._streams[index] = None
        self._keep(index, self._cutters[index].finish() if self._cutters else ())
        if index in self._early:
            self._spend(index)
        return self._parts()

    def failed(self, stream: StreamHandle) -> Iterator[Item]:
        """Puts out the steps that are complete without the rest of the lane; then the lane is wanted again."""
        self._failed[self._streams.index(stream)] = stream
        return self._parts()

    def _keep(self, index: int, items: Iterable[Item]) -> None:
        held = self._held[index]
        for item in items:
            held.add(item)
            if self._spent[index] and held.rows and self._spares[index] is None:
                self._spares[index] = _copied(held.pop(1)[0][0])
            if index in self._early:
                self._arrive(index)

    def _arrive(self, index: int) -> None:
        """Drops rows before the place of a lane, but for the last one: the lane may end with it."""
        (rows, mark), held = self._early[index], self._held[index]
        drop = min(held.rows, rows + 1) - 1
        if drop > 0:
            held.pop(drop)
            rows -= drop
            mark = mark._replace(offset=mark.offset + drop)
            self._early[index] = rows, mark
        if held.rows > rows:
            if rows:
                held.pop(rows)
            del self._early[index]

    def _spend(self, index: int) -> None:
        """Takes note that a lane has ended before its place: it repeats the row that is left."""
        _, mark = self._early.pop(index)
        held = self._held[index]
        self._spent[index] = True
        if held.rows:
            self._marks[index] = mark._replace(spent=True)
            self._spares[index] = _copied(held.pop(1)[0][0])

    # ------------------------------------------------------------------ parts

    def _parts(self) -> Iterator[Item]:
        """Yields parts for as long as all lanes have their rows, or have ended."""
        while not self.done and self._lacking() is None:
            rows = self._next_rows()
            if self._failed and not rows:
                return
            if rows:
                self._began = True
                yield self._put(rows)
            elif not self._began and not self._is_empty():
                return
            self.done = not rows or self._done == self._steps.most

    def _is_empty(self) -> bool:
        """Returns whether an epoch without a step is right; False as long as more rows have to come to tell.

        Raises:
            DataError: The plan has a step.
        """
        rows = sum(held.rows for held in self._held)
        if rows >= (self._step_rows * len(self._lanes) if self._drop_remainder else 1):
            raise no_step(
                f"a lane has ended with fewer than {self._step_rows:,} rows, and others have {rows:,}"
            )
        return not any(map(self._goes_on, range(len(self._lanes))))

    def _most_rows(self) -> int:
        """Returns the rows of each lane in the next part, if no lane ends."""
        rows, most = self._part_steps * self._step_rows, self._steps.most
        if self._is_aligned:
            rows -= self._done % self._window_rows  # after a resume within a window
        if self._failed:
            rows = (
                min(rows, *(self._left(index) for index in self._failed)) // self._step_rows * self._step_rows
            )
        return rows if most is None else max(0, min(rows, most - self._done))

    def _next_rows(self) -> int:
        """Returns the rows of each lane in the next part: of whole steps, or of one that is short or filled up."""
        size, steps, rows = self._step_rows, self._steps, self._most_rows()
        left = [self._left(index) for index in range(len(self._lanes))]
        whole = min(rows, *left) // size * size
        if whole:
            return whole
        if not steps.pads:
            return 0 if self._drop else min(rows, *left)
        return min(rows, size)

    def _left(self, index: int) -> int:
        """Returns the rows that a lane has; without the last one, as long as that may not be the last of all."""
        if self._spent[index]:
            return 0
        kept = self._steps.pads and self._goes_on(index)
        return self._held[index].rows - kept

    def _put(self, rows: int) -> Item:
        """Returns the part with so many rows of each lane, and goes on after it."""
        counts = [min(rows, self._left(index)) for index in range(len(self._lanes))]
        taken = [self._pop(index, count) for index, count in enumerate(counts)]
        spares = [spare if count < rows else None for spare, count in zip(self._spares, counts, strict=True)]
        num_bytes = sum(chunk.nbytes for some, _ in taken for chunk in some)
        part = LaneRows([some for some, _ in taken], counts, rows, spares, num_bytes)
        tickets: tuple[Ticket, ...] = tuple(ticket for _, some in taken for ticket in some)
        self._done += rows
        self._grow(part.num_rows, num_bytes)
        rests = [cutter.held for cutter in self._cutters] or self._held
        for rest in rests:
            if rest.rows < self._most_rows():
                rest.compact()  # the next chunk may come only while this one is still there
        number, self._number = self._number, self._number + 1
        return Item(part, self._position(), tickets, Origin(number))

    def _pop(self, index: int, need: int) -> tuple[list[pa.RecordBatch], list[Ticket]]:
        """Takes rows of a lane; keeps the last one of a lane that has ended, if lanes are filled up."""
        held = self._held[index]
        if not need:
            return [], []
        ends = self._steps.pads and need == held.rows and not self._goes_on(index)
        if not ends:
            return held.pop(need)
        chunks, tickets = held.pop(need - 1)
        self._marks[index] = LaneMark(self._lanes[index], *held.mark(), True)
        last, its_tickets = held.pop(1)
        self._spares[index], self._spent[index] = _copied(last[0]), True
        return [*chunks, *last], [*tickets, *its_tickets]

    def _grow(self, rows: int, num_bytes: int) -> None:
        """Sets the steps of the next part."""
        step_rows = self._step_rows * len(self._lanes)
        fitting = self._width.rows_in(self._part_bytes, num_bytes, rows) // step_rows
        steps = max(self._least_steps, min(fitting, GROWTH * self._part_steps))
        if self._is_aligned:
            steps -= steps % self._least_steps
        self._part_steps = steps

    def _position(self) -> Position:
        marks = (
            kept or LaneMark(lane, *held.mark())
            for lane, held, kept in zip(self._lanes, self._held, self._marks, strict=True)
        )
        return LanesPosition(-(-self._done // self._step_rows), tuple(marks)).position()


def _copied(row: pa.RecordBatch | Window) -> pa.RecordBatch:
    """Returns one row in memory of its own, so that it does not keep its chunk alive."""
    return row.rows() if isinstance(row, Window) else gathered(row, np.zeros(1, np.int64))
