"""`Session`: the workers of one plan, and which of them runs which lane."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from arrowflow.cluster.engine import RayEngine
from arrowflow.cluster.parts import Kept
from arrowflow.cluster.policy import Looks, Policy, dealt
from arrowflow.cluster.remote import PING_SECONDS, PINGS, Asked, Remote, ahead_by, place_of
from arrowflow.cluster.room import Patience, check_memory, connect
from arrowflow.cluster.worker import LaneWorker, Piece, Ready, Request, Start
from arrowflow.errors import PlanError, WorkerError, said
from arrowflow.kernels.context import Context
from arrowflow.optional import optional
from arrowflow.options import AUTOTUNE

DEFAULT_CORES: Final = 4
MAX_DEATHS: Final = 3
"""Workers of a lane that may die one after the other without a piece of that lane in between."""
LOOK_SECONDS: Final = 0.2
"""A wait for Ray looks so often whether its run goes on."""
PIECE_BYTES: Final = 16 << 20
"""A piece is sent from so many bytes on, if the store has room for it. 16 lanes of a worker make 3 GB in the time of ten."""
STORE_SHARE: Final = 4
"""Pieces may take one in so many bytes of a node's object store: half of that on their way, and half in use."""
SPARE_CALLS: Final = 8
"""Calls of a worker at the same time, besides one for each lane: to close lanes, and to move them."""


class Session:
    """The workers of one plan.

    Args:
        engine: What the user asked for.
    """

    def __init__(self, engine: RayEngine) -> None:
        self.engine = engine
        # A thread that holds it may collect garbage, and let the workers of this very session go.
        self._lock = threading.RLock()
        self._lanes_open = 0
        self._goes = False
        self._ray: Any = None
        self._numbers = itertools.count()
        self._name = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._workers: list[Remote] = []
        self._packed: Any = None
        self._shared_name: str | None = None
        self._cores = 1
        self._lanes: tuple[int, ...] = ()
        self._places: dict[int, int] = {}
        self._ram_budget = 0
        self._most_bytes = PIECE_BYTES
        self.kept = Kept(0)
        self._deaths: dict[int, int] = {}  # of each lane since its latest piece
        self._is_lost = False
        self._patience = Patience(engine)
        self._looks: Looks | None = None  # where it is this consumer that decides
        self._resized = (0, 0)  # the latest change of the workers: its number, and how many there are
        self._leaving: list[Remote] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return Session, (self.engine,)

    # ------------------------------------------------------------------ workers

    def connect(
        self,
        pack: Callable[[], bytes],
        *,
        lanes: Sequence[int],
        own: int,
        ram_budget: int,
        shared: bool,
        decides: bool = True,
    ) -> None:
        """Connects to the cluster and begins to start workers. Each lane calls this before its run, the first one does it.

        Args:
            pack: Returns the `Work` of all workers, as bytes.
            lanes: The lanes of all consumers, which share the workers.
            own: How many of them are this consumer's.
            ram_budget: Byte budget of a worker.
            shared: Whether other consumers of the plan, in the same job of Ray, use the same workers, found by name.
            decides: Whether this consumer is the one that says how many workers there are; the others follow.
        """
        with self._lock:
            self._lanes_open += 1
            self._goes = False
            if self._workers and not self._is_lost:
                return
            self._deaths, self._is_lost = {}, False  # a run after one that failed may find a better cluster
            packed = pack()
            ray = self._ray = optional("ray", user="RayEngine", extra="ray")
            engine = self.engine
            if not ray.is_initialized():
                connect(ray, engine)
            total = ray.cluster_resources()
            alive = [node for node in ray.nodes() if node["Alive"]]
            nodes = [node["Resources"].get("CPU", 0) for node in alive]
            self._cores = engine.cpus_per_worker or max(1, min(DEFAULT_CORES, int(max(nodes, default=1))))
            if self._cores > max(nodes, default=0):
                raise PlanError(
                    f"RayEngine: cpus_per_worker={self._cores}, but the largest node of the cluster has "
                    f"{int(max(nodes, default=0))} CPUs; use fewer, or larger nodes"
                )
            check_memory(engine, alive)
            self._lanes, self._ram_budget = tuple(lanes), ram_budget
            self._shared_name = None
            if shared:
                job = ray.get_runtime_context().get_job_id()
                self._shared_name = f"{job}-{hashlib.blake2b(packed, digest_size=8).hexdigest()}"
            # All pieces meet on the consumer's node, which may be any one.
            stores = [node["Resources"].get("object_store_memory", 1 << 30) for node in alive]
            share = min(int(min(stores, default=1 << 30)) // STORE_SHARE, ram_budget)
            self._most_bytes = max(1, share // 2 // len(lanes))
            self.kept = Kept(share // 2 * own // len(lanes))
            self._packed = ray.put(packed)
            most = engine.max_workers or max(1, int(total.get("CPU", 1)) // self._cores)
            if engine.workers == AUTOTUNE and decides:
                self._looks = Looks(Policy(most=min(most, len(lanes))), own, self._cores)
            count = 1 if engine.workers == AUTOTUNE else min(engine.workers, len(lanes))
            self._workers = [self._started(number) for number in range(count)]
            self._places = dealt({}, self._lanes, count)

    def leave(self) -> None:
        """A run of a lane is over."""
        with self._lock:
            self._lanes_open -= 1
            self._go()

    def let_go(self) -> None:
        """Ends the workers as soon as no run of a lane uses them. A later run starts others."""
        with self._lock:
            self._goes = True
            self._go()

    def _go(self) -> None:
        if self._goes and not self._lanes_open:
            # Ray ends an actor that no handle refers to, after its calls.
            self._workers, self._leaving, self._places = [], [], {}

    def _started(self, number: int) -> Remote:
        """Begins to start a worker."""
        ray, engine = self._ray, self.engine
        strategies = ray.util.scheduling_strategies
        places: dict[str, Callable[[], Any]] = {
            "spread": lambda: "SPREAD",
            "pack": lambda: "DEFAULT",
            "near_consumer": lambda: strategies.NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=True
            ),
        }
        options: dict[str, Any] = {
            "num_cpus": self._cores,
            "max_concurrency": len(self._lanes) + SPARE_CALLS,
            "max_restarts": 0,
            "scheduling_strategy": places[engine.placement](),
        }
        if engine.memory_per_worker is not None:
            options["memory"] = engine.memory_per_worker
        if self._shared_name is not None:
            options |= {
                "name": f"{self._shared_name}-{number}",
                "namespace": "arrowflow",
                "get_if_exists": True,
            }
        handle = ray.remote(LaneWorker).options(**options).remote(self._packed, self._cores)
        return Remote(number, handle, handle.ready.remote())

    def worker_of(self, lane: int) -> Remote:
        """Returns the worker that runs a lane from its next piece on."""
        with self._lock:
            return self._workers[self._places[lane]]

    @property
    def share_bytes(self) -> int:
        """The part of a worker's byte budget that a lane has."""
        return self._ram_budget // -(-len(self._lanes) // len(self._workers))

    def _replace(self, lost: Remote, lane: int, error: BaseException) -> None:
        """Starts a worker in place of one that has died. All its lanes ask for this, the first one does it.

        Deaths count by lane. Others deliver between two deaths that the rows of one lane bring about.
        """
        with self._lock:
            deaths = self._deaths[lane] = self._deaths.get(lane, 0) + 1
            if deaths > MAX_DEATHS:
                self._is_lost = True
                raise WorkerError(
                    f"workers die again and again and deliver nothing, the last one{place_of(lost)} with lane {lane}: "
                    f"{said(error)}; ray's logs of that node may tell more"
                ) from error
            if lost in self._workers:
                self._workers[lost.number] = self._started(lost.number)
                self._tell(self._workers[lost.number])

    # ------------------------------------------------------------------ requests

    def await_workers(self, lane: int, context: Context) -> bool:
        """Waits until all workers have started, before any of them reads; False if the run is over.

        Raises:
            PlanError: A worker does not see a file of the consumer's disk.
            WorkerError: Workers do not start, or die again and again.
        """
        errors = self._ray.exceptions
        while (remote := self._starting()) is not None:
            try:
                if not self._starts(remote, context):
                    return False
            except errors.RayTaskError as error:
                raise WorkerError(f"a worker failed at its start: {said(error)}") from error
            except errors.RayError as error:
                self._replace(remote, lane, error)
        return True

    def _starting(self) -> Remote | None:
        with self._lock:
            return next((remote for remote in self._workers if remote.ready is None), None)

    def _starts(self, remote: Remote, context: Context) -> bool:
        """Waits until a worker has started; False if the run is over before."""
        if remote.ready is not None:
            return True
        ray = self._ray
        arrives = partial(self._arrives, remote.starting, context)
        if not self._patience.starts(ray, self._cores, arrives, context):
            return False
        ready = Ready._make(ray.get(remote.starting))
        if ready.missing is not None:
            raise PlanError(
                f"RayEngine: the worker on {ready.host} does not see {ready.missing}; put the files where all nodes "
                "see them, or use placement='near_consumer' on a cluster of one node"
            )
        remote.ready = ready
        return True

    def ask(self, start: Start, before: Asked | None, *, records: bool) -> Asked:
        """Asks for the next piece of a lane; in a new run, closing the one before, where the lane moves or begins.

        Args:
            start: Where the lane goes on, if it is not in this very worker already.
            before: The latest request of the lane; None if there is no run of it.
            records: Whether somebody wants to see what runs when.
        """
        remote = self.worker_of(start.lane)
        request = Request(min(PIECE_BYTES, self._most_bytes), self._most_bytes, records)
        if before is not None and before.remote is remote:
            promise = remote.handle.pull.remote(before.name, None, request)
            return Asked(start.lane, remote, before.name, promise)
        self.close(before)
        name = f"{self._name}-{next(self._numbers)}"
        start = start._replace(ram_budget=self.share_bytes)
        request = request._replace(num_bytes=1)  # the loop waits for the first rows
        return Asked(start.lane, remote, name, remote.handle.pull.remote(name, start, request))

    def close(self, asked: Asked | None) -> None:
        """Ends a run of a lane. Waits for nothing."""
        if asked is not None and self._ray.is_initialized():  # a call would start Ray again
            asked.remote.handle.close.remote(asked.name)

    def take(self, asked: Asked, context: Context) -> Piece | None:
        """Waits for a piece; None where there is none: the worker has died and is replaced, or the run is over.

        Raises:
            PlanError: A worker does not see a file of the consumer's disk.
            WorkerError: Workers do not start, or die again and again.
        """
        ray, remote = self._ray, asked.remote
        began = context.now()
        try:
            if not (self._starts(remote, context) and self._arrives(asked.promise, context, None)):
                return None
            piece = Piece._make(ray.get(asked.promise))
            asked.promise = None  # the store frees the piece once nothing refers to its bytes
        except ray.exceptions.RayTaskError as error:
            raise WorkerError(f"the worker{place_of(remote)} failed: {said(error)}") from error
        except ray.exceptions.RayError as error:
            self._replace(remote, asked.lane, error)
            return None
        with self._lock:
            self._deaths.pop(asked.lane, None)
            self._count(remote, piece)
            if self._looks is not None:
                self._looks.waited += context.now() - began
                self._look(self._looks, context.now())
            elif piece.resized > self._resized:
                self._resized = piece.resized
                self._resize(piece.resized[1])
        return piece

    def _count(self, remote: Remote, piece: Piece) -> None:
        remote.cpu_seconds = piece.cpu_seconds
        remote.rows += piece.rows
        remote.num_bytes += piece.num_bytes

    def _look(self, looks: Looks, now: float) -> None:
        """Lets the policy say how many workers there shall be, if it is time."""
        count = looks.step(now, len(self._workers), *self._totals())
        if count is not None:
            self._leaving.clear()
            self._change(count)

    def _totals(self) -> tuple[float, int]:
        """Returns the CPU time and the rows of all workers until now."""
        return sum(each.cpu_seconds for each in self._workers), sum(each.rows for each in self._workers)

    def resize(self, count: int) -> None:
        """Has so many workers from now on. Lanes move when they ask for their next piece."""
        with self._lock:
            self._change(count)

    def _change(self, count: int) -> None:
        """Resizes, and has all workers tell the other consumers that share them."""
        before = len(self._workers)
        if count == before:
            return
        if self._shared_name is not None:
            # A worker ends once the process that made it needs it no more. These stay until their consumers have left.
            self._leaving = self._workers[count:]
        self._resize(count)
        self._resized = (self._resized[0] + 1, count)
        for remote in (*self._workers, *self._leaving):
            self._tell(remote)

    def _tell(self, remote: Remote) -> None:
        if self._shared_name is not None and self._resized[0]:
            remote.handle.resized.remote(*self._resized)

    def _resize(self, count: int) -> None:
        workers = self._workers
        # A worker that goes ends with the last piece of it that is on its way.
        workers[count:] = [self._started(number) for number in range(len(workers), count)]
        self._places = dealt(self._places, self._lanes, count)

    def _arrives(self, promise: Any, context: Context, seconds: float | None) -> bool:
        """Waits until a promise is kept or broken; False if the run is over before, or the time."""
        looks = None if seconds is None else int(seconds / LOOK_SECONDS)
        while looks is None or looks > 0:
            if self._ray.wait([promise], timeout=LOOK_SECONDS)[0]:
                return True
            if not context.wait(0.0):
                return False
            looks = None if looks is None else looks - 1
        return False

    def ahead(self, remote: Remote, context: Context) -> float:
        """Returns by how much the clock of a worker is ahead, from the quickest of a few pings."""
        if remote.ahead_seconds is None:
            ray = self._ray
            pings: list[tuple[float, float]] = []
            for _ in range(PINGS):
                sent = context.now()
                promise = remote.handle.now.remote()
                if not self._arrives(promise, context, PING_SECONDS):
                    break
                with contextlib.suppress(ray.exceptions.RayError):  # its lane finds out that it has died
                    found = ray.get(promise)
                    pings.append(ahead_by(sent, found, context.now()))
            remote.ahead_seconds = min(pings, default=(0.0, 0.0))[1]
        return remote.ahead_seconds

    def moves(self) -> list[str]:
        """Returns why workers came and went."""
        return [] if self._looks is None else self._looks.policy.reasons

    def facts(self) -> list[str]:
        """Returns lines for `explain`."""
        with self._lock:
            workers = list(self._workers)
        lines = [
            f"worker {each.number}{place_of(each)}: {each.rows:,} rows, {each.num_bytes / 2**20:,.0f} MiB, "
            f"{each.cpu_seconds:.1f} s of CPU"
            for each in workers
        ]
        return [*lines, *self.moves()]
