"""Kept chunks on ledgers: bytes by unique buffer, and chunks that go before anything waits for them."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from arrowflow.executor import Ledger, keeping
from arrowflow.executor.ledger import buffers_of
from arrowflow.kernels.kept import KeptChunk, KeptChunks, KeptGroup
from tests.effort import scaled
from tests.executor.fakes import chunk
from tests.executor.interrupter import interrupted

SIZE = 800


@pytest.fixture(autouse=True)
def _nothing_idle(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Datasets of other tests, which may still live, do not count."""
    monkeypatch.setattr(keeping._Process, "idle", ())
    yield
    assert not keeping.idle_bytes(), "a test has left kept chunks behind"


def ledger_of(budget: int, *kept: KeptChunks, shares: bool = False) -> Ledger:
    ledger = Ledger(budget)
    keeping.begin(ledger, shares=shares)
    for each in kept:
        keeping.join(ledger, each)
    return ledger


def group(number: int, *chunks: pa.RecordBatch) -> KeptGroup:
    made = {(number, part, part + 1, ""): KeptChunk(one, buffers_of(one)) for part, one in enumerate(chunks)}
    return KeptGroup(made, {address: size for one in chunks for address, size in buffers_of(one).items()})


def filled(kept: KeptChunks, ledger: Ledger, groups: int) -> None:
    for number in range(groups):
        assert keeping.add(ledger, kept, group(number, chunk(number, SIZE)))


def half_full() -> tuple[KeptChunks, Ledger]:
    """Returns five kept chunks, and a ledger with room for ten."""
    kept = KeptChunks()
    ledger = ledger_of(10 * SIZE, kept)
    filled(kept, ledger, 5)
    return kept, ledger


def counted(ledger: Ledger) -> tuple[int, int]:
    ledger.drain()
    return ledger.used, ledger.reclaimable


def test_a_chunk_that_a_call_holds_is_counted_once() -> None:
    kept = KeptChunks()
    ledger = ledger_of(100 * SIZE, kept)
    one = chunk(1, SIZE)
    ticket = ledger.charge(buffers_of(one))
    assert keeping.add(ledger, kept, group(0, one))
    assert counted(ledger) == (SIZE, 0)
    del ticket
    assert counted(ledger) == (0, SIZE)
    ticket = ledger.charge(buffers_of(one))
    assert counted(ledger) == (SIZE, 0)
    assert ledger.peak == SIZE
    del ticket


def test_kept_chunks_are_room_for_calls_and_the_last_one_goes_first() -> None:
    kept, ledger = half_full()
    assert ledger.fits(10 * SIZE)
    ledger.reserve(7 * SIZE)
    assert [key[0] for key in kept.chunks] == [0, 1, 2]
    assert counted(ledger) == (7 * SIZE, 3 * SIZE)
    assert ledger.peak == 10 * SIZE
    ledger.unreserve(7 * SIZE)
    assert not keeping.add(ledger, kept, group(7, chunk(7, SIZE))), "it would only go again"


def test_a_chunk_in_use_stays_since_its_end_would_free_nothing() -> None:
    kept, ledger = half_full()
    ticket = ledger.charge(kept.chunks[4, 0, 1, ""].buffers)
    ledger.reserve(7 * SIZE)
    assert [key[0] for key in kept.chunks] == [0, 1, 4]
    del ticket


def test_half_of_the_budget_is_kept_or_what_is_asked_for() -> None:
    for asked, fits in ((None, 5), (3 * SIZE, 3), (100 * SIZE, 10)):
        kept = KeptChunks(asked)
        ledger = ledger_of(10 * SIZE, kept)
        added = [keeping.add(ledger, kept, group(number, chunk(number, SIZE))) for number in range(12)]
        assert added == [True] * fits + [False] * (12 - fits)


def test_there_is_room_up_to_what_did_not_fit_and_none_once_the_plan_is_gone() -> None:
    kept, ledger = half_full()
    assert kept.has_room(1 << 60), "nothing is known of a limit"
    assert not keeping.add(ledger, kept, group(5, chunk(5, SIZE)))
    assert kept.has_room(SIZE - 1)
    assert not kept.has_room(SIZE)
    kept.clear()
    assert not kept.has_room(0)


def test_chunks_that_no_run_counts_go_for_other_pipelines() -> None:
    idle, other = KeptChunks(), KeptChunks()
    ended = ledger_of(10 * SIZE, idle, shares=True)
    filled(idle, ended, 4)
    keeping.leave(ended)
    assert keeping.idle_bytes() == 4 * SIZE
    ledger = ledger_of(10 * SIZE, other, shares=True)
    assert keeping.add(ledger, other, group(9, chunk(9, SIZE)))
    assert not keeping.add(ledger, other, group(8, chunk(8, SIZE))), "half of the budget is kept already"
    ledger.reserve(8 * SIZE)
    assert (len(other.chunks), len(idle.chunks)) == (0, 2), "its own go first"
    ledger.unreserve(8 * SIZE)
    keeping.leave(ledger)
    del idle, other


def test_chunks_whose_plan_goes_before_or_while_they_come_are_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone, going = KeptChunks(), KeptChunks()
    ledger = ledger_of(10 * SIZE, gone, going)
    gone.clear()
    tell = keeping._tell
    assert not keeping.add(ledger, gone, group(1, chunk(1, SIZE)))

    def clear_and_tell(kept: KeptChunks, group: KeptGroup, *, is_new: bool) -> None:
        kept.clear()
        tell(kept, group, is_new=is_new)

    monkeypatch.setattr(keeping, "_tell", clear_and_tell)
    assert not keeping.add(ledger, going, group(2, chunk(2, SIZE)))
    for kept in (gone, going):
        assert (kept.chunks, kept.groups, kept.num_bytes) == ({}, {}, 0)
    assert counted(ledger) == (0, 0)


def test_a_budget_of_its_own_is_no_business_of_others() -> None:
    idle = KeptChunks()
    ended = ledger_of(10 * SIZE, idle)
    filled(idle, ended, 4)
    keeping.leave(ended)
    ledger = ledger_of(10 * SIZE, shares=True)
    ledger.reserve(10 * SIZE)
    assert len(idle.chunks) == 4


def test_a_smaller_budget_trims_what_is_kept() -> None:
    _kept, ledger = half_full()
    ledger.budget = 4 * SIZE
    keeping.trim(ledger)
    assert counted(ledger) == (0, 2 * SIZE)
    ledger.budget = 4 * SIZE - 2
    keeping.trim(ledger)
    assert counted(ledger) == (0, SIZE), "a byte too many counts, too"


@pytest.mark.parametrize("seed", range(scaled(20)))
def test_ledgers_count_each_buffer_that_is_used_or_kept(seed: int) -> None:
    draws = random.Random(seed)
    kept = KeptChunks()
    budget = 12 * SIZE
    ledgers = [ledger_of(budget, kept), ledger_of(budget, kept)]
    tickets: list[list[tuple[Any, dict[int, int]]]] = [[], []]
    for step in range(200):
        at = draws.randrange(2)
        ledger, held = ledgers[at], tickets[at]
        action = draws.choice(["make", "make", "take", "drop", "drop", "reserve"])
        if action == "make":  # one call makes chunks that share a buffer, and keeps them
            whole = chunk(step, SIZE)
            parts = [whole.slice(0, 50), whole.slice(50)]
            held += [(ledger.charge(buffers_of(part)), dict(buffers_of(part))) for part in parts]
            keeping.add(ledger, kept, group(step, *parts))
            del whole, parts
        elif action == "take" and kept.chunks:
            one = draws.choice(list(kept.chunks.values()))
            held.append((ledger.charge(one.buffers), dict(one.buffers)))
            del one
        elif action == "drop" and held:
            held.pop(draws.randrange(len(held)))
        elif action == "reserve":
            num_bytes = draws.randrange(6 * SIZE)
            ledger.reserve(num_bytes)
            assert ledger.held <= budget or not ledger.reclaimable
            ledger.unreserve(num_bytes)
        for each, claims in zip(ledgers, tickets, strict=True):
            used = {address: size for _, buffers in claims for address, size in buffers.items()}
            both = used | {address: size for one in kept.groups for address, size in one.buffers.items()}
            assert counted(each) == (sum(used.values()), sum(both.values()) - sum(used.values()))
        assert kept.num_bytes == sum(one.num_bytes for one in kept.groups)


def elsewhere(call: Callable[..., None], *arguments: Any) -> None:
    """Calls on another thread, which must not wait."""
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "on", [elsewhere, lambda call, *arguments: call(*arguments)], ids=["others", "its-own"]
)
def test_a_change_that_comes_in_the_middle_of_another_one_is_made_after_it(on: Callable[..., None]) -> None:
    """As an interrupt or the garbage collector may make one on the thread that holds the lock."""
    kept, idle = KeptChunks(), KeptChunks()
    first, ended = ledger_of(10 * SIZE, kept, shares=True), ledger_of(10 * SIZE, idle, shares=True)
    filled(kept, first, 3)
    filled(idle, ended, 2)
    second, third = ledger_of(10 * SIZE, shares=True), ledger_of(10 * SIZE, shares=True)

    def is_slow() -> None:
        on(keeping.join, second, kept)
        on(keeping.leave, first)
        on(keeping.join, third, kept)
        on(keeping.leave, ended)
        assert [each() for each in kept.ledgers] == [first], "the holder saw a change"
        assert keeping.idle_bytes() == 0

    assert keeping._make(is_slow)
    assert [each() for each in kept.ledgers] == [second, third]
    assert keeping.idle_bytes() == 2 * SIZE
    assert counted(second) == counted(third) == (0, 3 * SIZE)
    keeping.leave(second)
    keeping.leave(third)
    assert keeping.idle_bytes() == 5 * SIZE


class Gate:
    """The lock of changes, which stands still before it is free, and after it was not to be had."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.owner = 0
        self.frees = threading.Event()
        self.tried = threading.Event()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        got = self.lock.acquire(blocking, timeout)
        if got:
            self.owner = threading.get_ident()
        else:
            self.tried.set()
        return got

    def release(self) -> None:
        if self.owner == threading.get_ident():
            self.frees.set()
            assert self.tried.wait(60)
        self.lock.release()


def test_a_change_that_comes_while_the_lock_is_let_go_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder has looked at the queue, and still has the lock when another thread tries it."""
    gate = Gate()
    kept = KeptChunks()
    ledger, other = ledger_of(10 * SIZE), ledger_of(10 * SIZE)
    monkeypatch.setattr(keeping._Process, "lock", gate)
    holder = threading.Thread(target=keeping.join, args=(ledger, kept))
    holder.start()
    assert gate.frees.wait(60)
    keeping.join(other, kept)
    holder.join(60)
    assert {each() for each in kept.ledgers} == {ledger, other}
    assert not keeping._Process.queued


def test_changes_of_many_threads_are_all_made() -> None:
    kept = KeptChunks()
    ledgers = [ledger_of(10 * SIZE, shares=True) for _ in range(8)]
    barrier = threading.Barrier(len(ledgers))

    def comes_and_goes(ledger: Ledger) -> None:
        for _ in range(scaled(50)):
            barrier.wait(60)
            keeping.join(ledger, kept)
            barrier.wait(60)
            keeping.leave(ledger)
        barrier.wait(60)
        keeping.join(ledger, kept)

    threads = [threading.Thread(target=comes_and_goes, args=(ledger,)) for ledger in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {each() for each in kept.ledgers} == set(ledgers) and len(kept.ledgers) == len(ledgers)
    assert not keeping._Process.idle


def test_an_interrupt_at_any_point_of_a_change_leaves_the_lock_free_and_the_bytes_right() -> None:
    for at in itertools.count(1):
        kept = KeptChunks()
        ledger, other = ledger_of(10 * SIZE, shares=True), ledger_of(10 * SIZE, kept)
        with contextlib.suppress(KeyboardInterrupt), interrupted(at) as interrupter:
            keeping.join(ledger, kept)
            for number in range(2):
                keeping.add(ledger, kept, group(number, chunk(number, SIZE)))
            ledger.reserve(9 * SIZE)  # one of them goes
            keeping.leave(other)
            assert kept.num_bytes == SIZE
        elsewhere(keeping._catch_up)
        elsewhere(keeping.leave, other)
        assert not keeping._Process.queued, interrupter.where
        assert [each() for each in kept.ledgers] == ([ledger] if ledger.kept else []), interrupter.where
        assert kept.num_bytes == sum(one.num_bytes for one in kept.groups), interrupter.where
        assert counted(ledger_of(10 * SIZE, kept)) == (0, kept.num_bytes), interrupter.where
        elsewhere(keeping.leave, ledger)
        assert not kept.ledgers
        assert keeping.idle_bytes() == kept.num_bytes, interrupter.where
        del kept, ledger, other
        if interrupter.points < at:
            break
    assert at > 50
