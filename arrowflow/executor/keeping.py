"""Kept chunks on the ledgers of runs: who counts them, and when they go. See `arrowflow.kernels.kept`.

A ledger counts the bytes of kept chunks as `reclaimable`, without the buffers that a ticket claims, too: those are used.
A look for work takes reclaimable bytes for free ones, so no call ever waits for kept chunks. `Ledger.reserve` is where
bytes are taken, and there kept chunks go until what is used and what is kept fit the budget again. The last that came
go first. A chunk that a call holds frees nothing, and stays. Once chunks had to go, no others come in their place:
otherwise each epoch would keep and drop the same ones.

Runs of one plan count its chunks each, as they count a cache in memory. Between two runs nobody counts them. Then runs
that divide the memory of the process, see `workers.cores`, count them as `idle`, and take them once their own are gone.

A run changes its own ledger under its own lock. It tells other ledgers by `Ledger.told`, which needs no lock. The lock
of this module is the innermost one. The garbage collector or an interrupt may close another run in the middle of a change.
Then the thread that holds the lock waits for that run's lock, while a worker of that run waits here. So nobody may wait
for the lock for long, and no change may begin inside of another one: `_Process.busy` says that one is in progress.

* `join` and `leave` must not fail, and so never wait. They queue their change, and make it at once if the lock is free. If it
  is not, its holder makes the change: whoever lets the lock go looks at the queue afterwards. A change is queued before
  its thread tries the lock. So either the try succeeds, or the lock was still held, and the holder's look comes later.
* Others wait for some time. Without the lock they keep nothing, or take bytes back at the next call.
* An interrupt may come right after a call, and nowhere else. If it comes right after the lock was taken, nobody has been
  told so. Therefore whoever tried the lock releases it, and `RLock` refuses a thread that does not own it. A queued change
  that an interrupt cuts off is made again by whoever comes next, so each can be made twice. Other runs may not hear of an
  interrupted `add`; a run that begins later counts what is kept.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

from arrowflow.executor.failure import is_interrupt
from arrowflow.executor.ledger import Ledger
from arrowflow.kernels.kept import Kept, KeptGroup

PATIENCE_SECONDS: Final = 0.05
"""A change takes some microseconds."""


class _Process:
    """The state that the runs of this process share.

    Attributes:
        lock: Guards all changes.
        busy: Whether a change is in progress. Under the lock.
        queued: Changes to make under the lock. Any thread appends.
        idle: Kept chunks that no live run counts, of plans that divide the memory of the process. Replaced as a whole.
    """

    lock = threading.RLock()
    busy = False
    queued: Final[deque[Callable[[], None]]] = deque()
    idle: tuple[weakref.ref[Kept], ...] = ()


def _make(change: Callable[[], None]) -> bool:
    """Makes a change after those that are queued. Returns False if the lock did not come in time."""
    made = _under_lock(PATIENCE_SECONDS, change)
    _catch_up()
    return made


def _under_lock(patience: float, change: Callable[[], None] | None = None) -> bool:
    """Makes the queued changes, and then another one. Returns False if the lock did not come in time.

    The caller looks at the queue afterwards: others may have queued a change before the lock was free.
    """
    try:
        if not _Process.lock.acquire(timeout=patience) or _Process.busy:
            return False
        try:
            _Process.busy = True
            while _Process.queued:
                _Process.queued[0]()
                _Process.queued.popleft()
            if change is not None:
                change()
            return True
        finally:
            _Process.busy = False
    finally:
        try:
            _Process.lock.release()
        except RuntimeError as error:  # it did not come
            if is_interrupt(error):
                raise


def _change(change: Callable[[], None]) -> None:
    """Makes a change, or leaves it to the thread that holds the lock."""
    _Process.queued.append(change)
    _catch_up()


def _catch_up() -> None:
    while _Process.queued and _under_lock(0):
        pass


def begin(ledger: Ledger, *, shares: bool) -> None:
    """Lets a ledger take kept chunks back. Called before its run starts."""
    ledger.take_back = _take_back
    if shares:
        ledger.idle_bytes = idle_bytes


def join(ledger: Ledger, kept: Kept) -> None:
    """Counts kept chunks in a ledger, until `leave`. Under the run's lock."""
    if kept in ledger.kept:
        return

    def counts() -> None:
        _Process.idle = tuple(each for each in _Process.idle if each() not in (None, kept))
        if any(each() is ledger for each in kept.ledgers):
            return
        ledgers = (*kept.ledgers, weakref.ref(ledger))
        news = [(True, group.buffers) for group in list(kept.groups)]
        kept.ledgers = ledgers  # without a call in between, so that both happen, or neither
        ledger.told.extend(news)

    ledger.kept = (*ledger.kept, kept)
    _change(counts)
    ledger.reserve(0)


def leave(ledger: Ledger) -> None:
    """Counts no kept chunks any more: the run is over. Under its lock."""
    counted, ledger.kept = ledger.kept, ()

    def counts_no_more() -> None:
        for kept in counted:
            kept.ledgers = tuple(each for each in kept.ledgers if each() not in (None, ledger))
            if ledger.idle_bytes is idle_bytes and not kept.ledgers and kept not in _idle():
                _Process.idle = (*_Process.idle, weakref.ref(kept))

    _change(counts_no_more)


def add(ledger: Ledger, kept: Kept, group: KeptGroup) -> bool:
    """Keeps what a call has made, if there is room. Under the run's lock."""
    ledger.drain()
    most = ledger.budget // 2 if kept.asked_bytes is None else min(kept.asked_bytes, ledger.budget)
    was_added = False

    def adds() -> None:
        nonlocal was_added
        held = sum(each.num_bytes for each in ledger.kept) + ledger.idle_bytes()
        new = ledger.uncounted(group.buffers)
        has_room = held + group.num_bytes <= most and ledger.held + new <= ledger.budget
        if not has_room or not kept.has_room(group.num_bytes):
            kept.most_bytes = kept.num_bytes + group.num_bytes - 1  # so that nobody copies it in each epoch
        elif kept.chunks.keys().isdisjoint(group.chunks) and not ledger.holds(group.buffers):
            kept.groups[group] = None
            kept.num_bytes += group.num_bytes
            kept.chunks.update(group.chunks)
            _tell(kept, group, is_new=True)
            was_added = not kept.is_gone
            if kept.is_gone:
                _tell(kept, group, is_new=False)
                kept.clear()

    _make(adds)
    if was_added:
        ledger.drain()
        ledger.reserve(0)
    return was_added


def trim(ledger: Ledger) -> None:
    """Lets chunks go that exceed half of a budget which other runs have made smaller. Any thread."""

    def trims() -> None:
        excess = sum(kept.num_bytes for kept in ledger.kept) - ledger.budget // 2
        for kept in ledger.kept:
            if excess > 0 and kept.asked_bytes is None:
                excess -= _drop(kept, excess, None)

    _make(trims)


def idle_bytes() -> int:
    """Returns the bytes of kept chunks that no live run counts. Any thread."""
    return sum(kept.num_bytes for kept in _idle()) if _Process.idle else 0


def _idle() -> list[Kept]:
    return [kept for reference in _Process.idle if (kept := reference()) is not None]


def _take_back(ledger: Ledger, excess: int) -> None:
    """Lets chunks go that take so many bytes: a run's own, and then those that nobody counts. Under the run's lock."""

    def takes_back() -> None:
        nonlocal excess
        for kept in ledger.kept:
            if excess > 0:
                excess -= _drop(kept, excess, ledger)
        for kept in _idle() if ledger.idle_bytes is idle_bytes else ():
            if excess > 0:
                excess -= _drop(kept, excess, None)

    _make(takes_back)


def _drop(kept: Kept, excess: int, ledger: Ledger | None) -> int:
    """Drops the last groups until so many bytes are free, and returns how many are.

    Args:
        kept: The chunks.
        excess: The bytes to free.
        ledger: Tells what is in use; None if any group frees its bytes.
    """
    freed, gone = 0, []
    for group in reversed(list(kept.groups)):
        if freed >= excess:
            break
        num_bytes = group.num_bytes if ledger is None else ledger.uncounted(group.buffers)
        if num_bytes:
            freed += num_bytes
            gone.append(group)
    for group in gone:
        _tell(kept, group, is_new=False)  # before the memory goes: its address may be another buffer's then
        for key in group.chunks:  # first: an interrupt must leave no chunk without its group
            kept.chunks.pop(key, None)
        left = max(0, kept.num_bytes - group.num_bytes)  # 0 if the plan went meanwhile
        kept.num_bytes = left  # without a call before the next line, as an interrupt comes after one
        kept.groups.pop(group, None)
    if gone:
        kept.most_bytes = kept.num_bytes
    return freed


def _tell(kept: Kept, group: KeptGroup, *, is_new: bool) -> None:
    for reference in kept.ledgers:
        if (ledger := reference()) is not None:
            ledger.told.append((is_new, group.buffers))
