"""Every constant and rule of thumb of the executor: its unit, its reason, and the benchmark that shows it.

Nothing here changes a value or an order: a constant decides when something runs, how much may wait, and how long.
Limits that the tuner changes while a run goes on are in `arrowflow.physical.tuning`.

Each rule of thumb was switched off in turn. One process ran each benchmark with and without the rule, in turns, on two
cores of an AMD EPYC. (Pairs differ by 10 % without any reason.) "1.9 x" says how much longer a benchmark takes without
the rule. Rules without a gain that can be seen are gone.
"""

from __future__ import annotations

from typing import Final

from arrowflow.physical.tuning import MOSTLY_COMPUTES, WAITS

# ---------------------------------------------------------------- the consumer (`overhead`, `tutorial`, small chunks)

HURRY_SECONDS: Final = 200e-6
"""A consumer that comes back within this time, to a run that makes an item within it, runs cheap calls itself. Workers
would gain less than the interpreter lock costs on its way to them and back, 50 to 100 µs. `overhead` 1.9 x, a function
on batches of 64 rows 1.7 x, `handover` of columns 1.3 x."""

LOCKED_HURRY_SECONDS: Final = 1e-3
"""The same where all remaining calls hold the interpreter lock. A consumer that reads its items from a disk takes longer;
workers then tell the system ahead of it which pages come next. `handover` of columns 1.3 x."""

FIRST_PATIENCE_SECONDS: Final = 0.001
"""The consumer looks for work again after this time, and after twice the time from then on."""

LAST_PATIENCE_SECONDS: Final = 0.064
"""The longest time for which the consumer waits without a look, for an item or for an instance's thread."""

TAKEN_SHARE: Final = 0.5
"""The consumer takes all ready items of cheap calls at once while less than this share of the ledger is used. One by one,
items of an `interleave` take 9.7 µs in place of 7.2."""

RECENT_ITEMS: Final = 16
"""Items over which the consumer averages the time of its own calls."""

GUARD_SECONDS: Final = 0.02
"""One worker looks this often whether a call on the consumer's thread blocks."""

# ---------------------------------------------------------------- workers (`stream`, `autotune`)

CREDIT_SECONDS: Final = 0.02
"""CPU time that a run which used less than its budget may use later."""

INTERPRETER_SHARE: Final = 0.7
"""Running calls that together use more than this share of a core may wait for the interpreter lock, not for I/O."""

FIRST_LOOK_SECONDS: Final = 0.001
"""The watch looks at running calls after this time, and after twice the time from then on."""

LAST_LOOK_SECONDS: Final = 0.016
"""The longest time between two looks of the watch."""

LONG_CALL_SECONDS: Final = 0.1
"""A call that has run for this time is counted while it runs. Two samples of the tuner come sooner."""

SHORTEST_CALL_SECONDS: Final = 50e-6
"""The CPU share of a call under 50 µs is mostly noise."""

ROUNDING: Final = 0.05
"""Tokens under this part of a core count as none."""

TURN_SECONDS: Final = 2.0
"""The longest time for which a call waits for its turn, where there are more runs than cores. A row group takes 25 ms.
Without turns a worker of 16 lanes (`cluster_costs`, wide) uses 1.2 x the CPU time."""

# ---------------------------------------------------------------- stages (`stream`, `wide`, `budgets`)

RECENT_CALLS: Final = 16
"""Calls over which a stage averages its latest times."""

ONE_CALL_SHARE: Final = 0.75
"""The most that one call adds to these averages, as a share of the time of a short call. A look for garbage falls into any
call and takes 50 ms: a mean would call that stage's calls long for its next hundred."""

MAX_ITEMS_PER_CALL: Final = 16
"""Items that one call of a serial stage takes, so that many cheap items cost one turn of the scheduler. `handover` of
columns 1.2 x, a function on batches of 64 rows 1.1 to 1.5 x."""

SMALL_ITEMS: Final = 64
"""Chunks of at most `SMALL_BYTES` that may wait, 1 MiB in all: waking a thread for a few costs more than the chunks
do. `handover` of columns 1.1 x."""

SMALL_BYTES: Final = 1 << 14
"""Chunks up to 16 KiB are small."""

FIRST_CALL_BYTES: Final = 1 << 16
"""Bytes that are reserved for a call while nothing is known of it."""

FIRST_WAITED_BYTES: Final = 32 << 20
"""Bytes that waiting calls may ask for beside each other before any have come, in the first run of a pipeline. The first
chunk shares the line with all that is asked for. At 100 MB/s it comes after 0.8 s in place of 2.9. An epoch takes as long."""

WAITED_GROWTH: Final = 4
"""More bytes that they may ask for, as a multiple of those that have come."""

UNTOLD_BYTES: Final = 64 << 20
"""A function's first call starts ahead of need only where this many bytes are free, or the budget: it may make anything.
After each result that was foreseen, half of them do."""

UNTOLD_GROWTH: Final = 64
"""The same, as a multiple of the call's input."""

SURPRISE_GROWTH: Final = 2
"""Room for a call's result, as a multiple of what the results before it tell: the largest by rows, all of them by bytes."""

BUDGET_MARGIN: Final = 2.0
"""The budget that an error names exceeds the known need by this factor: rows that come later may be wider."""

NEGLIGIBLE_BYTES: Final = 1 << 20
"""An excess over the budget up to this size ends no run, however small its budget is."""

WAIT_STEP_SECONDS: Final = 0.01
"""A kernel that waits for another process looks this often whether the run was stopped."""

MAX_CALLS_BESIDE: Final = 4
"""Requests of one call at the same time. As many calls are in flight as help, so more of each would only wait."""

# ---------------------------------------------------------------- the end of a run

KILLED_SECONDS: Final = 1.0
"""Time for threads to notice that the worker process of their call was killed."""

INTERRUPTED_SECONDS: Final = 0.5
"""Time for calls to return after an interrupt. With the next constant less than the second that a person waits."""

INTERRUPTED_KILLED_SECONDS: Final = 0.25
"""`KILLED_SECONDS` after an interrupt."""

# ---------------------------------------------------------------- worker processes (`processes`)

IDLE_SECONDS: Final = 10.0
"""A worker process that was not used for this time is not used again."""

LINGER_SECONDS: Final = 5.0
"""A worker process waits this much longer before it ends, so that it never ends with a request on its way."""

ENDING_SECONDS: Final = 1.0
"""Time for a worker process to end once it was told to; then it is killed."""

MAX_KNOWN: Final = 16
"""Operators that a worker process keeps ready. The parent uses the number, too: it knows what to send again."""

MAX_CAUSES: Final = 16
"""Causes of an error that travel from a worker process."""

# ---------------------------------------------------------------- tokens: what calls take of the CPU budget

LEAST_ROOM: Final = 2 * ROUNDING
"""Less is what rounding leaves of a budget that is taken."""


def waits(weight: float) -> bool:
    """Whether a call of this weight waits, so that it takes no token and needs no room."""
    return weight < WAITS


def fits(weight: float, room: float) -> bool:
    """Whether a call may begin, given what is left of the CPU budget.

    The next call takes the rest of a core. The number of cores, or the mean, bounds how much the call uses.
    """
    return weight < WAITS or room > LEAST_ROOM


def token(weight: float) -> float:
    """Returns the part of the CPU budget that a call takes."""
    return 0.0 if weight < WAITS else weight


def rounded(share: float) -> float:
    """Returns the part of a core that a call takes, given its share of CPU time."""
    return 1.0 if share > MOSTLY_COMPUTES else max(0.0, share)
