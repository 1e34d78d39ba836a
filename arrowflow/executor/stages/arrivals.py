"""`Arrivals`: what came of one stage, and in which order, where `deterministic=False` leaves the order open.

A state cannot say "all rows before this one": others may have come. So each chunk gets a place (`plan.position.Arrived`).
It names a position of the input that all calls before are over with, and the rows of each split that came from there on.
Stages after this one hold rows back, and go on from the place before those rows. Chunks between that place and the state
have to come again, in the same order. So a place also tells that order, when somebody asks.

Splits and rows, and not calls and chunks, are counted: how many rows a call makes depends on budgets and on where it begins.

All of it under the run's lock, but for `Place`, which the consumer reads.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import MutableSequence

import pyarrow as pa

from arrowflow.errors import StateError
from arrowflow.kernels.items import Item
from arrowflow.plan.position import Arrived, Position, Rows, arrived_at


class Arrivals:
    """The arrivals of one running stage.

    Attributes:
        start: The place at which it was opened.
        before: Position at which the stage's input opens.
        again: [split, rows] that come next, in this order; where there are none, anything may.
    """

    def __init__(self, position: Position) -> None:
        self.start = at = arrived_at(position) or Arrived(None, (), ())
        self.before = at.before
        self.again = deque(map(list, at.again))
        self._to_drop = dict(at.came)
        self._log = Log(dict(at.came), tuple(at.again))
        at.follow(lambda: self._log.since(0))
        self._first = 0  # number of the first call that is not over
        self._start = 0  # where the log begins to tell of calls from that one on
        self._after: dict[int, Position] = {}  # positions after what calls made so far, from the first one on
        self._over: set[int] = set()

    def rest(self, number: int, item: Item) -> Item | None:
        """Returns what of a call's next chunk did not come before the state was taken; None if all of it did."""
        self._after[number] = item.position
        split, rows = item.origin.split, item.chunk.num_rows
        dropped = min(self._to_drop.get(split, 0), rows)
        if not dropped:
            return item
        self._to_drop[split] -= dropped
        self._log.dropped.append((number, split, dropped))
        return None if dropped == rows else item._replace(chunk=_slice(item, dropped))

    def put(self, number: int, item: Item, *, ends: bool) -> Item:
        """Returns a chunk of a call with its place.

        Args:
            number: The call, in the order of inputs.
            item: The chunk, with the position that it would have in order.
            ends: Whether the call is over with it.
        """
        rows = item.chunk.num_rows
        if rows:
            try:
                self._log.splits.append(item.origin.split)
            except OverflowError:  # one `repeat` in another makes numbers of more than 64 bits
                self._log.splits = [*self._log.splits, item.origin.split]
            self._log.rows.append(rows)
            self._log.calls.append(number)  # the last one, since a reader counts these
            if self.again:
                self.again[0][1] -= rows
                if not self.again[0][1]:
                    self.again.popleft()
        if ends:
            self.end(number)
        return item._replace(position=self.place())

    def place(self) -> Position:
        """Returns the place after all that came so far."""
        return Place(self.before, self.start.below, self._first, self._start, self._log).position()

    def end(self, number: int) -> None:
        """Notes that a call is over. May be told again."""
        if number < self._first:
            return
        self._over.add(number)
        last = self._first
        while last in self._over:  # a call that made nothing has no position: it is passed with the next one
            if last in self._after:
                self.before = self._after[last]
                for each in range(self._first, last + 1):
                    self._over.remove(each)
                    self._after.pop(each, None)
                self._first = last + 1
            last += 1
        calls = self._log.calls
        while self._start < len(calls) and calls[self._start] < self._first:
            self._start += 1


def cut(item: Item, rows: int) -> tuple[Item, Item | None]:
    """Returns at most so many rows of a chunk, and the others if there are any."""
    if item.chunk.num_rows <= rows:
        return item, None
    return item._replace(chunk=_slice(item, 0, rows)), item._replace(chunk=_slice(item, rows))


def _slice(item: Item, *place: int) -> pa.RecordBatch:
    if not isinstance(item.chunk, pa.RecordBatch):
        raise StateError(
            "with deterministic=False this state needs the budgets that it was taken with: it lies within a piece of work "
            "that is cut in another way now; give the same cpu_budget and ram_budget"
        )
    return item.chunk.slice(*place)


class Log:
    """The chunks that came: of which call, of which split, how many rows.

    Attributes:
        came: Rows by split that had come when the stage was opened.
        first: (split, rows) that come first.
        dropped: (call, split, rows) of these that calls made again.
    """

    def __init__(self, came: dict[int, int], first: tuple[tuple[int, int], ...]) -> None:
        self.came = came
        self.first = first
        self.dropped: list[tuple[int, int, int]] = []
        self.calls, self.rows = array("q"), array("q")
        self.splits: MutableSequence[int] = array("q")

    def since(self, at: int) -> tuple[tuple[int, int], ...]:
        """Returns what came from a chunk on, and what of `first` did not come yet."""
        until = len(self.calls)
        found = list(zip(self.splits[at:until], self.rows[at:until], strict=True))
        came = sum(self.rows[:until]) if self.first else 0
        for split, rows in self.first:
            if came < rows:
                found.append((split, rows - max(0, came)))
            came -= rows
        return tuple(found)


class Place(Arrived):
    """A place of a running stage, which is spelt out when a state is taken."""

    def __init__(self, before: Position, below: Arrived | None, first: int, start: int, log: Log) -> None:
        self.before, self.below = before, below
        self._first, self._start, self._at, self._log = first, start, len(log.calls), log

    @property
    def came(self) -> Rows:  # type: ignore[override]
        """Rows by split that came after `before` up to here."""
        log, found = self._log, Counter(self._log.came)
        for call, split, rows in log.dropped.copy():
            if call < self._first:
                found[split] -= rows
        for at in range(self._start, self._at):
            if log.calls[at] >= self._first:
                found[log.splits[at]] += log.rows[at]
        return tuple((split, rows) for split, rows in found.items() if rows)

    @property
    def again(self) -> Rows:
        """The arrivals after this place so far, and those that have to come first after that."""
        return self._log.since(self._at)
