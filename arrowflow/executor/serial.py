"""`SerialStage`, one call at a time in order, and `BoundaryStage`, which pulls from streams of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from arrowflow.errors import BudgetError
from arrowflow.executor.failure import located
from arrowflow.executor.ledger import buffers_of
from arrowflow.executor.stage import Stage
from arrowflow.kernels.context import StreamHandle
from arrowflow.kernels.items import PAUSE, Item
from arrowflow.kernels.kinds import BoundaryKernel, SerialKernel
from arrowflow.plan.position import Position

if TYPE_CHECKING:
    from arrowflow.executor.stream import Stream

MAX_ITEMS_PER_CALL = 16
"""Input items that one call takes: enough to pay the scheduling once for many cheap items."""

MARGIN = 1.5
"""By what the budget that an error names is more than what is known: rows that come later may be wider."""

NEGLIGIBLE_BYTES = 1 << 20
"""Bytes beyond the budget that end no run, however small its budget is."""


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

    def wants(self) -> StreamHandle | None:
        """Wants nothing."""
        return None

    def ended(self, stream: StreamHandle) -> None:
        """Knows no stream."""


GONE = Gone()


class SerialStage(Stage):
    """Runs one serial kernel. Its iterator is suspended whenever what it put out has no room."""

    def __init__(
        self,
        stream: Stream,
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

    @property
    def exhausted(self) -> bool:
        """Whether all that it may still do is to put out what it holds."""
        return self.ended or (self.upstream is not None and self.upstream.exhausted)

    def lacks(self, source: Stage) -> bool:
        """Whether all that it took is used up."""
        return not self.running and self.iterator is None and not self.inbox

    def can_start(self) -> bool:
        """One call at a time, when there is input and room; cheap kernels need no more ceremony."""
        if self.running or self.ended:
            return False
        if self.kernel.done and self.iterator is None:
            self.end()
            return False
        # What it put out is not its upstream's any more, which could so be head of its line again and again.
        limits = self.limits
        if self.out and (
            len(self.out) >= limits.max_ready_items or not self.engine.ledger.fits(0, limits.ledger_share)
        ):
            return False
        return self.iterator is not None or bool(self.inbox) or not self.begun or self._has_input()

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
        ledger = self.engine.ledger
        spare_bytes = self.limits.ledger_share * ledger.budget - ledger.used
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
                buffers = buffers_of(item.chunk) if item.ticket is None else ()
                self.new_bytes += sum(size for _, size in buffers)
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
        return self.kernel.push(item)

    def complete(self, call: SerialStage) -> None:
        """Puts the results out and ends the stage when the kernel is done or failed."""
        self.running = 0
        results, self.results = self.results, []
        self.new_bytes = 0
        if self.ended:
            self._drop_held()
            return
        for item, buffers in results:
            if buffers:
                ticket = self.engine.ledger.charge(buffers)
                self.bytes += ticket.num_bytes
                item = item._replace(ticket=ticket)
            self.put(item)
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
        self.engine.pool.abandoned.add(self.plan_operators, self.iterator)
        self.iterator = None
        self.results.clear()
        self.inbox.clear()
        self.kernel = GONE
        self.failure = None

    def drop(self) -> None:
        """Ends the stage and drops its queues."""
        self.ended = True
        self.error = None
        self.out.clear()
        if not self.running:
            self._drop_held()


class BoundaryStage(SerialStage):
    """Runs a boundary kernel: its input is whichever of its streams the kernel wants next."""

    kernel: BoundaryKernel

    def __init__(self, stream: Stream, index: int, kernel: BoundaryKernel) -> None:
        super().__init__(stream, index, None, kernel)
        self.begun = False
        self.streams: list[Stream] = []
        self.to_begin: set[Stream] = set()  # those that nothing was taken from
        self.largest_bytes = 0  # of a chunk that was taken
        self.current: Stream | None = None
        self.told_ahead: Stream | None = None
        self.told_failed: list[Stream] = []

    @property
    def exhausted(self) -> bool:
        """Whether it opens no further stream and all of its streams have started all their work."""
        return self.ended or (self.kernel.exhausted and all(stream.exhausted for stream in self.streams))

    def lacks(self, source: Stage) -> bool:
        """Whether all that it took is used up, and that stream is the one which the kernel wants next."""
        return super().lacks(source) and self.current is not None and self.current.last is source

    def _has_input(self) -> bool:
        """Finds the stream to pull from; closes those that have ended, which may lead to the next one."""
        while True:
            if self.current is None or self.kernel.any_ready:
                self.current = self._wanted()
                if self.current is None:
                    return self._input_ended(None)
            last = self.current.last
            if last.out:
                return True
            if not last.ended:
                if self.told_ahead is not self.current and self.current.exhausted:
                    self.told_ahead = self.current
                    self.kernel.ahead()
                return self._input_ended(error) if (error := self._beyond_budget(self.current)) else False
            if last.error is not None:
                return self._failed(self.current, last.error)
            ended, self.current = self.current, None
            self.close_stream(ended)
            self.iterator = self.kernel.ended(ended)
            if self.iterator is not None:
                return True

    def leaves_room(self, wanting: Stream, num_bytes: int, room: int) -> bool:
        """Whether `room` is enough for what it may take of other streams before it lets go of what it holds.

        A chunk of theirs is `num_bytes` or more. Two are added: one of which slices still wait downstream, and the
        scratch of the call that makes the next one.
        """
        held, size = self.kernel.chunks_held, max(num_bytes, self.largest_bytes)
        if not held or (held * len(self.streams) + 2) * size <= room:
            return True
        others = (stream for stream in self.streams if stream is not wanting and not stream.ended)
        chunks = sum(max(0, held - len(stream.last.out)) for stream in others)
        return (chunks + 2) * size <= room

    def _beyond_budget(self, wanted: Stream) -> BudgetError | None:
        """Returns an error where the budget is used up, with rows that the kernel keeps back, and it needs more.

        One chunk may go beyond the budget, but not one of each input: the calls that make what is wanted do not count.
        """
        ledger, kernel = self.engine.ledger, self.kernel
        if ledger.fits(-NEGLIGIBLE_BYTES) or not wanted.allocates:
            return None
        sizes = [ledger.made_bytes(ticket) for held in kernel.held() for ticket in held.tickets()]
        used = ledger.used - ledger.lent
        in_flight = sum(stage.reserved_bytes for stage in wanted.stages)
        if used - in_flight <= ledger.budget + NEGLIGIBLE_BYTES or not any(sizes):
            return None
        chunks = max(len(sizes) + 1, len(self.streams) * kernel.chunks_held)
        known = max(used - sum(sizes), kernel.following_bytes()) + chunks * max(sizes)
        needs = int(MARGIN * max(known, used))
        error = BudgetError(
            f"ram_budget={ledger.budget:,} bytes is too little for what this pipeline needs, {needs:,} bytes with a "
            f"margin, by what it has made so far: of {len(self.streams)} inputs {len(sizes)} chunks are kept back, up "
            f"to {max(sizes):,} bytes each, and {used:,} bytes are used in all; raise the budget, open fewer inputs at a time, or make "
            "their chunks smaller (max_chunk_rows, row groups)"
        )
        error.locate(operator=self.operator)
        return error

    def _failed(self, stream: Stream, error: BaseException) -> bool:
        """Whether the kernel has something to put out before the error of a stream; ends the stage when not."""
        if stream in self.told_failed:
            return self._input_ended(error)
        self.told_failed.append(stream)
        self.iterator = self.kernel.failed(stream)
        if self.iterator is None:
            return self._input_ended(error)
        self.current = None
        return True

    def _wanted(self) -> Stream | None:
        handle = self.kernel.wants()
        return None if handle is None else self.stream_of(handle)

    def stream_of(self, handle: StreamHandle) -> Stream:
        """Returns the stream that a handle names."""
        return next(stream for stream in self.streams if stream is handle)

    def _take_input(self) -> None:
        if self.current is None or (self.iterator is not None and not self.kernel.reads_runs):
            return  # once it has put out what it made of the last item, it may want another stream
        limit = MAX_ITEMS_PER_CALL if self.kernel.reads_runs else 1
        out = self.current.last.out
        self.to_begin.discard(self.current)
        if out:
            self.largest_bytes = max(self.largest_bytes, self.engine.ledger.made_bytes(out[0].ticket))
        while out and len(self.inbox) < limit:
            self.inbox.append(out.popleft())

    def complete(self, call: SerialStage) -> None:
        """As for every serial stage; then the kernel may want another stream."""
        super().complete(call)
        if not self.kernel.reads_runs and self.iterator is None and not self.inbox:
            self.current = None

    def _push(self, item: Item) -> Iterator[Item]:
        assert self.current is not None
        return self.kernel.push_from(self.current, item)

    def close_stream(self, stream: Stream) -> None:
        """Drops a stream."""
        self.streams.remove(stream)
        self.to_begin.discard(stream)
        self.engine.remove(stream)

    def end(self, error: BaseException | None = None) -> None:
        """Ends the stage and drops its streams."""
        super().end(error)
        self._drop_streams()

    def _drop_streams(self) -> None:
        self.current = None
        self.told_failed.clear()
        for stream in list(self.streams):
            self.close_stream(stream)

    def drop(self) -> None:
        """Ends the stage and drops its streams."""
        super().drop()
        self._drop_streams()
