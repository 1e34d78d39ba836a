"""`Session`: the workers of one plan, and which of them runs which lane."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from arrowflow.cluster.engine import RayEngine
from arrowflow.cluster.policy import PERIOD_SECONDS, Look, Policy, dealt
from arrowflow.cluster.room import Patience, check_memory, connect
from arrowflow.cluster.worker import LaneWorker, Piece, Ready, Start
from arrowflow.errors import PlanError, WorkerError, said
from arrowflow.kernels.context import Context
from arrowflow.optional import optional
from arrowflow.options import AUTOTUNE

DEFAULT_CORES: Final = 4
MAX_DEATHS: Final = 3
"""Workers of a lane that may die one after the other without a piece of that lane in between."""
LOOK_SECONDS: Final = 0.2
"""A wait for Ray looks so often whether its run goes on."""
MOST_PIECE_BYTES: Final = 16 << 20
LEAST_PIECE_BYTES: Final = 1 << 20
STORE_SHARE: Final = 4
"""The most and the least bytes of a piece; the part of the object store that pieces may take is one in so many."""
SPARE_CALLS: Final = 8
"""Calls of a worker at the same time, besides one for each lane: to close lanes, and to move them."""


@dataclass(slots=True, eq=False)
class Remote:
    """A worker as the consumer sees it.

    Attributes:
        number: Its place among the workers.
        handle: The actor.
        starting: The promise of its `Ready`.
        ready: What it said, once it has started.
        cpu_seconds: CPU time of its process, as it told last.
        num_bytes: Bytes that came from it.
    """

    number: int
    handle: Any
    starting: Any
    ready: Ready | None = None
    cpu_seconds: float = 0.0
    num_bytes: int = 0
    rows: int = 0


@dataclass(slots=True, eq=False)
class Asked:
    """A request on its way: of which lane and which run of it, to which worker."""

    lane: int
    remote: Remote
    name: str
    promise: Any


class Session:
    """The workers of one plan.

    Args:
        engine: What the user asked for.
    """

    def __init__(self, engine: RayEngine) -> None:
        self.engine = engine
        self._lock = threading.Lock()
        self._ray: Any = None
        self._numbers = itertools.count()
        self._name = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._workers: list[Remote] = []
        self._packed: Any = None
        self._shared_name: str | None = None
        self._cores = 1
        self._lanes: tuple[int, ...] = ()
        self._own = 1
        self._places: dict[int, int] = {}
        self._ram_budget = 0
        self._piece_bytes = LEAST_PIECE_BYTES
        self._deaths: dict[int, int] = {}  # of each lane since its latest piece
        self._is_lost = False
        self._patience = Patience(engine)
        self._policy: Policy | None = None
        self._waited = 0.0  # since the latest look, by all lanes together
        self._looked: tuple[float, float, int] | None = None  # its time, the workers' CPU time and rows

    def __reduce__(self) -> tuple[Any, ...]:
        return Session, (self.engine,)

    # ------------------------------------------------------------------ workers

    def connect(
        self, pack: Callable[[], bytes], *, lanes: Sequence[int], own: int, ram_budget: int, shared: bool
    ) -> None:
        """Connects to the cluster and begins to start workers. Any number of threads call this, one of them does it.

        Args:
            pack: Returns the `Work` of all workers, as bytes.
            lanes: The lanes of all consumers, which share the workers.
            own: How many of them are this consumer's.
            ram_budget: Byte budget of a worker.
            shared: Whether other consumers of the plan may use the same workers, found by name.
        """
        with self._lock:
            if self._workers and not self._is_lost:
                return
            self._deaths, self._is_lost = {}, False  # a run after one that failed may find a better cluster
            packed = pack()
            ray = self._ray = optional("ray", user="RayEngine", extra="ray")
            engine = self.engine
            if not ray.is_initialized():
                connect(ray, engine)
            total = ray.cluster_resources()
            nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
            self._cores = engine.cpus_per_worker or max(1, min(DEFAULT_CORES, int(max(nodes, default=1))))
            if self._cores > max(nodes, default=0):
                raise PlanError(
                    f"RayEngine: cpus_per_worker={self._cores}, but the largest node of the cluster has "
                    f"{int(max(nodes, default=0))} CPUs; use fewer, or larger nodes"
                )
            check_memory(engine, ray.nodes())
            self._lanes, self._own, self._ram_budget = tuple(lanes), own, ram_budget
            self._shared_name = hashlib.blake2b(packed, digest_size=8).hexdigest() if shared else None
            store = int(total.get("object_store_memory", 1 << 30)) // STORE_SHARE
            fitting = min(store, ram_budget) // (2 * len(lanes))
            self._piece_bytes = max(LEAST_PIECE_BYTES, min(MOST_PIECE_BYTES, fitting))
            self._packed = ray.put(packed)
            most = engine.max_workers or max(1, int(total.get("CPU", 1)) // self._cores)
            if engine.workers == AUTOTUNE:
                self._policy = Policy(most=min(most, len(lanes)))
            count = 1 if engine.workers == AUTOTUNE else min(engine.workers, len(lanes))
            self._workers = [self._started(number) for number in range(count)]
            self._places = dealt({}, self._lanes, count)

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
                    f"workers die again and again and deliver nothing, the last one{_place(lost)} with lane {lane}: "
                    f"{said(error)}; ray's logs of that node may tell more"
                ) from error
            if lost in self._workers:
                self._workers[lost.number] = self._started(lost.number)

    # ------------------------------------------------------------------ requests

    def ask(self, start: Start, before: Asked | None) -> Asked:
        """Asks for the next piece of a lane; in a new run, closing the one before, where the lane moves or begins.

        Args:
            start: Where the lane goes on, if it is not in this very worker already.
            before: The latest request of the lane; None if there is no run of it.
        """
        remote = self.worker_of(start.lane)
        if before is not None and before.remote is remote:
            promise = remote.handle.pull.remote(before.name, None, self._piece_bytes)
            return Asked(start.lane, remote, before.name, promise)
        self.close(before)
        name = f"{self._name}-{next(self._numbers)}"
        start = start._replace(ram_budget=self.share_bytes)
        return Asked(start.lane, remote, name, remote.handle.pull.remote(name, start, self._piece_bytes))

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
            if remote.ready is None:
                arrives = partial(self._arrives, remote.starting, context)
                if not self._patience.starts(ray, self._cores, arrives, context):
                    return None
                ready = Ready._make(ray.get(remote.starting))
                if ready.missing is not None:
                    raise PlanError(
                        f"RayEngine: the worker on {ready.host} does not see {ready.missing}; put the files where all nodes "
                        "see them, or use placement='near_consumer' on a cluster of one node"
                    )
                remote.ready = ready
            if not self._arrives(asked.promise, context, None):
                return None
            piece = Piece._make(ray.get(asked.promise))
        except ray.exceptions.RayTaskError as error:
            raise WorkerError(f"the worker{_place(remote)} failed: {said(error)}") from error
        except ray.exceptions.RayError as error:
            self._replace(remote, asked.lane, error)
            return None
        with self._lock:
            self._deaths.pop(asked.lane, None)
            self._count(remote, piece)
            self._waited += context.now() - began
            if self._policy is not None:
                self._look(self._policy, context.now())
        return piece

    def _count(self, remote: Remote, piece: Piece) -> None:
        remote.cpu_seconds = piece.cpu_seconds
        remote.rows += sum(batch.num_rows for batch, _ in piece.batches)
        remote.num_bytes += sum(batch.nbytes for batch, _ in piece.batches)

    def _look(self, policy: Policy, now: float) -> None:
        """Lets the policy say how many workers there shall be, if it is time."""
        if self._looked is None or now - self._looked[0] > 5 * PERIOD_SECONDS:
            self._begin_look(now)  # the first one, or one after a rest
            return
        then, cpu_then, rows_then = self._looked
        elapsed = now - then
        if elapsed < PERIOD_SECONDS:
            return
        workers, (cpu, rows) = len(self._workers), self._totals()
        look = Look(
            workers=workers,
            waited=self._waited / (elapsed * self._own),
            busy=(cpu - cpu_then) / (elapsed * self._cores * workers),
            rate=(rows - rows_then) / elapsed,
        )
        self._resize(policy.step(look))
        self._begin_look(now)

    def _begin_look(self, now: float) -> None:
        self._looked, self._waited = (now, *self._totals()), 0.0

    def _totals(self) -> tuple[float, int]:
        """Returns the CPU time and the rows of all workers until now."""
        return sum(each.cpu_seconds for each in self._workers), sum(each.rows for each in self._workers)

    def resize(self, count: int) -> None:
        """Has so many workers from now on. Lanes move when they ask for their next piece."""
        with self._lock:
            self._resize(count)

    def _resize(self, count: int) -> None:
        workers = self._workers
        if count == len(workers):
            return
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

    def facts(self) -> list[str]:
        """Returns lines for `explain`."""
        with self._lock:
            workers = list(self._workers)
        lines = [
            f"worker {each.number}{_place(each)}: {each.rows:,} rows, {each.num_bytes / 2**20:,.0f} MiB, "
            f"{each.cpu_seconds:.1f} s of CPU"
            for each in workers
        ]
        return [*lines, *([] if self._policy is None else self._policy.reasons)]


def _place(remote: Remote) -> str:
    ready = remote.ready
    return "" if ready is None else f" on {ready.host} (process {ready.process})"
