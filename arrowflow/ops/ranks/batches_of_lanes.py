"""Whole batches of lanes: joined side by side, or delivered in turn.

They are joined where functions follow `batch`: such a function is called for each lane, so that what it makes does not
depend on the number of processes. They come in turn where an operator makes batches of unequal size, such as
`bucket_by_sequence_length`: such a batch is neither cut nor joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

from arrowflow.kernels.context import Context, StreamHandle
from arrowflow.kernels.cutting import Parts
from arrowflow.kernels.items import Item, Origin
from arrowflow.kernels.kinds import BoundaryKernel
from arrowflow.ops.ranks.steps import Steps, no_step
from arrowflow.plan.position import LaneMark, LanesPosition, Position, lanes_of


@dataclass(eq=False)
class LanesBoundary(BoundaryKernel):
    """Opens the lanes of a rank as streams.

    Attributes:
        context: The stream's.
        lanes: The numbers of the lanes, in order; input number i is lane `lanes[i]`.
        steps: How many rows, or batches, each lane delivers.
        collects: Whether a lane sees all rows before it puts out the first one. Then the first lane does so alone, and fills
            the caches that the others read.
    """

    context: Context
    _: KW_ONLY
    lanes: Sequence[int]
    steps: Steps
    collects: bool

    def __post_init__(self) -> None:
        self._epoch = 0
        # The lanes that were opened, None where one has ended; those after the last one are not open yet.
        self._streams: list[StreamHandle | None] = []
        self._starts: list[Position] = [None] * len(self.lanes)

    def _stream(self, index: int) -> StreamHandle | None:
        """Returns the stream of a lane, which it opens with all others."""
        if index >= len(self._streams):
            stop = 1 if self.collects and not self._streams else len(self.lanes)
            for each in range(len(self._streams), stop):
                self._streams.append(self.context.open(each, self._epoch, self._starts[each]))
        return self._streams[index]


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
        self._parts: list[Item] = []
        self._number = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Restores the place in each lane; `next_input` opens the streams."""
        self._epoch = epoch
        if position is not None:
            at = lanes_of(position)
            marks = {mark.lane: mark for mark in at.lanes}
            self._number, self._marks = at.step, [marks[lane] for lane in self.lanes]
            self._starts = [mark.before for mark in self._marks]
        return None

    def next_input(self) -> StreamHandle | None:
        """Returns the stream of the lane whose turn it is; None at the end."""
        turn = self._turn()
        return None if turn is None else self._stream(turn)

    def _turn(self) -> int | None:
        """Returns the next lane; without a step so far also one that tells whether there should be any."""
        if self._is_over() and self._number:
            return None
        left = (index for index, mark in enumerate(self._marks) if not mark.spent)
        return min(left, key=lambda index: self._marks[index].offset, default=None)

    def _is_over(self) -> bool:
        """Whether all lanes delivered what they may, or one of them ends the others."""
        fewest = min(mark.offset for mark in self._marks)
        dry = any(mark.spent and mark.offset == fewest for mark in self._marks)
        return dry or (self.steps.most is not None and fewest >= self.steps.most)

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        index = self._streams.index(stream)
        mark = self._marks[index] = self._marks[index]._replace(before=item.position)
        if not item.chunk.num_rows:
            return
        if self._is_over():
            raise no_step("a lane has ended before its first batch, and others have one")
        self._marks[index] = mark._replace(offset=mark.offset + 1)
        if not self.joins:
            yield self._made(item)
            return
        self._parts.append(item)
        if len(self._parts) == len(self.lanes):
            parts, self._parts = self._parts, []
            chunks = [part.chunk for part in parts]
            rows = Parts(chunks, sum(chunk.num_rows for chunk in chunks))
            yield self._made(item._replace(chunk=rows, ticket=tuple(part.ticket for part in parts)))

    def _made(self, item: Item) -> Item:
        number, self._number = self._number, self._number + 1
        position = LanesPosition(self._number, tuple(self._marks)).position()
        return item._replace(position=position, origin=Origin(number))

    def ended(self, stream: StreamHandle) -> None:
        index = self._streams.index(stream)
        self._streams[index], self._marks[index] = None, self._marks[index]._replace(spent=True)
