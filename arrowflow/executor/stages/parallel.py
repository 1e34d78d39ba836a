"""`ParallelStage`: many calls at once, delivered in order; `UnorderedStage` delivers them as they are ready.

All attributes are guarded by the engine's lock, except where a comment says otherwise. `execute` runs without it.
"""

from __future__ import annotations

import math
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
from arrowflow.executor.stages.base import (
    ALL_CALLS,
    ALL_CHUNKS,
    ALL_SLOTS,
    ALL_TURNS,
    DONE,
    NO_BYTES_FREE,
    NO_TOKEN,
    Blocked,
    Done,
    Look,
    Ready,
    Stage,
    StreamView,
)
from arrowflow.executor.stages.sizes import NO_BYTES, Estimate
from arrowflow.executor.workers.tokens import fits
from arrowflow.executor.workers.worker import Worker
from arrowflow.kernels.items import Item, Made, Origin, Outcome, Payload, Task
from arrowflow.kernels.kinds import ReaderKernel, SourceKernel, StatelessKernel
from arrowflow.observe.timeline import CONSUMER
from arrowflow.physical.tuning import Gate
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

    @property
    def has_begun_all(self) -> bool:
        """Whether all input was started, and no call is suspended that only just began."""
        return self.ended or type(self._without_input()) is Done

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
    def undelivered(self) -> int:
        """Calls that were started and are not delivered."""
        return len(self.slots)

    @property
    def turn_chunks(self) -> int:
        """Chunks that wait in these for their turn."""
        return self.waiting

    @property
    def reserved_bytes(self) -> int:
        """Bytes that are reserved for its calls in flight."""
        return sum(slot.estimate.least for slot in self.slots if slot.running)

    def look(self, room: float = math.inf) -> Look:
        """Rule 3 of the behaviour contract: room, or all that follows stands still without it."""
        if self.ended:
            return DONE
        upstream = self.upstream
        has_input = self.next_task is not None if upstream is None else bool(upstream.out)
        if not has_input and not self.suspended:
            return self._without_input()
        if self.running >= self.limits.max_calls:
            return ALL_CALLS
        if not fits(self.limits.weight, room):
            return NO_TOKEN
        if self.suspended:
            look = self._look_at_suspended()
            return look if type(look) is Ready or not has_input else _last(look, self._look_at_input())
        return self._look_at_input()

    def _look_at_input(self) -> Look:
        begins_line = self._begins_line
        if not begins_line and len(self.slots) >= self.limits.max_slots:
            return ALL_SLOTS
        if not begins_line and self.waiting >= self.limits.max_turn_chunks:
            return ALL_TURNS
        return self._weigh(None, self._estimate(), head=begins_line and not self.out)

    def _look_at_suspended(self) -> Look:
        look: Look = ALL_CALLS
        for slot in self.slots:
            if not slot.running and not slot.done:
                look = _last(look, self._weigh(slot, self._estimate_again(slot), head=self._is_head(slot)))
                if type(look) is Ready:
                    break
        return look

    def _without_input(self) -> Look:
        """Returns what a look finds where there is no input now, and no call was suspended."""
        upstream, slots = self.upstream, self.slots
        if upstream is None:
            if self.next_task is not None or any(slot.item.streams and not slot.done for slot in slots):
                return ALL_CALLS
            return DONE if slots else Done(True, self.failure)
        if upstream.out or not upstream.ended:
            return self.waits
        if not slots:
            return Done(True, upstream.error)
        # The next stream may call the same function: the number that was asked for holds for both together.
        return ALL_CALLS if self.plan.max_calls else DONE

    @property
    def _begins_line(self) -> bool:
        """Whether the next call is the head of the line."""
        return not self.slots

    def _is_head(self, slot: Slot) -> bool:
        """Whether a suspended call is the head of the line."""
        return slot is self.slots[0] and not self.out and not slot.results

    def _weigh(self, slot: Slot | None, estimate: Estimate, *, head: bool) -> Look:
        """Returns whether a call fits: one on the next input, or one that was suspended.

        The head of the line may use all of the budget, and more if nothing goes on else.
        """
        ready = Ready(self, slot, estimate)
        if head:
            refused = self._lacks_bytes(estimate.most, 1.0)
            if refused is None or (self.host.ledger.fits(estimate.most) and self._makes_first()):
                return ready
            taken = (
                () if self.upstream is None else (self.upstream.out[0] if slot is None else slot.item).ticket
            )
            return ready if self._may_exceed(taken) else refused
        if slot is not None and self.waiting >= self.limits.max_turn_chunks:
            return ALL_TURNS
        waiting = len(self.out)
        if waiting >= self.limits.max_ready_items and (waiting >= SMALL_ITEMS or not self._makes_small()):
            return ALL_CHUNKS
        if self.plan.cost == "waits" and not self.tuned:
            asked = FIRST_WAITED_BYTES + WAITED_GROWTH * self.sizes.made_bytes
            if self.reserved_bytes + estimate.least > asked:
                return NO_BYTES_FREE
        return self._lacks_bytes(estimate.most, self.limits.ledger_share) or ready

    def _lacks_bytes(self, num_bytes: int, share: float) -> Blocked | None:
        """Returns whether bytes are lacking for a call, and for what the other inputs of a boundary will be asked for."""
        ledger, boundary = self.host.ledger, self.stream.boundary
        if ledger.fits(num_bytes, share):
            if boundary is None or not num_bytes:
                return None
            room = int(ledger.budget * share) - ledger.used - ledger.spared - num_bytes
            if boundary.leaves_room(self.stream, num_bytes, room):
                return None
        # Room for other inputs is left as soon as these made their chunks, too. So the stage is looked at each time.
        return Blocked(Gate.BYTES, ledger.budget * share - num_bytes)

    def _makes_first(self) -> bool:
        """Whether the next call makes the first chunk that its stream delivers to a boundary."""
        stage: Stage | None = self
        while stage is not None and stage.stream is self.stream and not stage.out:
            stage = stage.downstream
        return self.stream.to_begin and stage is not None and stage.stream is not self.stream

    def _makes_small(self) -> bool:
        """Whether more of its chunks may wait, since they are small, soon made, and nobody said how many."""
        return self.extends and self.bytes < SMALL_BYTES * self.chunks and self.calls_are_short

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

    def start(self, ready: Ready) -> Slot:
        """Goes on with a suspended call, or takes the next input."""
        _, slot, estimate = ready
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
        call.buffers.append(() if same else buffers_of(chunk))

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
        self._end_if_done()

    def _end_if_done(self) -> None:
        if not self.slots and not self.out and not self.ended:
            look = self._without_input()
            if type(look) is Done:
                self.end(look.error)

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

    def drop(self) -> None:
        """Ends the stage and drops queues and suspended calls."""
        self.ended = True
        self.error = None
        self.out.clear()
        self._drop_slots()


def _last(before: Look, look: Look) -> Look:
    """Returns the later of two looks at calls of one stage, unless only the earlier one lacks nothing but bytes."""
    if type(before) is Blocked and type(look) is Blocked and before.most_bytes > look.most_bytes:
        return before
    return look
