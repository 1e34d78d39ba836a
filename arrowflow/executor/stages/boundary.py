"""`BoundaryStage`: one call at a time, in order, of a kernel that opens streams and pulls from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from arrowflow.errors import BudgetError
from arrowflow.executor.limits import BUDGET_MARGIN, MAX_ITEMS_PER_CALL, NEGLIGIBLE_BYTES
from arrowflow.executor.stages.base import Look, Stage, StreamView, Waits
from arrowflow.executor.stages.serial import SerialStage
from arrowflow.kernels.context import StreamHandle
from arrowflow.kernels.items import Item
from arrowflow.kernels.kinds import BoundaryKernel

NO_TURN = Waits(None)


class InputStream(StreamView, StreamHandle, Protocol):
    """The part of a stream that its boundary sees. `Stream` documents the members."""

    @property
    def stages(self) -> Sequence[Stage]:
        """Its stages, upstream first."""

    @property
    def last(self) -> Stage:
        """The stage whose output is the stream's."""

    @property
    def waits_no_more(self) -> bool:
        """Whether the next stream may wait while this one still computes."""

    @property
    def ended(self) -> bool:
        """Whether nothing more comes, not even from its first stage."""

    @property
    def allocates(self) -> bool:
        """Whether its chunks take memory that was not there before."""

    def drop(self) -> None:
        """Ends all stages."""


class BoundaryStage(SerialStage):
    """Runs a boundary kernel: its input is whichever of its streams the kernel wants next."""

    kernel: BoundaryKernel

    def __init__(self, stream: StreamView, index: int, kernel: BoundaryKernel) -> None:
        super().__init__(stream, index, None, kernel)
        self.begun = False
        self.streams: dict[StreamHandle, InputStream] = {}  # a handle is its stream
        self.to_begin: set[InputStream] = set()  # those that nothing was taken from
        self.largest_bytes = 0  # of a chunk that was taken
        self.current: InputStream | None = None
        self.told_ahead: InputStream | None = None
        self.told_failed: list[InputStream] = []

    @property
    def has_begun_all(self) -> bool:
        """Whether it opens no further stream and all of its streams have started all their work."""
        return self.ended or (
            self.kernel.exhausted and all(stream.last.has_begun_all for stream in self.streams.values())
        )

    def _without_input(self) -> Look | None:
        if self.finishing:
            return None
        current = self.current
        if current is None:
            return NO_TURN
        return None if current.last.out else Waits(current.last)

    def settle(self) -> bool:
        """Turns to the stream that the kernel wants next; closes those that have ended, which may lead to others."""
        before = self.current
        if self._without_room() is not None:
            return False
        while not self.ended and not self._holds_work and not self.finishing:
            if self.current is None or self.kernel.any_ready:
                self._turn()
            current = self.current
            if current is None:
                self._input_ended(None)
            elif current.last.out:
                break
            elif not current.last.ended:
                if self.told_ahead is not current and current.waits_no_more:
                    self.told_ahead = current
                    self.kernel.ahead()
                if (error := self._beyond_budget(current)) is not None:
                    self._input_ended(error)
                return self.current is not before
            elif current.last.error is not None:
                self._failed(current, current.last.error)
            else:
                self.current = None
                self.close_stream(current)
                self.iterator = self.kernel.ended(current)
        return True

    def _turn(self) -> None:
        handle, before = self.kernel.next_input(), self.current
        self.current = None if handle is None else self.stream_of(handle)
        if self.current is not None and self.current is not before:
            self.host.changed(self.current)

    def _input_ended(self, error: BaseException | None) -> None:
        """Has a last call made, or ends the stage where that was made, or there is an error."""
        if error is None and not self.finished:
            self.finishing = True
        else:
            self.end(error)

    def leaves_room(self, wanting: StreamView, num_bytes: int, room: int) -> bool:
        """Whether `room` is enough for what it may take of other streams before it lets go of what it holds.

        A chunk of theirs is `num_bytes` or more. Two are added: one of which slices still wait downstream, and the
        scratch of the call that makes the next one.
        """
        held, size = self.kernel.chunks_held, max(num_bytes, self.largest_bytes)
        if not held or (held * len(self.streams) + 2) * size <= room:
            return True
        others = (stream for stream in self.streams.values() if stream is not wanting and not stream.ended)
        chunks = sum(max(0, held - len(stream.last.out)) for stream in others)
        return (chunks + 2) * size <= room

    def _beyond_budget(self, wanted: InputStream) -> BudgetError | None:
        """Returns an error where the budget is used up, with rows that the kernel keeps back, and it needs more.

        One chunk may go beyond the budget, but not one of each input. Calls in flight that make the wanted chunk do not
        count.
        """
        ledger, kernel = self.host.ledger, self.kernel
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
        error.locate(operator=self.operator)
        return error

    def _failed(self, stream: InputStream, error: BaseException) -> None:
        """Lets the kernel put out what comes before the error of a stream; ends the stage where there is nothing."""
        if stream not in self.told_failed:
            self.told_failed.append(stream)
            self.iterator = self.kernel.failed(stream)
            if self.iterator is not None:
                self.current = None
                return
        self._input_ended(error)

    def has_to_begin(self, stream: StreamView) -> bool:
        """Whether nothing was taken from a stream so far."""
        return stream in self.to_begin

    def stream_of(self, handle: StreamHandle) -> InputStream:
        """Returns the stream that a handle names."""
        return self.streams[handle]

    def _take_input(self) -> None:
        if self.current is None or (self.iterator is not None and not self.kernel.reads_runs):
            return  # once it has put out what it made of the last item, it may want another stream
        limit = MAX_ITEMS_PER_CALL if self.kernel.reads_runs else 1
        out = self.current.last.out
        self.to_begin.discard(self.current)
        if out:
            self.largest_bytes = max(self.largest_bytes, self.host.ledger.made_bytes(out[0].ticket))
            self.host.changed(self.current)
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

    def close_stream(self, stream: InputStream) -> None:
        """Drops a stream."""
        del self.streams[stream]
        self.to_begin.discard(stream)
        stream.drop()
        self.host.remove(stream)

    def end(self, error: BaseException | None = None) -> None:
        """Ends the stage and drops its streams."""
        super().end(error)
        self._drop_streams()

    def _drop_streams(self) -> None:
        self.current = None
        self.told_failed.clear()
        for stream in list(self.streams.values()):
            self.close_stream(stream)

    def drop(self) -> None:
        """Ends the stage and drops its streams."""
        super().drop()
        self._drop_streams()
