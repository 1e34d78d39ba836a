"""A run without threads: simulated stages on simulated cores, by a clock of events, with the executor's rules.

What is as in the executor: which stage is next, tokens and the mean of the CPU budget, room and order of what is
finished, what the first calls and the watch teach, when the tuner gets a sample and what is in it. What is not: bytes,
and what switching between threads costs.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, product

from arrowflow.executor.limits import (
    CREDIT_SECONDS,
    FIRST_LOOK_SECONDS,
    INTERPRETER_SHARE,
    LAST_LOOK_SECONDS,
    LONG_CALL_SECONDS,
    ROUNDING,
    SHORTEST_CALL_SECONDS,
    fits,
    rounded,
    token,
    waits,
)
from arrowflow.kernels.operator import Cost
from arrowflow.physical.planner import MAX_WAITING_THREADS
from arrowflow.physical.tuning import (
    FIRST_CALLS,
    MAX_REORDER_SLOTS,
    MAX_WAITING_SLOTS,
    NO_TIMES,
    Gate,
    Refusals,
    RunSample,
    StageKey,
    StageLimits,
    StageStatistics,
    Times,
    Tuner,
    untold_calls,
)

ByTime = Callable[[float], float]
Rates = dict[bool, tuple[float, float]]
"""For calls without and with the lock: how fast they compute, and how fast they wait for a core."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one stage does: each call waits, then computes, and makes one chunk.

    Attributes:
        name: Its operator.
        cpu_seconds: What a call computes.
        waiting_seconds: What it waits before.
        holds_lock: Whether it computes under the interpreter lock.
        cost: What it says of itself.
        asked_calls: The most calls that the user asked for.
        rows: Rows of a chunk.
        slower: By how much all that is slower at a time.
    """

    name: str
    cpu_seconds: float = 0.0
    waiting_seconds: float = 0.0
    holds_lock: bool = False
    cost: Cost = "unknown"
    asked_calls: int | None = None
    rows: int = 1000
    slower: ByTime = lambda now: 1.0


@dataclass(slots=True, eq=False)
class Call:
    """One call, from its start until it is delivered."""

    stage: Stage
    weight: float
    began: float
    cpu_seconds: float
    computes_since: tuple[float, float] | None = None
    seen: tuple[float, float, float] = (0.0, 0.0, 0.0)
    done: bool = False


@dataclass(slots=True, eq=False)
class Stage:
    """A stage in a run; the fields are those of the executor's stages and their statistics."""

    work: Work
    key: StageKey
    limits: StageLimits
    upstream: Stage | None
    slots: deque[Call] = field(default_factory=deque)
    out: int = 0
    running: int = 0
    refused: list[int] = field(default_factory=lambda: [0] * len(Gate))
    calls: int = 0
    unfinished: Times = NO_TIMES
    chunks: int = 0
    max_ready_items: int = 0
    most_running: int = 0
    busy_seconds: float = 0.0
    cpu_seconds: float = 0.0
    queued_seconds: float = 0.0

    @property
    def cost_is_measured(self) -> bool:
        return self.work.cost != "computes"

    def can_start(self) -> bool:
        has_input = self.upstream is None or self.upstream.out > 0
        if self.running >= self.limits.max_calls:
            self.refused[Gate.CALLS] += has_input
            return False
        if not has_input:
            return False
        if len(self.slots) >= self.limits.max_slots:
            self.refused[Gate.SLOTS] += 1
            return False
        head = not self.slots and not self.out
        if not head and self.out >= self.limits.max_ready_items:
            self.refused[Gate.CHUNKS] += 1
            return False
        return True

    def deliver(self) -> None:
        while self.slots and self.slots[0].done:
            self.slots.popleft()
            self.out += 1
            self.chunks += 1
        self.max_ready_items = max(self.max_ready_items, self.out)

    def statistics(self) -> StageStatistics:
        work, limits = self.work, self.limits
        return StageStatistics(
            key=self.key,
            kind="parallel",
            cost=work.cost,
            asked_calls=work.asked_calls,
            phase="read" if self.upstream is None else work.name,
            foreign=False,
            holds_lock=False,
            random=False,
            given_ready=False,
            limits=replace(limits),
            undelivered=len(self.slots),
            refusals=Refusals(*self.refused),
            operators=(work.name,),
            engine="python",
            calls=self.calls,
            rows=work.rows * self.chunks,
            bytes=8 * work.rows * self.chunks,
            chunks=self.chunks,
            busy_seconds=self.busy_seconds,
            cpu_seconds=self.cpu_seconds,
            queued_seconds=self.queued_seconds,
            ready_items=self.out,
            max_ready_items=self.max_ready_items,
            running=self.running,
            unfinished=self.unfinished,
        )


class Cores:
    """Cores that all runnable calls share evenly, with others' work, and one lock that some of them need.

    A call's progress is a difference of two readings of a clock that runs as fast as all calls of its kind compute,
    so that nothing has to be done for those that go on.
    """

    def __init__(self, cores: float) -> None:
        self.cores = cores
        self._number = count()
        self._ends: dict[bool, list[tuple[float, int, Call]]] = {False: [], True: []}
        self._computed = {False: 0.0, True: 0.0}
        self._queued = {False: 0.0, True: 0.0}

    def begin(self, call: Call) -> None:
        lock = call.stage.work.holds_lock
        call.computes_since = (self._computed[lock], self._queued[lock])
        heapq.heappush(self._ends[lock], (self._computed[lock] + call.cpu_seconds, next(self._number), call))

    def used(self, call: Call) -> tuple[float, float]:
        """Returns the CPU time of a call until now, and the time that it waited for a core."""
        if call.computes_since is None:
            return 0.0, 0.0
        lock = call.stage.work.holds_lock
        return (
            min(call.cpu_seconds, self._computed[lock] - call.computes_since[0]),
            self._queued[lock] - call.computes_since[1],
        )

    def rates(self, others: float) -> Rates:
        free, locked = len(self._ends[False]), len(self._ends[True])
        runnable = free + min(1, locked) + others
        rate = min(1.0, self.cores / runnable) if runnable else 1.0
        shared = max(1, locked)
        return {False: (rate, 1 - rate), True: (rate / shared, (1 - rate) / shared)}

    def next_end(self, rates: Rates) -> float:
        """Returns the seconds until a call ends if nothing else happens."""
        return min(
            (
                max(0.0, ends[0][0] - self._computed[lock]) / rates[lock][0]
                for lock, ends in self._ends.items()
                if ends
            ),
            default=math.inf,
        )

    def advance(self, seconds: float, rates: Rates) -> list[Call]:
        """Goes on for a while, and returns what ended."""
        ended: list[Call] = []
        for lock, (rate, queue) in rates.items():
            self._computed[lock] += seconds * rate
            self._queued[lock] += seconds * queue
            ends = self._ends[lock]
            while ends and ends[0][0] <= self._computed[lock] + 1e-12:
                ended.append(heapq.heappop(ends)[2])
        return ended


class Simulation:
    """One run.

    Args:
        works: The stages, the source first.
        tuner: Sets their limits; None leaves them at `calls`.
        calls: Calls of each stage without a tuner, as `autotune=False` has them: the machine decides who computes.
        cpu_budget: As in `Options`.
        cores: Of the machine.
        step_seconds: What the consumer takes for each chunk, by the time.
        noise: Standard deviation of the length of calls, as a share of it.
        seed: Of the noise.
        others: Cores' worth of other work on the machine, by the time.
    """

    def __init__(
        self,
        works: Sequence[Work],
        tuner: Tuner | None = None,
        *,
        calls: Sequence[int] | None = None,
        cpu_budget: int = 2,
        cores: int = 2,
        step_seconds: ByTime = lambda now: 0.0,
        noise: float = 0.0,
        seed: int = 0,
        others: ByTime = lambda now: 0.0,
    ) -> None:
        self.tuner, self.cpu_budget, self.num_cores = tuner, cpu_budget, cores
        self.step_seconds, self.noise, self.others = step_seconds, noise, others
        self.random = random.Random(seed)
        self.now = 0.0
        self.cores = Cores(cores)
        self.stages = self._stages(works, calls)  # the most downstream first
        self.deliveries: list[float] = []
        self.changes: list[tuple[float, StageKey, StageLimits]] = []
        self.samples: list[RunSample] = []
        self.waited_seconds = 0.0
        self._wait_began: float | None = 0.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._tokens = 0.0
        self._running: dict[Call, None] = {}
        self._short = self._watching = False
        self._look_seconds = FIRST_LOOK_SECONDS
        self._debt_seconds = self._paid = 0.0
        self._next_step = math.inf if tuner is None else tuner.period_seconds

    def _stages(self, works: Sequence[Work], calls: Sequence[int] | None) -> list[Stage]:
        stages: list[Stage] = []
        for index, work in enumerate(works):
            key = (len(works) - 1 - index, work.name)
            limits = self._default_limits(work) if calls is None else _fixed_limits(calls[index])
            found = None if self.tuner is None else self.tuner.recall(key)
            if found is not None:
                limits.take(found)
            stages.append(Stage(work, key, limits, stages[-1] if stages else None))
        return stages[::-1]

    def _default_limits(self, work: Work) -> StageLimits:
        untold = self.cpu_budget if work.cost == "computes" else untold_calls(self.cpu_budget)
        return StageLimits(
            max_calls=work.asked_calls or untold,
            max_ready_items=max(4, 2 * self.cpu_budget),
            max_slots=MAX_REORDER_SLOTS if work.cost == "computes" else MAX_WAITING_SLOTS,
            weight=0.0 if work.cost == "waits" else 1.0,
        )

    # ------------------------------------------------------------------ what a test asks

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all calls until now, also of those in the middle."""
        ended = sum(stage.cpu_seconds for stage in self.stages)
        return ended + sum(self.cores.used(call)[0] for call in self._running)

    def rate(self, since: float, until: float) -> float:
        """Returns chunks delivered per second."""
        first, last = (bisect_right(self.deliveries, moment) for moment in (since, until))
        return (last - first) / (until - since)

    def stage(self, name: str) -> Stage:
        return next(stage for stage in self.stages if stage.work.name == name)

    # ------------------------------------------------------------------ events

    def run(self, until: float) -> Simulation:
        self._dispatch()
        while True:
            rates = self.cores.rates(self.others(self.now))
            timer = self._timers[0][0] - self.now if self._timers else math.inf
            end = self.cores.next_end(rates)
            step = min(timer, end)
            last = self.now + step > until
            step = min(step, until - self.now)
            ended = self.cores.advance(step, rates)
            self.now = until if last else self.now + step
            for call in ended:
                self._finish(call)
            while self._timers and self._timers[0][0] <= self.now:
                heapq.heappop(self._timers)[2]()
            self._dispatch()
            if last:
                return self

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.now + seconds, next(self._number), event))

    def _dispatch(self) -> None:
        """Lets the consumer take and the workers begin until nobody has anything to do."""
        last = self.stages[0]
        while True:
            if self._wait_began is not None and last.out:
                self._take(last)
            elif len(self._running) < self.cpu_budget + MAX_WAITING_THREADS and (stage := self._pick()):
                self._start(stage)
            else:
                break
        if (
            self._short
            and not self._watching
            and (self._debt_seconds > 0 or any(map(_may_wait, self._running)))
        ):
            self._watching = True
            self._after(self._look_seconds, self._look)

    def _take(self, last: Stage) -> None:
        assert self._wait_began is not None
        last.out -= 1
        self.deliveries.append(self.now)
        self.waited_seconds += self.now - self._wait_began
        self._wait_began = self.now
        seconds = self.step_seconds(self.now)
        if seconds:
            self._wait_began = None
            self._after(seconds, self._want)

    def _want(self) -> None:
        self._wait_began = self.now

    # ------------------------------------------------------------------ the pool

    def _pick(self) -> Stage | None:
        budget = self.cpu_budget
        room = budget - self._tokens + ROUNDING
        if self._debt_seconds > 0 and budget < self.num_cores and self._indebted():
            room = 0.0
        self._short = False
        for stage in self.stages:
            if not fits(stage.limits.weight, room):
                self._short = True
            elif stage.can_start():
                return stage
        return None

    def _indebted(self) -> bool:
        debt = self._debt_seconds - (self.now - self._paid) * self.cpu_budget
        self._debt_seconds, self._paid = max(debt, -CREDIT_SECONDS), self.now
        return debt > 0

    def _start(self, stage: Stage) -> None:
        work = stage.work
        if stage.upstream is not None:
            stage.upstream.out -= 1
        factor = work.slower(self.now)
        if self.noise:
            factor *= max(0.1, self.random.gauss(1.0, self.noise))
        call = Call(stage, stage.limits.weight, self.now, work.cpu_seconds * factor)
        call.seen = (self.now, 0.0, 0.0)
        stage.slots.append(call)
        stage.running += 1
        stage.most_running = max(stage.most_running, stage.running)
        self._tokens += token(call.weight)
        self._running[call] = None
        if work.waiting_seconds:
            self._after(work.waiting_seconds * factor, lambda: self._compute(call))
        else:
            self.cores.begin(call)

    def _compute(self, call: Call) -> None:
        if call.cpu_seconds:
            self.cores.begin(call)
        else:
            self._finish(call)

    def _finish(self, call: Call) -> None:
        stage = call.stage
        elapsed, (cpu, queued) = self.now - call.began, self.cores.used(call)
        queued = queued if stage.cost_is_measured else 0.0
        self._tokens -= token(call.weight)
        del self._running[call]
        self._debt_seconds += cpu
        stage.calls += 1
        stage.busy_seconds += elapsed
        stage.cpu_seconds += cpu
        stage.queued_seconds += queued
        if stage.cost_is_measured and stage.calls <= FIRST_CALLS and elapsed > SHORTEST_CALL_SECONDS:
            share = cpu / max(cpu, elapsed - queued, SHORTEST_CALL_SECONDS)
            wanted = (cpu + queued) / max(cpu + queued, elapsed)
            if max(share, wanted) * stage.running < INTERPRETER_SHARE and not stage.limits.reason:
                stage.limits.weight = rounded(share)
        stage.running -= 1
        call.done = True
        stage.deliver()
        self._tune()

    def _look(self) -> None:
        self._watching = False
        rates: list[tuple[Call, float]] = []
        wanted = 0.0
        for call in filter(_may_wait, self._running):
            at, cpu, queued = call.seen
            call.seen = (self.now, *self.cores.used(call))
            free = self.now - at - (call.seen[2] - queued)
            if free >= FIRST_LOOK_SECONDS / 2:
                rates.append((call, (call.seen[1] - cpu) / free))
                wanted += (call.seen[1] - cpu + call.seen[2] - queued) / (self.now - at)
        found = False
        if rates and max(wanted, sum(rate for _, rate in rates)) < INTERPRETER_SHARE:
            for call, rate in rates:
                if waits(rate):
                    found = True
                    self._release(call, rate)
        self._look_seconds = FIRST_LOOK_SECONDS if found else min(2 * self._look_seconds, LAST_LOOK_SECONDS)
        self._tune()

    def _release(self, call: Call, rate: float) -> None:
        self._tokens += token(rate) - token(call.weight)
        call.weight = rate
        limits = call.stage.limits
        if call.stage.calls < FIRST_CALLS and not limits.reason:
            limits.weight = min(limits.weight, rate)

    # ------------------------------------------------------------------ the tuner

    def _tune(self) -> None:
        if self.tuner is None or self.now < self._next_step:
            return
        for stage in self.stages:
            long = [
                (self.now - call.began, *self.cores.used(call))
                for call in self._running
                if call.stage is stage
                and stage.cost_is_measured
                and self.now - call.began >= LONG_CALL_SECONDS
            ]
            stage.unfinished = Times(*map(sum, zip(NO_TIMES, *long, strict=True)))
        self._next_step = self.now + self.tuner.period_seconds
        waiting = 0.0 if self._wait_began is None else self.now - self._wait_began
        sample = RunSample(
            now=self.now,
            cpu_budget=self.cpu_budget,
            waited_seconds=self.waited_seconds + waiting,
            rows=self.stages[0].work.rows * len(self.deliveries),
            chunks=len(self.deliveries),
            stages=tuple(stage.statistics() for stage in self.stages),
        )
        self.samples.append(sample)
        self._apply(self.tuner.step(sample))

    def _apply(self, settings: Mapping[StageKey, StageLimits]) -> None:
        for stage in self.stages:
            if (setting := settings.get(stage.key)) is not None:
                self.changes.append((self.now, stage.key, setting))
                stage.limits.take(setting)


def _fixed_limits(calls: int) -> StageLimits:
    return StageLimits(max_calls=calls, max_ready_items=calls, max_slots=MAX_WAITING_SLOTS, weight=0.0)


def _may_wait(call: Call) -> bool:
    return call.stage.cost_is_measured and not waits(call.weight)


def best_fixed(
    works: Sequence[Work], grid: Iterable[Iterable[int]], seconds: float, **options: object
) -> float:
    """Returns the most chunks a second that any choice of calls gives, each of which is measured for a while."""
    return max(_fixed(works, calls, seconds, options) for calls in product(*grid))


def _fixed(
    works: Sequence[Work], calls: Sequence[int], seconds: float, options: Mapping[str, object]
) -> float:
    run = Simulation(works, calls=calls, **options)  # type: ignore[arg-type]
    return run.run(1.0 + seconds).rate(1.0, 1.0 + seconds)
