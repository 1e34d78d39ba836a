"""`SerialQueue`: one call at a time, in order; `Tail`: the last serial kernel, on the consumer's thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from arrowflow.bad_rows import LeftOut
from arrowflow.executor.failure import cause_of, located
from arrowflow.executor.limits import MAX_ITEMS_PER_CALL, fits
from arrowflow.executor.stages.base import BLOCKED, DONE, Blocked, Done, Look, Queue, Ready, Stream
from arrowflow.executor.stages.serial_caller import SerialCaller
from arrowflow.kernels.items import PAUSE, Item, Slices
from arrowflow.kernels.kinds import SerialKernel
from arrowflow.physical.tuning import Gate


class SerialQueue(Queue):
    """The queue of one serial kernel."""

    caller: SerialCaller

    def __init__(self, stream: Stream, index: int, kernel: SerialKernel) -> None:
        super().__init__(stream, index)
        self.caller = SerialCaller(self, kernel)
        self._ready = Ready(self)

    @property
    def has_begun_all(self) -> bool:
        """Whether all that it may still do is to put out what it holds."""
        return self.ended or (self.upstream is not None and self.upstream.has_begun_all)

    def look(self, room: float = math.inf) -> Look:
        """One call at a time, when there is input and room; cheap kernels need no more ceremony."""
        if self.ended:
            return DONE
        if self.running:
            return BLOCKED[Gate.CALLS]
        caller = self.caller
        if caller.kernel.done and caller.iterator is None:
            return Done(True)
        if not caller.holds_work and (look := self._without_input()) is not None:
            return look
        if not fits(self.limits.weight, room):
            return BLOCKED[Gate.TOKEN]
        return self._without_room() or self._ready

    def _without_room(self) -> Blocked | None:
        """Returns whether what a call makes does not fit.

        The stage before this one no longer counts the chunks that this stage put out. So with chunks that wait for the
        next stage there has to be room even if this one makes nothing: that stage could be the head of its line again and
        again.
        """
        out, limits, made = self.out, self.limits, self.sizes.chunk_bytes or 0
        if len(out) >= limits.max_ready_items:
            return BLOCKED[Gate.CHUNKS]
        if not out and not made:
            return None
        ledger, share = self.run.ledger, limits.ledger_share if out else 1.0
        if ledger.fits(made, share) or (not out and self.may_exceed(())):
            return None
        return Blocked(Gate.BYTES, max(0.0, share * ledger.budget - made))

    def _without_input(self) -> Look | None:
        """Returns what a look finds where there is nothing to do; None where there is input, or a last call to make."""
        upstream = self.upstream
        assert upstream is not None
        if upstream.out:
            return None
        if not upstream.ended:
            return self.waits
        return Done(True, upstream.error) if upstream.error is not None or self.caller.finished else None

    def start(self, ready: Ready) -> SerialCaller:
        """Takes input items for one call."""
        self.running = 1
        call, limits, ledger = self.caller, self.limits, self.run.ledger
        call.room = limits.max_ready_items - len(self.out)
        call.spare_bytes = limits.ledger_share * ledger.budget - ledger.used
        if self.sizes.chunk_bytes:
            call.reserved = self.sizes.chunk_bytes
            ledger.reserve(call.reserved)
        if call.begun:
            self._take_input(call)
        return call

    def _take_input(self, call: SerialCaller) -> None:
        upstream, inbox = self.upstream, call.inbox
        assert upstream is not None
        out = upstream.out
        if not out and not call.holds_work:
            call.finishing = True
        while out and len(inbox) < MAX_ITEMS_PER_CALL:
            inbox.append(out.popleft())

    def complete(self, call: SerialCaller) -> None:
        """Puts the results out and ends the stage when the kernel is done or failed."""
        self.running = 0
        ledger = self.run.ledger
        if call.reserved:
            ledger.unreserve(call.reserved)
            call.reserved = 0
        if self.ended:
            self._let_go()
            return
        made = 0
        for item, buffers in call.made:
            if buffers:
                ticket = ledger.charge(buffers)
                made += ticket.num_bytes
                item = item._replace(ticket=ticket)
            self.put(item)
        call.made.clear()
        if made:
            self.bytes += made
            self.sizes.learn_stream(made)
        if call.failure is not None:
            self.end(call.failure)
        elif call.iterator is None and (call.kernel.done or (call.finished and not call.inbox)):
            self.end()

    def _let_go(self) -> None:
        if not self.running:
            self.close_later(self.caller.let_go())

    @property
    def left_out(self) -> LeftOut:  # type: ignore[override]
        """Bad rows that its kernel left out; the kernel counts them, on any thread."""
        return self.caller.kernel.left_out


class Tail:
    """Runs the last serial kernel, on the consumer's thread (rule 4), one result at a time.

    No worker runs its stage. A thread that drops the stage takes the kernel away; the engine refuses later requests.
    """

    def __init__(self, stage: SerialQueue) -> None:
        self.stage = stage
        stage.caller.kernel.lazy = True
        self.iterator: Iterator[Item] | None = None
        self._finished = False

    def next_item(self, take: Callable[[], Item | None]) -> Item | None:
        """Returns the kernel's next result with rows; takes input as needed."""
        while True:
            item = self._result()
            if item is not None or self._finished or self.stage.caller.kernel.done:
                return item
            self._feed(take())  # a name for the item here would hold its rows until the next one has come

    def _feed(self, item: Item | None) -> None:
        kernel = self.stage.caller.kernel
        if item is not None:
            self.iterator = self.stage.caller.pushed(item)
        else:
            self._finished = not kernel.done
            self.iterator = kernel.finish()

    def _result(self) -> Item | None:
        if self.iterator is None:
            return None
        try:
            for item in self.iterator:
                if item is PAUSE:
                    continue  # earlier results are with the consumer already
                rows = item.chunk.num_rows
                if rows:
                    self.stage.chunks += item.chunk.batches if type(item.chunk) is Slices else 1
                    self.stage.rows += rows
                    return item
        except Exception as error:
            raise located(error, self.stage.caller.operator) from cause_of(error)
        self.iterator = None
        return None
