"""`ParallelStage`: many calls at once, delivered in order; `UnorderedStage` delivers them as they are ready.

All attributes are guarded by the engine's lock, except where a comment says otherwise. `execute` runs without it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa

from arrowflow.bad_rows import NO_BAD_ROWS, LeftOut
from arrowflow.errors import ArrowflowError
from arrowflow.executor.failure import cause_of, located
from arrowflow.executor.ledger import Buffers, buffers_of
from arrowflow.executor.limits import (
    FIRST_CALL_BYTES,
    FIRST_WAITED_BYTES,
    SMALL_BYTES,
    SMALL_ITEMS,
    WAITED_GROWTH,
)
from arrowflow.executor.stages.base import Stage, StreamView
from arrowflow.executor.stages.sizes import NO_BYTES, Estimate
from arrowflow.executor.workers.worker import Worker
from arrowflow.kernels.items import Item, Made, Origin, Outcome, Payload, Task
from arrowflow.kernels.kinds import ReaderKernel, SourceKernel, StatelessKernel
from arrowflow.observe.timeline import CONSUMER
from arrowflow.plan.position import Position

NOTHING = Task(None, Origin(0))


@dataclass(slots=True, eq=False)
class Slot:
    """One call of a parallel stage, from its start until its last chunk is delivered.

    A call that yields several chunks is suspended between them: its iterator rests in the slot until there is room.
    `results` is filled by the running worker alone while `running`, and guarded by the lock else.
    """

    item: Any  # the input: an `Item` or a `Task`
    number: int  # in the order of inputs
    split: int  # of the input
    origin: Origin  # of the chunk that it makes
    iterator: Iterator[Made] | None = None
    results: list[Item] = field(default_factory=list)
    looked: int = 0  # results that `UnorderedStage` has looked at
    buffers: list[Buffers] = field(default_factory=list)
    running: bool = False
    done: bool = False
    error: BaseException | None = None
    left_out: LeftOut = NO_BAD_ROWS  # since the call was started or went on
    estimate: Estimate = NO_BYTES


class ParallelStage(Stage):
    """Runs a source or reader, if it has one, and the stateless kernels fused behind it."""

    def __init__(
        self,
        stream: StreamView,
        index: int,
        upstream: Stage | None,
        head: SourceKernel | ReaderKernel | None,
        kernels: list[StatelessKernel],
        tasks: Iterator[Task] | None,
    ) -> None:
        super().__init__(stream, index, upstream)
        self.head = head
        self.kernels = kernels
        self.titles = [spec.title or spec.operator for spec in self.plan.kernels]
        self.tasks = tasks
        self.failure: BaseException | None = None  # of `tasks`; comes after all that they yielded
        self.next_number = 0  # of the next input
        self.next_task = self._following_task()
        self.slots: deque[Slot] = deque()
        self.waiting = 0  # results that wait in slots for their turn
        self.suspended = 0  # slots whose call made a chunk and has more to make
        self.extends = self.plan.buffer_items is None and self.host.options.autotune
        self.sizes = self.host.sizes_of(self.key)
        self.lends = isinstance(head, SourceKernel) and head.lends
        self.passes = isinstance(head, ReaderKernel) and head.passes
        # Decided by `can_start`, consumed by `start` under the same hold of the lock.
        self.chosen: tuple[Slot | None, Estimate] = (None, NO_BYTES)

    @property
    def exhausted(self) -> bool:
        """Whether all input was started, and no call is suspended that only just began."""
        if self.ended:
            return True
        if self.upstream is None:
            return self.next_task is None and not any(
                slot.item.streams and not slot.done for slot in self.slots
            )
        # The next stream may call the same function: the number that was asked for holds for both together.
        return self.upstream.ended and not self.upstream.out and not (self.plan.max_calls and self.slots)

    def _following_task(self) -> Task | None:
        if self.tasks is None:
            return None
        try:
            return next(self.tasks, None)
        except Exception as error:
            self.failure = located(error, self.plan.specs[0].operator)
            return None

    @property
    def allocates(self) -> bool:
        """Whether its chunks take memory that was not there before."""
        return not self.lends or bool(self.kernels)

    @property
    def reserved_bytes(self) -> int:
        """Bytes that are reserved for its calls in flight."""
        return sum(slot.estimate.least for slot in self.slots if slot.running)

    def is_starved_by(self, source: Stage) -> bool:
        """Whether no call is in flight, suspended, or waiting for its turn."""
        return not self.slots

    def can_start(self) -> bool:
        """Rule 3 of the behaviour contract: room, or all that follows stands still without it."""
        self.most_bytes = -1.0
        if self.ended:
            return False
        if self.running >= self.limits.max_calls:
            self.capped += self.next_task is not None if self.upstream is None else bool(self.upstream.out)
            return False
        if self.suspended:
            for slot in self.slots:
                if not slot.running and not slot.done:
                    head = self._is_head(slot)
                    ahead = self.waiting < self.limits.max_slots
                    estimate = self._estimate_again(slot)
                    if self._head_room(estimate, slot) if head else ahead and self._room(estimate):
                        self.chosen = (slot, estimate)
                        return True
        if self.upstream is None:
            if self.next_task is None:
                return self._finished()
        elif not self.upstream.out:
            return self._finished()
        full = len(self.slots) >= self.limits.max_slots or self.waiting >= self.limits.max_slots
        if full and not self._begins_line:
            return False
        estimate = self._estimate()
        head = self._begins_line and not self.out
        if self._head_room(estimate) if head else self._room(estimate):
            self.chosen = (None, estimate)
            return True
        return False

    @property
    def _begins_line(self) -> bool:
        """Whether the next call is the head of the line."""
        return not self.slots

    def _is_head(self, slot: Slot) -> bool:
        """Whether a suspended call is the head of the line."""
        return slot is self.slots[0] and not self.out and not slot.results

    def _room(self, estimate: Estimate) -> bool:
        ready = len(self.out)
        if ready >= self.limits.max_ready_items and (ready >= SMALL_ITEMS or not self._makes_small()):
            self.full += 1
            return False
        if self.plan.cost == "waits" and not self.tuned:
            asked = FIRST_WAITED_BYTES + WAITED_GROWTH * self.sizes.made_bytes
            if self.reserved_bytes + estimate.least > asked:
                return False
        return self._fits_beside_others(estimate.most, self.limits.ledger_share)

    def _head_room(self, estimate: Estimate, slot: Slot | None = None) -> bool:
        """Whether the head of the line may start: it may use all of the budget, and more if nothing goes on else."""
        if self._fits_beside_others(estimate.most, 1.0):
            return True
        if self.host.ledger.fits(estimate.most) and self._makes_first():
            return True
        if self.upstream is None:
            return self._may_exceed(())
        return self._may_exceed((self.upstream.out[0] if slot is None else slot.item).ticket)

    def _fits_beside_others(self, num_bytes: int, share: float) -> bool:
        """Whether a call fits and leaves room for what the other inputs of a boundary will be asked for."""
        ledger, boundary = self.host.ledger, self.stream.boundary
        if ledger.fits(num_bytes, share):
            if boundary is None or not num_bytes:
                return True
            room = int(ledger.budget * share) - ledger.used - ledger.spared - num_bytes
            if boundary.leaves_room(self.stream, num_bytes, room):
                return True
        # Room for other inputs is left as soon as these made their chunks, too. So the stage is looked at each time.
        self.most_bytes = max(self.most_bytes, ledger.budget * share - num_bytes)
        return False

    def _makes_first(self) -> bool:
        """Whether the next call makes the first chunk that its stream delivers to a boundary."""
        stage: Stage | None = self
        while stage is not None and stage.stream is self.stream and not stage.out:
            stage = stage.downstream
        return self.stream.to_begin and stage is not None and stage.stream is not self.stream

    def _makes_small(self) -> bool:
        """Whether more of its chunks may wait, since they are small, soon made, and nobody said how many."""
        return self.extends and self.bytes < SMALL_BYTES * self.chunks and self.calls_are_short

    def _finished(self) -> bool:
        """Notices the end of the input; never starts a call."""
        if not self.slots and not self.ended:
            if self.upstream is None:
                self.end(self.failure)
            elif self.upstream.ended:
                self.end(self.upstream.error)
        return False

    def _estimate(self) -> Estimate:
        """Returns what the next call is expected to take."""
        if self.upstream is None:
            task = self.next_task
            if task is None:
                return NO_BYTES
            return (
                self.sizes.of_stream() if task.streams else self.sizes.of_told(task.num_bytes, task.num_bytes)
            )
        item = self.upstream.out[0]
        rows = item.chunk.num_rows
        if self.head is not None:
            if self._passes(item):
                return NO_BYTES
            reader = cast(ReaderKernel, self.head)
            return self.sizes.of_told(reader.num_bytes(item.chunk), reader.most_bytes(item.chunk))
        if self.plan.process:
            # Input and result of the call are copied into shared memory.
            copied = int(item.chunk.nbytes + self.sizes.bytes_per_row * rows)
            return Estimate.known(copied or FIRST_CALL_BYTES)
        if not self.plan.kernels:
            return Estimate.known(FIRST_CALL_BYTES)
        return self.sizes.of_function(item, self.host.ledger, free=self.plan.cost == "unknown")

    def _estimate_again(self, slot: Slot) -> Estimate:
        """Returns what a suspended call is expected to take when it goes on."""
        return self.sizes.of_stream() if self._streams(slot) else slot.estimate

    def _streams(self, slot: Slot) -> bool:
        """Whether a call yields chunks for long."""
        return self.upstream is None and slot.item.streams

    def start(self) -> Slot:
        """Takes the oldest suspended call that may go on, or the next input."""
        (slot, estimate), self.chosen = self.chosen, (None, NO_BYTES)
        self.suspended -= slot is not None
        if slot is None:
            item: Any = self.next_task if self.upstream is None else self.upstream.out.popleft()
            slot = Slot(item, self.next_number, item.origin.split, item.origin)
            self.next_number += 1
            self.next_task = self._following_task()
            self.slots.append(slot)
        slot.estimate = estimate
        slot.running = True
        self.running += 1
        ledger = self.host.ledger
        ledger.reserve(estimate.least)
        if estimate.most != estimate.least:
            ledger.spared += estimate.spared
        return slot

    def execute(self, call: Slot) -> None:
        """Makes the next chunks of a call: all that are there, and of a call not known to make many one more look.

        Most calls make one chunk, which saves them a round only to find that there is no other: `overhead` takes 1.16 x
        as long without this.
        """
        try:
            self._run(call)
        except BaseException as error:
            call.error = located(error, self.plan.specs[0].operator)
            if self.where is not None:
                file, row_group, part = self.where(call.origin)
                call.error.locate(file=file, row_group=row_group, part=part)
            call.done = True
            del call  # the error's traceback leads to this frame

    def _run(self, call: Slot) -> None:
        item = call.item
        if self.head is None or self._passes(item):
            self._emit(call, item.chunk, item.position, item.origin, item)
            call.done = True
            return
        if call.iterator is None:
            call.iterator = self._timed("open", self.head.read, item if self.upstream is None else item.chunk)
        again = not self._streams(call)
        while (made := self._make(call, call.iterator)) is not None and (made.more or again):
            again &= made.more

    def _passes(self, item: Any) -> bool:
        """Whether an item is what the reader would make of it."""
        return self.passes and isinstance(item.chunk, pa.RecordBatch)

    def _make(self, call: Slot, iterator: Iterator[Made]) -> Made | None:
        made: Made | None = self._timed(self.plan.phase, next, iterator, None)
        if made is None:
            call.done = True
            return None
        origin = call.item.origin
        if not made.last or made.split is not None:
            origin = Origin(origin.split if made.split is None else made.split, 0, made.last)
        call.origin = origin
        if made.left_out is not NO_BAD_ROWS:
            call.left_out = call.left_out.plus(made.left_out)
            self.note_bad_rows(made.left_out, (origin.split, made.position))
        self._emit(call, made.chunk, made.position, origin, None)
        return made

    def _timed(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a kernel; records when, if somebody wants to see it."""
        timeline = self.host.timeline
        if timeline is None:
            return function(*arguments)
        clock = self.host.clock
        began = clock.now()
        try:
            return function(*arguments)
        finally:
            thread = threading.current_thread()
            track = thread.name if isinstance(thread, Worker) else CONSUMER
            timeline.span(track, name, began, clock.now(), self.plan.engine)

    def _emit(
        self, call: Slot, chunk: Payload, position: Position, origin: Origin, source: Item | None
    ) -> None:
        """Applies the fused kernels to a chunk and keeps the result with its buffers."""
        for index, kernel in enumerate(self.kernels):
            if not chunk.num_rows:
                break
            try:
                chunk = self._timed(self.titles[index], kernel.apply, chunk, origin)
            except BaseException as error:
                raise located(error, self.plan.kernels[index].operator) from cause_of(error)
        if isinstance(chunk, Outcome) and isinstance(chunk.error, ArrowflowError) and self.where is not None:
            file, row_group, part = self.where(origin)
            chunk.error.locate(file=file, row_group=row_group, part=part)
        same = source is not None and chunk is source.chunk
        call.results.append(Item(chunk, position, source.ticket if same and source else None, origin))
        call.buffers.append({} if same else buffers_of(chunk))

    def complete(self, call: Slot) -> None:
        """Charges what a call made and delivers what is in line."""
        self.running -= 1
        call.running = False
        ledger = self.host.ledger
        estimate = call.estimate
        ledger.unreserve(estimate.least)
        if estimate.most != estimate.least:
            ledger.spared -= estimate.spared
        if self.ended:
            # Stopped while the call ran: its results are for nobody.
            self.host.close_later(self.plan_operators, call.iterator)
            call.results.clear()
            return
        if call.left_out is not NO_BAD_ROWS:
            self.left_out_so_far, call.left_out = self.left_out.plus(call.left_out), NO_BAD_ROWS
        self.suspended += not call.done
        self.waiting += len(call.buffers)
        results, made = call.results, 0
        for at, buffers in enumerate(call.buffers, len(results) - len(call.buffers)):
            if buffers:
                ticket = ledger.charge(buffers, lent=self.lends)
                made += ticket.num_bytes
                results[at] = results[at]._replace(ticket=ticket)
                if self._streams(call):
                    self.sizes.learn_stream(ticket.num_bytes)
        self.bytes += made
        self._learn(call, made)
        call.buffers.clear()
        if call.done:
            call.item = NOTHING  # lets go of the input while the results wait for their turn
        self._deliver(call)

    def _learn(self, call: Slot, made: int) -> None:
        """Notes the bytes that a call has made since it was started or went on."""
        self.sizes.made_bytes += made
        if self.head is not None:
            if not self._streams(call):
                self.sizes.learn_told(made, call.estimate)
        elif call.error is None and (rows := call.item.chunk.num_rows):
            self.sizes.learn_function(made, rows, call.estimate)

    def _deliver(self, call: Slot) -> None:
        slots = self.slots
        while slots and not slots[0].running:
            head = slots[0]
            self._put_all(head)
            if not head.done:
                break
            slots.popleft()
            if head.error is not None:
                self.end(head.error)
                break
        if not self.slots and not self.out and self.exhausted:
            self._finished()

    def _put_all(self, slot: Slot) -> None:
        self.waiting -= len(slot.results)
        for item in slot.results:
            self.put(item)
        slot.results.clear()

    def end(self, error: BaseException | None = None) -> None:
        """Ends the stage; calls that still run are dropped when they return."""
        super().end(error)
        self._drop_slots()

    def _drop_slots(self) -> None:
        for slot in self.slots:
            if not slot.running:
                self.host.close_later(self.plan_operators, slot.iterator)
        self.slots.clear()
        self.suspended = 0
        self.host.close_later(self.plan_operators, self.tasks)
        self.tasks = self.next_task = None
        self.chosen = (None, NO_BYTES)

    def drop(self) -> None:
        """Ends the stage and drops queues and suspended calls."""
        self.ended = True
        self.error = None
        self.out.clear()
        self._drop_slots()
