"""The ledger: all bytes that one run holds, by unique buffer, under one budget."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

import pyarrow as pa

from arrowflow.kernels.items import BorrowedTicket
from arrowflow.kernels.kept import Kept, sizes_of

Buffers = Mapping[int, int]
"""Bytes of each buffer, by address: a tuple a buffer would start the garbage collector."""

Released = deque[tuple[tuple[int, ...], Buffers | None, int]]
"""The claims of tickets that are gone: addresses, buffers that were kept as a whole, and the bytes of these buffers."""


def buffers_of(chunk: object) -> Buffers:
    """Returns the buffers that a chunk keeps alive: 6 µs for 6 columns, so once per chunk and outside of the lock.

    A slice pins its whole buffers, so the whole buffers are returned. Other payloads list their buffers in `buffers`.
    A payload without that attribute is a descriptor, or stands on a ticket of its own.
    """
    if isinstance(chunk, pa.RecordBatch):
        return sizes_of(chunk)
    found: Iterable[Any] = getattr(chunk, "buffers", ())
    return {buffer.address: size for buffer in found if buffer is not None and (size := buffer.size)}


class Ticket:
    """A claim on the ledger, released when the last item that holds it is gone.

    Attributes:
        num_bytes: Bytes that nobody else had claimed before.
        keys: The addresses of its buffers.
    """

    __slots__ = ("_kept", "_released", "keys", "num_bytes")

    def __init__(
        self, keys: tuple[int, ...], num_bytes: int, released: Released, kept: Buffers | None = None
    ) -> None:
        self.keys = keys
        self._kept = kept
        self._released = released
        self.num_bytes = num_bytes

    def __del__(self) -> None:
        # This may run in any thread, at any allocation, also while this thread holds the engine's lock. The append to
        # a deque is atomic and takes no lock; `Ledger.drain` does the accounting later.
        self._released.append((self.keys, self._kept, self.num_bytes))


class Ledger:
    """Counts bytes. Every method except `Ticket.__del__`'s append is called under the engine's lock.

    Attributes:
        budget: Bytes that may be used.
        used: Bytes charged or reserved now.
        peak: The most that was ever used.
        spared: Bytes that running calls may come to use, whose sizes nobody knows: not used, and not free. A call has its
            part of them from `reserve` to `unreserve`.
        reclaimable: Bytes of kept chunks that no ticket claims: not used, and free once they are needed.
        kept: The kept chunks that it counts. `executor.keeping` sets this, and the next two.
        idle_bytes: Returns the bytes of kept chunks that no ledger counts, and that may go, too.
        take_back: Lets kept chunks go that take so many bytes.
        told: Buffers of kept chunks that came (True) or went since the last `drain`. Any thread appends.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.used = 0
        self.peak = 0
        self.spared = 0
        # Bytes by address, of all buffers that a ticket claims: 0 for those that the run did not make.
        self._sizes: dict[int, int] = {}
        self._claims: dict[int, int] = {}  # tickets by address, of buffers that several tickets claim
        self._kept: list[Buffers] = []
        self._released: Released = deque()
        self.reclaimable = 0
        self._reclaimable_sizes: dict[int, int] = {}  # bytes by address, of all buffers of kept chunks
        self.kept: tuple[Kept, ...] = ()
        self.idle_bytes: Callable[[], int] = int
        self.take_back: Callable[[Ledger, int], None] | None = None
        self.told: deque[tuple[bool, Buffers]] = deque()

    @property
    def held(self) -> int:
        """Bytes that the run holds: those that are used, and those of kept chunks."""
        return self.used + self.reclaimable

    def fits(self, num_bytes: int, share: float = 1.0) -> bool:
        """Whether `num_bytes` more stay within `share` of the budget."""
        if self._released:
            self.drain()
        return self.used + self.spared + num_bytes <= self.budget * share

    def reserve(self, num_bytes: int, spared: int = 0) -> None:
        """Counts bytes that a call is about to allocate; kept chunks go if there is no room for both."""
        self.spared += spared
        self.used += num_bytes
        if self.told:
            self.drain()
        held = self.used + self.reclaimable
        if self.take_back is not None:
            excess = held + (idle_bytes := self.idle_bytes()) - self.budget
            if excess > 0 and (self.reclaimable or idle_bytes):
                self.take_back(self, excess)
                self.drain()
                held = self.used + self.reclaimable
        self.peak = max(self.peak, held)

    def unreserve(self, num_bytes: int, spared: int = 0) -> None:
        """Takes a reservation back."""
        self.spared -= spared
        self.used -= num_bytes

    def charge(self, buffers: Buffers, *, lent: bool = False) -> Ticket:
        """Counts each buffer that is not counted yet, and returns the claim on all of them.

        Buffers that are lent, like those of a user's table, are there without the run as well: they count nothing.
        """
        if self._released or self.told:
            # Before looking addresses up: a freed buffer's address may already be another buffer's.
            self.drain()
        known, new = self._claim(buffers)
        if lent:
            new = dict.fromkeys(new, 0)
        self._sizes.update(new)
        if reclaimable := self._reclaimable_sizes:
            self.reclaimable -= sum(reclaimable.get(address, 0) for address in new)
        added = sum(new.values())
        self.reserve(added)
        return Ticket((*known, *new), added, self._released)

    def _claim(self, buffers: Buffers) -> tuple[Set[int], Buffers]:
        """Adds a claim on each buffer that tickets count already; returns these, and those that nothing counts."""
        known = self._sizes.keys() & buffers.keys()
        for address in known:
            self._claims[address] = self._claims.get(address, 1) + 1
        new = {address: buffers[address] for address in buffers.keys() - known} if known else buffers
        if self._kept:
            new = {each: size for each, size in new.items() if not any(each in some for some in self._kept)}
        return known, new

    def made_bytes(self, ticket: Any) -> int:
        """Returns the bytes that a ticket, or a collection of tickets, keeps alive."""
        if type(ticket) is Ticket:
            keys: Iterable[int] = ticket.keys
        else:
            keys = {key for each in _tickets(ticket) if isinstance(each, Ticket) for key in each.keys}
        return sum([self._sizes.get(key, 0) for key in keys])

    def keep(self, buffers: Buffers) -> Ticket:
        """Counts buffers all at once, and returns the claim on them. The mapping must not change."""
        self.drain()
        known, new = self._claim(buffers)
        num_bytes = sum(new.values())
        self._kept.append(new)
        self.reserve(num_bytes)
        return Ticket(tuple(known), num_bytes, self._released, new)

    def drain(self) -> None:
        """Accounts for the tickets that were released, and the kept chunks that came and went, since the last time."""
        while self.told:
            self._hear(*self.told.popleft())
        reclaimable = self._reclaimable_sizes
        while self._released:
            keys, kept, num_bytes = self._released.popleft()
            if kept is not None:
                self._kept = [buffers for buffers in self._kept if buffers is not kept]
                self.used -= num_bytes
            for address in keys:
                claims = self._claims.get(address) if self._claims else None
                if claims is None:
                    self.used -= self._sizes.pop(address)
                    if reclaimable:
                        self.reclaimable += reclaimable.get(address, 0)
                elif claims == 2:
                    del self._claims[address]
                else:
                    self._claims[address] = claims - 1

    def _hear(self, is_new: bool, buffers: Buffers) -> None:
        """Counts the buffers of kept chunks that came, and forgets those of chunks that went."""
        sizes = self._reclaimable_sizes
        if is_new:
            sizes.update(buffers)
            self.reclaimable += self.uncounted(buffers)
        else:
            gone = {address: size for address in buffers if (size := sizes.pop(address, None)) is not None}
            self.reclaimable -= self.uncounted(gone)

    def uncounted(self, buffers: Buffers) -> int:
        """Returns the bytes of buffers that no ticket claims."""
        return sum([size for address, size in buffers.items() if address not in self._sizes])

    def holds(self, buffers: Buffers) -> bool:
        """Whether one of some buffers is that of a kept chunk."""
        return not self._reclaimable_sizes.keys().isdisjoint(buffers)


def ticket_bytes(ticket: Any) -> int:
    """Returns the bytes that a ticket, or a collection of tickets, was charged with: those of each ticket once."""
    if type(ticket) is Ticket:
        return ticket.num_bytes
    return sum(each.num_bytes for each in _tickets(ticket))


def _tickets(ticket: Any) -> set[Ticket | BorrowedTicket]:
    """Returns the claims of an item: slices of one chunk stand on one."""
    if isinstance(ticket, Iterable):
        return {each for some in ticket for each in _tickets(some)}
    return set() if ticket is None else {ticket}
