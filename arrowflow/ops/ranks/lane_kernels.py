"""The boundaries over the lanes of a rank: global batches of equally many rows of each lane, or whole batches of lanes.

**Rows.** Three kernels follow each other. A boundary opens the lanes as streams and collects *parts*: as many whole steps as
fit into some megabytes, without a copy. A stateless kernel copies a part once, into the order of its batches. The kernel of
`batch` then slices the batches. So the copies run on workers, several at a time.

A lane is pulled from when it lacks rows of the next part. All lanes read ahead meanwhile, one chunk each.

Where all lanes end in a `shuffle`, it is not run: parts are made of its windows (see `merge.py`), whole ones as far as the
borders of steps allow.

Where batches are padded, the last step is a part of its own. In it a lane that has ended repeats its last row. If that is
a row of the step before, the positions between the two steps lie before this row, in each lane.

**Batches** are joined side by side where functions follow `batch`: such a function is called for each lane, so that what it
makes does not depend on the number of processes. They come in turn where an operator makes batches of unequal size, such as
`bucket_by_sequence_length`: such a batch is neither cut nor joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import pyarrow as pa

from arrowflow.kernels.context import Context, StreamHandle
from arrowflow.kernels.cutting import Parts
from arrowflow.kernels.held import Held
from arrowflow.kernels.items import Item, Origin, Ticket
from arrowflow.kernels.kinds import BoundaryKernel
from arrowflow.ops.order.shuffle import Shuffle
from arrowflow.ops.ranks.merge import LaneRows, WindowCutter
from arrowflow.ops.ranks.steps import Steps, no_step
from arrowflow.plan.position import LaneMark, LanesPosition, Position, lanes_of
from arrowflow.plan.widths import RowWidth

PART_BYTES = 16 << 20
PARTS_IN_BUDGET = 32
GROWTH = 4
"""The most bytes of a part; how many of them the byte budget has room for; the largest ratio of a part to the part
before. The first part is one step."""


@dataclass(eq=False)
class LanesBoundary(BoundaryKernel):
    """Opens the lanes of a rank as streams.

    Attributes:
        context: The stream's.
        lanes: The numbers of the lanes, in order; input number i is lane `lanes[i]`.
        steps: How many rows, or batches, each lane delivers.
        collects: Whether a lane sees all rows before it puts out the first one. Then the first one that is wanted does so
            alone, and fills the caches that the others read.
    """

    context: Context
    _: KW_ONLY
    lanes: Sequence[int]
    steps: Steps
    collects: bool

    def __post_init__(self) -> None:
        self._epoch = 0
        self._streams: dict[int, StreamHandle | None] = {}  # of opened lanes; None where one has ended
        self._starts: list[Position] = [None] * len(self.lanes)

    def _stream(self, index: int) -> StreamHandle | None:
        """Returns the stream of a lane, which it opens with all others."""
        if index not in self._streams:
            alone = self.collects and not self._streams
            for each in (index,) if alone else range(len(self.lanes)):
                if each not in self._streams:
                    self._streams[each] = self.context.open(each, self._epoch, self._starts[each])
        return self._streams[index]

    def _index_of(self, stream: StreamHandle) -> int:
        return next(index for index, each in self._streams.items() if each is stream)


@dataclass(kw_only=True, eq=False)
class LanesKernel(LanesBoundary):
    """Collects parts: the next rows of each lane, equally many.

    Attributes:
        drop_remainder: Whether the plan without lanes leaves a short last batch out.
        width: Bytes of a row by the plan as written.
        part_bytes: The most bytes of a part that is more than one step.
        behind: Returns a position of a lane with at most so many rows in front of it, in an epoch, and how many, if that
            can be told.
        shuffles: The operators that the lanes end in, which are left to this kernel; empty where they do not end in one.
    """

    chunks_held = 2

    drop_remainder: bool
    width: RowWidth
    part_bytes: int
    behind: Callable[[int, int, int], tuple[Any, int] | None]
    shuffles: Sequence[Shuffle]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._cutters: list[WindowCutter] = []
        self._held = [Held() for _ in self.lanes]
        # Whether the first row that is held of a lane was put out before: the lane may have to repeat it.
        self._again = [False] * len(self.lanes)
        self._failed: set[int] = set()  # lanes whose error comes after the steps that are complete without it
        self._done = 0  # rows of each lane that were put out
        window_rows = max((shuffle.size for shuffle in self.shuffles), default=0)
        self._part_steps = self._least_steps = max(1, -(-window_rows // self.steps.size))
        # Where windows end with steps, parts end with windows: a window in two parts would be joined twice.
        self._multiple = 1 if window_rows % self.steps.size else self._least_steps

    def open(self, position: Position, epoch: int) -> Position:
        """Restores the place in each lane; `next_input` opens the streams."""
        self._epoch = epoch
        if position is not None:
            at = lanes_of(position)
            self._done = at.step * self.steps.size
            marks = {mark.lane: mark for mark in at.lanes}
            for index, lane in enumerate(self.lanes):
                _, before, offset, self._again[index] = marks.get(lane) or self._followed(lane)
                self._held[index], self._starts[index] = Held(before, offset), before
        self._cutters = [WindowCutter(shuffle, epoch) for shuffle in self.shuffles]
        for index, cutter in enumerate(self._cutters):
            self._starts[index] = cutter.open(self._starts[index], epoch)
        return None

    def _followed(self, lane: int) -> LaneMark:
        """Returns the place of a lane that the state lacks: it follows from the steps, near it or at the lane's start."""
        again = self._done == self.steps.repeats_from
        done = self._done - again
        before, rows = self.behind(lane, done, self._epoch) or (None, 0)
        return LaneMark(lane, before, done - rows, again)

    def begin(self) -> Iterator[Item]:
        """Yields the start of all lanes, without rows: a state from within the first part names the place of each lane."""
        if not self._done:
            yield Item(LaneRows([], [], 0, 0), self._position(), (), Origin(0))

    # ------------------------------------------------------------------ inputs to pull from

    def next_input(self) -> StreamHandle | None:
        """Returns the stream of the first lane that lacks rows of the next part; None at the end."""
        if self.done:
            return None
        if self._failed and not self._most_rows():
            return self._stream(min(each for each in self._failed if self._left(each) < self.steps.size))
        lacking = self._lacking()
        if lacking is None:
            return next(filter(None, self._streams.values()), None)  # to tell whether there is a step at all
        return self._stream(lacking)

    def _goes_on(self, index: int) -> bool:
        """Whether more rows of a lane may come."""
        return index not in self._failed and (index not in self._streams or self._streams[index] is not None)

    def _lacking(self) -> int | None:
        """Returns the lane that has the fewest rows, if one lacks rows of the next part or the row that it repeats.

        So lanes are pulled from in turn, and all of them work at a part.
        """
        need = self._most_rows()
        goes_on = filter(self._goes_on, range(len(self.lanes)))
        lacking = (index for index in goes_on if need and self._left(index) < need)
        return min(lacking, key=self._come, default=None)

    def _come(self, index: int) -> int:
        """Returns the rows of a lane that have come and were not put out, those of a window that is not whole included."""
        return self._left(index) + (self._cutters[index].held.rows if self._cutters else 0)

    def held(self) -> list[Held]:
        return [*self._held, *(cutter.held for cutter in self._cutters)]

    def following_bytes(self) -> int:
        """Returns the bytes of two parts: one is copied while the other is consumed."""
        widest = max(held.row_bytes() for held in self._held)
        least_rows = self._least_steps * self.steps.size * len(self.lanes)
        return int(2 * max(self.part_bytes, widest * least_rows))

    # ------------------------------------------------------------------ chunks that come

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        index = self._index_of(stream)
        return self._parts(index, self._cutters[index].push(item) if self._cutters else (item,))

    def ended(self, stream: StreamHandle) -> Iterator[Item]:
        """Puts out what the lanes can make now without the lane that has ended."""
        index = self._index_of(stream)
        self._streams[index] = None
        return self._parts(index, self._cutters[index].finish() if self._cutters else ())

    def failed(self, stream: StreamHandle) -> Iterator[Item]:
        """Puts out the steps that are complete without the rest of the lane; then the lane is wanted again."""
        index = self._index_of(stream)
        self._failed.add(index)
        return self._parts(index, ())

    # ------------------------------------------------------------------ parts

    def _parts(self, index: int, items: Iterable[Item]) -> Iterator[Item]:
        """Keeps rows of a lane, and yields parts for as long as all lanes have their rows, or have ended."""
        for item in items:
            self._held[index].add(item)
        while not self.done and self._lacking() is None:
            rows = self._next_rows()
            if rows:
                yield self._put(rows)
            elif self._failed or not (self._done or self._is_empty()):
                return
            self.done = not rows or self._done == self.steps.most

    def _is_empty(self) -> bool:
        """Returns whether an epoch without a step is right; False as long as more rows have to come to tell.

        Raises:
            DataError: The plan has a step.
        """
        rows = sum(held.rows for held in self._held)
        if rows >= (self.steps.size * len(self.lanes) if self.drop_remainder else 1):
            why = f"a lane has ended with fewer than {self.steps.size:,} rows, and others have {rows:,}"
            raise no_step(why)
        return not any(map(self._goes_on, range(len(self.lanes))))

    def _most_rows(self) -> int:
        """Returns the rows of each lane in the next part, if no lane ends."""
        size, most, filled = self.steps.size, self.steps.most, self.steps.filled_from
        # Fewer after a resume within a window.
        rows = self._part_steps * size - self._done % (self._multiple * size)
        if self._failed:
            rows = min(rows, *(self._left(index) for index in self._failed)) // size * size
        if filled is not None and self._done < filled:
            most = filled
        return rows if most is None else max(0, min(rows, most - self._done))

    def _next_rows(self) -> int:
        """Returns the rows of each lane in the next part: of whole steps, or of one that is short or filled up."""
        rows, size = self._most_rows(), self.steps.size
        if self._done == self.steps.filled_from:
            return rows
        left = min(rows, *(self._left(index) for index in range(len(self.lanes))))
        return left // size * size or (0 if self.steps.drops else left)

    def _left(self, index: int) -> int:
        """Returns the rows that a lane has and did not put out."""
        return self._held[index].rows - self._again[index]

    def _put(self, rows: int) -> Item:
        """Returns the part with so many rows of each lane, and goes on after it."""
        counts = [min(rows, self._left(index)) for index in range(len(self.lanes))]
        self._done += rows
        taken = [self._pop(index, count) for index, count in enumerate(counts)]
        num_bytes = sum(chunk.nbytes for some, _ in taken for chunk in some)
        part = LaneRows([some for some, _ in taken], counts, rows, num_bytes)
        tickets: tuple[Ticket, ...] = tuple(ticket for _, some in taken for ticket in some)
        fitting = self.width.rows_in(self.part_bytes, num_bytes, part.num_rows) // len(self.lanes)
        steps = max(self._least_steps, min(fitting // self.steps.size, GROWTH * self._part_steps))
        self._part_steps = steps - steps % self._multiple
        for held in () if self._cutters else self._held:  # a cutter does so itself
            if held.rows < self._most_rows():
                held.compact()  # the next chunk may come only while this one is still there
        return Item(part, self._position(), tickets, Origin(self._done))

    def _pop(self, index: int, rows: int) -> tuple[list[pa.RecordBatch], list[Ticket]]:
        """Takes rows of a lane; if it has none, the row that it repeats."""
        held = self._held[index]
        if self._again[index] and rows:
            held.pop(1)
        self._again[index] = self._done == self.steps.repeats_from
        return held.pop(max(1, rows), keeps_last=self._again[index])

    def _position(self) -> Position:
        places = zip(self.lanes, self._held, self._again, strict=True)
        marks = (LaneMark(lane, *held.mark(), again) for lane, held, again in places)
        return LanesPosition(-(-self._done // self.steps.size), tuple(marks)).position()


@dataclass(kw_only=True, eq=False)
class TurnsKernel(LanesBoundary):
    """Takes one batch of each lane in turn. The lane with the fewest batches is next, of several the first one.

    Attributes:
        joins: Whether the batches of a turn are put out as `Parts` of one batch.
    """

    joins: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        self._marks = [LaneMark(lane, None, 0) for lane in self.lanes]  # their offsets count batches
        self._turn: list[Item] = []
        self._number = 0

    def open(self, position: Position, epoch: int) -> Position:
        self._epoch = epoch
        if position is not None:
            at = lanes_of(position)
            marks = {mark.lane: mark for mark in at.lanes}
            self._number, self._marks = at.step, [marks[lane] for lane in self.lanes]
            self._starts = [mark.before for mark in self._marks]
        return None

    def next_input(self) -> StreamHandle | None:
        """Returns the stream of the next lane; without a step so far also of one that tells whether there should be any."""
        if self._is_over() and self._number:
            return None
        left = (index for index, mark in enumerate(self._marks) if not mark.spent)
        turn = min(left, key=lambda index: self._marks[index].offset, default=None)
        return None if turn is None else self._stream(turn)

    def _is_over(self) -> bool:
        """Whether all lanes delivered what they may, or one of them ends the others."""
        fewest = min(mark.offset for mark in self._marks)
        dry = any(mark.spent and mark.offset == fewest for mark in self._marks)
        return dry or (self.steps.most is not None and fewest >= self.steps.most)

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        index = self._index_of(stream)
        mark = self._marks[index] = self._marks[index]._replace(before=item.position)
        if not item.chunk.num_rows:
            return
        if self._is_over():
            raise no_step("a lane has ended before its first batch, and others have one")
        self._marks[index] = mark._replace(offset=mark.offset + 1)
        if self.joins:
            self._turn.append(item)
            if len(self._turn) < len(self.lanes):
                return
            chunks, tickets = [each.chunk for each in self._turn], tuple(each.ticket for each in self._turn)
            item = item._replace(chunk=Parts(chunks, sum(chunk.num_rows for chunk in chunks)), ticket=tickets)
            self._turn.clear()
        self._number += 1
        position = LanesPosition(self._number, tuple(self._marks)).position()
        yield item._replace(position=position, origin=Origin(self._number - 1))

    def ended(self, stream: StreamHandle) -> None:
        index = self._index_of(stream)
        self._streams[index], self._marks[index] = None, self._marks[index]._replace(spent=True)
