"""`UnorderedQueue`: a parallel stage whose calls deliver as they are ready, for `deterministic=False`.

Rows of one split keep their order, and splits have none. A call whose input has rows of several splits (a chunk of a cache)
waits for all calls before it that share a split with it. After a state was loaded, what came before it comes again in the
order of the state, and then as it is ready (`arrivals` says why). Until then calls begin and go on as long as there is
room. Where there is none, one at a time goes on, as the head of the line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from arrowflow.errors import StateError
from arrowflow.executor.stages.arrivals import Arrivals, cut
from arrowflow.executor.stages.base import Done, Look, Ready, Stream
from arrowflow.executor.stages.caller import Slot
from arrowflow.executor.stages.parallel import ParallelQueue
from arrowflow.kernels.items import Item, Origin
from arrowflow.plan.position import Position


class UnorderedQueue(ParallelQueue):
    """Runs what a `ParallelQueue` runs."""

    def __init__(
        self, stream: Stream, index: int, kernels: list[Any], position: Position, arrivals: Arrivals
    ) -> None:
        super().__init__(stream, index, kernels, position)
        self.arrivals = arrivals
        following = stream.chain.stages[index + 1 : index + 2]
        self._shares_splits = False
        self.begun = not following or following[0].kind != "serial"

    def _is_head(self, slot: Slot) -> bool:
        return not self.out and not self.running if self.arrivals.again else super()._is_head(slot)

    @property
    def _begins_line(self) -> bool:
        """Whether what has to come next is in no call that has begun."""
        again = self.arrivals.again
        if not again or not self.slots:
            return not self.slots
        return not self.running and all(again[0][0] not in slot.splits for slot in self.slots)

    def start(self, ready: Ready) -> Slot:
        slot = super().start(ready)
        reader = self._reader
        if reader is not None and ready.call is None and not self.caller.passes_on(slot.item):
            splits = reader.splits(slot.item.chunk)
            if len(splits) > 1:  # one alone is the input's
                slot.splits, self._shares_splits = splits, True
        return slot

    def _without_input(self) -> Look:
        if self.arrivals.again and not (self.running or self._suspended):
            upstream = self.upstream
            over = self._next_task is None if upstream is None else upstream.ended and not upstream.out
            if over:
                error = self._failure if upstream is None else upstream.error
                missing = StateError(
                    f"{self.plan.titles[0]}: fewer rows come than came when the state was taken; with "
                    "deterministic=False a state needs the data and the functions that it was taken with"
                )
                return Done(True, error or missing)
        return super()._without_input()

    def _deliver(self, call: Slot) -> None:
        if self._shares_splits:
            slots = list(self.slots)
        else:
            slots = [slot for slot in self.slots if slot.splits == call.splits]
        try:
            if self.arrivals.again:
                self._deliver_again()
                slots = [] if self.arrivals.again else list(self.slots)
            for slot in self._in_turn(slots):
                while slot.results:
                    self._put(slot, slot.results.pop(0))
        except StateError as error:
            self.end(error)
        self._end_if_done()

    def _in_turn(self, slots: list[Slot]) -> Iterator[Slot]:
        """Yields the calls that may deliver: rows of one split keep their order. Takes those away that are over."""
        waiting = set[int]()
        for slot in slots:
            if self.ended:
                return
            if not waiting.isdisjoint(slot.splits):
                waiting.update(slot.splits)
                continue
            if not slot.running:
                self._drop_what_came(slot)
                yield slot
            if slot.running or slot.results or not slot.done:
                waiting.update(slot.splits)
            elif not self.ended:
                self.arrivals.end(slot.number)
                self.slots.remove(slot)
                if slot.error is not None:
                    self.end(slot.error)

    def _drop_what_came(self, slot: Slot) -> None:
        """Drops what a call made since the last look, as far as it came before the state was taken."""
        results = slot.results
        rests = [self.arrivals.rest(slot.number, item) for item in results[slot.looked :]]
        self.turn_chunks -= sum(rest is None for rest in rests)
        results[slot.looked :] = filter(None, rests)
        slot.looked = len(results)

    def _deliver_again(self) -> None:
        """Delivers what is there of that which came before the state was taken."""
        again = self.arrivals.again
        found = True
        while again and found and not self.ended:
            found = False
            for slot in self._in_turn(list(self.slots)):
                at = 0
                while again and at < len(slot.results):
                    item = slot.results[at]
                    if item.chunk.num_rows and item.origin.split != again[0][0]:
                        at += 1
                        continue
                    item, left = cut(item, again[0][1])
                    slot.results[at : at + 1] = [] if left is None else [left]
                    self.turn_chunks += left is not None
                    slot.looked += left is not None
                    self._put(slot, item)
                    found = True

    def _put(self, slot: Slot, item: Item) -> None:
        self.turn_chunks -= 1
        slot.looked -= 1
        if not self.begun and isinstance(item.chunk, pa.RecordBatch):
            self.begun = True  # the kernel after this one may return to the place before the first chunk
            origin = Origin(item.origin.split, item.origin.piece, last=False)
            self.put(Item(item.chunk.slice(0, 0), self.arrivals.place(), None, origin))
        ends = slot.done and not slot.results and slot.error is None
        self.put(self.arrivals.put(slot.number, item, ends=ends))
