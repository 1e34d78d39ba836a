"""The kernel that `sample_from_datasets` and `choose_from_datasets` share: rows of several inputs, in an order by numbers.

The numbers come in blocks of `BLOCK_ROWS` rows of the output, so nothing depends on how the inputs are cut. There are
two kernels, as in `shuffle`. A boundary collects rows as slices without a copy. A stateless kernel gathers these rows,
so that the next rows are made while others are consumed.

One call gathers a part of a block. A part starts small, so that the first batch comes soon. It grows to a whole block
or to `PART_BYTES` by the schema as written, whichever is less; only texts and lists wider than expected are measured.
A part also ends where a row of an ended input is needed. Then either all ends there, or the rest of the block is
decided anew without that input. The error of a failed input comes there: after the rows that can be made without it.

An input that begins again and is small comes from memory: to open it takes 0.4 ms, and a part would end with its rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from arrowflow.errors import ArrowflowError
from arrowflow.kernels.context import Context, StreamHandle
from arrowflow.kernels.held import Held
from arrowflow.kernels.items import Item, Origin
from arrowflow.kernels.kinds import BoundaryKernel
from arrowflow.ops.combine.mix_operator import (
    BLOCK_ROWS,
    PART_BYTES,
    Choices,
    MixedRows,
    MixOperator,
    MixPosition,
)
from arrowflow.ops.combine.same_columns import Agreement
from arrowflow.plan.position import Mark, Position

FIRST_ROWS = 64
GROWTH = 4
"""Rows of the first part; the largest ratio of a part to the part before."""

SMALL_BYTES = 1 << 20
SMALL_CHUNKS = 64
"""Bytes of all inputs that are kept, to begin again, each with its share; chunks of one of them."""

MAX_DATASETS = 100
"""The most inputs: with a chain of operators each is some 500 bytes of a state, which has to stay under 64 KiB."""

Draws = npt.NDArray[Any]
"""For each row the value that decides its choice."""


class MixKernel(BoundaryKernel):
    """Collects the rows of each part of a block, input after input, and no more rows than the part needs.

    A part may begin in one chunk of an input and end in the next chunk.

    Args:
        node: The operator.
        context: The stream's.
        stop: Whether the output ends where a row of an ended input is needed.
        again: Whether an ended input begins again, until all have ended.
    """

    chunks_held = 2

    def __init__(self, node: MixOperator, context: Context, *, stop: bool, again: bool = False) -> None:
        self._num_sources = num_inputs = node.num_sources
        self._opened: Sequence[int] = range(num_inputs)  # the inputs that rows may come from
        self._agreement = Agreement(node.schema)
        self._width = node.width
        self._stop = stop
        self._again = again
        self._had_rows: set[int] = set()  # inputs that may begin again
        self._empty: set[int] = set()  # inputs that are left out from here on
        self._ends = [Mark(None, 0)] * num_inputs  # of inputs that have begun again
        # What small inputs gave since their start, and those of them that come from there now.
        self._small: dict[int, list[Item]] = {number: [] for number in range(num_inputs)} if again else {}
        self._repeated: set[int] = set()
        self._context = context
        self._epoch = 0
        self._begins = True  # an item without rows gives the position of the start, which holds the cursor
        self._streams: dict[int, StreamHandle] = {}
        self._held = [Held() for _ in range(num_inputs)]
        self._starts: list[Position] = [None] * num_inputs
        self._ended: set[int] = set()  # also by an error
        self._failed: dict[int, StreamHandle] = {}
        self._broken: StreamHandle | None = None  # whose error comes next
        self._dropped: set[int] = set()
        self._block = 0
        self._row = 0  # row of the block, up to which all rows were emitted
        # The rest of the block; None where the next block begins.
        self._draws: Draws | None = None
        self._choices: Choices = np.zeros(0, np.uint16)
        self._most = FIRST_ROWS  # rows of the next part
        self._limit = 0  # row of the block at which the next part ends
        self._needs = [0] * num_inputs  # rows of each input in the next part
        self._lacks: int | None = None  # the input for whose next row the part ends, since it lacks it
        self._failure: ArrowflowError | None = None  # the error after the last row of the block

    # ------------------------------------------------------------------ draws of the operators

    @abstractmethod
    def _draw(self) -> Draws | None:
        """Returns the draws of the current block, no more than have been used at the end; None if they are still to come."""

    def _has_more(self) -> bool:
        """Whether the current block goes on behind the draws that it has."""
        return False

    @abstractmethod
    def _choose(self, draws: Draws) -> Choices:
        """Returns the inputs for these draws, without the dropped inputs."""

    def _cursor(self) -> Position:
        """Returns the place from which the draws of the current block are made again."""
        return None

    def _restore_cursor(self, cursor: Position) -> None:
        """Receives the value that `_cursor` returned when the state was taken."""

    def _next_block(self) -> None:
        """Called when a block is complete."""

    # ------------------------------------------------------------------ inputs to pull from

    def open(self, position: Position, epoch: int) -> Position:
        self._epoch = epoch
        self._begins = position is None
        if position is not None:
            at = MixPosition._make(position)
            self._block, self._row, self._most = at.block, at.row, at.most
            self._held = [Held(*mark) for mark in at.marks]
            self._starts = [before for before, _ in at.marks]
            self._dropped = set(at.dropped)
            self._had_rows = {number for number, mark in enumerate(at.marks) if tuple(mark) != (None, 0)}
            self._empty = self._dropped - self._had_rows if self._again else set(self._dropped)
            self._small = {number: [] for number in self._small.keys() - self._had_rows}
            self._restore_cursor(at.cursor)
            self.done = self._is_over()
        return None

    def begin(self) -> Iterator[Item]:
        return self._parts()

    def next_input(self) -> StreamHandle | None:
        """Returns the stream of the first input that lacks rows of the part; None at the end."""
        if self.done or self._broken is not None:
            return self._broken
        if not self._streams:
            for number in self._opened:
                if number not in self._empty:
                    self._streams[number] = self._context.open(number, self._epoch, self._starts[number])
        lacking = self._lacking()
        return None if lacking is None else self._streams[lacking]

    def held(self) -> list[Held]:
        return self._held

    def following_bytes(self) -> int:
        """Returns the bytes of two parts: one part is gathered while the other is consumed."""
        widest = max(held.row_bytes() for held in self._held)
        return 2 * min(PART_BYTES, int(BLOCK_ROWS * widest))

    def _lacking(self) -> int | None:
        """Returns the first input to pull from; None if all rows of the part have come."""
        pairs = enumerate(zip(self._held, self._needs, strict=True))
        return next((number for number, (held, need) in pairs if held.rows < need), None)

    # ------------------------------------------------------------------ chunks that come

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        number = self._number_of(stream)
        if item.chunk.num_rows:
            self._had_rows.add(number)
        item = self._agreement.conforming(item, number)
        self._held[number].add(item)
        if (items := self._small.get(number)) is not None:
            items.append(item)
            pinned = sum(each.chunk.get_total_buffer_size() for each in items)
            if pinned > SMALL_BYTES // self._num_sources or len(items) > SMALL_CHUNKS:
                del self._small[number]
        return self._parts()

    def ended(self, stream: StreamHandle) -> Iterator[Item]:
        """Cuts the part where the input that has ended lacks a row."""
        number = self._number_of(stream)
        self._ended.add(number)
        self._cut(number)
        return self._parts()

    def failed(self, stream: StreamHandle) -> Iterator[Item]:
        """Cuts the part as where an input ends; the error comes after the part."""
        self._failed[self._number_of(stream)] = stream
        return self.ended(stream)

    def _number_of(self, stream: StreamHandle) -> int:
        return next(number for number, one in self._streams.items() if one is stream)

    # ------------------------------------------------------------------ parts

    def _parts(self) -> Iterator[Item]:
        """Yields parts for as long as all their rows have come."""
        while not self.done and self._broken is None and self._begun() and self._lacking() is None:
            yield from self._put()

    def _begun(self) -> bool:
        """Begins the next block if no block is begun; False if it cannot begin yet, or if all blocks are done."""
        if self._draws is not None:
            return True
        draws = self._draw()
        if draws is None:
            return False
        self._draws = draws[self._row :]
        if not len(self._draws):
            self._end()
            return False
        self._decide()
        return True

    def _end(self) -> None:
        if self._failure is not None:
            raise self._failure
        self.done = True

    def _decide(self) -> None:
        """Decides the rest of the block, with the remaining inputs."""
        assert self._draws is not None
        self._choices = self._choose(self._draws)
        self._frame()

    def _frame(self) -> None:
        """Sets the next part."""
        self._lacks = None
        self._limit_to(min(len(self._choices), self._most))
        for number in sorted(self._ended):
            self._cut(number)

    def _limit_to(self, limit: int) -> None:
        self._limit = limit
        counts = np.bincount(self._choices[:limit], minlength=self._num_sources + 1)
        self._needs = counts[: self._num_sources].tolist()
        for number in self._repeated:
            held = self._held[number]
            while held.rows < self._needs[number]:
                held.restart()
                for item in self._small[number]:
                    held.add(item)

    def _cut(self, number: int) -> None:
        """Cuts the part before the first row that an ended input lacks."""
        if self._held[number].rows < self._needs[number]:
            rows = np.flatnonzero(self._choices[: self._limit] == number)
            self._limit_to(int(rows[self._held[number].rows]))
            self._lacks = number

    def _put(self) -> Iterator[Item]:
        """Yields the part, and goes on after it."""
        choices, block, rows = self._choices[: self._limit], self._block, sum(self._needs)
        before = self._position()
        taken = [held.pop(need) for held, need in zip(self._held, self._needs, strict=True) if need]
        chunks = [chunk for some, _ in taken for chunk in some]
        num_bytes = sum(chunk.nbytes for chunk in chunks)
        if rows:
            fitting = self._width.rows_in(PART_BYTES, num_bytes, rows)
            self._most = min(BLOCK_ROWS, fitting, GROWTH * self._most)
        self._go_on()
        if rows and self._begins:
            self._begins = False
            yield Item(chunks[0].slice(0, 0), before, (), Origin(block))
        if rows:
            kept = choices if rows == len(choices) else choices[choices != self._num_sources]
            tickets = tuple(ticket for _, some in taken for ticket in some)
            origin = Origin(block, 0, last=self.done or self._block > block)
            yield Item(MixedRows(chunks, kept, rows, num_bytes), self._position(), tickets, origin)
        if self._broken is None and self._draws is not None and not len(self._draws):
            self._end()

    def _go_on(self) -> None:
        """Finds the next work after the part: more of the block, the next block, or the end."""
        assert self._draws is not None
        self._row += self._limit
        self._draws, self._choices = self._draws[self._limit :], self._choices[self._limit :]
        if self._lacks is not None:
            self._leave(self._lacks)
        elif self._waits():
            self._wait()
        elif len(self._draws):
            self._frame()
        elif self._failure is None:
            self._block, self._row = self._block + 1, 0
            self._wait()
            self._next_block()

    def _waits(self) -> bool:
        """Whether the next part needs draws of the block that are still to come."""
        assert self._draws is not None
        wanted = min(self._most, BLOCK_ROWS - self._row)
        return len(self._draws) < wanted and self._failure is None and self._has_more()

    def _wait(self) -> None:
        self._draws, self._needs = None, [0] * self._num_sources

    def _leave(self, number: int) -> None:
        """Ends, or goes on without the input that lacks a needed row, unless that input failed."""
        self._broken = self._failed.get(number)
        if self._broken is not None:
            return
        self._dropped.add(number)
        self.done = self._stop or self._is_over()
        if self.done:
            return
        if self._again and number in self._had_rows:
            self._begin_again(number)
        else:
            self._empty.add(number)
            self._held[number] = Held()
            if self._waits():
                self._wait()
            else:
                self._decide()

    def _begin_again(self, number: int) -> None:
        """Opens an input that has ended once more. The draws stay; a state holds its end, until a row of it is taken."""
        self._ended.discard(number)
        self._ends[number] = self._held[number].mark()
        if number in self._small:
            self._repeated.add(number)
        else:
            self._had_rows.discard(number)
            self._held[number] = Held()
            self._streams[number] = self._context.open(number, self._epoch, None)
            self._small[number] = []
        self._frame()

    def _is_over(self) -> bool:
        """Whether all inputs have run out that rows may come from."""
        return self._dropped.issuperset(self._opened)

    def _position(self) -> Position:
        found = zip((held.mark() for held in self._held), self._ends, strict=True)
        marks = tuple(end if tuple(mark) == (None, 0) else mark for mark, end in found)
        dropped = () if self._stop else tuple(sorted(self._dropped))
        return MixPosition(marks, self._cursor(), self._block, self._row, self._most, dropped)
