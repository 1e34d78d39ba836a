"""The policy, on simulated pipelines: what it reaches, how soon, what it never does, and that it comes to rest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from arrowflow.autotune import Policy
from arrowflow.autotune.trials import LAST_REST_SECONDS
from arrowflow.physical.tuning import MAX_REORDER_SLOTS, WAITS, StageKey, StageLimits
from tests.autotune.measured import sample, stage
from tests.autotune.simulation import Simulation, Work, best_fixed
from tests.effort import scaled

pytestmark = pytest.mark.any_version

WORTH = 0.95
"""Share of the best fixed setting's rate that is asked for."""
SETTLE_SECONDS, SETTLE_CHUNKS = 1.0, 30

DECODE = Work(name="read_parquet", cpu_seconds=0.001, cost="computes")
REMOTE = Work(name="read_parquet", cpu_seconds=0.001, waiting_seconds=0.02)
SLEEPS = Work(name="map", cpu_seconds=0.0002, waiting_seconds=0.05)
COMPUTES = Work(name="map", cpu_seconds=0.01)
LOCKED = Work(name="map", cpu_seconds=0.01, holds_lock=True)
HALF = Work(name="map", cpu_seconds=0.01, waiting_seconds=0.01)
GENERATOR = Work(name="from_generator", cpu_seconds=0.004, holds_lock=True, asked_calls=1)

FEW, MANY = (1, 2, 4), (8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    works: Sequence[Work]
    grid: Sequence[Sequence[int]]
    options: dict[str, Any] = field(default_factory=dict)

    def best(self, seconds: float = 2.0, **options: Any) -> float:
        return best_fixed(self.works, self.grid, seconds, **(self.options | options))

    def tuned(self, **options: Any) -> Simulation:
        return Simulation(self.works, Policy({}), **(self.options | options))


PIPELINES = {
    "sleeping map": Pipeline(works=(DECODE, SLEEPS), grid=((2,), MANY)),
    "slow answers": Pipeline(works=(DECODE, replace(SLEEPS, waiting_seconds=0.3)), grid=(FEW, MANY)),
    "remote reads, then CPU": Pipeline(works=(REMOTE, COMPUTES), grid=((1, 2, 4, 8, 16, 32), FEW)),
    "far reads, then CPU": Pipeline(
        works=(replace(REMOTE, waiting_seconds=0.1), replace(COMPUTES, cpu_seconds=0.005)),
        grid=((8, 16, 32, 64), FEW),
    ),
    "map that holds the lock": Pipeline(works=(DECODE, LOCKED), grid=(FEW, FEW)),
    "NumPy map": Pipeline(works=(DECODE, COMPUTES), grid=(FEW, FEW)),
    "map that waits half of the time": Pipeline(works=(DECODE, HALF), grid=(FEW, (1, 2, 4, 8, 16))),
    "two maps, 1:4": Pipeline(
        works=(DECODE, Work(name="first", cpu_seconds=0.005), Work(name="second", cpu_seconds=0.02)),
        grid=((1, 2), FEW, FEW),
    ),
    "slow consumer": Pipeline(
        works=(DECODE, COMPUTES), grid=(FEW, FEW), options={"step_seconds": lambda now: 0.015}
    ),
    "two services, equally slow": Pipeline(
        works=(DECODE, *(replace(SLEEPS, name=name, waiting_seconds=0.1) for name in ("first", "second"))),
        grid=((2,), (64,), (64,)),
    ),
    "generator, then CPU": Pipeline(
        works=(GENERATOR, replace(COMPUTES, cpu_seconds=0.005)), grid=((1,), FEW)
    ),
    "generator, then sleep": Pipeline(works=(GENERATOR, SLEEPS), grid=((1,), MANY)),
}


def named(names: Sequence[str]) -> Any:
    return pytest.mark.parametrize("pipeline", [PIPELINES[name] for name in names], ids=names)


def settled(run: Simulation) -> float:
    """Runs until the time in which a pipeline has to settle is over, and returns the moment."""
    while run.now < SETTLE_SECONDS or len(run.deliveries) < SETTLE_CHUNKS:
        run.run(run.now + 0.05)
    return run.now


def weights(run: Simulation, name: str) -> set[float]:
    """Returns all weights that the policy gave to a stage."""
    return {setting.weight for _, key, setting in run.changes if key[-1] == name}


def reasons(run: Simulation, name: str) -> str:
    return "\n".join(setting.reason for _, key, setting in run.changes if key[-1] == name)


# ---------------------------------------------------------------- what it reaches


EVEN = ("sleeping map", "map that holds the lock", "map that waits half of the time", "generator, then sleep")
"""Pipelines that are tried with calls of equal length too."""


@pytest.mark.parametrize(
    ("name", "noise"), [(name, 0.05) for name in PIPELINES] + [(name, 0.0) for name in EVEN]
)
def test_it_is_as_fast_as_the_best_fixed_setting_with_64_calls_a_stage_at_most(
    name: str, noise: float
) -> None:
    best = PIPELINES[name].best(noise=noise)
    run = PIPELINES[name].tuned(noise=noise)
    moment = settled(run)
    run.run(moment + 5)
    assert run.rate(moment, moment + 2) >= WORTH * best, run.changes
    assert run.rate(moment + 3, moment + 5) >= WORTH * best, run.changes
    assert max(stage.most_running for stage in run.stages) <= 64
    assert all(setting.max_calls <= 64 for _, _, setting in run.changes)


# ---------------------------------------------------------------- budgets

BUDGETED = {
    name: (DECODE, work)
    for name, work in {
        "computes": COMPUTES,
        "holds the lock": LOCKED,
        "half": HALF,
        "a fifth computes": Work(name="map", cpu_seconds=0.005, waiting_seconds=0.02),
        "hardly computes": Work(name="map", cpu_seconds=0.002, waiting_seconds=0.02),
        "sleeps": SLEEPS,
    }.items()
}


@pytest.mark.parametrize("cpu_budget", [1, 2])
@pytest.mark.parametrize("name", BUDGETED)
def test_no_more_cores_are_used_than_the_budget_says(name: str, cpu_budget: int) -> None:
    run = Simulation(BUDGETED[name], Policy({}), cpu_budget=cpu_budget, cores=8, noise=0.05).run(2)
    early = run.cpu_seconds
    assert early / 2 <= 1.1 * cpu_budget
    used = (run.run(5).cpu_seconds - early) / 3
    assert used <= 1.1 * cpu_budget, run.changes


@pytest.mark.parametrize(
    "work", [SLEEPS, HALF, COMPUTES, LOCKED], ids=["sleeps", "half", "computes", "locked"]
)
def test_calls_in_flight_stay_within_what_was_asked_for(work: Work) -> None:
    run = Simulation((DECODE, replace(work, asked_calls=3)), Policy({}), noise=0.05)
    run.run(62 if work is LOCKED else 5)
    assert run.stage("map").most_running <= 3
    assert all(setting.max_calls <= 3 for _, key, setting in run.changes if key[-1] == "map")


# ---------------------------------------------------------------- standstill

CALM_SECONDS = float(max(300, scaled(300)))
TRIES = math.ceil(CALM_SECONDS / LAST_REST_SECONDS) + 1
"""Most tries of one kind at one stage. Rests double, so they have grown to a minute after 63 s."""
CHANGES_OF_A_TRY = 3
"""Calls that hold the interpreter lock are let go, let run alone, and capped again; other trials have two."""

SLOWLY = {
    name: Pipeline(works=works, grid=grid)
    for name, works, grid in (
        ("sleeping map", (DECODE, replace(SLEEPS, waiting_seconds=2.0)), ((2,), (32, 64))),
        ("remote reads, then CPU", (REMOTE, replace(COMPUTES, cpu_seconds=0.1)), ((2, 4, 8), FEW)),
        ("map that holds the lock", (DECODE, replace(LOCKED, cpu_seconds=0.08)), ((1, 2), FEW)),
        ("NumPy map", (DECODE, replace(COMPUTES, cpu_seconds=0.1)), ((1, 2), FEW)),
        (
            "map that waits half of the time",
            (DECODE, replace(HALF, cpu_seconds=0.1, waiting_seconds=0.1)),
            ((1, 2), (2, 4, 8)),
        ),
    )
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOWLY)
def test_it_comes_to_a_standstill(name: str) -> None:
    pipeline = SLOWLY[name]
    run = pipeline.tuned(noise=0.05, seed=1).run(100 + CALM_SECONDS)
    late = [(moment, key, setting) for moment, key, setting in run.changes if moment > 100]
    assert len(late) <= TRIES * CHANGES_OF_A_TRY, late
    assert run.rate(100, 100 + CALM_SECONDS) >= WORTH * pipeline.best(20.0, noise=0.05)


# ---------------------------------------------------------------- changes


def slower(work: Work) -> Work:
    """Five times, from the 6th to the 12th second."""
    return replace(work, slower=lambda now: 5.0 if 6 <= now < 12 else 1.0)


@pytest.mark.parametrize(
    ("work", "grid", "options"),
    [
        (replace(SLEEPS, waiting_seconds=0.1), (64,), {}),
        (replace(SLEEPS, waiting_seconds=0.04), (16, 64), {"step_seconds": lambda now: 0.004}),
        (replace(COMPUTES, cpu_seconds=0.006), (1, 2), {}),
        (replace(LOCKED, cpu_seconds=0.006), (1, 2), {}),
        (replace(HALF, cpu_seconds=0.006, waiting_seconds=0.006), (4, 8), {}),
    ],
    ids=["sleeps", "sleeps, slow consumer", "computes", "locked", "half"],
)
def test_it_follows_a_change_of_load(work: Work, grid: Sequence[int], options: dict[str, Any]) -> None:
    later = replace(work, cpu_seconds=5 * work.cpu_seconds, waiting_seconds=5 * work.waiting_seconds)
    fast, slow = (
        best_fixed((DECODE, part), ((2,), grid), 2.0, noise=0.05, **options) for part in (work, later)
    )
    run = Simulation((DECODE, slower(work)), Policy({}), noise=0.05, **options).run(18)
    assert run.rate(4, 6) >= WORTH * fast
    assert run.rate(9, 12) >= WORTH * slow, run.changes
    assert run.rate(15, 18) >= WORTH * fast, run.changes


@pytest.mark.parametrize("others", [2.0, 6.0, 30.0])
@pytest.mark.parametrize("cost", [0.005, 0.02, 0.1])
def test_work_of_others_does_not_make_a_computing_call_look_like_a_waiting_one(
    cost: float, others: float
) -> None:
    works = (DECODE, replace(COMPUTES, cpu_seconds=cost))
    run = Simulation(works, Policy({}), noise=0.05, others=lambda now: others if 2 <= now < 6 else 0.0).run(8)
    assert run.stage("map").limits.weight >= 0.75
    assert all(weight >= 0.75 for weight in weights(run, "map")), run.changes
    assert "interpreter lock" not in reasons(run, "map")
    assert run.rate(7, 8) >= 0.9 * 2 / (cost + DECODE.cpu_seconds)


def test_a_few_calls_that_find_all_in_memory_tell_little_of_many_that_wait() -> None:
    """Each epoch opens files, the first few of which are known already, while other calls use all cores."""
    policy = Policy({})
    weight, calls, busy, cpu = 0.02, 0, 0.0, 0.0
    for number in range(40):
        known = number % 2 == 1
        calls += 4 if known else 10
        busy += 0.0004 if known else 0.8
        cpu += 0.0004 if known else 0.01
        now = 0.1 * number
        decodes = stage(
            "decode", cost="computes", calls=10 * number, busy_seconds=2 * now, cpu_seconds=2 * now
        )
        opens = stage("open", weight=weight, calls=calls, busy_seconds=busy, cpu_seconds=cpu)
        found = policy.step(sample(now, decodes, opens)).get(("open",))
        weight = weight if found is None else found.weight
    assert weight < WAITS


# ---------------------------------------------------------------- the interpreter lock


@pytest.mark.parametrize("cost", [0.005, 0.01, 0.05])
@pytest.mark.parametrize("cores", [2, 4, 8])
def test_a_function_that_holds_the_lock_is_called_once_at_a_time(cost: float, cores: int) -> None:
    works = (DECODE, replace(LOCKED, cpu_seconds=cost))
    run = Simulation(works, Policy({}), cores=cores, cpu_budget=cores, noise=0.05).run(4)
    limits = run.stage("map").limits
    assert "interpreter lock" in limits.reason, run.changes
    assert limits.max_calls == 1
    assert run.rate(3, 4) >= WORTH / cost


@pytest.mark.parametrize("others", [0.0, 2.0], ids=["idle", "beside two busy loops"])
@pytest.mark.parametrize("cost", [0.01, 0.3, 2.0])
def test_the_lock_is_found_under_load_and_of_long_calls(cost: float, others: float) -> None:
    works = (DECODE, replace(LOCKED, cpu_seconds=cost))
    run = Simulation(works, Policy({}), noise=0.05, others=lambda now: others)
    run.run(max(6, 20 * cost))
    limits = run.stage("map").limits
    assert "interpreter lock" in limits.reason and limits.max_calls == 1, run.changes
    assert all(weight >= WAITS for weight in weights(run, "map")), "it never seems to wait"


@pytest.mark.parametrize("others", [0.0, 2.0], ids=["idle", "beside two busy loops"])
@pytest.mark.parametrize("waiting", [0.02, 3.0])
def test_calls_that_wait_are_found_under_load_too(waiting: float, others: float) -> None:
    works = (DECODE, replace(SLEEPS, waiting_seconds=waiting))
    run = Simulation(works, Policy({}), noise=0.05, seed=1, others=lambda now: others).run(
        8 * max(1, waiting)
    )
    assert "interpreter lock" not in reasons(run, "map")
    assert run.stage("map").limits.weight < WAITS


@pytest.mark.parametrize("work", [COMPUTES, HALF, SLEEPS], ids=["computes", "half", "sleeps"])
@pytest.mark.parametrize("cores", [1, 2, 4])
def test_a_function_that_does_not_hold_it_is_never_said_to(work: Work, cores: int) -> None:
    run = Simulation((DECODE, work), Policy({}), cores=cores, cpu_budget=cores, noise=0.05).run(4)
    assert "interpreter lock" not in reasons(run, "map")


@pytest.mark.parametrize(
    ("queued", "running", "alone"),
    [(0.0, 2, True), (1.6, 2, False), (0.0, 8, False)],
    ids=["cores are free", "others have the cores", "most still run"],
)
def test_calls_run_alone_only_where_they_use_one_core_for_sure(
    queued: float, running: int, alone: bool
) -> None:
    policy, found = Policy({}), list[StageLimits]()
    for now in (1.0, 1.5, 2.0, 2.5):
        seconds = {"busy_seconds": 1.6 + queued, "cpu_seconds": 0.8, "queued_seconds": queued}
        measured = {name: now * value for name, value in seconds.items()}
        part = stage("map", weight=0.6, calls=round(4 * now), running=running, **measured)
        found += policy.step(sample(now, part, waited_seconds=now, chunks=round(4 * now))).values()
    assert any(setting.max_calls == 1 for setting in found) == alone


def test_a_cap_ends_when_the_function_holds_the_lock_no_more() -> None:
    later = 10.0
    changing = replace(LOCKED, slower=lambda now: 1.0 if now < later else 4.0)
    run = Simulation((DECODE, changing), Policy({}), noise=0.05).run(later)
    assert run.stage("map").limits.max_calls == 1
    run.stage("map").work = replace(changing, holds_lock=False)
    run.run(20)
    assert run.stage("map").limits.max_calls > 1, run.changes
    assert run.rate(17, 20) >= WORTH * 2 / 0.041


# ---------------------------------------------------------------- trials


def test_a_trial_that_does_not_help_is_taken_back_and_rests_twice_as_long() -> None:
    """A service that answers ten calls at a time: more of them only take longer."""
    asked = 10

    def crowded(now: float) -> float:
        return max(1.0, service.running / asked)

    works = (DECODE, Work(name="map", cpu_seconds=0.0001, waiting_seconds=0.05, slower=crowded))
    run = Simulation(works, Policy({}), noise=0.02)
    service = run.stage("map")
    run.run(45)
    tried = [moment for moment, _, setting in run.changes if "trying" in setting.reason]
    back = [setting for _, _, setting in run.changes if "no use" in setting.reason]
    rests = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert len(back) >= 5
    assert {setting.max_calls for setting in back} == {10}
    for shorter, longer in itertools.pairwise(rests):
        assert longer == pytest.approx(min(2 * shorter, LAST_REST_SECONDS), rel=0.5), rests


def test_what_a_trial_found_is_remembered_for_the_next_run() -> None:
    found: dict[StageKey, StageLimits] = {}
    Simulation((DECODE, SLEEPS), Policy(found)).run(4)
    again = Simulation((DECODE, SLEEPS), Policy(found))
    assert again.stage("map").limits.max_calls == 64
    assert again.run(2).rate(0.2, 2) >= WORTH * 64 / 0.0502


def test_a_trial_that_goes_on_is_not_remembered() -> None:
    found: dict[StageKey, StageLimits] = {}
    run = Simulation((DECODE, SLEEPS), Policy(found))
    while not run.changes:
        run.run(run.now + 0.01)
    assert "trying" in run.changes[-1][2].reason
    assert found == {}


def test_what_the_executor_learnt_in_a_short_run_is_remembered() -> None:
    found: dict[StageKey, StageLimits] = {}
    run = Simulation((DECODE, SLEEPS), Policy(found)).run(0.06)
    assert run.changes == []
    assert run.tuner is not None
    run.tuner.remember(stage.statistics() for stage in run.stages)
    assert {key[-1] for key in found} == {"map"}
    assert found[0, "map"].weight < 0.05
    assert found[0, "map"].reason == "0 % of a call is CPU time"


def test_a_lock_that_was_found_is_known_in_the_next_run() -> None:
    found: dict[StageKey, StageLimits] = {}
    Simulation((DECODE, LOCKED), Policy(found)).run(4)
    run = Simulation((DECODE, LOCKED), Policy(found)).run(10)
    assert run.stage("map").most_running == 1
    assert run.changes == []


# ---------------------------------------------------------------- purity


def test_calls_that_wait_and_compute_more_than_the_budget_together_are_taken_back() -> None:
    policy, found = Policy({}), list[StageLimits]()
    for now in (1.0, 1.5, 2.0, 2.5):
        seconds = {"busy_seconds": 20 * now, "cpu_seconds": 3 * now}
        part = stage("map", weight=0.15, max_calls=20, calls=round(100 * now), running=20, **seconds)
        found += policy.step(sample(now, part, waited_seconds=now, chunks=round(100 * now))).values()
    fitted = [limits.reason for limits in found if limits.max_calls == 13]
    assert "20.0 calls in flight take 3.0 cores of 2" in fitted, found


@named(["sleeping map", "map that holds the lock", "map that waits half of the time"])
def test_the_same_samples_give_the_same_settings(pipeline: Pipeline) -> None:
    run = pipeline.tuned(noise=0.05).run(4)
    again = Policy({})
    replayed = [
        (sample.now, key, setting) for sample in run.samples for key, setting in again.step(sample).items()
    ]
    assert sorted(replayed, key=repr) == sorted(run.changes, key=repr)
    assert replayed


def test_samples_of_the_same_moment_change_nothing() -> None:
    run = PIPELINES["sleeping map"].tuned().run(1)
    policy = Policy({})
    assert [policy.step(run.samples[0]) for _ in range(5)] == [{}] * 5


# ---------------------------------------------------------------- a consumer that has what it wants


def test_nothing_grows_for_a_satisfied_consumer_and_calls_in_flight_shrink() -> None:
    hungry = 2.0
    run = Simulation(
        (DECODE, SLEEPS), Policy({}), noise=0.05, step_seconds=lambda now: 0.0 if now < hungry else 0.02
    )
    assert run.run(hungry).stage("map").limits.max_calls == 64
    run.run(12)
    late = [setting.max_calls for moment, key, setting in run.changes if moment > 3 and key[-1] == "map"]
    assert late == sorted(late, reverse=True)
    assert run.stage("map").limits.max_calls <= 16
    assert run.rate(4, 12) >= 0.98 / 0.02


def test_a_satisfied_consumer_is_left_alone() -> None:
    run = Simulation((DECODE, COMPUTES), Policy({}), noise=0.05, step_seconds=lambda now: 0.02).run(30)
    calls = [stage.limits.max_calls for stage in run.stages]
    assert calls <= [10, 2]
    assert len(run.changes) <= 1, run.changes


# ---------------------------------------------------------------- calls that take much longer than the others


def test_more_calls_wait_for_their_turn_where_one_takes_long() -> None:
    work = Work(
        name="read_parquet",
        waiting_seconds=0.005,
        cost="computes",
        slower=lambda now: 400.0 if 1 <= now % 3 < 1.002 else 1.0,
    )
    tuned, fixed, endless = (
        Simulation((work,), tuner, calls=calls, noise=0.3).run(60)
        for tuner, calls in ((Policy({}), None), (None, None), (None, (2,)))
    )
    limits = tuned.stages[0].limits
    assert limits.max_slots >= 4 * MAX_REORDER_SLOTS
    assert "calls and 2,048 chunks in line" in limits.reason
    assert tuned.rate(40, 60) >= fixed.rate(40, 60)
    assert tuned.rate(40, 60) >= 0.9 * endless.rate(40, 60)
