"""Rule 3: bytes and calls stay within their budgets, which is back-pressure and never a deadlock."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.executor import Engine
from arrowflow.kernels.context import Context, StreamHandle
from arrowflow.kernels.held import Held
from arrowflow.kernels.items import Item, Origin
from arrowflow.kernels.operator import Cost
from arrowflow.ops.batches.batch import BatchKernel
from arrowflow.physical.planner import WAITING_PORTION
from arrowflow.physical.stage import Chain, StagePlan
from arrowflow.physical.tuning import MAX_WAITING_CALLS
from tests.executor.fakes import (
    Concatenate,
    Running,
    Stepper,
    boundary,
    chunk,
    function,
    hold,
    items_of,
    kernel,
    number,
    reader,
    running,
    same,
    serial,
    source,
    stages_of,
    stepper,
    value_of,
    values_from,
    values_of,
)

SIZE = 8_000
"""Bytes of each chunk here."""


def sized(value: int) -> Iterator[pa.RecordBatch]:
    yield chunk(value, SIZE)


def renewed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return number(batch, value_of(batch))


def used(engine: Engine) -> int:
    return engine.statistics().ledger_bytes


def peak(engine: Engine) -> int:
    return engine.statistics().ledger_peak_bytes


class Cut(BatchKernel):
    """`batch` of one chunk's rows."""

    def __init__(self) -> None:
        super().__init__(SIZE // 8, drop_remainder=False)


def sized_source(chunks: int = 30, **plan: Any) -> StagePlan:
    """Returns a source of chunks of `SIZE` bytes."""
    return source(chunks, sized, task_bytes=SIZE, **plan)


CHAINS: dict[str, Callable[[], tuple[StagePlan, ...]]] = {
    "source": lambda: (sized_source(),),
    "function": lambda: (sized_source(), function(renewed)),
    "functions": lambda: (sized_source(), function(renewed), function(renewed)),
    "waiting": lambda: (sized_source(), function(renewed, max_calls=5, cost="waits")),
    "serial": lambda: (sized_source(), serial(), function(renewed), serial()),
    "reader": lambda: (
        source(6, once_small, cost="waits"),
        serial(),
        reader(lambda batch: parts(value_of(batch)), call_bytes=5 * SIZE),
        serial(),
    ),
    "batch": lambda: (sized_source(), kernel(Cut, "batch"), function(renewed)),
    "windows": lambda: (sized_source(), kernel(Windows, "windows"), function(renewed)),
}


def once_small(value: int) -> Iterator[pa.RecordBatch]:
    yield chunk(value)


def parts(value: int) -> Iterator[pa.RecordBatch]:
    return (chunk(5 * value + part, SIZE) for part in range(5))


class Windows(BatchKernel):
    """Keeps back three chunks at a time, then lets them go one by one."""

    def __init__(self) -> None:
        super().__init__(1, drop_remainder=False)
        self.items: list[Item] = []

    def push(self, item: Item) -> Iterator[Item]:
        self.items.append(item)
        if len(self.items) == 3:
            yield from self.finish()

    def finish(self) -> Iterator[Item]:
        while self.items:
            yield self.items.pop(0)


@pytest.mark.parametrize("budget", [1, 3 * SIZE])
@pytest.mark.parametrize("name", CHAINS)
def test_no_budget_is_a_deadlock_and_nothing_is_left_in_the_ledger(name: str, budget: int) -> None:
    for taken in (7, None):
        with running(*CHAINS[name](), ram_budget=budget, cpu_budget=3) as engine:
            items = itertools.islice(items_of(engine), taken)
            assert [value_of(item.chunk) for item in items] == list(range(taken or 30))
            engine.close()
            assert used(engine) == 0


@pytest.mark.parametrize("seed", range(24))
def test_any_interleaving_gives_the_same_and_stays_within_the_budgets(seed: int) -> None:
    rng = random.Random(seed)
    name = rng.choice(list(CHAINS))
    budget = rng.choice([1, 2 * SIZE, 6 * SIZE, 20 * SIZE])
    cpus = rng.randint(1, 4)
    engine = stepper(*CHAINS[name](), ram_budget=budget, cpu_budget=cpus)
    found = randomly(engine, rng)
    assert found == list(range(30))
    # What the rule lets in beyond the budget: one call a stage with its input and the double reservation of its
    # output; here a window is three chunks more, and a read up to five.
    assert peak(engine) <= budget + (2 * len(CHAINS[name]()) + 5) * SIZE
    engine.close()
    assert used(engine) == 0
    assert engine.statistics().stages[0].rows


def randomly(engine: Stepper, rng: random.Random) -> list[int]:
    """Begins and finishes calls, and takes items, in a random order that workers could have too."""
    flying: list[Running] = []
    found: list[int] = []
    while True:
        choice = rng.random()
        call = engine.begin() if choice < 0.5 else None
        if call is not None:
            flying.append(call)
        elif flying and choice < 0.85:
            engine.finish(flying.pop(rng.randrange(len(flying))))
        elif engine.root_out.out or engine.root_out.ended:
            item = engine.next_item()
            if item is None:
                break
            found.append(value_of(item.chunk))
        elif not flying:
            assert not engine.idle(flying), "a deadlock"
        computing = sum(stage.limits.weight for stage, _, _ in flying)
        assert computing == engine.pool.tokens <= engine.options.cpu_budget
        assert all(stage.running <= stage.limits.max_calls for stage, _, _ in flying)
    for left in flying:
        engine.finish(left)
    return found


def test_with_one_byte_only_what_the_consumer_lacks_is_made() -> None:
    engine = stepper(sized_source(), function(renewed), serial(), function(renewed), ram_budget=1)
    engine.settle()
    assert [len(stage.out) for stage in stages_of(engine)] == [1, 0, 0, 0]
    assert used(engine) == SIZE
    assert values_of(engine) == list(range(30))
    # What the consumer has, a chunk, and what a function reserves to make the next one of it.
    assert peak(engine) <= SIZE + 3 * SIZE


def test_one_call_at_a_time_goes_beyond_the_budget() -> None:
    engine = stepper(sized_source(), function(renewed), ram_budget=1, cpu_budget=4)
    (head,) = hold(engine, "function", 1)
    engine.settle()
    assert [stage.running for stage in stages_of(engine)] == [1, 0]
    assert [len(stage.out) for stage in stages_of(engine)] == [0, 0]
    engine.finish(head)
    assert values_of(engine) == list(range(30))


def test_the_head_of_a_line_runs_ahead_where_it_fits() -> None:
    """What windows below hold may be more than its share for long: without it nothing would overlap."""
    budget = 4 * SIZE
    engine = stepper(sized_source(), kernel(Windows, "windows"), function(renewed), ram_budget=budget)
    (head,) = hold(engine, "function", 1)
    assert used(engine) >= budget // 2, "more than the share of the source"
    engine.settle()
    assert stages_of(engine)[-1].plan.operators == ("source",)
    assert used(engine) + engine.ledger.spared > budget - SIZE
    engine.finish(head)
    assert values_of(engine) == list(range(30))


class Turns(Concatenate):
    """One item of each input in turn."""

    reads_runs = False

    def __init__(self, context: Context, inputs: int) -> None:
        super().__init__(context, inputs)
        self.streams: list[StreamHandle] = []

    def next_input(self) -> StreamHandle | None:
        if not self.streams:
            self.streams = [self.context.open(number, 0, None) for number in range(self.inputs)]
        return None if self.done else self.streams[self.index % self.inputs]

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        self.index += 1
        yield item

    def ended(self, stream: StreamHandle) -> None:
        self.done = True


def turns(inputs: int) -> tuple[tuple[StagePlan, ...], list[Chain]]:
    """Returns a function over inputs of 20 chunks each, and the inputs."""
    mixed = boundary(lambda context: Turns(context, inputs), "turns")
    chains = [Chain(stages=(sized_source(20),)) for _ in range(inputs)]
    return (mixed, function(renewed)), chains


@pytest.mark.parametrize("budget", [1, 4 * SIZE, 9 * SIZE, 20 * SIZE])
def test_of_all_inputs_only_the_wanted_one_goes_beyond_the_budget(budget: int) -> None:
    stages, chains = turns(5)
    engine = stepper(*stages, children=chains, ram_budget=budget)
    assert values_of(engine) == [value for value in range(20) for _ in range(5)]
    assert peak(engine) <= max(SIZE, budget) + 3 * SIZE


def test_inputs_of_a_boundary_leave_room_for_what_follows() -> None:
    stages, chains = turns(5)
    engine = stepper(*stages, children=chains, ram_budget=40 * SIZE)
    (call,) = hold(engine, "function", 1)
    engine.settle()
    read = sum(len(stage.out) for stage in stages_of(engine) if stage.plan.operators != ("function",))
    assert 15 <= read <= 25, "half of the budget, and where they had none, one chunk each"
    engine.finish(call)
    assert len(values_of(engine)) == 100


@pytest.mark.parametrize(("cost", "portion"), [("computes", 1), ("waits", WAITING_PORTION)])
def test_what_waits_may_use_more_of_the_budget(cost: Cost, portion: int) -> None:
    budget = 40 * SIZE
    engine = stepper(sized_source(100, cost=cost), function(max_calls=1), ram_budget=budget)
    (slow,) = hold(engine, "function", 1)
    engine.settle()
    share = budget * portion // (portion + 1)
    assert share - SIZE <= used(engine) + engine.ledger.spared <= share + SIZE
    engine.finish(slow)
    assert values_of(engine) == list(range(100))


def test_what_tells_reads_what_to_read_goes_on_as_long_as_they_may() -> None:
    engine = stepper(
        source(100, phase="open", cost="waits"),
        serial(),
        reader(lambda batch: sized(value_of(batch)), call_bytes=SIZE, cost="waits"),
        function(max_calls=1),
        ram_budget=40 * SIZE,
    )
    reads = hold(engine, "reader", 20)
    opens = hold(engine, "source", 3)
    assert 20 * SIZE <= used(engine) <= 21 * SIZE
    for call in opens + reads:
        engine.finish(call)
    assert values_of(engine) == list(range(100))


def test_a_serial_stage_does_not_collect_what_does_not_fit() -> None:
    engine = stepper(sized_source(100), serial(), function(max_calls=1), ram_budget=4 * SIZE)
    (slow,) = hold(engine, "function", 1)
    engine.settle()
    assert peak(engine) <= 4 * SIZE + SIZE
    engine.finish(slow)
    assert values_of(engine) == list(range(100))


def test_a_serial_kernel_that_makes_chunks_stops_at_the_budget() -> None:
    def copies(item: Item) -> Iterator[Item]:
        for copy in range(50):
            yield Item(chunk(copy, SIZE), item.position, None, Origin(copy))

    engine = stepper(source(1), serial(copies), function(max_calls=1), ram_budget=5 * SIZE)
    engine.settle()
    assert peak(engine) <= 5 * SIZE + 2 * SIZE
    assert values_of(engine) == list(range(50))


@pytest.mark.parametrize("cpus", [1, 2, 4])
@pytest.mark.parametrize("scratch", [1, 3])
def test_peak_is_the_budget_and_one_call_with_its_scratch(scratch: int, cpus: int) -> None:
    budget = 12 * SIZE
    for seed in range(3):
        stages = source(60, sized, task_bytes=scratch * SIZE), function(renewed)
        engine = stepper(*stages, ram_budget=budget, cpu_budget=cpus)
        assert randomly(engine, random.Random(seed)) == list(range(60))
        assert peak(engine) <= budget + scratch * SIZE


def test_reservations_are_returned_when_a_stage_ends_while_calls_run() -> None:
    engine = stepper(source(20, sized, task_bytes=7 * SIZE), function(renewed, max_calls=4, cost="waits"))
    calls = hold(engine, "function", 3)
    reading = engine.begin()
    assert reading is not None
    with engine.lock:
        engine.root.drop()
    assert used(engine) > 7 * SIZE
    assert engine.ledger.spared > 0
    for call in [*calls, reading]:
        engine.finish(call)
    assert engine.ledger.spared == 0
    del call, calls, reading
    engine.close()
    assert used(engine) == 0


def test_memory_of_a_closed_run_is_free_though_the_run_is_not() -> None:
    before = pa.total_allocated_bytes()

    def allocate(value: int) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"x": pa.nulls(1000, pa.int64())})

    def keep(item: Item) -> Iterator[Item]:
        held.add(item)
        if held.rows >= 3000:
            chunks, tickets = held.pop(1000)
            yield item._replace(chunk=chunks[0], ticket=tickets)

    held = Held()
    kept = [BatchKernel(2500, drop_remainder=False)]
    with running(source(30, allocate), kernel(kept.pop, "batch"), function(), kernel(Cut, "tail")) as engine:
        for _ in range(3):
            engine.next_item()
        assert pa.total_allocated_bytes() > before
        engine.close()
        assert pa.total_allocated_bytes() == before


def test_an_item_holds_its_bytes_until_it_is_let_go() -> None:
    engine = stepper(sized_source(1), function(renewed))
    item = engine.next_item()
    assert used(engine) == SIZE
    del item
    assert used(engine) == 0


def test_a_chunk_that_is_passed_on_is_charged_once() -> None:
    engine = stepper(sized_source(4), serial(), function(), function())
    engine.settle()
    assert used(engine) == 4 * SIZE


def test_slices_of_a_large_table_are_charged_once_and_do_not_make_a_stage_wait_for_room() -> None:
    whole = chunk(0, 100 * SIZE)

    def slices(value: int) -> Iterator[pa.RecordBatch]:
        yield whole.slice(value, 1)

    def select(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(["x"])

    engine = stepper(source(20, slices, task_bytes=0), function(select), ram_budget=150 * SIZE, cpu_budget=4)
    engine.settle()
    assert len(engine.root_out.out) == 20
    assert used(engine) == 100 * SIZE


def test_a_consumer_that_does_not_read_stops_the_producers() -> None:
    made: list[int] = []

    def count(value: int) -> Iterator[pa.RecordBatch]:
        made.append(value)
        yield chunk(value)

    engine = stepper(source(10_000, count), function(), serial(), function(), serial())
    engine.next_item()
    engine.settle()
    first = len(made)
    assert first < 300  # chunks as small as these: up to 64 a stage
    engine.settle()
    assert len(made) == first
    for _ in range(first):
        engine.next_item()
    engine.settle()
    assert len(made) > first


@pytest.mark.parametrize(("streams", "at_first", "then"), [(1, 2, 5), (2, 1, 3)])
def test_calls_that_wait_ask_for_more_as_bytes_come(
    monkeypatch: pytest.MonkeyPatch, streams: int, at_first: int, then: int
) -> None:
    """Streams beside each other ask for so much together."""
    monkeypatch.setattr("arrowflow.executor.stages.parallel.FIRST_WAITED_BYTES", 16)
    engine = stepper(replace(source(20, cost="waits"), streams=streams), serial())
    first, *others = hold(engine, "source", at_first)
    assert engine.begin() is None
    engine.finish(first)
    others += hold(engine, "source", then)
    assert engine.begin() is None, "8 bytes came, and 16 + 4 * 8 are on their way"
    for call in others:
        engine.finish(call)
    assert values_of(engine) == list(range(20))


@pytest.mark.parametrize("ahead", [1, 3])
def test_prefetch_is_how_far_the_last_stage_runs_ahead(ahead: int) -> None:
    engine = stepper(source(100), serial(buffer_items=ahead))
    engine.next_item()
    engine.settle()
    assert len(engine.root_out.out) == ahead


class Crowd:
    """Counts who is inside at the same time; those inside wait until `expected` are, so that it can be reached."""

    def __init__(self, expected: int) -> None:
        self.lock = threading.Lock()
        self.inside = self.most = 0
        self.barrier = threading.Barrier(expected)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.barrier.wait(30)
        with self.lock:
            self.inside -= 1
        return batch


@pytest.mark.parametrize(
    ("expected", "read", "plan", "options"),
    [
        (1, "waits", {}, {"cpu_budget": 1}),
        (3, "waits", {}, {"cpu_budget": 3}),
        (1, "computes", {"max_calls": 1}, {"cpu_budget": 1, "autotune": False}),
        (5, "computes", {"max_calls": 5}, {"cpu_budget": 1, "autotune": False}),
        (MAX_WAITING_CALLS, "computes", {"cost": "waits"}, {"cpu_budget": 1}),
    ],
    ids=["one core", "three cores", "asked for one", "asked for five", "waits"],
)
def test_calls_stay_within_the_cpu_budget_unless_they_wait_or_the_user_asked_for_them(
    expected: int, read: Cost, plan: dict[str, Any], options: dict[str, Any]
) -> None:
    crowd = Crowd(expected)
    chunks = expected * (20 if expected < 10 else 2)
    assert len(values_from(source(chunks, cost=read), function(crowd, **plan), **options)) == chunks
    assert crowd.most == expected


def test_calls_that_wait_do_not_keep_others_from_computing() -> None:
    computed = threading.Event()

    def wait(batch: pa.RecordBatch) -> pa.RecordBatch:
        if value_of(batch) == 0:
            assert computed.wait(30)
        return batch

    def compute(value: int) -> Iterator[pa.RecordBatch]:
        if value == 3:
            computed.set()
        yield chunk(value)

    stages = source(6, compute), function(wait, max_calls=1, cost="waits")
    assert values_from(*stages, cpu_budget=1) == list(range(6))


def test_a_thread_that_cannot_be_started_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def limited(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with running(source(50), function(max_calls=4, cost="waits"), serial(same), cpu_budget=4) as engine:
        assert values_of(engine) == list(range(50))
        assert engine.statistics().workers == 1


def test_without_any_thread_the_run_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    with running(source(5)) as engine, pytest.raises(Exception, match="no thread can be started"):
        next(items_of(engine))


def test_what_the_tail_dropped_is_not_held_while_the_next_chunk_is_made() -> None:
    def wide(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"x": batch.column(0), "text": ["z" * (1 << 14)] * batch.num_rows})

    options = af.Options(max_chunk_rows=4, autotune=False, cpu_budget=1)
    with iter(af.range(64).map(wide).skip(60).with_options(options)) as run:
        assert sum(batch.num_rows for batch in run) == 4
        assert run.stats().ledger_peak_bytes < 1.5 * 4 * (1 << 14)
