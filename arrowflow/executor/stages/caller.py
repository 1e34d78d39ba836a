"""`Caller`: runs the kernels of a stage. On any thread and without the lock: it touches nothing but its call."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pyarrow as pa

from arrowflow.bad_rows import NO_BAD_ROWS, LeftOut
from arrowflow.errors import ArrowflowError
from arrowflow.executor.failure import cause_of, located
from arrowflow.executor.ledger import Buffers, buffers_of
from arrowflow.executor.stages.base import Queue
from arrowflow.executor.stages.sizes import NO_BYTES, Estimate
from arrowflow.executor.workers.worker import Worker
from arrowflow.kernels.items import Item, Made, Origin, Outcome, Payload, Recalled, Task, Ticket
from arrowflow.kernels.kept import KeptChunks, KeptGroup, Key
from arrowflow.kernels.kinds import ReaderKernel, SourceKernel, StatelessKernel
from arrowflow.observe.timeline import CONSUMER
from arrowflow.plan.position import Position

NOTHING = Task(None, Origin(0))
REUSED: Buffers = {}
"""The buffers of a chunk that was kept, which the call has claimed already."""


class Slot:
    """One call of a parallel stage, from its start until its last chunk is delivered.

    A call that yields several chunks is suspended between them: its iterator rests in the slot until there is room.

    Attributes:
        item: The input: an `Item` or a `Task`.
        number: Its number in the order of inputs.
        splits: The splits of what it makes, as far as an `UnorderedQueue` has to know them.
        estimate: The bytes that it may take.
        reserved_bytes: Those that are reserved for it while it runs.
        running: Whether a thread runs it. Until that ends, the fields after this one are the thread's alone.
        origin: Origin of the chunk that it makes.
        iterator: What is left of it.
        made: Its results since it was started or went on, with the buffers that are not charged yet.
        results: Those before, which wait for their turn.
        claims: Claims on what is kept of the input, one for each chunk of it that was not made yet; None where nothing is.
        done: Whether it makes no further chunk.
        error: Why it makes none, if not because it was finished.
        left_out: Bad rows since it was started or went on.
        groups: What to keep for later epochs of the results since then.
        kept_images: Images of these that came from earlier epochs.
        looked: Results that an `UnorderedQueue` has looked at.
    """

    def __init__(self, item: Any, number: int, claims: deque[Ticket] | None = None) -> None:
        self.item = item
        self.number = number
        self.claims = claims
        self.origin: Origin = item.origin
        self.splits: Collection[int] = (self.origin.split,)
        self.estimate: Estimate = NO_BYTES
        self.reserved_bytes = 0
        self.iterator: Iterator[Made] | None = None
        self.made: list[tuple[Item, Buffers]] = []
        self.results: list[Item] = []
        self.running = self.done = False
        self.error: BaseException | None = None
        self.left_out: LeftOut = NO_BAD_ROWS
        self.groups: list[KeptGroup | None] = []
        self.kept_images = 0
        self.looked = 0


class Caller:
    """Base of the callers of all kinds of stages."""

    _engine = ""  # of the spans in a timeline

    def __init__(self, queue: Queue) -> None:
        self.run, self.plan = queue.run, queue.plan
        self._place = (*queue.key, queue.stream.epoch)

    def _timed(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a kernel; records when, if somebody wants to see it."""
        timeline = self.run.timeline
        if timeline is None:
            return function(*arguments)
        clock = self.run.clock
        began = clock.now()
        try:
            return function(*arguments)
        finally:
            thread = threading.current_thread()
            track = thread.name if isinstance(thread, Worker) else CONSUMER
            timeline.span(track, name, began, clock.now(), self._engine)

    def note_bad_rows(self, found: LeftOut, place: Any) -> None:
        """Notes bad rows that a kernel just left out, if somebody asks for single ones.

        Before the items that come of it: whoever has taken an item finds the bad rows in front of it noted.
        """
        if self.run.bad_rows is not None:
            place = (*self._place, place, found.place)
            self.run.bad_rows.append((self.plan.titles[0], place, found))


class ParallelCaller(Caller):
    """Runs a source or reader, if there is one, and the stateless kernels fused behind it."""

    def __init__(self, queue: Queue, kernels: list[Any]) -> None:
        super().__init__(queue)
        self.head: SourceKernel | ReaderKernel | None = None if self.plan.head is None else kernels[0]
        self.kernels: list[StatelessKernel] = kernels[len(kernels) - len(self.plan.kernels) :]
        self._passes = isinstance(self.head, ReaderKernel) and self.head.passes
        kept = self.plan.keeps if isinstance(self.plan.keeps, KeptChunks) else None
        self._kept = kept if queue.run.keeps else None
        self._delivers_copies = kept is not None and kept.copies
        self._engine = self.plan.engine
        self._titles = [spec.title or spec.operator for spec in self.plan.kernels]
        self._where = queue.where

    def execute(self, call: Slot) -> None:
        """Makes the next chunks of a call: all that are there, and of a call not known to make many one more look.

        Never raises: errors are results too. Most calls make one chunk, which saves them a round only to find that there
        is no other: `overhead` takes 1.16 x as long without this.
        """
        try:
            self._run(call)
        except BaseException as error:
            call.error = located(error, self.plan.specs[0].operator)
            self._locate(call.error, call.origin)
            call.done = True
            del call  # the error's traceback leads to this frame

    def _locate(self, error: BaseException | None, origin: Origin) -> None:
        if self._where is not None and isinstance(error, ArrowflowError):
            file, row_group, part = self._where(origin)
            error.locate(file=file, row_group=row_group, part=part)

    def _run(self, call: Slot) -> None:
        item = call.item
        if self.head is None or self.passes_on(item):
            self._emit(call, item.chunk, item.position, item.origin)
            call.done = True
            return
        began = self.run.clock.now() if self._kept is not None else 0.0
        if call.iterator is None:
            given = item if isinstance(item, Task) else item.chunk
            call.iterator = self._timed("open", self.head.read, given)
        again = not (isinstance(item, Task) and item.streams)
        keyed: list[tuple[Key, Any, Buffers]] = []
        while (made := self._make(call, call.iterator)) is not None:
            if made.key is not None:
                item, buffers = call.made[-1]
                keyed.append((made.key, item.chunk, buffers))
            if not (made.more or again):
                break
            again &= made.more
        if keyed and self._kept is not None:
            call.groups.append(self._kept.group(keyed, self.run.clock.now() - began))

    def passes_on(self, item: Any) -> bool:
        """Whether an item is what the reader would make of it."""
        return self._passes and isinstance(item.chunk, pa.RecordBatch)

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
        self._emit(call, made.chunk, made.position, origin, is_kept=made.is_kept)
        return made

    def _emit(
        self, call: Slot, chunk: Payload, position: Position, origin: Origin, *, is_kept: bool = False
    ) -> None:
        """Applies the fused kernels to a chunk and keeps the result with its buffers."""
        for index, kernel in enumerate(self.kernels):
            if is_kept or not chunk.num_rows:
                break
            try:
                chunk = self._timed(self._titles[index], kernel.apply, chunk, origin)
            except BaseException as error:
                raise located(error, self.plan.kernels[index].operator) from cause_of(error)
            if isinstance(chunk, Recalled):
                chunk, group, images = chunk
                call.groups.append(group)
                call.kept_images += images
        if isinstance(chunk, Outcome):
            self._locate(chunk.error, origin)
        if call.iterator is None and chunk is call.item.chunk:  # nothing was made of it
            call.made.append((Item(chunk, position, call.item.ticket, origin), {}))
        else:
            buffers = REUSED if is_kept and not self._delivers_copies else buffers_of(chunk)
            call.made.append((Item(chunk, position, None, origin), buffers))
