"""How a session follows its scaling, and the rank in a worker of Ray Train. Needs no cluster."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, cast

import pytest

import arrowflow as af
from arrowflow.cluster.lane_worker import Piece, Ready, Request
from arrowflow.cluster.scaling import Scaling, dealt
from arrowflow.cluster.session import MAX_DEATHS, PIECE_BYTES, Asked, Remote, Session
from arrowflow.errors import PlanError, WorkerError
from arrowflow.ops.ranks.rank import found_rank
from arrowflow.physical.tuning import WorkerStatistics

pytestmark = pytest.mark.any_version


class RayError(Exception):
    """Stands for what Ray raises where a worker has died."""


class Ray:
    """The part of Ray that waits: a promise is kept if it is not None, and broken if it is an exception."""

    exceptions = types.SimpleNamespace(RayError=RayError, RayTaskError=ZeroDivisionError)

    def __init__(self) -> None:
        self.initialized = True
        self.waits: list[float] = []

    def is_initialized(self) -> bool:
        return self.initialized

    def wait(self, promises: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        assert self.initialized, "it would start another cluster"
        self.waits.append(timeout)
        return ([], promises) if promises == [None] else (promises, [])

    def get(self, promise: Any) -> Any:
        if isinstance(promise, Exception):
            raise promise
        return promise

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 4.0, "memory": 8.0 * 2**30}

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 1.0, "memory": 2.0 * 2**30}


HERE = Ready("here", 1, None)
NO_WORK = WorkerStatistics(node="here", process=1)


def tuned(monkeypatch: pytest.MonkeyPatch, coming: Any) -> tuple[Session, Scaling]:
    """Returns a session of four lanes with one busy worker whose scaling has just added another one."""
    monkeypatch.setattr(Session, "_started", lambda self, number, **_: Remote(number, None, coming))
    session, scaling = Session(af.RayEngine(cpus_per_worker=1)), Scaling(most=3, own=4, cores=1)
    session._ray = Ray()
    session._lanes, session._places = (0, 1, 2, 3), dealt({}, range(4), 1)
    session._workers = [only] = [Remote(0, None, HERE, HERE)]
    session._look(scaling, 0.0)
    only.cpu_seconds, only.rows, scaling.waited = 0.9, 100, 3.0
    session._look(scaling, 1.0)  # too early
    only.cpu_seconds, scaling.waited = 2.4, 8.0
    session._look(scaling, 2.5)
    assert [since for _, since in filter(None, [session._coming])] == [2.5]
    session._scaling = scaling
    return session, scaling


def test_a_session_has_as_many_workers_as_the_policy_says(monkeypatch: pytest.MonkeyPatch) -> None:
    session, scaling = tuned(monkeypatch, HERE)
    (only,) = session._workers
    session._look(scaling, 3.5)
    assert [each.number for each in session._workers] == [0, 1]
    assert session._places == {0: 0, 1: 0, 2: 1, 3: 1}
    assert session.worker_of(3) is session._workers[1]
    only.cpu_seconds, only.rows, scaling.waited = 3.0, 110, 8.0
    session._look(scaling, 5.0)
    assert len(session._workers) == 2, "what was before it came does not count"
    session._look(scaling, 6.0)
    assert session._workers == [only] and set(session._places.values()) == {0}
    assert scaling.reasons[-1].startswith("2 -> 1 workers: 2 brought 0.")


@pytest.mark.parametrize(
    ("promise", "why"),
    [
        (None, "did not start within 120 s"),
        (Ready("there", 2, "/data/7.parquet"), "on there does not see /data/7.parquet"),
        (RayError("no such process"), "failed: RayError: no such process"),
    ],
)
def test_a_run_goes_on_without_a_worker_that_does_not_come(
    monkeypatch: pytest.MonkeyPatch, promise: Any, why: str
) -> None:
    session, scaling = tuned(monkeypatch, promise)
    for now in (3.5, 7.0, 123.0):
        session._look(scaling, now)
        assert set(session._places.values()) == {0}, "no lane waits for it"
    assert session._coming is None
    assert scaling.reasons[-1] == f"2 -> 1 workers: worker 1 {why}"
    session._workers[0].cpu_seconds, scaling.waited = 30.0, 80.0
    session._look(scaling, 128.0)
    assert session._coming is None, "it is not tried again"


def connect(session: Session, lanes: int, own: range) -> None:
    """Connects a consumer of some lanes of a plan."""
    planned: Any = af.range(1 << 10).batch(lanes).split_by_rank(0, 1, lanes=lanes)._ready()
    session.connect(planned.optimised, own, dataclasses.replace(planned.options, ram_budget=1 << 30))


def cluster_of(cpus: int, job: str = "01") -> Any:
    """Returns the part of Ray that a session asks for the size of a cluster."""
    return types.SimpleNamespace(
        is_initialized=lambda: True,
        cluster_resources=lambda: {"CPU": cpus, "object_store_memory": 1 << 30},
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": cpus}}],
        put=lambda value: value,
        get_runtime_context=lambda: types.SimpleNamespace(get_job_id=lambda: job),
    )


def test_ranks_use_all_of_the_workers_that_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lane runs in one of them, and each worker's lanes have its memory between them, whoever takes their rows."""
    monkeypatch.setattr(Session, "_started", lambda self, number, **_: Remote(number, None, None))
    monkeypatch.setattr("arrowflow.cluster.session.optional", lambda *_, **__: cluster_of(64))
    found: list[int] = []
    for rank in range(8):
        session = Session(af.RayEngine(workers=8, cpus_per_worker=1))
        own = range(2 * rank, 2 * rank + 2)
        connect(session, 16, own)
        assert session.share_bytes == 1 << 29
        found += [session.worker_of(lane).number for lane in own]
    assert sorted(found) == sorted([*range(8)] * 2)


def test_ranks_have_workers_of_their_own_where_each_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "_started", lambda self, number, **_: Remote(number, None, None))
    monkeypatch.setattr("arrowflow.cluster.session.optional", lambda *_, **__: cluster_of(12))
    session = Session(af.RayEngine())
    connect(session, 16, range(4, 8))
    assert session._shared_name is None and session._asks == {"CPU": 3}, "one for each of four ranks fits"
    assert session._places == dict.fromkeys(range(4, 8), 0)
    assert session.share_bytes == 1 << 28


def test_two_jobs_on_a_cluster_do_not_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "_started", lambda self, number, **_: Remote(number, None, None))
    names = []
    for job in ("01", "02", "01"):
        monkeypatch.setattr(
            "arrowflow.cluster.session.optional", lambda *_, job=job, **__: cluster_of(64, job)
        )
        session = Session(af.RayEngine(workers=1, cpus_per_worker=1))
        connect(session, 16, range(2))
        names.append(session._shared_name)
    assert names[0] == names[2] != names[1]


def test_workers_stay_as_long_as_a_lane_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "_started", lambda self, number, **_: Remote(number, None, None))
    monkeypatch.setattr("arrowflow.cluster.session.optional", lambda *_, **__: cluster_of(64))
    session = Session(af.RayEngine(workers=2, cpus_per_worker=1))
    connect(session, 4, range(4))
    first = session.worker_of(0)
    session.leave(None)
    assert session.worker_of(0) is first, "they stay for the next epoch"
    connect(session, 4, range(4))
    connect(session, 4, range(4))
    session.let_go()
    session.leave(None)
    assert session.worker_of(0) is first, "another lane runs"
    session.leave(None)
    assert session._workers == []
    connect(session, 4, range(4))
    session.leave(None)
    assert session.worker_of(0) is not first and len(session._workers) == 2
    session.let_go()
    assert session._workers == []


def test_deaths_count_by_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one lane that end each worker end the run, however much other lanes deliver in between."""

    dead = RayError("no such process")
    monkeypatch.setattr(
        Session, "_started", lambda self, number, **_: Remote(number, None, None, Ready("a", 1, None))
    )
    session = Session(af.RayEngine())
    session._ray, session._functions, session._has_pieces = Ray(), ["map(ends)"], True
    session._lanes, session._places = (0, 1), {0: 0, 1: 0}
    session._workers = [session._started(0)]
    context: Any = types.SimpleNamespace(now=lambda: 0.0, wait=lambda seconds: True)

    def take(lane: int, promise: Any, *, is_first: bool = False) -> Any:
        asked = Asked(session.worker_of(lane), Request(lane, 0, None), promise, is_first=is_first)
        return session.take(asked, context)

    piece = Piece([], False, None, NO_WORK)
    for _ in range(MAX_DEATHS):
        before = session.worker_of(0)
        assert take(0, dead) is None
        assert session.worker_of(0) is not before, "there is another worker"
        assert take(1, piece) == piece
        assert take(0, piece, is_first=True) == piece, (
            "a batch of what comes before the row that ends the next one"
        )
    told = rf"ended while it ran lane 0, which calls map\(ends\), as {MAX_DEATHS} others did right before it "
    with pytest.raises(WorkerError, match=told):
        take(0, dead)
    session._deaths = {}
    for _ in range(3 * MAX_DEATHS):
        assert take(0, dead) is None
        assert take(0, piece) == piece, "a lane that goes on may lose any number of workers"


def test_a_worker_is_careful_where_one_has_just_taken_the_place_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not where a node with several workers is lost, or where lanes went on since."""
    starts: list[tuple[int, bool]] = []

    def start(session: Session, number: int, *, careful: bool = False) -> Remote:
        starts.append((number, careful))
        return Remote(number, None, None, HERE)

    monkeypatch.setattr(Session, "_started", start)
    session = Session(af.RayEngine())
    session._ray, session._has_pieces = Ray(), True
    session._lanes, session._places = (0, 1, 2, 3), {0: 0, 1: 1, 2: 0, 3: 1}
    session._workers = [Remote(number, None, None, HERE) for number in range(2)]
    context: Any = types.SimpleNamespace(now=lambda: 0.0, wait=lambda seconds: True)

    def die(*lanes: int) -> None:
        workers = [(lane, session.worker_of(lane)) for lane in lanes]
        for asked in [Asked(at, Request(lane, 0, None), RayError("lost")) for lane, at in workers]:
            assert session.take(asked, context) is None

    die(0, 1, 2, 3)
    die(2, 0)
    assert starts == [(0, False), (1, False), (0, True)]
    for lane in (0, 2):
        session.take(
            Asked(
                session.worker_of(lane),
                Request(lane, 0, None),
                Piece([], lane == 0, None, NO_WORK),
                lane == 0,
            ),
            context,
        )
    die(2)
    assert starts[3:] == [(0, False)]


def test_workers_that_do_not_start(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The log says what they may lack, once, and so does the error."""
    session = Session(af.RayEngine(workers=2, cpus_per_worker=2, memory_per_worker="3GiB"))
    session._asks, session._lanes, session._places = {"CPU": 2, "memory": 3 << 30}, (0,), {0: 0}
    session._workers = [Remote(0, None, None)]
    session._ray = ray = Ray()
    context: Any = types.SimpleNamespace(now=lambda: 0.0, wait=lambda seconds: True)
    lacks = "each asks one node for 2 CPUs and 3,072 MiB, and of 4 CPUs and 8,192 MiB of all nodes 1 CPU and 2,048 MiB are free"
    for _ in range(2):
        with pytest.raises(WorkerError, match=f"not all workers started within 131 s: {lacks}"):
            session.take(Asked(session.worker_of(0), Request(0, 0, None), None), context)
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        f"RayEngine waits for workers: {lacks}"
    ]
    assert sum(ray.waits) / 2 == pytest.approx(131.0)


def test_no_worker_reads_before_all_see_the_files() -> None:
    """The second worker, on another node, does not see a file: the first one, which does, gets no request."""
    session = Session(af.RayEngine())
    session._ray = Ray()
    session._workers = [Remote(0, None, ("here", 1, None)), Remote(1, None, ("there", 2, "/data/7.parquet"))]
    context: Any = types.SimpleNamespace(now=lambda: 0.0, wait=lambda seconds: True)
    with pytest.raises(
        PlanError, match=r"the worker on there does not see /data/7\.parquet; put the files where"
    ):
        session.await_workers(context)
    assert session._is_lost, "the next run asks anew, for the file may be there by then"
    session._workers.pop()
    assert session.await_workers(context)


def test_workers_that_die_while_they_start_count_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with all of them may go, whichever lane waits for them; one place that loses each of its workers ends the run."""
    session, context = (
        Session(af.RayEngine()),
        types.SimpleNamespace(now=lambda: 0.0, wait=lambda seconds: True),
    )
    session._ray = Ray()
    session._workers = [Remote(number, None, RayError("lost")) for number in range(2 * MAX_DEATHS)]
    monkeypatch.setattr(Session, "_started", lambda self, number, **_: Remote(number, None, HERE))
    assert session.await_workers(cast(Any, context))
    session._workers = [Remote(0, None, RayError("lost"))]
    session._deaths = {}
    monkeypatch.setattr(Session, "_started", lambda self, number, **_: Remote(number, None, RayError("lost")))
    with pytest.raises(WorkerError, match="the worker process ended while it started, as 2 others did"):
        session.await_workers(cast(Any, context))


def test_a_lane_begins_anew_where_its_share_of_memory_shrinks() -> None:
    class Worker:
        def __init__(self) -> None:
            self.calls: list[tuple[Any, ...]] = []
            self.pull = types.SimpleNamespace(remote=lambda *call: self.calls.append(("pull", *call)))
            self.close = types.SimpleNamespace(remote=lambda *call: self.calls.append(("close", *call)))

    worker, other = Worker(), Worker()
    session = Session(af.RayEngine())
    session._ray, session._ram_budget, session._lanes = Ray(), 1 << 30, (0, 1)
    session._workers = [Remote(0, worker, HERE, HERE), Remote(1, other, HERE, HERE)]
    session._places = {0: 0, 1: 1}
    context: Any = types.SimpleNamespace(epoch=3, spans=None)
    first = session.ask(0, ("a position",), None, context)
    assert first.request[:4] == (0, 3, ("a position",), False)
    again = session.ask(0, ("a position",), first, context)
    assert (
        again.request == first.request._replace(num_bytes=PIECE_BYTES) and again.request.ram_budget == 1 << 30
    )
    session.resize(1)
    last = session.ask(0, ("a position",), again, context)
    assert last.request == first.request._replace(run=last.request.run, ram_budget=1 << 29) != first.request
    assert (first.is_first, again.is_first, last.is_first) == (True, False, True)
    assert worker.calls[1:] == [
        ("pull", again.request),
        ("close", first.request.run),
        ("pull", last.request),
    ]


def test_after_a_shutdown_of_ray_a_wait_raises_and_a_run_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "_started", lambda self, number, **_: Remote(number, None, None))
    session, job = Session(af.RayEngine(workers=1, cpus_per_worker=1)), ["01"]
    cluster = cluster_of(4)
    cluster.get_runtime_context = lambda: types.SimpleNamespace(get_job_id=lambda: job[0])
    monkeypatch.setattr("arrowflow.cluster.session.optional", lambda *_, **__: cluster)

    def connected() -> Remote:
        connect(session, 2, range(2))
        return session.worker_of(0)

    first = connected()
    assert connected() is first
    job[0] = "02"
    assert connected() is not first
    cluster.is_initialized = lambda: False
    context: Any = types.SimpleNamespace(now=lambda: 0.0, wait=lambda seconds: True)
    with pytest.raises(WorkerError, match=r"ray\.shutdown\(\) was called"):
        session._arrives(None, None, context)


def test_the_rank_in_a_worker_of_ray_train(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    context = types.SimpleNamespace(get_world_rank=lambda: 2, get_world_size=lambda: 4)
    train: Any = types.SimpleNamespace(get_context=lambda: context)
    monkeypatch.setitem(__import__("sys").modules, "ray.train", train)
    found = found_rank(None, None)
    assert (found.rank, found.world_size) == (2, 4)

    def outside() -> None:
        raise RuntimeError("not in a worker of a trainer")

    train.get_context = outside
    assert found_rank(None, None).world_size == 1
