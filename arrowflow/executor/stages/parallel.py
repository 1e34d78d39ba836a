"""`ParallelQueue`: many calls at once, delivered in order; `UnorderedQueue` delivers them as they are ready."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from arrowflow.bad_rows import NO_BAD_ROWS
from arrowflow.executor import keeping
from arrowflow.executor.failure import located
from arrowflow.executor.limits import (
    FIRST_CALL_BYTES,
    FIRST_WAITED_BYTES,
    SMALL_BYTES,
    SMALL_ITEMS,
    WAITED_GROWTH,
    fits,
)
from arrowflow.executor.stages.base import BLOCKED, DONE, Blocked, Done, Look, Queue, Ready, Stream
from arrowflow.executor.stages.caller import NOTHING, REUSED, ParallelCaller, Slot
from arrowflow.executor.stages.sizes import NO_BYTES, Estimate
from arrowflow.kernels.items import Item, Task, Ticket
from arrowflow.kernels.kinds import ReaderKernel, SourceKernel
from arrowflow.physical.tuning import Gate
from arrowflow.plan.position import Position


class Asked:
    """The calls of a stage in all of its streams, where a user asked for a number of them: it holds for all together."""

    def __init__(self) -> None:
        self.running = 0
        self.stages: dict[ParallelQueue, None] = {}  # those of open streams, the first one opened first

    def end(self, of: ParallelQueue) -> None:
        """Counts a call that has ended. Another stream may make the next one, which nothing else notes."""
        self.running -= 1
        for stage in self.stages:
            if stage is not of and stage.has_work:
                stage.run.changed(stage.stream)
                if len(stage.out) < stage.limits.max_ready_items:
                    return


class ParallelQueue(Queue):
    """The queue of a source or reader, if there is one, and the stateless kernels fused behind it."""

    caller: ParallelCaller

    def __init__(self, stream: Stream, index: int, kernels: list[Any], position: Position) -> None:
        super().__init__(stream, index)
        self.caller = ParallelCaller(self, kernels)
        head = self.caller.head
        self._reader = head if isinstance(head, ReaderKernel) else None
        self._tasks = head.tasks(position) if isinstance(head, SourceKernel) else None
        self._lends = isinstance(head, SourceKernel) and head.lends
        self.allocates = not self._lends or bool(self.caller.kernels)
        self._extends = self.plan.buffer_items is None and self.run.options.autotune
        self._kept = self.plan.keeps
        if self._kept is not None:
            keeping.join(self.run.ledger, self._kept)
        self._failure: BaseException | None = None  # of the tasks; comes after all that they yielded
        self._next_number = 0  # of the next input
        self._next_task = self._following_task()
        self.slots: deque[Slot] = deque()
        self.turn_chunks = 0  # results that wait in slots for their turn
        self._suspended = 0  # slots whose call made a chunk and has more to make
        self._asked: Asked | None = None
        if self.plan.shares_calls:
            self._asked = self.run.asked.setdefault(self.key, Asked())
            self._asked.stages[self] = None

    @property
    def has_work(self) -> bool:
        """Whether it has input, or a call that was suspended."""
        upstream = self.upstream
        has_input = self._next_task is not None if upstream is None else bool(upstream.out)
        return not self.ended and (has_input or self._suspended > 0)

    @property
    def has_begun_all(self) -> bool:
        """Whether all input was started, and no call is suspended that only just began."""
        return self.ended or type(self._without_input()) is Done

    def _following_task(self) -> Task | None:
        if self._tasks is None:
            return None
        try:
            return next(self._tasks, None)
        except Exception as error:
            self._failure = located(error, self.plan.specs[0].operator)
            return None

    @property
    def undelivered(self) -> int:  # type: ignore[override]
        """Calls that were started and are not delivered."""
        return len(self.slots)

    @property
    def reserved_bytes(self) -> int:  # type: ignore[override]
        """Bytes that are reserved for its calls in flight."""
        return sum(slot.reserved_bytes for slot in self.slots if slot.running)

    def look(self, room: float = math.inf) -> Look:
        """Rule 3 of the behaviour contract: room, or all that follows stands still without it."""
        if self.ended:
            return DONE
        upstream = self.upstream
        has_input = self._next_task is not None if upstream is None else bool(upstream.out)
        if not has_input and not self._suspended:
            return self._without_input()
        limits, asked = self.limits, self._asked
        running = self.running if asked is None else asked.running
        if running >= limits.max_calls:
            return BLOCKED[Gate.CALLS]
        if not fits(limits.weight, room):
            return BLOCKED[Gate.TOKEN]
        if self._suspended:
            look = self._look_at_suspended()
            return look if type(look) is Ready or not has_input else _last(look, self._look_at_input())
        return self._look_at_input()

    def _look_at_input(self) -> Look:
        begins_line = self._begins_line
        if not begins_line and len(self.slots) >= self.limits.max_slots:
            return BLOCKED[Gate.SLOTS]
        return self._weigh(None, self._estimate(), head=begins_line and not self.out)

    def _look_at_suspended(self) -> Look:
        look: Look = BLOCKED[Gate.CALLS]
        for slot in self.slots:
            if not slot.running and not slot.done:
                estimate = self.sizes.of_stream() if self._streams(slot) else slot.estimate
                look = _last(look, self._weigh(slot, estimate, head=self._is_head(slot)))
                if type(look) is Ready:
                    break
        return look

    def _without_input(self) -> Look:
        """Returns what a look finds where there is no input now, and no call was suspended."""
        upstream, slots = self.upstream, self.slots
        if upstream is None:
            if self._next_task is not None or any(slot.item.streams and not slot.done for slot in slots):
                return BLOCKED[Gate.CALLS]
            return DONE if slots else Done(True, self._failure)
        if upstream.out or not upstream.ended:
            return self.waits
        return DONE if slots else Done(True, upstream.error)

    @property
    def _begins_line(self) -> bool:
        """Whether the next call would be the first of the line; it is the head if nothing is in `out`, too."""
        return not self.slots

    def _is_head(self, slot: Slot) -> bool:
        """Whether a suspended call is the head of the line."""
        return slot is self.slots[0] and not self.out and not slot.results

    def _weigh(self, slot: Slot | None, estimate: Estimate, *, head: bool) -> Look:
        """Returns whether a call fits: one on the next input, or one that was suspended.

        The head of the line may use all of the budget, and more if nothing goes on else.
        """
        if head:
            refused = self._lacks_bytes(estimate.most, 1.0)
            if refused is None or (self.run.ledger.fits(estimate.most) and self._makes_first()):
                return Ready(self, slot, estimate)
            upstream = self.upstream
            taken = () if upstream is None else (upstream.out[0] if slot is None else slot.item).ticket
            return Ready(self, slot, estimate) if self.may_exceed(taken) else refused
        if self.turn_chunks >= self.limits.max_turn_chunks:
            return BLOCKED[Gate.TURN]
        waiting = len(self.out)
        if waiting >= self.limits.max_ready_items and (waiting >= SMALL_ITEMS or not self._makes_small()):
            return BLOCKED[Gate.CHUNKS]
        if self.plan.cost == "waits" and not self.limits.reason:
            asked = FIRST_WAITED_BYTES + WAITED_GROWTH * self.sizes.made_bytes
            if self.reserved_bytes + estimate.least > asked // self.limits.streams:
                return BLOCKED[Gate.BYTES]
        return self._lacks_bytes(estimate.most, self.limits.ledger_share) or Ready(self, slot, estimate)

    def _lacks_bytes(self, num_bytes: int, share: float) -> Blocked | None:
        """Returns whether bytes are lacking for a call, and for what the other inputs of a boundary will be asked for."""
        ledger, boundary = self.run.ledger, self.stream.boundary
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
        stage: Queue | None = self
        while stage is not None and stage.stream is self.stream and not stage.out:
            stage = stage.downstream
        return self.stream.to_begin and stage is not None and stage.stream is not self.stream

    def _makes_small(self) -> bool:
        """Whether more of its chunks may wait, since they are small, soon made, and nobody said how many."""
        return self._extends and self.bytes < SMALL_BYTES * self.chunks and self.calls_are_short

    def _estimate(self) -> Estimate:
        """Returns what the next call is expected to take."""
        if self.upstream is None:
            task = self._next_task
            if task is None:
                return NO_BYTES
            if task.streams:
                return self.sizes.of_stream()
            return self.sizes.of_told(task.num_bytes, task.num_bytes)
        item = self.upstream.out[0]
        if (reader := self._reader) is not None:
            if self.caller.passes_on(item):
                return NO_BYTES
            return self.sizes.of_told(reader.num_bytes(item.chunk), reader.most_bytes(item.chunk))
        if self.plan.process:
            # Input and result of the call are copied into shared memory.
            copied = item.chunk.nbytes + self.sizes.foreseen_bytes(item.chunk.num_rows)
            return Estimate.known(copied or FIRST_CALL_BYTES)
        if not self.plan.kernels:
            return Estimate.known(FIRST_CALL_BYTES)
        return self.sizes.of_function(item, self.run.ledger, free=self.plan.cost == "unknown")

    def _streams(self, slot: Slot) -> bool:
        """Whether a call yields chunks for long."""
        return self.upstream is None and slot.item.streams

    def start(self, ready: Ready) -> Slot:
        """Goes on with a suspended call, or takes the next input."""
        _, slot, estimate = ready
        if slot is not None:
            self._suspended -= 1
        else:
            item: Any = self._next_task if self.upstream is None else self.upstream.out.popleft()
            claims: deque[Ticket] | None = None
            if self._kept is not None and self._reader is not None:
                item, claims, estimate = self._with_kept(item, self._reader)
            slot = Slot(item, self._next_number, claims)
            self._next_number += 1
            self._next_task = self._following_task()
            self.slots.append(slot)
        slot.estimate = estimate
        slot.running = True
        self.running += 1
        if self._asked is not None:
            self._asked.running += 1
        if estimate.most:
            ledger, least = self.run.ledger, estimate.least
            if self.caller.head is None:
                # Other calls foretell what a function makes: a few large rows would count as many. More than all
                # that is free keeps no other call from starting.
                least = min(least, max(0, ledger.budget - ledger.used))
            slot.reserved_bytes = least
            ledger.reserve(least, estimate.spared)
        return slot

    def _with_kept(self, item: Any, reader: ReaderKernel) -> tuple[Any, deque[Ticket], Estimate]:
        """Returns an input that holds what is kept of it, claims on that, and the bytes that the rest takes."""
        payload, found = reader.holding(item.chunk)
        self.run.kept_rows += sum(kept.chunk.num_rows for kept in found)
        claims = deque[Ticket](self.run.ledger.charge(kept.buffers) for kept in found)
        estimate = self.sizes.of_told(reader.num_bytes(payload), reader.most_bytes(payload))
        return item._replace(chunk=payload), claims, estimate

    def complete(self, call: Slot) -> None:
        """Charges what a call made and delivers what is in line."""
        self.running -= 1
        call.running = False
        if self._asked is not None:
            self._asked.end(self)
        ledger, estimate = self.run.ledger, call.estimate
        if estimate.most:
            ledger.unreserve(call.reserved_bytes, estimate.spared)
        if self.ended:
            # Stopped while the call ran: its results are for nobody.
            self.close_later(call.iterator)
            call.made.clear()
            return
        if call.left_out is not NO_BAD_ROWS:
            self.left_out, call.left_out = self.left_out.plus(call.left_out), NO_BAD_ROWS
        if not call.done:
            self._suspended += 1
        self._learn(call, self._charge(call))
        for group in call.groups:
            if group is not None and self._kept is not None:
                keeping.add(ledger, self._kept, group)
        call.groups.clear()
        self.run.kept_images += call.kept_images
        call.kept_images = 0
        if call.done:
            call.item = NOTHING  # lets go of the input while the results wait for their turn
            call.claims = None
        self._deliver(call)

    def _charge(self, call: Slot) -> int:
        """Charges the chunks that a call has made since it was started or went on; returns their bytes."""
        made, ledger = 0, self.run.ledger
        self.turn_chunks += len(call.made)
        for item, buffers in call.made:
            if buffers is REUSED and call.claims is not None:
                item = item._replace(ticket=call.claims.popleft())
            elif buffers:
                ticket = ledger.charge(buffers, lent=self._lends)
                made += ticket.num_bytes
                item = Item(item.chunk, item.position, ticket, item.origin)
                if self._streams(call):
                    self.sizes.learn_stream(ticket.num_bytes)
            call.results.append(item)
        call.made.clear()
        self.bytes += made
        self.sizes.made_bytes += made
        return made

    def _learn(self, call: Slot, made: int) -> None:
        """Notes the bytes that a call has made since it was started or went on."""
        if self.caller.head is not None:
            if not self._streams(call):
                self.sizes.learn_told(made, call.estimate)
        elif call.error is None and (rows := call.item.chunk.num_rows):
            self.sizes.learn_function(made, rows, call.estimate)

    def _deliver(self, call: Slot) -> None:
        slots = self.slots
        while slots and not (head := slots[0]).running:
            if head.results:
                self.turn_chunks -= len(head.results)
                for item in head.results:
                    self.put(item)
                head.results.clear()
            if not head.done:
                break
            slots.popleft()
            if head.error is not None:
                self.end(head.error)
                break
        if not slots and not self.out:
            self._end_if_done()

    def _end_if_done(self) -> None:
        if not self.slots and not self.out and not self.ended:
            look = self._without_input()
            if type(look) is Done:
                self.end(look.error)

    def _let_go(self) -> None:
        if self._asked is not None:
            self._asked.stages.pop(self, None)
        for slot in self.slots:
            if not slot.running:  # else `complete` drops what the call makes
                self.close_later(slot.iterator)
        self.slots.clear()
        self._suspended = 0
        self.close_later(self._tasks)
        self._tasks = self._next_task = None


def _last(before: Look, look: Look) -> Look:
    """Returns the one of two looks at calls of one stage that stands for both: the later one, at the input or a later call.

    But a look that lacks nothing but bytes stays: its `most_bytes` tells the ready set when to look again.
    """
    if type(before) is Blocked and type(look) is Blocked and before.most_bytes > look.most_bytes:
        return before
    return look
