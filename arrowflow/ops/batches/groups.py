"""Groups: which rows of equal keys are emitted together, and when. Numbers of rows only; no data.

Rows are numbered through the epoch. A row whose key has no group opens a group, as its oldest row. So groups are
always in the order of their oldest rows. Before a row is added, the first of these rules that applies is used, again
and again until none applies:

1. the oldest group is emitted short while more than `MAX_EMITTED_KEYS` keys were emitted since its oldest row,
2. a group whose oldest row came `max_lag_rows` ago is emitted short,
3. if the row opens a group while there are `max_groups`, the oldest group is emitted short.

Then the row is added, and its group is emitted if the group is full. So every emission is a pure function of the rows.

**Resuming.** Held rows of a key are the last rows of this key. So the last emitted row of each key tells all rows that
were emitted from the oldest held row on: all rows of the key up to that row. These row numbers are the state; no key
is in it. A resumed run reads the rows again and forgets the emitted rows. Emissions start again only after the last
row that was seen.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from arrowflow.ops.batches.row_selection import RowNumbers, rows_by_code
from arrowflow.plan.shape import altered

Codes = npt.NDArray[np.int32]

MAX_EMITTED_KEYS: Final = 2048
"""Each group has a row number in a state, which has to stay under 64 KiB."""

MAX_GROUPS: Final = 2048
"""At the end each group is emitted, and its key has a row number in a state, too."""

NEVER: Final = 1 << 62


class Emission(NamedTuple):
    """Rows that are emitted together, ascending.

    Attributes:
        rows: Their numbers.
        next_row: The first row that was not looked at.
    """

    rows: RowNumbers
    next_row: int


class Groups:
    """The groups that are held.

    Args:
        size: Rows of a full group.
        max_groups: Groups that are held at most.
        max_lag_rows: A group whose oldest row came this many rows ago is emitted short.
        next_row: The first row to look at; the rows before it only come again.
        emitted: The last emitted row of each key, if that row comes again; ascending.
    """

    def __init__(
        self, size: int, max_groups: int, max_lag_rows: int, next_row: int = 0, emitted: Sequence[int] = ()
    ) -> None:
        self._size = size
        self._max_groups = max_groups
        self._lag = max_lag_rows
        self._again = next_row
        self._emitted = list(emitted)
        self._last: dict[Hashable, int] = {}  # key -> its row in `_emitted`, or a row before all rows
        # By key, during a chunk also the rows that were not looked at yet.
        self._held: dict[Hashable, RowNumbers] = {}
        self._open: dict[Hashable, None] = {}  # keys of groups, in the order of their oldest rows
        self._events: list[tuple[int, Any]] = []  # (row that may open or fill a group, key), or out of date

    def add(self, codes: Codes, keys: Sequence[Hashable], first: int) -> Iterator[Emission]:
        """Yields the groups that the rows from `first` on emit; `keys[codes]` are the keys of these rows.

        An emission is settled when it is yielded: `oldest` and `emitted` give the values after it.
        """
        seen = min(max(0, self._again - first), len(codes))
        self._see_again(codes[:seen], keys, first)
        if seen == len(codes):
            return
        self._order()
        first += seen
        for key in self._hold(codes[seen:], keys, first):
            self._await(key)
        yield from self._run(first, first + len(codes) - seen)

    def finish(self, next_row: int) -> Iterator[Emission]:
        """Yields the remaining groups, the oldest first."""
        self._order()
        while self._open:
            yield self._emit_oldest(next_row)

    @property
    def oldest(self) -> int:
        """The oldest row of all groups, or a number beyond all rows."""
        return int(self._held[next(iter(self._open))][0]) if self._open else NEVER

    def emitted(self, since: int) -> list[int]:
        """Returns the last emitted row of each key that emitted from row `since` on, and forgets the other keys."""
        del self._emitted[: bisect_left(self._emitted, since)]
        if len(self._last) > 2 * (len(self._emitted) + MAX_EMITTED_KEYS):
            self._last = {key: row for key, row in self._last.items() if row >= since}
        return self._emitted.copy()

    def _see_again(self, codes: Codes, keys: Sequence[Hashable], first: int) -> None:
        """Holds the rows that come again, except the emitted ones."""
        self._hold(codes, keys, first)
        start = bisect_left(self._emitted, first)
        for row in self._emitted[start : bisect_left(self._emitted, first + len(codes))]:
            key = keys[codes[row - first]]
            self._last[key] = row
            rows = self._held[key]
            self._held[key] = rows[np.searchsorted(rows, row, side="right") :]

    def _hold(self, codes: Codes, keys: Sequence[Hashable], first: int) -> list[Hashable]:
        """Adds rows to those of their keys, and returns these keys."""
        found = []
        for code, rows in rows_by_code(codes, len(keys), first):
            found.append(key := keys[code])
            held = self._held.get(key)
            self._held[key] = rows if held is None else np.concatenate((held, rows))
        return found

    def _order(self) -> None:
        """Opens the groups of the rows that came again, as soon as all these rows came."""
        if self._again:
            self._again = 0
            self._held = {key: rows for key, rows in self._held.items() if len(rows)}
            self._open = dict.fromkeys(sorted(self._held, key=lambda key: int(self._held[key][0])))

    def _run(self, now: int, stop: int) -> Iterator[Emission]:
        events = self._events
        heapq.heapify(events)
        while True:
            row = events[0][0] if events else stop
            oldest = self.oldest
            # `now` is the first row that was not looked at. It is `stop` only when no row is left.
            since = len(self._emitted) - bisect_left(self._emitted, oldest)
            if now < stop and self._open and since > MAX_EMITTED_KEYS:
                yield self._emit_oldest(now)
            elif (late := oldest + self._lag) <= row and late < stop:
                now = late
                yield self._emit_oldest(now)
            elif row < stop:
                key = events[0][1]
                emission = self._look_at(row, key)
                if emission is not None:
                    now = emission.next_row
                    yield emission
            else:
                return

    def _look_at(self, row: int, key: Hashable) -> Emission | None:
        """Does the work of an event, unless the event is out of date."""
        rows, is_open = self._held.get(key), key in self._open
        opens = not is_open and rows is not None and rows[0] == row
        if opens and len(self._open) >= self._max_groups:
            return self._emit_oldest(row)
        heapq.heappop(self._events)
        if opens:
            self._open[key] = None
            self._await(key)
        elif is_open and rows is not None and len(rows) >= self._size and rows[self._size - 1] == row:
            return self._emit(key, self._size, row + 1)
        return None

    def _await(self, key: Hashable) -> None:
        """Notes the row that opens or fills the group of a key."""
        rows = self._held[key]
        if key not in self._open:
            heapq.heappush(self._events, (int(rows[0]), key))
        elif len(rows) >= self._size:
            heapq.heappush(self._events, (int(rows[self._size - 1]), key))

    def _emit_oldest(self, next_row: int) -> Emission:
        key = next(iter(self._open))
        rows = int(np.searchsorted(self._held[key], next_row))
        if not rows:
            raise altered("group_by_window: the place in its input is not one where a batch ends")
        return self._emit(key, rows, next_row)

    def _emit(self, key: Hashable, rows: int, next_row: int) -> Emission:
        held = self._held.pop(key)
        del self._open[key]
        if rows < len(held):
            self._held[key] = held[rows:]
            self._await(key)
        before, last = self._last.get(key, -1), int(held[rows - 1])
        index = bisect_left(self._emitted, before)
        if index < len(self._emitted) and self._emitted[index] == before:
            del self._emitted[index]
        insort(self._emitted, last)
        self._last[key] = last
        return Emission(held[:rows], next_row)
