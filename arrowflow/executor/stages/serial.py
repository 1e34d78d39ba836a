"""`SerialStage`: one call at a time, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, cast

from arrowflow.bad_rows import LeftOut
from arrowflow.executor.failure import located
from arrowflow.executor.ledger import buffers_of
from arrowflow.executor.limits import MAX_ITEMS_PER_CALL
from arrowflow.executor.stages.base import Stage, StreamView
from arrowflow.kernels.context import StreamHandle
from arrowflow.kernels.items import PAUSE, Item, Origin
from arrowflow.kernels.kinds import BoundaryKernel, SerialKernel
from arrowflow.plan.position import Position


class Gone(BoundaryKernel):
    """Stands where the kernel of an ended stage was: what that one held back is let go with it."""

    done = True

    def open(self, position: Position, epoch: int) -> Position:
        """Is never opened."""
        raise NotImplementedError

    def push(self, item: Item) -> Iterator[Item]:
        """Drops the item."""
        return iter(())

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        """Drops the item."""
        return iter(())

    def next_input(self) -> StreamHandle | None:
        """Wants nothing."""
        return None

    def ended(self, stream: StreamHandle) -> None:
        """Knows no stream."""


GONE = Gone()


class SerialStage(Stage):
    """Runs one serial kernel. Its iterator is suspended whenever what it put out has no room."""

    def __init__(
        self,
        stream: StreamView,
        index: int,
        upstream: Stage | None,
        kernel: SerialKernel,
    ) -> None:
        super().__init__(stream, index, upstream)
        self.kernel = kernel
        self.operator = self.plan.kernels[0].operator
        self.begun = True
        self.inbox: deque[Item] = deque()
        # Owned by the running call; by nobody between calls.
        self.iterator: Iterator[Item] | None = None
        self.results: list[tuple[Item, Any]] = []
        self.failure: BaseException | None = None
        self.finishing = False
        self.finished = False
        self.new_bytes = 0  # of the results, in chunks that the kernel made and that are not charged yet
        self.reserved = 0  # for these
        self.sizes = self.host.sizes_of(self.key)

    @property
    def exhausted(self) -> bool:
        """Whether all that it may still do is to put out what it holds."""
        return self.ended or (self.upstream is not None and self.upstream.exhausted)

    def is_starved_by(self, source: Stage) -> bool:
        """Whether all that it took is used up."""
        return not self.running and self.iterator is None and not self.inbox

    def can_start(self) -> bool:
        """One call at a time, when there is input and room; cheap kernels need no more ceremony."""
        if self.running or self.ended:
            return False
        if self.kernel.done and self.iterator is None:
            self.end()
            return False
        if len(self.out) >= self.limits.max_ready_items or not self._has_room():
            return False
        return self.iterator is not None or bool(self.inbox) or not self.begun or self._has_input()

    def _has_room(self) -> bool:
        """Whether what a call makes fits.

        The stage before this one no longer counts the chunks that this stage put out. So with chunks that wait for the
        next stage there has to be room even if this one makes nothing: that stage could be the head of its line again and
        again.
        """
        ledger, made = self.host.ledger, self.sizes.chunk_bytes or 0
        share = self.limits.ledger_share if self.out else 1.0
        self.most_bytes = -1.0
        if not (self.out or made) or ledger.fits(made, share) or (not self.out and self._may_exceed(())):
            return True
        self.most_bytes = max(0.0, share * ledger.budget - made)
        return False

    def _has_input(self) -> bool:
        upstream = self.upstream
        assert upstream is not None
        if upstream.out:
            return True
        if not upstream.ended:
            return False
        return self._input_ended(upstream.error)

    def _input_ended(self, error: BaseException | None) -> bool:
        """Whether a last call has to run; ends the stage when not."""
        if error is None and not self.finished:
            self.finishing = True
            return True
        self.end(error)
        return False

    def start(self) -> SerialStage:
        """Takes input items for one call."""
        self.running = 1
        self.reserved = self.sizes.chunk_bytes or 0
        self.host.ledger.reserve(self.reserved)
        if self.begun:
            self._take_input()
        return self

    def _take_input(self) -> None:
        upstream = self.upstream
        assert upstream is not None
        while upstream.out and len(self.inbox) < MAX_ITEMS_PER_CALL:
            self.inbox.append(upstream.out.popleft())

    def execute(self, call: SerialStage) -> None:
        """Pushes until the input of this call is used up or there is no room for more results."""
        room = self.limits.max_ready_items - len(self.out)
        ledger = self.host.ledger
        spare_bytes = self.limits.ledger_share * ledger.budget - ledger.used + self.reserved
        results = self.results
        try:
            while len(results) < room and (not results or self.new_bytes <= spare_bytes) and self._advance():
                pass
        except BaseException as error:
            self.failure = located(error, self.operator)

    def _advance(self) -> bool:
        """Makes one result, or opens the next iterator. False: nothing to do with what is here."""
        if self.iterator is not None:
            item = next(self.iterator, None)
            if item is PAUSE:
                return not self.results
            if item is None:
                self.iterator = None
            else:
                # A kernel that made a new chunk leaves its charging to the stage.
                buffers = buffers_of(item.chunk) if item.ticket is None else {}
                self.new_bytes += sum(buffers.values())
                self.results.append((item, buffers))
            return True
        if self.kernel.done:
            return False
        if not self.begun:
            self.begun = True
            self.iterator = cast(BoundaryKernel, self.kernel).begin()
            return True
        if self.inbox:
            self.iterator = self._push(self.inbox.popleft())
            return True
        if self.finishing and not self.finished:
            self.finished = True
            self.iterator = self.kernel.finish()
            return True
        return False

    def _push(self, item: Item) -> Iterator[Item]:
        return self.pushed(item)

    def pushed(self, item: Item) -> Iterator[Item]:
        """Returns what the kernel makes of an item."""
        made = self.kernel.push(item)
        return made if self.host.bad_rows is None else self._noting(made, item.origin)

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

    def complete(self, call: SerialStage) -> None:
        """Puts the results out and ends the stage when the kernel is done or failed."""
        self.running = 0
        results, self.results = self.results, []
        self.new_bytes = made = 0
        self.host.ledger.unreserve(self.reserved)
        if self.ended:
            self._drop_held()
            return
        for item, buffers in results:
            if buffers:
                ticket = self.host.ledger.charge(buffers)
                made += ticket.num_bytes
                item = item._replace(ticket=ticket)
            self.put(item)
        if made:
            self.bytes += made
            self.sizes.learn_stream(made)
        if self.failure is not None:
            self.end(self.failure)
        elif self.iterator is None and (self.kernel.done or (self.finished and not self.inbox)):
            self.end()

    def end(self, error: BaseException | None = None) -> None:
        """Ends the stage and lets go of what the kernel holds."""
        super().end(error)
        if not self.running:
            self._drop_held()

    def _drop_held(self) -> None:
        self.host.close_later(self.plan_operators, self.iterator)
        self.iterator = None
        self.results.clear()
        self.inbox.clear()
        self.left_out_so_far = self.left_out
        self.kernel = GONE
        self.failure = None

    @property
    def left_out(self) -> LeftOut:
        """Bad rows that its kernel left out; the kernel counts them, on any thread."""
        return self.left_out_so_far if self.kernel is GONE else self.kernel.left_out

    def drop(self) -> None:
        """Ends the stage and drops its queues."""
        self.ended = True
        self.error = None
        self.out.clear()
        if not self.running:
            self._drop_held()
