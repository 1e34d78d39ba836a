"""`SerialCaller`: runs the one kernel of a stage that sees all items in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, cast

from arrowflow.bad_rows import LeftOut
from arrowflow.executor.failure import located
from arrowflow.executor.ledger import Buffers, buffers_of
from arrowflow.executor.stages.base import Queue, Stream
from arrowflow.executor.stages.caller import Caller
from arrowflow.kernels.items import PAUSE, Item, Origin
from arrowflow.kernels.kinds import BoundaryKernel, SerialKernel
from arrowflow.plan.position import Position


class Gone(SerialKernel):
    """Stands where the kernel of an ended stage was: what that one held back is let go with it."""

    done = True

    def __init__(self, left_out: LeftOut) -> None:
        self.left_out = left_out

    def open(self, position: Position, epoch: int) -> Position:
        raise NotImplementedError

    def push(self, item: Item) -> Iterator[Item]:
        return iter(())


class SerialCaller(Caller):
    """Runs one serial kernel, one call at a time. It is the call, too: suspended whenever what it put out has no room.

    All of it belongs to the thread that runs the call, and to the queue between two calls.

    Attributes:
        kernel: The kernel.
        operator: Its operator, for errors.
        source: The stream that its input is of, for a boundary.
        inbox: Items that it has not come to yet.
        iterator: The rest of the item that it came to last.
        made: Its results, with the buffers that are not charged yet.
        failure: The exception of the kernel.
        begun: Whether a boundary has put out what there is before any input.
        finishing: Whether the input is over, and a last call has to be made.
        finished: Whether that was made.
        room: Results that the call may make.
        spare_bytes: Bytes of new chunks that it may make, but for the last one.
        reserved: Bytes that are reserved for these.
    """

    def __init__(self, queue: Queue, kernel: SerialKernel) -> None:
        super().__init__(queue)
        self.kernel = kernel
        self.operator = self.plan.kernels[0].operator
        self._title = "+".join(self.plan.titles)
        self.source: Stream | None = None
        self.inbox: deque[Item] = deque()
        self.iterator: Iterator[Item] | None = None
        self.made: list[tuple[Item, Buffers]] = []
        self.failure: BaseException | None = None
        self.begun = self.plan.kind == "serial"
        self.finishing = self.finished = False
        self.room = self.reserved = 0
        self.spare_bytes = 0.0
        self._new_bytes = 0

    @property
    def holds_work(self) -> bool:
        """Whether there is something to do before it takes input."""
        return self.iterator is not None or bool(self.inbox) or not self.begun

    def execute(self, call: SerialCaller) -> None:
        """Pushes until the input of this call is used up or there is no room for more results. Never raises."""
        try:
            if self.run.timeline is None:
                self._run()
            else:
                self._timed(self._title, self._run)
        except BaseException as error:
            self.failure = located(error, self.operator)

    def _run(self) -> None:
        made = self.made
        self._new_bytes = 0
        while len(made) < self.room and (not made or self._new_bytes <= self.spare_bytes):
            if not self._advance():
                break

    def _advance(self) -> bool:
        """Makes one result, or opens the next iterator. False: nothing to do with what is here."""
        if self.iterator is not None:
            item = next(self.iterator, None)
            if item is PAUSE:
                return not self.made
            if item is None:
                self.iterator = None
            else:
                # A kernel that made a new chunk leaves its charging to the queue.
                buffers = buffers_of(item.chunk) if item.ticket is None else {}
                self._new_bytes += sum(buffers.values())
                self.made.append((item, buffers))
        elif self.kernel.done:
            return False
        elif not self.begun:
            self.begun = True
            self.iterator = cast(BoundaryKernel, self.kernel).begin()
        elif self.inbox:
            self.iterator = self.pushed(self.inbox.popleft())
        elif self.finishing and not self.finished:
            self.finished = True
            self.iterator = self.kernel.finish()
        else:
            return False
        return True

    def pushed(self, item: Item) -> Iterator[Item]:
        """Returns what the kernel makes of an item."""
        kernel, source = self.kernel, self.source
        if source is not None:
            return cast(BoundaryKernel, kernel).push_from(source, item)
        made = kernel.push(item)
        return made if self.run.bad_rows is None else self._noting(made, item.origin)

    def _noting(self, made: Iterator[Item], origin: Origin) -> Iterator[Item]:
        kernel = self.kernel
        noted = kernel.left_out
        try:
            for item in made:
                noted = self._note(kernel.left_out, noted, origin)
                yield item
        finally:
            self._note(kernel.left_out, noted, origin)

    def _note(self, now: LeftOut, noted: LeftOut, origin: Origin) -> LeftOut:
        """Notes the bad rows that were left out since the latest note."""
        if now is not noted:
            more = LeftOut(now.rows - noted.rows, now.parts - noted.parts)
            self.note_bad_rows(more, (origin.split, origin.piece))
        return now

    def let_go(self) -> Any:
        """Lets go of the kernel and all that it holds, and returns the iterator that is left."""
        iterator, self.iterator = self.iterator, None
        self.made.clear()
        self.inbox.clear()
        self.kernel = Gone(self.kernel.left_out)
        self.source = self.failure = None
        return iterator
