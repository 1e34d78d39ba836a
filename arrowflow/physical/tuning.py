"""The seam between the executor and the tuner: what a stage may tune and what it measures.

The executor writes `StageStatistics` and obeys `StageLimits`; a `Tuner` reads the one and sets the other. Without
a tuner the limits are those that `default_limits` derives from the plan and the CPU budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from arrowflow.bad_rows import NO_BAD_ROWS, LeftOut
from arrowflow.kernels.operator import Cost

StageKey = tuple[Any, ...]
"""Identifies a stage: the same in every epoch, and for all inputs that an `interleave` opens."""

MOSTLY_COMPUTES = 0.75
"""Calls above this share of CPU time count as computing: a fraction would only let the next ones in too early."""

WAITS = 0.25
"""Calls below this share wait: they take no token of the CPU budget, so that they neither starve others nor are
starved."""

POOLED_CORES = 2 / 3
"""The part of a core that a call takes which Polars' pool computes, where the pool has no more threads than the budget has
cores: parts of each call leave them idle. With three calls in place of two on two cores, `wide` has 1.86 of them in
use in place of 1.69, and takes 0.92 times as long."""

MAX_REORDER_SLOTS = 64
"""Calls that compute, started but not delivered, at most. Measured: tying it to the parallelism instead idles the
workers behind one straggler (1.178 s against 0.470 s, ideal 0.440 s)."""

MAX_WAITING_CALLS = 64
"""Calls of one stage that wait, in flight at most."""

MAX_WAITING_SLOTS = 32 * MAX_WAITING_CALLS
"""The same as `MAX_REORDER_SLOTS` for calls that wait: enough for 64 in flight of which one takes 30 times as long.
Bytes are bounded by the ledger in any case."""

MAX_TURN_CHUNKS = 32 * MAX_REORDER_SLOTS
"""Chunks of these calls that wait for their turn, at most. A call may make 32 chunks and more: with one limit for calls
and chunks, three such calls behind a slow one left all other cores idle (`benchmarks.straggler`)."""


FIRST_CALLS = 4
CHEAP_CPU_SECONDS, CHEAP_SECONDS = 100e-6, 500e-6
"""Of a call, or of each chunk of one that makes several. Two workers and the consumer that hand the interpreter lock to
each other take 50 to 100 µs each time."""
LOCKED_CPU_SECONDS, LOCKED_SECONDS = 1e-3, 2e-3
"""The same of calls that hold the interpreter lock. Another thread saves no time for a consumer that hurries, and the
two wait for each other at each release of the lock. Calls that take longer wait for a disk."""


def short_times(*, holds_lock: bool) -> tuple[float, float]:
    """Returns the CPU and wall seconds below which calls are short."""
    return (LOCKED_CPU_SECONDS, LOCKED_SECONDS) if holds_lock else (CHEAP_CPU_SECONDS, CHEAP_SECONDS)


def are_short(calls: int, cpu_seconds: float, busy_seconds: float, *, holds_lock: bool) -> bool:
    """Whether calls of these times are so short that to wake another thread for them costs more than they do."""
    cold = 1 + FIRST_CALLS / calls  # the first ones take longer
    cpu, busy = short_times(holds_lock=holds_lock)
    return cpu_seconds < cpu * cold and busy_seconds < busy * cold


def untold_calls(cpu_budget: int) -> int:
    """Returns how many calls that may turn out to wait can be in flight before anything is measured.

    The number exceeds the cores, so that even a short run keeps enough calls in flight before anything is learnt.
    Tokens keep the calls from computing beyond the budget.
    """
    return 2 * cpu_budget + 6


class Times(NamedTuple):
    """Times of calls.

    Attributes:
        busy: Seconds of wall time.
        cpu: Seconds of CPU time.
        queued: Seconds in which they could have run but had no core.
    """

    busy: float
    cpu: float
    queued: float


NO_TIMES = Times(0.0, 0.0, 0.0)


class Gate(IntEnum):
    """Why a call that has input may not start. The docstring of `arrowflow.executor` has the rules.

    Refusals by gate are counted in `StageStatistics.refusals`. From there the tuner reads them (`autotune.model`), and
    `explain()` (`observe.report.tuned`).
    """

    CALLS = 0
    """As many calls are in flight as may be."""
    SLOTS = 1
    """As many calls as may be were started and are not delivered."""
    TURN = 2
    """As many chunks as may be wait for their turn, behind a call that takes longer."""
    CHUNKS = 3
    """As many chunks as may be wait for the next stage."""
    BYTES = 4
    """The bytes that the call may take do not fit into the ledger."""
    TOKEN = 5
    """All cores of the budget are taken."""


class Refusals(NamedTuple):
    """How often a look for work found input for a call that could not start, by `Gate`."""

    calls: int = 0
    slots: int = 0
    turn: int = 0
    chunks: int = 0
    bytes: int = 0
    token: int = 0

    def plus(self, other: Iterable[int], times: int = 1) -> Refusals:
        """Returns the sums, or the differences where `times` is -1."""
        return Refusals(*(one + times * more for one, more in zip(self, other, strict=True)))


NO_REFUSALS = Refusals()


@dataclass(slots=True, kw_only=True)
class StageLimits:
    """The limits that may change while a stage runs, under the executor's lock. Order and values never depend on them.

    Attributes:
        streams: How many streams beside each other, such as lanes, run the stage. Each has limits of its own.
        max_calls: Calls at the same time.
        max_ready_items: Chunks that wait, in order, for the next stage.
        max_slots: Calls started but not delivered, ordered or not.
        max_turn_chunks: Chunks of these calls that wait for their turn.
        ledger_share: Share of the byte budget up to which the stage may start calls ahead of need. Stages
            further down have more, so that a full ledger never keeps them from emptying it.
        weight: Cores that a call takes of the CPU budget, 0 to 1.
        reason: Why they are what they are, in words; empty while nobody has changed anything.
        calls_are_short: Whether an earlier run found its calls to be cheap.
    """

    streams: int = 1
    max_calls: int
    max_ready_items: int
    max_slots: int = MAX_REORDER_SLOTS
    max_turn_chunks: int = MAX_TURN_CHUNKS
    ledger_share: float = 1.0
    weight: float = 1.0
    reason: str = ""
    calls_are_short: bool = False

    def take(self, found: StageLimits) -> None:
        """Takes the limits that a tuner wants for all streams; shares of the budget are none of its business."""
        for each in fields(self):
            if each.name not in ("streams", "ledger_share"):
                setattr(self, each.name, getattr(found, each.name))
        self.max_calls = -(-found.max_calls // self.streams)
        self.max_ready_items = -(-found.max_ready_items // self.streams)

    def of_all(self) -> StageLimits:
        """Returns the limits of all streams together."""
        calls, ready = self.streams * self.max_calls, self.streams * self.max_ready_items
        return replace(self, max_calls=calls, max_ready_items=ready)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStatistics:
    """The figures of one stage so far.

    Attributes:
        key: Identifies the stage.
        operators: The operators that it runs, upstream first, with the names of functions: `map(decode)`. Of several
            of one name, those after the first have a number.
        kind: `parallel`, `serial` or `boundary`.
        cost: The cost of a call, as its operators declare it.
        asked_calls: The most calls at the same time that the user asked for, or None.
        connections: The most connections that the client opens by which its calls wait, or None.
        phase: Name of its calls in a timeline.
        foreign: Whether they work in a pool that is not Arrow's, or in worker processes, where their CPU time is not
            seen.
        holds_lock: Whether they hold the interpreter lock nearly all of their time.
        random: Whether what it makes is drawn from a seed.
        given_ready: Whether an operator says how many finished chunks may wait.
        engine: Where its work runs.
        limits: A copy of its limits, those of all its streams together, and why they are what they are.
        calls: Finished calls.
        rows: Rows that it put out. Divide by the run's seconds for its throughput.
        bytes: Bytes of new buffers that it put out; what it only passed on does not count.
        chunks: Chunks with rows that it put out.
        busy_seconds: Wall time of its calls, summed over workers. Much above `cpu_seconds`: it waits, for I/O,
            for another pool, or for the interpreter lock.
        cpu_seconds: CPU time of the workers within its calls; work in Arrow's or Polars' own pools is not in it.
        queued_seconds: Part of `busy_seconds` in which calls of unknown cost could have run but had no core.
        ready_items: Chunks that wait for the next stage now. Always 0: this stage, or a stage before it, limits the
            pipeline. Always at its limit: this stage and the stages before it are faster than the stages after it.
        max_ready_items: The most that ever waited; of lanes, the most of any one times their number.
        undelivered: Calls that were started and are not delivered now.
        turn_chunks: Chunks of these that wait for their turn now.
        running: Calls in flight now.
        unfinished: The times so far of long calls among them, which are no part of the other times.
        refusals: How often a look for work found input for it, and why no call could start. They count looks, not time, and
            every run has many by `calls` and `chunks`. Many by `calls`: the tuner tries more calls. Many by `chunks`: the
            stages after it are slower. Many by `slots` or `turn`: one call takes much longer than the others.
        left_out: The bad rows that `on_error` left out of what it made, also of what is still to be delivered.
    """

    key: StageKey
    kind: str
    cost: Cost
    asked_calls: int | None
    connections: int | None = None
    phase: str
    foreign: bool
    holds_lock: bool
    random: bool
    given_ready: bool
    limits: StageLimits
    operators: tuple[str, ...]
    engine: str
    calls: int
    rows: int
    bytes: int
    chunks: int
    busy_seconds: float
    cpu_seconds: float
    queued_seconds: float
    ready_items: int
    max_ready_items: int
    running: int
    undelivered: int = 0
    turn_chunks: int = 0
    refusals: Refusals = NO_REFUSALS
    left_out: LeftOut = NO_BAD_ROWS
    unfinished: Times = NO_TIMES

    @property
    def core_seconds(self) -> float:
        """Core seconds that its calls used; of work in pools where CPU time is not seen, what they take of the budget."""
        return self.busy_seconds * self.limits.weight if self.foreign else self.cpu_seconds

    @property
    def calls_are_short(self) -> bool:
        """Whether its calls are so short that to wake another thread for them costs more than they do."""
        calls = max(self.calls, self.chunks)
        if self.foreign or not calls:
            return False
        cpu_seconds, busy_seconds = self.cpu_seconds / calls, self.busy_seconds / calls
        return are_short(calls, cpu_seconds, busy_seconds, holds_lock=self.holds_lock)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSample:
    """The figures that a tuner sees now and then. All are sums since the start, unless they say "now".

    Attributes:
        now: Seconds of the run's clock.
        cpu_budget: Calls that may compute at the same time now; less than the run's own where others share.
        waited_seconds: Seconds that the consumer waited for an item.
        rows: Rows that the last stage handed to the consumer's thread.
        chunks: Chunks that it handed over.
        stages: One entry a stage, the most downstream first.
    """

    now: float
    cpu_budget: int
    waited_seconds: float
    rows: int
    chunks: int
    stages: tuple[StageStatistics, ...]


class Tuner(Protocol):
    """Sets limits while a run goes on. Called under the executor's lock: it only computes."""

    @property
    def period_seconds(self) -> float:
        """Seconds between two steps."""

    def step(self, sample: RunSample) -> Mapping[StageKey, StageLimits]:
        """Returns what shall change."""

    def remember(self, stages: Iterable[StageStatistics]) -> None:
        """Is told at the end of a run what its stages measured, for the next run of the pipeline."""

    def recall(self, key: StageKey) -> StageLimits | None:
        """Returns what an earlier run of the same pipeline has found for a stage that begins now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatistics:
    """The figures of a worker process of a cluster: of what it did for one run.

    Attributes:
        node: The name of its node.
        process: Its process there.
        pieces: Answers that the run took from it.
        rows: Rows in them.
        bytes: Bytes in them.
        waited_seconds: Seconds that its answers were waited for, summed over lanes.
        stages: Its stages, the most downstream first, summed over lanes. It tells of them with each piece, so those
            of a lane that goes on, or that was left, may lack the latest part.
    """

    node: str
    process: int
    pieces: int = 0
    rows: int = 0
    bytes: int = 0
    waited_seconds: float = 0.0
    stages: tuple[StageStatistics, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatistics:
    """The figures of the workers of a cluster that ran the lanes of a run.

    Attributes:
        workers: Each process that sent something, in the order in which they began.
        left_out: The bad rows that `on_error` left out there, by operator. Rows of a worker that died count once.
        moves: Why workers were added or given up, in words.
    """

    workers: tuple[WorkerStatistics, ...] = ()
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)
    moves: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """The measurements of one engine; see `Statistics` for the fields."""

    stages: tuple[StageStatistics, ...] = ()
    ledger_bytes: int = 0
    ledger_peak_bytes: int = 0
    kept_rows: int = 0
    kept_images: int = 0
    kept_bytes: int = 0
    keepable_bytes: int = 0
    workers: int = 0
    cpu_seconds: float = 0.0
    idle: Mapping[str, float] = field(default_factory=dict)
    retries: Mapping[str, int] = field(default_factory=dict)
    cluster: ClusterStatistics | None = None

    @property
    def left_out(self) -> list[tuple[str, LeftOut]]:
        """The bad rows that each stage left out, the source's first, with the name of its operator; also on a cluster."""
        here = [(stage.operators[0], stage.left_out) for stage in self.stages[::-1]]
        there = {} if self.cluster is None else self.cluster.left_out
        return [(name, found) for name, found in (*there.items(), *here) if found != NO_BAD_ROWS]


class Moment(NamedTuple):
    """How far a run was at one time.

    Attributes:
        seconds: Seconds since the first batch was asked for.
        rows: Rows delivered until then.
        waited_seconds: Seconds that the consumer spent inside `next()` until then.
        ledger_bytes: Bytes charged to the ledger then.
    """

    seconds: float
    rows: int
    waited_seconds: float
    ledger_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics(EngineStatistics):
    """The figures of one iterator so far.

    Attributes:
        batches: Batches delivered.
        rows: Rows delivered.
        seconds: Seconds since the first batch was asked for.
        waited_seconds: Seconds that the consumer spent inside `next()`.
        first_batch_seconds: Seconds until the first batch was there; part of `waited_seconds`.
        planning_seconds: Seconds that planning took, before that: listing files, reading footers, compiling expressions.
            Later epochs take the same plan.
        ledger_bytes: Bytes charged to the ledger now.
        ledger_peak_bytes: The most that were ever charged.
        ledger_budget_bytes: The budget that they are held under.
        cpu_budget: Cores that calls may use.
        cpu_seconds: CPU time of the process since then, your own step included.
        idle: Core seconds of the budget that no call used, by reason.
        retries: Reads that failed and were tried again, by what failed.
        kept_rows: Rows that this run took from chunks of earlier epochs, which it did not decode again.
        kept_images: Images whose pixels `decode_image` took from earlier calls, and did not decode again.
        kept_bytes: Bytes of the chunks and pixels that are kept for later epochs. They are part of `ledger_bytes`, and go before
            any call waits for memory. Much less than `keepable_bytes`: a larger `ram_budget` would save more decoding.
        keepable_bytes: Bytes of all chunks and pixels that would be kept if there were room.
        workers: Threads that were started.
        stages: One entry per stage, the most downstream first.
        cluster: The workers that ran the lanes, with an engine; None without one.
        history: The run over time, at most 513 moments: the longer the run, the further they lie apart.
        bottleneck: The limit of the run, in words.
        advice: Changes in the order of operators that would be worth it, in words.
        summary: The report of `explain`, which `print` shows.
        skipped_rows: Bad rows that `on_error` left out so far, also ahead of what was delivered.
        skipped_parts: Row groups, record batches, blocks, files and batches of functions that it left out whole. Their rows
            are among `skipped_rows`, except those of files of which nothing could be read.
    """

    batches: int
    rows: int
    seconds: float
    waited_seconds: float
    first_batch_seconds: float
    ledger_budget_bytes: int
    cpu_budget: int
    planning_seconds: float = 0.0
    history: tuple[Moment, ...] = ()
    bottleneck: str = ""
    advice: tuple[str, ...] = ()
    summary: str = ""

    def __repr__(self) -> str:
        return self.summary

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(self.summary)}</pre>"

    @property
    def skipped_rows(self) -> int:
        """Bad rows that were left out."""
        return sum(found.rows for _, found in self.left_out)

    @property
    def skipped_parts(self) -> int:
        """Parts that were left out whole."""
        return sum(found.parts for _, found in self.left_out)

    @property
    def rows_per_second(self) -> float:
        """Rows delivered per second of wall time, the consumer's own time included."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def utilisation(self) -> float:
        """CPU time of the process as a share of the CPU budget; over 1 where your own step computes beside it."""
        return self.cpu_seconds / (self.seconds * self.cpu_budget) if self.seconds else 0.0

    @property
    def waiting_share(self) -> float:
        """Share of the time that the consumer spent inside `next()`. Near 0: the pipeline is fast enough.

        A step that returns before it is computed, as with CUDA or JAX, makes it larger: wait for the step's result.
        """
        return min(1.0, self.waited_seconds / self.seconds) if self.seconds else 0.0

    def metrics(self, prefix: str = "") -> dict[str, float]:
        """Returns the figures that people plot over time, for a logger of numbers such as TensorBoard, W&B or MLflow.

        Counts are sums since the first batch was asked for. Sizes are in bytes, times in seconds, shares between 0 and 1
        (`utilisation` may be larger, see there). The names are the same in every run.

        Args:
            prefix: Stands before each name.

        Examples:
            >>> import arrowflow as af
            >>> loader = af.range(100).batch(10).to_numpy()
            >>> for batch in loader:
            ...     pass
            >>> metrics = loader.stats().metrics(prefix="data/")
            >>> metrics["data/rows"], metrics["data/batches"]
            (100.0, 10.0)
        """
        figures = {name: getattr(self, name) for name in _PLOTTED}
        figures["retries"] = sum(self.retries.values())
        return {prefix + name: float(value) for name, value in figures.items()}


_PLOTTED = (
    "batches",
    "rows",
    "seconds",
    "rows_per_second",
    "waited_seconds",
    "waiting_share",
    "first_batch_seconds",
    "planning_seconds",
    "cpu_seconds",
    "utilisation",
    "ledger_bytes",
    "ledger_peak_bytes",
    "ledger_budget_bytes",
    "skipped_rows",
    "skipped_parts",
)
"""The fields and properties of `Statistics` that `metrics` has."""
