"""A pipeline on a cluster: the batches and states of one machine, whatever happens to its workers."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.cluster.session import Remote, Session
from arrowflow.errors import FunctionError, MissingPackageError, PlanError, WorkerError
from tests.effort import scaled
from tests.ops.ranks.pipelines import BATCH, PIPELINES, UNCOUNTED, of, ranks, steps_of

pytestmark = [pytest.mark.slow, pytest.mark.any_version]

KILLS = scaled(2)
"""Pipelines of which workers are killed."""
SUITE = ["shuffle", "bucket", "cache", "repeat above", "function behind"]
"""The pipelines of the suite: rows, batches that lanes make, several epochs, and what runs after the lanes.

A lane moves by its position. Those of all operators are tested on one machine; all pipelines come with the profile `thorough`.
"""


def engine(workers: int, **options: Any) -> af.RayEngine:
    return af.RayEngine(workers=workers, cpus_per_worker=1, **options)


def rows_of(batches: Any) -> list[Any]:
    return [batch.to_pylist() for batch in batches]


def session_of(dataset: af.Dataset) -> Session:
    """Returns the workers of a dataset that has run."""
    plan: Any = dataset._ready().optimised
    (found,) = {
        lane.session for lane in getattr(plan, "planned_inputs", plan.inputs) or (plan,)
    }  # a whole plan is one lane
    return found


def processes_of(dataset: af.Dataset) -> list[int]:
    return [each.ready.process for each in session_of(dataset)._workers if each.ready is not None]


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def split(plan: af.Dataset, name: str) -> af.Dataset:
    return plan.split_by_rank(0, 1, equal_steps="drop" if name in UNCOUNTED else None)


@pytest.mark.parametrize("name", SUITE if KILLS < 10 else [*PIPELINES, *UNCOUNTED])
def test_the_batches_are_those_of_one_machine(ray: Any, shards: Path, name: str) -> None:
    """Of one epoch after the other, by one worker, and while another one comes and goes."""
    plan = split({**PIPELINES, **UNCOUNTED}[name](shards), name)
    expected = [rows_of(plan), rows_of(plan)]
    plan = split({**PIPELINES, **UNCOUNTED}[name](shards), name)
    clustered = plan.with_engine(engine(1))
    assert rows_of(clustered) == expected[0]
    found = []
    for number, batch in enumerate(clustered):
        found.append(batch.to_pylist())
        if number in (1, 4):
            session_of(clustered).resize({1: 2, 4: 1}[number])
    assert found == expected[1]


@pytest.mark.parametrize("name", ["bucket", "function behind"])
def test_states_go_there_and_back(ray: Any, shards: Path, name: str) -> None:
    """From one machine to two workers, from there to one, and back."""
    plan = split({**PIPELINES, **UNCOUNTED}[name](shards), name)
    expected = rows_of(split_again(plan))
    found: list[Any] = []
    state: Any = None
    third = len(expected) // 3
    for dataset in (plan, plan.with_engine(engine(2)), split_again(plan).with_engine(engine(1)), plan):
        with iter(dataset) as run:
            if state is not None:
                run.load_state_dict(json.loads(json.dumps(state)))
            for batch in run:
                found.append(batch.to_pylist())
                if len(found) in (third, 2 * third, len(expected) - 1):
                    break
            state = run.state_dict()
    assert found == expected


def split_again(plan: af.Dataset) -> af.Dataset:
    """Returns the same plan with workers and epochs of its own."""
    return af.Dataset(plan._plan)


def killed_at(rows: af.Dataset, steps: set[int], generator: random.Random) -> Iterator[Any]:
    for number, batch in enumerate(rows):
        yield batch.to_pylist()
        if number in steps:
            os.kill(generator.choice(processes_of(rows)), signal.SIGKILL)


def test_a_worker_that_is_killed_is_replaced(ray: Any, shards: Path) -> None:
    generator = random.Random(5)
    for _ in range(KILLS):
        name = generator.choice(["shuffle", "cache", "columns", "zip", "mix", "bucket"])
        plan = split({**PIPELINES, **UNCOUNTED}[name](shards), name)
        expected = rows_of(split_again(plan))
        steps = {generator.randrange(len(expected)) for _ in range(2)}
        assert list(killed_at(plan.with_engine(engine(2)), steps, generator)) == expected, name


class Ends:
    """A function that ends its process at a row, from when a file is there."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if 375_640 in batch["id"].to_pylist():
            while not self.file.exists():
                threading.Event().wait(0.01)
            os._exit(3)
        return batch


def test_a_function_that_ends_its_process(ray: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each worker delivers a batch of what comes before the row that ends it. The third one outlives it, and tells of the call."""
    monkeypatch.setattr(
        "arrowflow.ops.ranks.split_by_rank.PART_BYTES", 1
    )  # a loop that collects no rows ahead
    started, file = starts_of(monkeypatch), tmp_path / "ends"

    def plan(**executor: Any) -> af.Dataset:
        rows = af.range(400_000).map(Ends(file), keeps_rows=True, **executor).batch(256)
        return rows.with_options(af.Options(max_chunk_rows=64))

    run = iter(plan().with_engine(engine(1)))
    found: list[Any] = [next(run)]
    expected: list[Any] = []
    file.touch()
    told = "map: a worker process ended with exit code 3 in the call for split 0, piece 10"
    with pytest.raises(WorkerError, match=told) as raised:
        found.extend(run)
    assert "on the node" in "".join(raised.value.__notes__)
    assert started == [False, False, True]
    with pytest.raises(WorkerError, match=told):
        expected.extend(plan(executor="process").split_by_rank(0, 1))
    assert found == expected and len(found) == 640 // 16


def test_a_function_that_always_ends_its_process(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started = starts_of(monkeypatch)
    plan = af.range(1_000).map(lambda batch: os._exit(3), keeps_rows=True).batch(BATCH)
    told = r"ended while it ran lane \d+, which calls map\(.*\), as 2 others did right before it \(ActorDiedError: "
    with pytest.raises(WorkerError, match=told) as raised:
        list(plan.with_engine(engine(1)))
    assert isinstance(raised.value.__cause__, ray.exceptions.RayActorError)
    assert started == [False] * 3


def starts_of(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Returns the workers that will start: whether each of them is careful."""
    starts: list[bool] = []
    started = Session._started

    def note(session: Session, number: int, *, careful: bool = False) -> Remote:
        starts.append(careful)
        return started(session, number, careful=careful)

    monkeypatch.setattr(Session, "_started", note)
    return starts


def test_a_plan_without_lanes_runs_in_one_worker(ray: Any, caplog: pytest.LogCaptureFixture) -> None:
    def plan() -> af.Dataset:
        return af.range(3200).enumerate().shuffle(640, seed=3).batch(BATCH)

    expected = rows_of(plan())
    dataset = plan().with_engine(engine(2))
    assert "ray: one worker runs the whole plan: enumerate counts" in dataset.explain()
    with iter(dataset) as run:
        found = [next(run).to_pylist() for _ in range(4)]
        state = run.state_dict()
    assert [record.getMessage().split(": enum")[0] for record in caplog.records] == [
        "RayEngine: one worker runs the whole plan"
    ]
    assert len(processes_of(dataset)) == 1
    alone = plan().split_by_rank(0, 1)
    with iter(alone) as run:
        run.load_state_dict(json.loads(json.dumps(state)))
        found += rows_of(run)
    assert found == expected


def test_ranks_share_workers(ray: Any, shards: Path) -> None:
    """Each consumer takes its lanes from the same workers; a state of one of them is one of all."""
    plan = of(shards).shuffle(3200, seed=3).batch(BATCH)
    expected = steps_of(ranks(lambda: plan, 2))
    clustered = [rank.with_engine(engine(2)) for rank in ranks(lambda: plan, 2)]
    runs = [iter(dataset) for dataset in clustered]
    states, steps = [], []
    for number in range(len(expected)):
        steps.append([row for run in runs for row in next(run).to_pylist()])
        if number == 4:
            states = [run.state_dict() for run in runs]
            assert len({tuple(processes_of(dataset)) for dataset in clustered}) == 1
    assert steps == expected
    alone = plan.split_by_rank(0, 1)
    with iter(alone) as run:
        run.load_state_dict(af.merge_states(states))
        assert rows_of(run) == expected[5:]


def test_a_users_error_comes_in_order_with_its_cause(ray: Any) -> None:
    def picky(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 6_500 in batch.column("id").to_pylist():
            raise LookupError("no 6,500")
        return batch

    options = af.Options(max_chunk_rows=100)
    plan = af.range(16_000).map(picky, keeps_rows=True).batch(16).with_options(options)
    with pytest.raises(FunctionError, match="no 6,500") as raised:
        list(plan.to_numpy(engine=engine(2)))
    assert isinstance(raised.value.__cause__, LookupError)
    assert "on the node" in "".join(raised.value.__notes__)
    assert taken(plan.with_engine(engine(2))) == taken(plan.split_by_rank(0, 1)) > 0


def taken(dataset: af.Dataset) -> int:
    """Returns how many batches come before an error."""
    count = 0
    with contextlib.suppress(FunctionError):
        for _ in dataset:
            count += 1
    return count


def test_plans_that_no_cluster_can_run(ray: Any, tmp_path: Path) -> None:
    lock = threading.Lock()

    def locked(batch: pa.RecordBatch) -> pa.RecordBatch:
        with lock:
            return batch

    def first(dataset: af.Dataset, **options: Any) -> None:
        next(iter(dataset.with_engine(engine(1, **options))))

    with pytest.raises(
        PlanError, match=r"map: RayEngine sends the plan to workers, and it cannot be pickled"
    ):
        first(af.range(100).map(locked, keeps_rows=True).batch(BATCH))
    with pytest.raises(PlanError, match="after the batches of all processes"):
        first(af.range(100))
    with pytest.raises(PlanError, match="leave deterministic=False out"):
        first(af.range(100).batch(BATCH).with_options(af.Options(deterministic=False)))
    with pytest.raises(PlanError, match=r"with an engine write .split_by_rank\(equal_steps=…\)"):
        first(af.range(100).filter(pl.col("id") > 5).batch(BATCH))
    with pytest.raises(PlanError, match="split_by_rank tells the number of lanes"):
        first(af.range(100).batch(BATCH).split_by_rank(0, 1), lanes=4)
    with pytest.raises(PlanError, match="workers=1 of 99 CPUs each, only for 0: its largest node has 8 CPUs"):
        next(iter(af.range(100).batch(BATCH).with_engine(af.RayEngine(workers=1, cpus_per_worker=99))))
    with pytest.raises(
        PlanError, match=r"workers=1 of 1 CPU and 1,073,741,824 MiB each.*take memory_per_worker='\d+MiB'"
    ):
        first(af.range(100).batch(BATCH), memory_per_worker="1024TiB")


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="needs a folder that each process sees in its own way"
)
def test_files_that_a_worker_does_not_see(ray: Any, shards: Path, tmp_path: Path) -> None:
    """An open folder of this process stands for a disk of its node: no other process has it under this number."""
    called = tmp_path / "called"

    def tells(batch: pa.RecordBatch) -> pa.RecordBatch:
        called.touch()
        return batch

    opened = os.open(shards, os.O_RDONLY)
    folder = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 900)
    try:
        dataset = of(Path(f"/proc/self/fd/{folder}")).map(tells, keeps_rows=True).batch(BATCH)
        with pytest.raises(
            PlanError, match=rf"the worker on .* does not see /proc/self/fd/{folder}/.*put the files where"
        ):
            next(iter(dataset.with_engine(engine(2))))
        assert not called.exists(), "nothing has started"
        assert next(iter(dataset.split_by_rank(0, 1))).num_rows == BATCH, "here they are seen"
    finally:
        os.close(folder)
        os.close(opened)


def ended(ray: Any, processes: list[int]) -> bool:
    """Whether processes end within twenty seconds."""
    for _ in range(200):
        if not any(map(is_alive, processes)):
            return True
        ray.wait([ray.put(0)], timeout=0.1)
        threading.Event().wait(0.1)
    return False


def test_workers_end_with_their_dataset(ray: Any, shards: Path) -> None:
    """As soon as nothing has it: there may be no collection of garbage for long."""
    gc.collect()
    gc.disable()
    try:
        dataset = of(shards).batch(BATCH)
        loader = dataset.to_numpy(engine=engine(2))
        for _ in loader:
            pass
        for batch in loader:
            del batch
            break  # the next epoch has the same workers
        assert dataset._on_engine is not None
        ends = processes_of(dataset._on_engine[1])
        assert len(ends) == 2 and all(map(is_alive, ends))
        del loader, dataset
        assert ended(ray, ends)
    finally:
        gc.enable()


def test_workers_end_with_a_loader_that_is_closed(ray: Any, shards: Path) -> None:
    dataset = of(shards).batch(BATCH)
    with dataset.to_numpy(engine=engine(1)) as loader:
        assert len(list(loader)) == 56
        assert dataset._on_engine is not None
        ends = processes_of(dataset._on_engine[1])
        assert len(ends) == 1 and is_alive(ends[0])
    assert ended(ray, ends)
    assert len(list(loader)) == 56, "it goes on with others"
    others = processes_of(dataset._on_engine[1])
    assert len(others) == 1 and others != ends
    loader.close()
    assert ended(ray, others)


def test_loaders_take_an_engine(ray: Any) -> None:
    plan = af.range(10 * BATCH).batch(BATCH)
    expected = [batch["id"].tolist() for batch in plan.split_by_rank(0, 1).to_numpy()]
    assert [batch["id"].tolist() for batch in plan.to_numpy(engine=engine(1))] == expected
    assert [frame["id"].to_list() for frame in plan.to_polars(engine=engine(1))] == expected
    chosen = [list(batch) for batch in plan.to_numpy(columns=["id"], engine=engine(1))]
    assert chosen == [["id"]] * 10
    with pytest.raises(PlanError, match=r"engine is an af\.RayEngine, got 3"):
        plan.to_numpy(engine=3)  # type: ignore[call-overload]


def test_workers_divide_the_cores_of_the_cluster(ray: Any) -> None:
    dataset = af.range(10 * BATCH).batch(BATCH).with_engine(af.RayEngine(workers=3))
    assert len(rows_of(dataset)) == 10
    assert len(processes_of(dataset)) == 3 and session_of(dataset)._asks == {"CPU": 2}


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"RayEngine needs the module ray.*arrowflow\[ray\]"):
        next(iter(af.range(100).batch(BATCH).with_engine(engine(1))))
