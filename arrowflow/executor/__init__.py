"""Runs chains of stages on threads. The only package that knows of them.

Behaviour
---------
Success
 1. Items reach the consumer in the order of the plan, each with its position, whatever finishes first
    (unless `deterministic=False`: then in the order of completion).
 2. Whoever is free runs the most downstream stage that can run. That keeps queues short and is all the balancing
    that stages which compute need.
 3. A call may start if its stage has room (chunks ready, calls undelivered, ledger share). The head of its line
    (nothing of its stage runs or waits, and nothing that it made waits for the next stage) may start if it fits the
    budget at all. Beyond the budget starts only the head that is *needed*: the consumer has no item, and from there
    up each stage is idle and waits for the one above it, or for the input that it wants next, up to this one. So
    there is always one that can start: a full ledger is back-pressure and never a deadlock; and it is one call at a
    time, with the chunk that it works on, that goes beyond the budget. A serial stage, which takes its input's
    chunks over, waits for room in its share when anything that it put out is still there.
    A call of which nothing is known, like the first one of a user function, starts ahead of need only where much is
    free, and leaves no room for others while it runs (see `stages.sizes`). Inputs of a boundary that keeps rows back of each
    leave room for what the others will be asked for. Where one more chunk would go beyond a budget that is used up by
    what a boundary keeps back, the run ends with a `BudgetError` that names a budget.
 4. On the consumer's thread run the last serial kernel (slicing batches), what the consumer itself does, and, where it
    comes back at once and all that is left is known to be cheap, whatever there is to run (see `consumer`).
 5. Calls that compute take a token of the CPU budget each, serial ones too; calls that wait take none. What is not
    known to do either takes one until an idle worker, the watch, finds it waiting (see `workers.pool`). A token comes back
    when its call ends or waits, so that whoever lacks one only waits for others to finish. Live runs share the cores
    (see `workers.cores`), and each may always run one call. Calls in worker processes take one each, too, while a thread waits
    for the answer (see `processes.pool`).
 6. A tuner may change the limits of a stage at any time, under the lock: when something runs depends on them, never
    what comes of it, nor its order. Without a tuner (`autotune=False`) nothing is made before the consumer asks,
    unless a `prefetch` says so.

Failure
 7. The first error of a stage ends it in order: everything before it is delivered, then it is raised once, in
    `next()`, and the run is stopped. Rows that a serial kernel still holds back are dropped. A stage that is done
    (a satisfied `take`) never looks at what its input does later.
 8. An error carries its operator, file and row group; a user's exception is its `__cause__`. Whatever else a kernel
    raises is the `__cause__` of an error of the library. If the executor itself fails, the consumer is told. An
    interrupt of the consumer is no error of the kernel that it hit: it comes out at once, and as it was raised.

Cancel and early close
 9. `stop()` may be called from any thread, any number of times, also by the garbage collector in the middle of
    anything: it only sets a flag and unparks everybody; it never waits for the lock that its own thread holds.
10. `close()` is `stop()`, then joining the workers for `close_timeout` seconds, then dropping all that is held. A call
    that cannot be cancelled is named in a warning and left to end by itself; its result is dropped. One in a worker
    process is ended with the process. A call is waited for once: whatever closes the run again, the end of the
    interpreter too, does not wait for those that were named. After an interrupt (`KeyboardInterrupt`, or what any
    handler of a signal raised, see `interrupts`) it joins for half a second at most, and for a quarter more where
    processes were ended: calls that come back soon are waited for, and a person is not kept waiting. Whoever waits in
    `next()` meanwhile gets a `ClosedError`, and nothing that a kernel held back; whoever runs a call there gets it
    when that returns. Where joining would be waiting for itself (in a user function of this very run, in a signal
    handler that hit the lock's holder, in a finalizer that runs on any worker) it only stops: each worker drops what
    there is to drop when it leaves.
11. At interpreter exit all live runs are closed before Python tears anything down, as after an interrupt if one that
    nobody caught is why it exits. Daemon threads that consume them are held, as Python holds them a moment later.
12. In a forked child, no run of the parent can go on and no new one can start: both raise `ForkError`. (Locks, and
    the pools of Arrow and Polars, do not survive a fork in the middle of work.)

Who owns what
-------------
One lock per run (`Engine.lock`, re-entrant because the garbage collector may call `stop` under it). It guards every
queue, counter and flag of stages, streams and ledger. Kernels are called without it, except for the methods whose
docstrings say otherwise, which do no work worth mentioning. Abandoned iterators are closed by workers, without it:
a generator's `finally` is user code, and may block or raise.

A worker waits only parked in `Pool._rest`, the watch and the guard for some milliseconds at a time; the consumer waits
only in `Consumer._wait`; nobody waits for anything while holding the lock. (`cores` has a lock of its own, inside of that
one, under which nothing waits either.) A worker leaves when the run is stopped or over. Tickets are released by their finalizer into a lock-free queue, since it can
run in any thread at any time, the lock's holder included.

The engine does not reference the iterator that consumes it, and workers reference only the engine: an abandoned
iterator is collected, and its finalizer stops the run.
"""

from arrowflow.executor.engine import Engine
from arrowflow.executor.ledger import Ledger, Ticket
from arrowflow.executor.process_exit import check_not_forked

__all__ = ["Engine", "Ledger", "Ticket", "check_not_forked"]
