"""`ReadySet`: the streams to look at for a call that can start.

If each turn looked at every stage of every stream, a turn would cost as much as there are open inputs. So a stream is
looked at if something of it has changed since the last look. The root stream is always looked at: it has few stages.

| change | noted by |
|---|---|
| a call of its stages starts or ends | `moved`, by `Pool.begin` and `Pool.finish` |
| it is new; a stage of it ends; a boundary wants it or takes from it | `Engine.add`, `Engine.changed` |
| it is the wanted one, so its head may go beyond the budget | `_note_wanted`, at each look |
| bytes were released, and now a call fits that did not | `_note_fitting`, at each look |
| a token was released | it waits in `_tokenless`, which is looked at while there is a token |
| limits, weights, or the byte budget | `note_all` |

A change of a stream may be a change of its boundary, too. A note that is missing costs time and never a result: the run
goes on because the wanted stream is looked at each time. (The tests of the executor find such a note all the same.)
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from arrowflow.executor.failure import located
from arrowflow.executor.limits import fits
from arrowflow.executor.stages.base import Blocked, Done, Queue, Ready, Run, Stream, Waits
from arrowflow.executor.stages.boundary import BoundaryQueue
from arrowflow.executor.workers.worker import ConsumerState
from arrowflow.physical.tuning import Gate


class ReadySet:
    """All live streams of a run, and those of them to look at. Under the run's lock.

    Attributes:
        root_out: The stage whose items the consumer takes.
        lacks_token: In the last look, some call could not start for want of a token.
        cost_is_measured: Some stage calls functions whose cost is only measured.
    """

    root_out: Queue

    def __init__(self, run: Run) -> None:
        self.run = run
        self.lacks_token = self.cost_is_measured = False
        self._root: Stream | None = None
        self._streams: dict[Stream, None] = {}  # in the order in which they were opened
        self._opened = 0
        self._changed = False  # a stream was noted since the look began
        self._noted: list[tuple[int, Stream]] = []  # a heap by rank
        self._tokenless: list[tuple[int, Stream]] = []  # a heap by rank
        # The bytes that the ledger may count at most for a call of the stream to start, and the most of all of them.
        self._lacks_bytes: dict[Stream, float] = {}
        self._most_bytes = -1.0
        self._measured: dict[Stream, None] = {}  # streams whose calls may take long, as far as was looked
        self._lets_go = 0  # streams with a stage whose calls let go of the interpreter lock
        self._budget = run.ledger.budget

    # ------------------------------------------------------------------ streams

    def add(self, stream: Stream) -> None:
        """Takes in a stream; the first one is the root."""
        self._root = self._root or stream
        stream.rank = self._opened
        self._opened += 1
        self._streams[stream] = None
        self.cost_is_measured |= any(stage.cost_is_measured for stage in stream.stages)
        self._lets_go += not stream.holds_lock
        self.moved(stream)

    def remove(self, stream: Stream) -> None:
        """Forgets a stream that was dropped."""
        if stream.rank is None:
            return
        stream.rank = None
        self._lets_go -= not stream.holds_lock
        del self._streams[stream]
        self._lacks_bytes.pop(stream, None)
        self._measured.pop(stream, None)

    def clear(self) -> None:
        """Forgets all streams."""
        for stream in list(self._streams):
            self.remove(stream)

    def stages(self) -> Iterator[Queue]:
        """Returns the stages of all streams, the most downstream first."""
        for stream in self._streams:
            yield from stream.downstream_first

    def tell(self) -> None:
        """Wakes the consumer if it waits for an item that is there now, or for an end that was noticed."""
        consumer, last = self.run.consumer, self.root_out
        if consumer.state is ConsumerState.WAITING and (last.out or last.ended):
            consumer.ring()

    # ------------------------------------------------------------------ notes

    def moved(self, stream: Stream) -> None:
        """Notes that a call of a stream starts or has ended; its calls may turn out to take long."""
        if stream is not self._root:
            self._measured[stream] = None
            self.note(stream)

    def note(self, stream: Stream) -> None:
        """Notes that something of a stream has changed, and so perhaps of those whose boundaries take from it."""
        self._changed = True
        while stream is not self._root and stream.boundary is not None:
            self._push(stream)
            stream = stream.boundary.stream

    def note_all(self) -> None:
        """Notes that something has changed on which all streams depend."""
        for stream in self._streams:
            if stream is not self._root:
                self._push(stream)
                self._measured[stream] = None

    def _push(self, stream: Stream) -> None:
        if not stream.noted and stream.rank is not None:
            stream.noted = True
            heapq.heappush(self._noted, (stream.rank, stream))

    def _note_wanted(self) -> None:
        """Notes the streams on the way from the consumer to the head that it waits for."""
        stream = self._root
        while stream is not None and type(stage := stream.stages[0]) is BoundaryQueue:
            stream = stage.current
            if stream is not None:
                self._push(stream)

    def _note_fitting(self) -> None:
        """Notes the streams with a call that did not fit into the ledger, and does now."""
        ledger = self.run.ledger
        ledger.drain()
        used = ledger.used + ledger.spared
        if used <= self._most_bytes:
            for stream in [stream for stream, most in self._lacks_bytes.items() if used <= most]:
                del self._lacks_bytes[stream]
                self._push(stream)
            self._most_bytes = max(self._lacks_bytes.values(), default=-1.0)

    # ------------------------------------------------------------------ looks

    def find(self, room: float) -> Ready | None:
        """Returns the call of the most downstream stage that can start one (rule 2).

        Args:
            room: Cores of the CPU budget that are free.
        """
        if self._budget != self.run.ledger.budget:  # other runs of the process began or ended
            self._budget = self.run.ledger.budget
            self.note_all()
        self.lacks_token = False
        assert self._root is not None
        while True:
            self._changed = False
            ready = self._look_at(self._root, room)
            if ready is None and self._opened > 1:
                ready = self._find_input(room)
            if ready is not None or not self._changed:
                return ready
            # A stage was ended, or turned to another input, which the stages before it have not seen yet.
            self.tell()

    def _find_input(self, room: float) -> Ready | None:
        """Returns the call of the most downstream stage of another stream than the root that can start one."""
        self._note_wanted()
        if self._lacks_bytes:
            self._note_fitting()
        ready = self._look(self._noted, room)
        if ready is None and self._tokenless:
            if fits(1.0, room):
                return self._look(self._tokenless, room)
            self.lacks_token = True
        return ready

    def _look(self, heap: list[tuple[int, Stream]], room: float) -> Ready | None:
        while heap:
            _, stream = heapq.heappop(heap)
            if heap is self._noted:
                stream.noted = False
            else:
                stream.tokenless = False
            if stream.rank is None:
                continue
            ready = self._look_at(stream, room)
            if ready is not None:
                self._push(stream)  # the look may not lead to a start
                return ready
        return None

    def _look_at(self, stream: Stream, room: float) -> Ready | None:
        """Returns a call of a stream that can start; notes what the stream waits for if there is none."""
        most_bytes, tokenless = -1.0, False
        for stage in stream.downstream_first:
            try:
                look = stage.look(room)
                if type(look) is Waits:
                    if not stage.settle():
                        continue
                    look = stage.look(room)
            except Exception as error:
                look = Done(True, located(error, stage.plan.specs[0].operator))
            if type(look) is Ready:
                return look
            if type(look) is Blocked:
                stage.refused[look.gate] += 1
                if look.most_bytes > most_bytes:
                    most_bytes = look.most_bytes
                elif look.gate is Gate.TOKEN:
                    tokenless = True
            elif type(look) is Done and look.ends:
                stage.end(look.error)
        self.lacks_token = self.lacks_token or tokenless
        if stream is not self._root and stream.rank is not None:
            if tokenless and not stream.tokenless:
                stream.tokenless = True
                heapq.heappush(self._tokenless, (stream.rank, stream))
            if most_bytes >= 0:
                self._lacks_bytes[stream] = most_bytes
                self._most_bytes = max(self._most_bytes, most_bytes)
        return None

    # ------------------------------------------------------------------ costs

    @property
    def lacks_bytes(self) -> bool:
        """Whether some call would start if there were room in the ledger."""
        assert self._root is not None
        looks = (stage.look() for stage in self._root.downstream_first)
        return bool(self._lacks_bytes) or any(
            isinstance(look, Blocked) and look.most_bytes >= 0 for look in looks
        )

    @property
    def all_hold_lock(self) -> bool:
        """Whether all calls hold the interpreter lock nearly all of their time."""
        return not self._lets_go

    def all_calls_are_short(self) -> bool:
        """Whether no stage can start a call that takes long, as far as is known."""
        assert self._root is not None
        if not _is_quick(self._root):
            return False
        while self._measured:
            stream, _ = self._measured.popitem()
            if not _is_quick(stream):
                self._measured[stream] = None
                return False
        return True


def _is_quick(stream: Stream) -> bool:
    for stage in stream.downstream_first:
        if not stage.calls_are_short and (stage.running or not stage.has_begun_all):
            return False
    return True
