"""`Consumer`: the thread that calls `next()`. It takes items, waits for them, and runs cheap calls itself.

To hand the interpreter lock to another thread and back takes 50 to 100 µs. Many a call takes less. So a consumer that
*hurries* runs calls itself, one by one, until it has an item; workers rest meanwhile. A consumer hurries on two
conditions. All calls that are left are known to be cheap. And it comes back to the run within 0.2 ms, or within 1 ms
where all calls hold that lock. A consumer that was away for longer finds the items that workers made in that time. The
thread that runs a call never changes the call's result, nor its order.

While workers rest, one of them, the guard, looks after 20 ms whether the consumer made progress since. If it did, the
worker guards again, as long as it has nothing else to do. If it did not, workers take over (`take_over`): a function may
wait for other calls.

A user function that the consumer runs is part of `next()`. An interrupt in the function ends the run, as it does
anywhere in `next()`. And `close()` from another thread has to wait for the function to return.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from arrowflow.executor.limits import (
    FIRST_PATIENCE_SECONDS,
    HURRY_SECONDS,
    LAST_PATIENCE_SECONDS,
    LOCKED_HURRY_SECONDS,
    RECENT_ITEMS,
    TAKEN_SHARE,
)
from arrowflow.executor.stages.base import Queue, Run
from arrowflow.executor.workers.pool import Pool
from arrowflow.executor.workers.worker import ConsumerState, Seat
from arrowflow.kernels.items import Item

AWAY, NEAR, TAKING, COMPUTING, STUCK, WAITING = ConsumerState


class Consumer(Seat):
    """The consumer's side of one run. Attributes are guarded by the engine's lock, except where it says otherwise.

    Attributes:
        waited_seconds: Time that it waited.
        rows: Rows that it took. Its own.
        chunks: Items that it took. Its own.
    """

    def __init__(self, engine: Run, pool: Pool) -> None:
        super().__init__()
        self.engine = engine
        self.pool = pool
        self.waited_seconds = 0.0
        self.rows = self.chunks = 0
        self._wait_began: float | None = None
        self._taken: deque[Item] = deque()  # what it has not come to yet
        # Written by its own thread alone.
        self._left = math.inf
        self._was_soon = True
        # In calls of its own, for the next item, that another thread could have spared it.
        self._spent_seconds = 0.0
        self._item_seconds = 0.0  # the same for an item lately

    # ------------------------------------------------------------------ for workers

    def waited(self, now: float) -> float:
        """Returns how long it has waited, also just now."""
        began = self._wait_began
        return self.waited_seconds + (0.0 if began is None else now - began)

    def drop(self) -> None:
        """Lets go of the taken items that it has not come to. Under the lock."""
        self._taken.clear()

    # ------------------------------------------------------------------ its own thread

    def next_item(self) -> Item | None:
        """Takes the next item of the workers' last stage, waiting for it or making it; None at its end, or a stop.

        Raises:
            ArrowflowError: The first error of the run, in order.
        """
        try:
            return self._next_item()
        except BaseException:
            self.give_up()
            raise

    def _next_item(self) -> Item | None:
        engine = self.engine
        patience = FIRST_PATIENCE_SECONDS
        self.hurries = self.comes_soon(engine.clock.now()) and not self._taken
        while True:
            if engine.stopped:
                return None
            if self._taken:
                return self._handed_out(self._taken.popleft())
            with engine.lock:
                self.state = TAKING
                last = self.pool.ready.root_out
                if last.out:
                    self._take_from(last)
                    continue
                if last.ended and not engine.stopped:
                    if last.error is not None:
                        raise last.error
                    return None
                call = None
                ready = self.pool.pick_inline() if self.hurries else None
                if ready is not None:
                    self.state, self.in_charge = COMPUTING, True
                    self.pool.guard()
                    call = self.pool.begin(ready, self)
                else:
                    self.state, self.in_charge = WAITING, False
                    self.pool.kick()
                    if last.out or last.ended:  # that alone has brought it
                        continue
            if ready is not None:
                self._run(ready.stage, call)
            elif not self._wait(patience):
                # A call that should be over before another thread would be awake wakes nobody. If the call takes long
                # after all, the consumer wakes the others.
                patience = min(2 * patience, LAST_PATIENCE_SECONDS)
                self.hurries = False

    def comes_soon(self, now: float) -> bool:
        """Whether it came back soon, and items are made in no time.

        One that did so the last time may only have waited for the interpreter lock this time: `handover` of columns takes
        1.2 x as long without that.
        """
        locked = self.pool.ready.all_hold_lock
        soon = now - self._left < (LOCKED_HURRY_SECONDS if locked else HURRY_SECONDS)
        if not self.engine.options.autotune or not self.trusts or not (soon or self._was_soon):
            return False
        self._was_soon = soon
        return self._item_seconds < HURRY_SECONDS

    def _take_from(self, last: Queue) -> None:
        """Takes an item, or all items where a meeting of two threads at the lock costs more than an item."""
        self.turns += 1
        self._taken.append(last.out.popleft())
        if last.calls_are_short and self.engine.ledger.fits(0, TAKEN_SHARE):
            self._taken.extend(last.out)
            last.out.clear()
        if not (self.hurries and self.in_charge):
            self.pool.kick()  # which may leave all calls to it
        self.state = NEAR if self.hurries and self.in_charge else AWAY
        self.hurries = False

    def _handed_out(self, item: Item) -> Item:
        self.rows += item.chunk.num_rows
        self.chunks += 1
        self._item_seconds += (self._spent_seconds - self._item_seconds) / RECENT_ITEMS
        self._spent_seconds = 0.0
        self._left = self.engine.clock.now()
        return item

    def _wait(self, patience: float) -> bool:
        clock = self.engine.clock
        began = self._wait_began = clock.now()
        rung = self.bell.acquire(timeout=patience)
        self._wait_began = None
        self.waited_seconds += clock.now() - began
        return rung

    def _run(self, stage: Queue, call: Any) -> None:
        engine, clock = self.engine, self.engine.clock
        brief = stage.calls_are_brief  # to read the CPU clock twice takes 0.8 µs
        began, cpu = clock.now(), 0.0 if brief else clock.thread_cpu() + self.helped.cpu
        stage.caller.execute(call)
        elapsed = clock.now() - began
        cpu = elapsed if brief else clock.thread_cpu() + self.helped.cpu - cpu
        # If a call holds the lock, another thread would spare the consumer only the time that the call waits.
        self._spent_seconds += max(0.0, elapsed - cpu) if stage.holds_lock else elapsed
        with engine.lock:
            self.pool.finish(stage, call, self, elapsed, cpu)
            self.turns += 1
        if engine.abandoned:
            engine.abandoned.close(self)
