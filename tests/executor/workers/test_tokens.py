"""Rules 5 and 6: the CPU budget: tokens, the watch that takes them back from calls that wait, the mean, and what live runs share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.clock import WallClock
from arrowflow.executor import Engine, limits
from arrowflow.executor.limits import FIRST_LOOK_SECONDS
from arrowflow.executor.workers import cores
from arrowflow.ops.rows.repeat import RepeatKernel
from arrowflow.options import Options
from arrowflow.physical.stage import Chain
from arrowflow.physical.tuning import FIRST_CALLS, WAITS, RunSample, StageKey, StageLimits, StageStatistics
from arrowflow.testing import FakeClock
from tests.executor.fakes import (
    Running,
    Stepper,
    boundary,
    chunk,
    clock_of,
    function,
    hold,
    items_of,
    once,
    reader,
    running,
    same,
    serial,
    source,
    stages_of,
    stepper,
    value_of,
    values_of,
)


@pytest.mark.parametrize("weight", [0.0, 0.1, WAITS, 0.5, 1.0])
def test_what_takes_a_token_needs_room_and_nothing_else_does(weight: float) -> None:
    takes = limits.token(weight) > 0
    assert takes == (not limits.fits(weight, room=0.0)) == (not limits.waits(weight)) == (weight >= WAITS)
    assert limits.fits(weight, room=0.5)


class Gauge:
    """The meter of a thread that uses the share of the CPU which a test says."""

    def __init__(self, clock: FakeClock, share: float, queued: float = 0.0) -> None:
        self.clock, self.share, self.waits = clock, share, queued

    def cpu(self) -> float:
        return self.clock.now() * self.share

    def queued(self) -> float:
        return self.clock.now() * self.waits

    def close(self) -> None:
        """Nothing to close."""


def begun(engine: Stepper, calls: list[Running], share: float, queued: float = 0.0) -> None:
    """Gives the calls' threads clocks: as `_serve` does when a call begins."""
    clock = clock_of(engine)
    for _, _, worker in calls:
        worker.meter = Gauge(clock, share, queued)
        worker.seen = (clock.now(), worker.meter.cpu(), worker.meter.queued())
        if worker not in engine.pool.threads:
            engine.pool.threads.append(worker)


def look(engine: Stepper, seconds: float = 0.01) -> None:
    """Lets time pass, and an idle worker look at the others."""
    clock = clock_of(engine)
    clock.advance(seconds)
    with engine.lock:
        engine.pool._look()


def unknown() -> Stepper:
    """Returns an engine of a function of unknown cost, with more input than it can take."""
    return stepper(source(100, cost="waits"), function(cost="unknown"), cpu_budget=2)


def test_calls_of_unknown_cost_begin_within_the_cpu_budget() -> None:
    engine = unknown()
    hold(engine, "function", 2)
    engine.settle()
    assert engine.pool.tokens == 2
    assert [stage.running for stage in stages_of(engine)] == [2, 0]


def test_a_call_that_was_thought_to_be_cheap_is_measured_from_the_first_look_on() -> None:
    """Its thread did not read its clocks when the call began: that costs more than a cheap call."""
    engine = unknown()
    held = hold(engine, "function", 2)
    begun(engine, held, share=0.0, queued=0.0)
    for _, _, worker in held:
        worker.seen = None
        worker.meter.queued = lambda: 5.0  # of calls before
    look(engine)
    assert engine.pool.tokens == 2
    look(engine)
    assert engine.pool.tokens == 0, "both wait"


def test_whoever_reads_the_meter_of_a_thread_first_may_end_before_it() -> None:
    made, read = threading.Event(), threading.Event()
    meters: list[Any] = []
    readers: list[Path] = []

    def measured() -> None:
        meters.append(WallClock().meter(threading.get_ident()))
        made.set()
        read.wait(60)

    def reads() -> None:
        readers.append(Path(f"/proc/self/task/{threading.get_native_id()}"))
        assert meters[0].queued() >= 0

    thread, other = threading.Thread(target=measured), threading.Thread(target=reads)
    thread.start()
    made.wait(60)
    other.start()
    other.join()
    while readers[0].exists():  # on Linux a thread is there for a moment after it was joined
        pass
    assert meters[0].queued() >= 0
    assert meters[0].cpu() >= 0
    read.set()
    thread.join()
    meters[0].close()


def test_reads_are_asked_for_while_all_cores_decode() -> None:
    engine = stepper(
        source(100, phase="open", cost="waits"),
        serial(),
        reader(lambda batch: once(value_of(batch)), cost="waits"),
        function(),
        cpu_budget=2,
    )
    hold(engine, "function", 2)
    engine.settle()
    assert engine.pool.tokens == 2
    decoding, *others = stages_of(engine)
    assert decoding.running == 2
    assert all(len(stage.out) >= stage.limits.max_ready_items for stage in others)


def test_calls_that_wait_give_their_tokens_back_in_the_middle() -> None:
    engine = unknown()
    calls = hold(engine, "function", 2)
    begun(engine, calls, share=0.05)
    look(engine)
    assert engine.pool.tokens == 0
    more = hold(engine, "function", 8)  # known to wait now: as many as waiting calls may be
    engine.settle()
    assert stages_of(engine)[0].running == stages_of(engine)[0].limits.max_calls == 10
    for call in calls + more:
        engine.finish(call)
    assert engine.pool.tokens == 0
    assert values_of(engine) == list(range(100))


@pytest.mark.parametrize(
    ("cpus", "share", "queued", "seconds"),
    [
        (2, 0.3, 0.0, 0.01),  # they compute
        (2, 0.9, 0.0, 0.01),
        (4, 0.2, 0.0, 0.01),  # they may wait for each other: together they have 0.8 of the interpreter
        (2, 0.1, 0.85, 0.01),  # they wait for a core: of the time they had one they computed two thirds
        (2, 0.01, 0.9, 0.01),  # they may wait for each other: together they want 1.8 of the interpreter
        (2, 0.0, 0.0, 1e-5),  # a look too soon says nothing
        (2, 0.0, 0.0, 0.45 * FIRST_LOOK_SECONDS),
    ],
)
def test_calls_that_may_compute_keep_them(cpus: int, share: float, queued: float, seconds: float) -> None:
    engine = stepper(source(100, cost="waits"), function(cost="unknown"), cpu_budget=cpus)
    clock_of(engine).advance(100.0)
    begun(engine, hold(engine, "function", cpus), share, queued)
    look(engine, seconds)
    assert engine.pool.tokens == cpus


@pytest.mark.parametrize(
    ("calls", "reason", "weight"),
    [(0, "", 0.1), (FIRST_CALLS - 1, "", 0.1), (FIRST_CALLS, "", 1.0), (0, "the tuner says so", 1.0)],
)
def test_a_look_tells_what_the_next_calls_take_unless_the_tuner_does(
    calls: int, reason: str, weight: float
) -> None:
    """Half of the time the call had no core, and of the other half it computed a tenth."""
    engine = stepper(source(100, cost="waits"), function(cost="unknown"), cpu_budget=1)
    clock_of(engine).advance(100.0)
    begun(engine, hold(engine, "function", 1), share=0.05, queued=0.5)
    stage = stages_of(engine)[0]
    stage.calls, stage.limits.reason = calls, reason
    look(engine, FIRST_LOOK_SECONDS * 1.1)
    assert engine.pool.tokens == 0
    assert stage.limits.weight == pytest.approx(weight)


def test_a_share_of_a_core_is_a_share_of_a_token() -> None:
    engine = stepper(source(100, cost="waits"), function(cost="unknown"), cpu_budget=3)
    engine.pool._cores = 8  # fewer in the budget than there are: no call is let in that does not fit
    stages_of(engine)[0].limits.weight = 0.5
    hold(engine, "function", 6)
    engine.settle()
    assert engine.pool.tokens == 3.0


def test_the_first_calls_tell_what_the_next_ones_take() -> None:
    engine = unknown()
    called(engine, elapsed=0.1, cpu=0.01)
    assert stages_of(engine)[0].limits.weight == pytest.approx(0.1)


def test_without_a_tuner_nothing_is_learnt() -> None:
    engine = stepper(source(100), function(cost="unknown", max_calls=3), cpu_budget=2, autotune=False)
    assert [stage.limits.weight for stage in stages_of(engine)] == [0.0, 1.0]
    assert not any(stage.cost_is_measured for stage in stages_of(engine))


def called(engine: Stepper, elapsed: float, cpu: float) -> None:
    """Runs a call of the function that takes so many seconds."""
    (call,) = hold(engine, "function", 1)
    call[0].caller.execute(call[1])
    with engine.lock:
        engine.pool.finish(*call, elapsed=elapsed, cpu=cpu)


def test_the_mean_stays_within_a_budget_below_the_cores() -> None:
    engine = stepper(source(100), function(), cpu_budget=1)
    clock = clock_of(engine)
    engine.pool._cores = 2
    called(engine, elapsed=0.1, cpu=0.3)  # others waited, and used a little each
    assert engine.begin() is None
    clock.advance(0.2)
    assert engine.begin() is None
    clock.advance(0.15)
    assert engine.begin() is not None


def test_what_was_not_used_is_not_saved_for_long() -> None:
    engine = stepper(source(100), function(), cpu_budget=1)
    clock = clock_of(engine)
    engine.pool._cores = 2
    clock.advance(100.0)
    for _ in range(2):
        called(engine, elapsed=0.1, cpu=0.1)
    assert engine.begin() is None


@pytest.mark.parametrize("calls", [1, 5])
def test_calls_that_block_go_beyond_the_cpu_budget_in_real_time(calls: int) -> None:
    barrier = threading.Barrier(calls)

    def meet(batch: pa.RecordBatch) -> pa.RecordBatch:
        barrier.wait(30)
        return batch

    batches = [pa.record_batch({"x": [number]}) for number in range(calls)]
    dataset = af.from_arrow(batches).map(meet).with_options(af.Options(cpu_budget=1))
    assert dataset.to_table()["x"].to_pylist() == list(range(calls))


# ---------------------------------------------------------------- on demand


def test_without_a_tuner_nothing_is_made_before_it_is_asked_for() -> None:
    made: list[int] = []

    def make(value: int) -> Iterator[pa.RecordBatch]:
        made.append(value)
        yield chunk(value)

    with running(source(5, make), function(), autotune=False) as engine:
        for asked, item in enumerate(items_of(engine), start=1):
            assert item is not None
            assert made == list(range(asked))


def test_without_a_tuner_a_prefetch_is_made_ahead() -> None:
    ahead = threading.Semaphore(0)

    def tell(batch: pa.RecordBatch) -> pa.RecordBatch:
        ahead.release()
        return batch

    stage = function(tell, buffer_items=3, prefetches=True)
    with running(source(9), stage, autotune=False) as engine:
        found = engine.next_item()
        assert found is not None
        for _ in range(4):  # the first one, and three more that nobody has asked for
            assert ahead.acquire(timeout=30)
        assert len(values_of(engine)) == 8


# ---------------------------------------------------------------- what live runs share


def test_arrows_pool_follows_the_largest_budget_and_is_given_back() -> None:
    before = pa.cpu_count()
    first = stepper(source(), cpu_budget=before + 1)
    assert pa.cpu_count() == before + 1
    second = stepper(source(), cpu_budget=before + 2)
    assert pa.cpu_count() == before + 2
    second.close()
    assert pa.cpu_count() == before + 1
    first.close()
    first.close()
    assert pa.cpu_count() == before


def test_a_process_may_use_all_cores_or_as_many_as_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "available_cpus", lambda: 5)
    for told in (0, 3):
        monkeypatch.setattr(cores._Process, "available", told)
        assert [cores.available(), cores.available()] == [told or 5] * 2


def test_two_runs_share_the_cores() -> None:
    one, two = stepper(source(), function(), cpu_budget=4), stepper(source(), function(), cpu_budget=4)
    assert cores.allowance(one) == cores.allowance(two) == 4  # as long as the other one idles
    one.pool.tokens = 4.0
    assert cores.allowance(two) == 2
    two.pool.tokens = 2.0
    assert cores.allowance(one) == 2
    one.close()
    two.close()


def test_a_run_never_has_less_than_one_call() -> None:
    runs = [stepper(source(), function(), cpu_budget=1) for _ in range(5)]
    for run in runs:
        run.pool.tokens = 1.0
    assert [cores.allowance(run) for run in runs] == [1] * 5
    for run in runs:
        run.pool.tokens = 0.0
        run.close()


def test_runs_without_a_byte_budget_of_their_own_divide_it() -> None:
    options = Options(cpu_budget=1).resolved()
    chain = Chain(stages=(source(), function()))
    one = Engine(chain, 0, None, options, FakeClock())
    assert one.ledger.budget == options.ram_budget
    own = stepper(source(), ram_budget=1000)
    two = Engine(chain, 0, None, options, FakeClock())
    assert one.ledger.budget == two.ledger.budget == options.ram_budget // 2
    assert own.ledger.budget == 1000
    two.close()
    assert one.ledger.budget == options.ram_budget
    one.close()
    own.close()


def test_a_run_that_was_only_begun_is_forgotten() -> None:
    before = pa.cpu_count()
    engine = stepper(source(), cpu_budget=before + 3)
    engine.root.drop()
    engine.pool.ready.clear()
    cores.leave(engine)
    assert pa.cpu_count() == before


# ---------------------------------------------------------------- the tuner's seam


class Script:
    """A tuner that does what a test says."""

    period_seconds = 0.1

    def __init__(self, change: Callable[[RunSample], Mapping[StageKey, StageLimits]]) -> None:
        self.change = change
        self.samples: list[RunSample] = []
        self.ended: list[StageStatistics] = []
        self.known: dict[StageKey, StageLimits] = {}

    def step(self, sample: RunSample) -> Mapping[StageKey, StageLimits]:
        self.samples.append(sample)
        return self.change(sample)

    def recall(self, key: StageKey) -> StageLimits | None:
        return self.known.get(key)

    def remember(self, stages: Iterable[StageStatistics]) -> None:
        self.ended = list(stages)


def tuned(tuner: Script, *stages: Any, children: tuple[Chain, ...] = ()) -> Stepper:
    options = Options(cpu_budget=2, ram_budget=1 << 30).resolved()
    chain = Chain(stages=stages, children=children)
    return Stepper(chain, 0, None, options, FakeClock(), tuner=tuner)


def wanting() -> Callable[[RunSample], Mapping[StageKey, StageLimits]]:
    """Sets the same for the most downstream stage."""
    setting = StageLimits(max_calls=7, max_ready_items=9, weight=0.3, reason="a test says so")
    return lambda sample: {sample.stages[0].key: setting}


def test_the_tuner_is_asked_once_a_period_and_obeyed() -> None:
    tuner = Script(wanting())
    engine = tuned(tuner, source(50), function())
    for now in (0.05, 0.10, 0.15, 0.21):
        with engine.lock:
            engine.tune(now)
    assert [sample.now for sample in tuner.samples] == [0.10, 0.21]
    limits = stages_of(engine)[0].limits
    assert (limits.max_calls, limits.max_ready_items, limits.weight) == (7, 9, 0.3)
    assert engine.statistics().stages[0].limits.reason == "a test says so"
    engine.close()
    assert [stage.operators for stage in tuner.ended] == [("function",), ("source",)]


def test_a_stage_begins_with_what_earlier_runs_found() -> None:
    tuner = Script(lambda sample: {})
    key = (0, "function")
    tuner.known[key] = StageLimits(max_calls=33, max_ready_items=5, weight=0.0, reason="as before")
    engine = tuned(tuner, source(50), function(cost="unknown"))
    assert stages_of(engine)[0].key == key
    assert stages_of(engine)[0].limits.max_calls == 33
    assert stages_of(engine)[0].limits.reason == "as before"
    engine.close()


def test_all_epochs_have_the_limits_of_their_stage() -> None:
    tuner = Script(lambda sample: {})
    repeat = boundary(lambda context: RepeatKernel(3, context), "repeat")
    engine = tuned(
        tuner, repeat, function(), children=(Chain(stages=(source(4), serial(same, name="inner"))),)
    )
    seen: set[int] = set()
    while engine.next_item() is not None:
        seen |= {id(stage.limits) for stage in stages_of(engine) if stage.plan.operators == ("source",)}
    assert len(seen) <= 1
    engine.close()


def test_samples_add_up() -> None:
    tuner = Script(lambda sample: {})
    engine = tuned(tuner, source(50), function())
    for _ in range(10):
        engine.next_item()
    with engine.lock:
        engine.tune(1.0)
    (sample,) = tuner.samples
    assert (sample.rows, sample.chunks, sample.cpu_budget) == (10, 10, 2)
    assert sample.stages[0].key == (0, "function")
    engine.close()
