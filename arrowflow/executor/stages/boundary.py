"""`BoundaryQueue`: one call at a time, in order, of a kernel that opens streams and pulls from them."""

from __future__ import annotations

from arrowflow.errors import BudgetError
from arrowflow.executor.limits import BUDGET_MARGIN, MAX_ITEMS_PER_CALL, NEGLIGIBLE_BYTES
from arrowflow.executor.stages.base import Look, Stream, Waits
from arrowflow.executor.stages.serial import SerialQueue
from arrowflow.executor.stages.serial_caller import SerialCaller
from arrowflow.kernels.kinds import BoundaryKernel

NO_TURN = Waits(None)


class BoundaryQueue(SerialQueue):
    """The queue of a boundary kernel: its input is whichever of its streams the kernel wants next."""

    allocates = True

    def __init__(self, stream: Stream, index: int, kernel: BoundaryKernel) -> None:
        super().__init__(stream, index, kernel)
        self.streams: dict[object, Stream] = {}  # a handle is its stream
        self.largest_bytes = 0  # of a chunk that was taken
        self.current: Stream | None = None
        self._told_ahead: Stream | None = None
        self._told_failed: list[Stream] = []

    @property
    def kernel(self) -> BoundaryKernel:
        """The kernel, or what stands in its place once the stage has ended."""
        return self.caller.kernel  # type: ignore[return-value]  # asked many times a chunk

    @property
    def has_begun_all(self) -> bool:
        """Whether it opens no further stream and all of its streams have started all their work."""
        return self.ended or (
            self.kernel.exhausted and all(stream.last.has_begun_all for stream in self.streams.values())
        )

    def _without_input(self) -> Look | None:
        if self.caller.finishing:
            return None
        current = self.current
        if current is None:
            return NO_TURN
        return None if current.last.out else Waits(current.last)

    def settle(self) -> bool:
        """Turns to the stream that the kernel wants next; closes those that have ended, which may lead to others."""
        caller = self.caller
        if self._without_room() is not None:
            return False
        while not self.ended and not caller.holds_work and not caller.finishing:
            if self.current is None or self.kernel.any_ready:
                self._turn()
            current = self.current
            if current is None:
                self._input_ended(None)
            elif current.last.out:
                break
            elif not current.last.ended:
                if self._told_ahead is not current and current.last_to_wait.has_begun_all:
                    self._told_ahead = current
                    self.kernel.ahead()
                if (error := self._beyond_budget(current)) is not None:
                    self._input_ended(error)
                return False
            elif current.last.error is not None:
                self._failed(current, current.last.error)
            else:
                self.current = None
                self.close_stream(current)
                caller.iterator = self.kernel.ended(current)
        return True

    def _turn(self) -> None:
        handle, before = self.kernel.next_input(), self.current
        self.current = None if handle is None else self.streams[handle]
        if self.current is not None and self.current is not before:
            self.run.changed(self.current)

    def _input_ended(self, error: BaseException | None) -> None:
        """Has a last call made, or ends the stage where that was made, or there is an error."""
        if error is None and not self.caller.finished:
            self.caller.finishing = True
        else:
            self.end(error)

    def leaves_room(self, wanting: Stream, num_bytes: int, room: int) -> bool:
        """Whether `room` is enough for what it may take of other streams before it lets go of what it holds.

        A chunk of theirs is `num_bytes` or more. Two are added: one of which slices still wait downstream, and the
        scratch of the call that makes the next one.
        """
        # `describe()` asks without a lock, perhaps while the stage ends.
        held = 0 if self.ended else self.kernel.chunks_held
        size = max(num_bytes, self.largest_bytes)
        if not held or (held * len(self.streams) + 2) * size <= room:
            return True
        others = (
            stream for stream in self.streams.values() if stream is not wanting and not stream.last.ended
        )
        chunks = sum(max(0, held - len(stream.last.out)) for stream in others)
        return (chunks + 2) * size <= room

    def _beyond_budget(self, wanted: Stream) -> BudgetError | None:
        """Returns an error where the budget is used up, with rows that the kernel keeps back, and it needs more.

        One chunk may go beyond the budget, but not one of each input. Calls in flight that make the wanted chunk do not
        count.
        """
        ledger, kernel = self.run.ledger, self.kernel
        if ledger.fits(-NEGLIGIBLE_BYTES) or not wanted.allocates:
            return None
        sizes = [ledger.made_bytes(ticket) for held in kernel.held() for ticket in held.tickets()]
        used = ledger.used
        in_flight = sum(stage.reserved_bytes for stage in wanted.stages)
        if used - in_flight <= ledger.budget + NEGLIGIBLE_BYTES or not any(sizes):
            return None
        chunks = max(len(sizes) + 1, len(self.streams) * kernel.chunks_held)
        known = max(used - sum(sizes), kernel.following_bytes()) + chunks * max(sizes)
        needs = int(BUDGET_MARGIN * max(known, used))
        error = BudgetError(
            f"ram_budget={ledger.budget:,} bytes is too little for what this pipeline needs, {needs:,} bytes with a "
            f"margin, by what it has made so far: of {len(self.streams)} inputs {len(sizes)} chunks are kept back, up "
            f"to {max(sizes):,} bytes each, and {used:,} bytes are used in all; raise the budget, open fewer inputs at a time, or make "
            "their chunks smaller (max_chunk_rows, row groups)"
        )
        error.locate(operator=self.caller.operator)
        return error

    def _failed(self, stream: Stream, error: BaseException) -> None:
        """Lets the kernel put out what comes before the error of a stream; ends the stage where there is nothing."""
        if stream not in self._told_failed:
            self._told_failed.append(stream)
            self.caller.iterator = self.kernel.failed(stream)
            if self.caller.iterator is not None:
                self.current = None
                return
        self._input_ended(error)

    def _take_input(self, call: SerialCaller) -> None:
        current = self.current
        if current is None or (call.iterator is not None and not self.kernel.reads_runs):
            return  # once it has put out what it made of the last item, it may want another stream
        call.source, current.to_begin = current, False
        limit = MAX_ITEMS_PER_CALL if self.kernel.reads_runs else 1
        out = current.last.out
        if out:
            self.largest_bytes = max(self.largest_bytes, self.run.ledger.made_bytes(out[0].ticket))
            self.run.changed(current)
        while out and len(call.inbox) < limit:
            call.inbox.append(out.popleft())

    def complete(self, call: SerialCaller) -> None:
        """As for every serial stage; then the kernel may want another stream."""
        super().complete(call)
        if not self.ended and not self.kernel.reads_runs and not call.holds_work:
            self.current = None

    def close_stream(self, stream: Stream) -> None:
        """Drops a stream."""
        del self.streams[stream]
        stream.to_begin = False
        stream.drop()
        self.run.remove(stream)

    def _let_go(self) -> None:
        super()._let_go()
        self.current = None
        self._told_failed.clear()
        for stream in list(self.streams.values()):
            self.close_stream(stream)
