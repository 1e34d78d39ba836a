"""Runs chains of stages on threads. No other package knows of threads.

Behaviour
---------
Success
 1. Items reach the consumer in the order of the plan, each with its position, whatever finishes first.
    With `deterministic=False` they come in the order of completion.
 2. A free thread runs the most downstream stage that can run. That rule keeps queues short. Stages that compute need
    no other balancing. Only streams in which something changed are looked at (see `workers.ready`).
 3. `Queue.look` says whether a call may start. It returns one value and changes nothing: `Ready` with the call, `Waits`
    for another stage, `Blocked` at a gate, or `Done`. The ready set, the tuner, the reasons why cores idle, `stats()` and
    `describe()` all read this value. These are the gates (`physical.tuning.Gate`), in the order of the look:
    a. CALLS: fewer calls are in flight than `StageLimits.max_calls`. A call is in flight while a thread runs it. Where a user
       asked for a number of calls, those of all streams of the stage count. Lanes share what the stage may have otherwise.
       TOKEN: a core of the budget is free, for calls that compute (rule 5).
    b. SLOTS: fewer calls than `max_slots` were started and are not delivered. TURN: fewer of their chunks than
       `max_turn_chunks` wait for their turn. CHUNKS: fewer chunks than `max_ready_items` wait for the next stage.
    c. BYTES: with what the call may take, the ledger stays within the stage's share of the budget: what is used, and
       what is spared for running calls (g).
    d. A call is the *head of its line* if its stage has nothing else: no call that runs or waits for its turn, and no
       chunk that waits for the next stage. In place of (b) and (c) it only has to fit the whole budget.
    e. The head is *needed* if the consumer has no item, and each stage between the two is idle and waits for the stage
       before it. (A boundary waits for the input that it wants next.) The needed head may go beyond the budget, if all
       else that the run holds is within the budget, without the chunk that the call works on. Otherwise the head waits
       until the consumer is in `next()`: it may hold rows of the chunk before. Then the head starts in any case. So some
       call can always start: a full ledger is back-pressure and never a deadlock.
    f. A serial stage takes its input's chunks over. So it waits for room in its share while anything that it put out is
       still there. If its calls make chunks, they are bound by (c) to (e), too.
    g. Nothing is known of a function's first call. Such a call starts ahead of need only where much is free, and leaves
       no room for others while it runs. With each result that was foreseen, more calls run beside each other. Room is
       spared for results twice as large as the ones before foretell (see `stages.sizes`).
    h. Some boundaries keep rows back of each input. Such an input leaves room for the rows that the others will be asked
       for. If one more chunk would exceed a budget that a boundary's kept rows use up, the run ends with a
       `BudgetError` that names a budget.
    i. In the first run of a pipeline, calls that wait ask for few bytes beside each other, and for more as bytes come.
    j. Chunks that are kept for later epochs are no bytes in use, and go where bytes are reserved (see `keeping`). So no
       call waits for them. The ledger's peak counts them.
    k. So the ledger's peak is the budget, and the largest call: the chunk that it makes, its scratch, and the chunks that
       its input stands on. Two things come on top. Of operators whose chunks exceed the budget each, one of each is
       there; `interleave` takes rows of several elements in turn, and each of these has operators of its own. And calls in
       flight may make more than twice of that which all calls before foretold, as where rows grow from one file to the next.
 4. The consumer's thread runs the last serial kernel (slicing batches) and the consumer's own code. If the consumer
    comes back at once, and all that is left is known to be cheap, its thread runs every call (see `consumer`).
 5. A call that computes takes a token of the CPU budget, serial calls too. A call that waits takes none, nor does a
    serial call that tells such calls what to do.
    A call that is not known to do either takes a token, until an idle worker, the watch, finds it waiting (see
    `workers.pool`). A token comes back when its call ends or waits. So a call that lacks a token only waits for others
    to finish.
    A call that Polars' pool computes takes two thirds of a token: parts of it leave the pool idle.
    Live runs share the cores (see `workers.cores`), and each may always run one call. With more runs than cores, calls
    of parallel stages that are known to compute take turns, and none waits for long (`TURN_SECONDS`). A call in a worker
    process takes a token too, while a thread waits for the answer (see `processes.pool`). So does a call of an instance,
    which has a thread of its own, its home (see `workers.instances`). The home's CPU time counts as the caller's.
 6. A tuner may change the limits of a stage at any time, under the lock. The limits decide when something runs, never
    its result or its order. Without a tuner (`autotune=False`) nothing is made before the consumer asks, unless a
    `prefetch` says so.

Failure
 7. The first error of a stage ends the stage in order. Everything before the error is delivered. Then `next()` raises
    the error once, and the run is stopped. Rows that a serial kernel still holds back are dropped. A stage that is
    done (a satisfied `take`) never looks at later events of its input.
 8. An error carries its operator, file and row group; a user's exception is its `__cause__`. Anything else that a
    kernel raises is the `__cause__` of an error of the library. If the executor itself fails, the consumer is told. An
    interrupt of the consumer is no error of the kernel that it hit: it comes out at once, and as it was raised.

Cancel and early close
 9. Any thread may call `stop()`, any number of times. The garbage collector may too, in the middle of anything.
    `stop()` only sets a flag and unparks everybody. It never waits for the lock that its own thread holds.
10. `close()` is `stop()`, then joining the workers for `close_timeout` seconds, then dropping all that is held.
    After `stop()`, each home closes its instance and ends, as soon as its call is over; `close()` joins the homes with the
    workers. It also waits for worker processes to close theirs. An exception of an instance's `close` is a warning.
    A call that cannot be cancelled is named in a warning and left to end by itself; its result is dropped. A call in a
    worker process is ended with the process. A call is waited for once: a second close of the run, at the end of the
    interpreter too, does not wait for the calls that were named.
    An interrupt is a `KeyboardInterrupt`, or an exception that any handler of a signal raised (see `interrupts`).
    After an interrupt, `close()` joins for half a second at most, and for a quarter more where processes were ended.
    Calls that come back soon are waited for, and a person is not kept waiting.
    A thread that waits in `next()` meanwhile gets a `ClosedError`, and no rows that a kernel held back. A thread that
    runs a call there gets the error when the call returns.
    In three places joining would be waiting for itself: in a user function of this very run, in a signal handler that
    hit the lock's holder, and in a finalizer that runs on any worker or home. There `close()` only stops the run. Each worker
    then drops the rest when it leaves.
11. At interpreter exit all live runs are closed before Python tears anything down. If an uncaught interrupt is the
    reason for the exit, they are closed as after an interrupt. Daemon threads that consume runs are held, as Python
    holds them a moment later.
12. In a forked child, no run of the parent can go on and no new one can start: both raise `ForkError`. (Locks, and
    the pools of Arrow and Polars, do not survive a fork in the middle of work.)

Two examples
------------
A full ledger. The plan is read → map → batch, and the budget has room for three chunks. The consumer is in its own code.
`read` has put out two chunks, and `map` is in one call, which reserves the third::

    map    Blocked(CALLS)   one call may run at a time
    read   Blocked(BYTES)   most_bytes: two chunks, so it is looked at again once the ledger counts no more than that

The call ends, and its chunk waits for `batch`. It still stands on memory, so `read` stays blocked, and so is `map`. The
consumer calls `next()`, takes the chunk, and lets go of it. Bytes are released: `map` is Ready, then `read`. Were the
next chunk larger than the whole budget, `read` would be the head of its line. `map` would answer `Waits(read)`. So
`read` is needed, and goes beyond the budget, once nothing else does.

A straggler. Four cores decode calls of 32 chunks, and the first call takes very long. The other three cores go on: their
chunks wait for their turn in slots, behind the first one. `read` answers `Blocked(TOKEN)` while the cores are busy. After
64 calls, if the first one lasts that long, it answers `Blocked(SLOTS)`, and counts that. The tuner sees the count and idle
cores, and tries 128 slots. Once the first call ends, `complete` delivers all chunks up to the next call that still runs.

States
------
Of the consumer (`ConsumerState`). Workers rest while it is NEAR or COMPUTING. Its own thread makes every change under the
lock, except for those that are named::

                                 asks workers            item, end, hand_over (`ring`, any thread)
    AWAY, NEAR -- next() --> TAKING ---------> WAITING ------------------------------------------> TAKING
        ^                    |    ^               ^  | nobody rang for a while
        |                    |    |               +--+
        +------- item -------+    +---- call returns ---- COMPUTING or STUCK
                             |                                ^
                             +---- begins a cheap call -------+

    COMPUTING -> STUCK, NEAR -> AWAY: `take_over` by the guard, which then calls a worker.

Of a worker (`WorkerState`). `Pool` makes every change, under the lock::

    started --> CALLED -- looks --> AWAKE -- nothing to do --> PARKED, WATCHING or GUARDING
                  ^                   ^                              |                  |
                  |                   +-------- time is over --------+                  |
                  +--------------- woken (`kick`, `guard`, the end) --------------------+

`kick` calls one worker at a time. That worker looks, and calls the next one before it begins a call that takes long. At
most one is WATCHING (see `workers.pool`), and one GUARDING (see `consumer`).

Ownership
---------
A stage is two objects. Its queue is bookkeeping and runs no kernel, its caller runs kernels and touches nothing but the
call::

    out of the stage before --> look --> Ready --> start --> execute --> complete --> out --> next stage
                                '----- Queue, lock held ---' Caller,     Queue,
                                                             no lock     lock held

Each run has one lock, `Engine.lock`. It is re-entrant because the garbage collector may call `stop` under it. The lock
guards every queue, counter and flag of stages, streams and ledger. Kernels are called without the lock. The exceptions
are methods whose docstrings say so; these do no work worth mentioning. Workers close abandoned iterators, without the
lock: a generator's `finally` is user code, and may block or raise.

A worker waits parked in `Pool._rest`, where the watch and the guard wait for some milliseconds at a time. It also waits
before a call for its turn (`workers.cores`), and in a call for a home. The consumer waits in `Consumer._wait`, and in a
call of its own for a home. A home waits parked for calls. No thread waits for anything while it holds the lock. (`cores`
and its turns have locks of their own, the first inside of the run's lock. No thread waits under those either. `keeping`
has one, too, for which nobody waits longer than a moment.) A worker
leaves when the run is stopped or over. A ticket's finalizer releases the ticket into a lock-free queue. The finalizer
can run in any thread at any time, the lock's holder included.

The engine does not reference the iterator that consumes it, and workers reference only the engine. So an abandoned
iterator is collected, and its finalizer stops the run.
"""

from arrowflow.executor.engine import Engine
from arrowflow.executor.ledger import Ledger, Ticket
from arrowflow.executor.process_exit import check_not_forked
from arrowflow.executor.workers.together import Planning, lasting

__all__ = ["Engine", "Ledger", "Planning", "Ticket", "check_not_forked", "lasting"]
