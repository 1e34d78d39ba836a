"""`Session`: the workers of one plan, and which of them runs which lane."""

from __future__ import annotations

import gc
import hashlib
import itertools
import logging
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from arrowflow.cluster.engine import RayEngine
from arrowflow.cluster.lane_worker import LaneWorker, Piece, Ready, Request, packed
from arrowflow.cluster.parts import Kept
from arrowflow.cluster.room import asked, lack
from arrowflow.cluster.scaling import Scaling, dealt
from arrowflow.errors import PlanError, WorkerError, said
from arrowflow.executor import lasting
from arrowflow.kernels.context import Context
from arrowflow.kernels.operator import Operator
from arrowflow.ops.ranks.split_by_rank import SplitByRank
from arrowflow.optional import optional
from arrowflow.options import AUTOTUNE, ResolvedOptions
from arrowflow.plan.node import Node
from arrowflow.plan.position import Position
from arrowflow.plan.walk import post_order

MAX_DEATHS: Final = 3
"""Workers of a lane that may die one after the other before its second piece; one less if no lane had a piece at all. The first
piece is one batch: a lane with a row that ends its worker delivers that much of what comes before the row, each time anew."""
WAITS_SECONDS: Final = 1.0, 10.0, 120.0
"""Time for a worker to start on an idle node, about; until the log says what it may lack; and until that is an error, as others
may make room."""
LOOK_SECONDS: Final = 0.2
"""A wait for Ray looks so often whether its run goes on."""
PIECE_BYTES: Final = 16 << 20
"""A piece is sent from so many bytes on, if the store has room for it. 16 lanes of a worker make 3 GB in the time of ten."""
STORE_SHARE: Final = 4
"""Pieces may take one in so many bytes of a node's object store: half of that on their way, and half in use."""
SPARE_CALLS: Final = 8
"""Calls of a worker at the same time, besides one for each lane: to close lanes, and to move them."""
_LOGGER: Final = logging.getLogger("arrowflow")


@dataclass(slots=True, eq=False)
class Remote:
    """A worker as the consumer sees it.

    Attributes:
        number: Its place among the workers.
        starting: The promise of its `Ready`.
        cpu_seconds: CPU time of its process, as it told last.
        ahead_seconds: By how much its clock is ahead of the consumer's, at least: less the time that the quickest piece took.
    """

    number: int
    handle: Any
    starting: Any
    ready: Ready | None = None
    cpu_seconds: float = 0.0
    rows: int = 0
    ahead_seconds: float = -math.inf

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return "" if self.ready is None else f" on {self.ready.host} (process {self.ready.process})"


@dataclass(slots=True, eq=False)
class Asked:
    """A request on its way: to which worker, and whether it is the first one of its run."""

    remote: Remote
    request: Request
    promise: Any
    is_first: bool = True


class Session:
    """The workers of one plan."""

    def __init__(self, engine: RayEngine) -> None:
        self.engine = engine
        # A thread that holds it may collect garbage, and let the workers of this very session go.
        self._lock = threading.RLock()
        self._lanes_open = 0
        self._goes = False
        self._ray: Any = None
        self._workers: list[Remote] = []
        self._packed: Any = None
        self._job = ""
        self._shared_name: str | None = None
        self._asks: dict[str, int] = {}  # by a worker of its node
        self._lanes: Sequence[int] = ()
        self._places: dict[int, int] = {}
        self._ram_budget = 0
        self._most_bytes = PIECE_BYTES
        self.kept = Kept(0)
        self._deaths: dict[int, int] = {}  # in a row, of each lane, and of each start as ~number
        self._functions: Sequence[str] = ()
        self._has_pieces = self._is_lost = False
        self._waits = 0  # the longest that a lane waited for a start
        self._scaling: Scaling | None = None
        self._coming: tuple[Remote, float] | None = None  # a worker that is added, and since when

    def __reduce__(self) -> tuple[Any, ...]:
        return Session, (self.engine,)

    # ------------------------------------------------------------------ workers

    def connect(self, work: Node, own: Sequence[int], options: ResolvedOptions) -> None:
        """Connects to the cluster and begins to start workers. Each lane calls this before its run, the first one does it.

        Args:
            work: The work of all workers: a split with the lanes of all consumers, or a whole plan. Consumers in the same job
                of Ray share a number of workers that the user gave, and find them by name. With `AUTOTUNE` each has
                workers of its own.
            own: The lanes of this consumer.
            options: The options of its run.
        """
        with self._lock:
            self._lanes_open += 1
            self._goes = False
            ray = self._ray = optional("ray", user="RayEngine", extra="ray")
            job = ray.get_runtime_context().get_job_id() if ray.is_initialized() else None
            if self._workers and not self._is_lost and job == self._job:
                return
            self._deaths, self._is_lost = {}, False  # a run after one that failed may find a better cluster
            engine, sent = self.engine, packed(work, options)
            if job is None:
                # Ray's processes end with the thread that starts them. On another thread than the main one Ray also leaves
                # the handler of SIGTERM alone, and warns of it.
                quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
                lasting(lambda: ray.init(engine.address, **quiet))
            alive = [node for node in ray.nodes() if node["Alive"]]
            lanes = work.own_lanes if isinstance(work, SplitByRank) else range(1)
            tunes, consumers = engine.workers == AUTOTUNE, len(lanes) // len(own)
            self._lanes = own if tunes else lanes
            self._asks, most = asked(engine, alive, len(self._lanes), consumers if tunes else 1)
            self._ram_budget = self._asks.get("memory", options.ram_budget)
            operators = (each for each in post_order(work) if isinstance(each, Operator))
            self._functions = [each.title for each in operators if each.functions()]
            self._job = ray.get_runtime_context().get_job_id()
            digest = hashlib.blake2b(sent, digest_size=8).hexdigest()
            self._shared_name = None if tunes or consumers == 1 else f"{self._job}-{digest}"
            # All pieces meet on the consumer's node, which may be any one.
            stores = [node["Resources"].get("object_store_memory", 1 << 30) for node in alive]
            share = min(int(min(stores, default=1 << 30)) // STORE_SHARE, self._ram_budget)
            self._most_bytes = max(1, share // 2 // len(lanes))
            self.kept = Kept(share // 2 // consumers)
            self._packed = ray.put(sent)
            if tunes:
                self._scaling = Scaling(most, len(own), self._asks["CPU"])
            self._workers = []
            self.resize(1 if tunes else min(engine.workers, len(lanes)))

    def leave(self, asked: Asked | None) -> None:
        """Ends a lane's last run in a worker, as its kernel is over. Waits for nothing."""
        with self._lock:
            self._lanes_open -= 1
            if self._goes:
                self.let_go()
        self.close(asked)

    def let_go(self) -> None:
        """Ends the workers as soon as no run of a lane uses them. A later run starts others."""
        with self._lock:
            self._goes = True
            if not self._lanes_open:
                # Ray ends an actor that no handle refers to, after its calls.
                self._workers, self._coming, self._places = [], None, {}
                self._packed = None

    def _started(self, number: int, *, careful: bool = False) -> Remote:
        """Begins to start a worker; a careful one outlives functions that end their process."""
        ray, cores = self._ray, self._asks["CPU"]
        place: Any = {"spread": "SPREAD", "pack": "DEFAULT"}.get(self.engine.placement)
        if place is None:
            near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
            place = near(ray.get_runtime_context().get_node_id(), soft=True)
        # By its name other consumers find it, or this one finds theirs.
        name = None if self._shared_name is None else f"{self._shared_name}-{number}"
        actor = ray.remote(LaneWorker).options(
            num_cpus=cores,
            memory=self._asks.get("memory"),
            max_concurrency=len(self._lanes) + SPARE_CALLS,
            max_restarts=0,
            scheduling_strategy=place,
            name=name,
            namespace="arrowflow",
            get_if_exists=name is not None,
        )
        handle = actor.remote(self._packed, cores, careful)
        return Remote(number, handle, handle.ready.remote())

    def worker_of(self, lane: int) -> Remote:
        """Returns the worker that runs a lane from its next piece on."""
        with self._lock:
            return self._workers[self._places[lane]]

    @property
    def share_bytes(self) -> int:
        """The part of a worker's byte budget that a lane has."""
        return self._ram_budget // -(-len(self._lanes) // len(self._workers))

    def _replace(self, lost: Remote, lane: int | None, error: BaseException) -> None:
        """Starts a worker in place of one that has died. All its lanes ask for this, the first one does it.

        Deaths count by lane: others deliver between two deaths that the rows of one lane bring about. Without a lane it
        died when it started, and deaths count by its place. After a second death there the next worker is careful: if a
        function is to blame, it tells in which call. At the first rows that takes too long: all lanes start processes.
        """
        with self._lock:
            is_here = lost in self._workers
            may_die = MAX_DEATHS if self._has_pieces else MAX_DEATHS - 1
            careful = self._has_pieces and any(self._places.get(each) == lost.number for each in self._deaths)
            if lane is not None or is_here:
                key = ~lost.number if lane is None else lane
                self._deaths[key] = self._deaths.get(key, 0) + 1
                if self._deaths[key] > may_die:
                    self._is_lost = True
                    what = "started" if lane is None else f"ran lane {lane}"
                    calls = f"which calls {', '.join(self._functions)}, " * bool(self._functions)
                    raise WorkerError(
                        f"the worker process{lost.place} ended while it {what}, {calls}as {may_die} others did right "
                        f"before it ({said(error).splitlines()[0]}); a function may end its process, such as by os._exit or a "
                        "crash in C, or the node lacks memory: ray's logs there tell more"
                    ) from error
            if is_here:
                self._workers[lost.number] = self._started(lost.number, careful=careful)

    # ------------------------------------------------------------------ requests

    def await_workers(self, context: Context) -> bool:
        """Waits until all workers have started, before any of them reads; False if the run is over.

        Raises:
            PlanError: A worker does not see a file of the consumer's disk.
            WorkerError: Workers do not start, or die again and again.
        """
        while remote := next((each for each in tuple(self._workers) if each.ready is None), None):
            if self._answer(remote, remote.starting, None, context) is None and not context.wait(0.0):
                return False
        return True

    def _answer(self, remote: Remote, promise: Any, lane: int | None, context: Context) -> Any:
        """Waits for a worker's start, and for a promise of it; None if it has died and is replaced, or the run is over."""
        ray = self._ray
        try:
            if (remote.ready or self._starts(remote, context)) and self._arrives(promise, None, context):
                return ray.get(promise)
        except ray.exceptions.RayTaskError as error:
            self._is_lost = True  # the next run starts others
            raise WorkerError(f"the worker{remote.place} failed: {said(error)}") from error
        except ray.exceptions.RayError as error:
            self._replace(remote, lane, error)
        return None

    def _starts(self, remote: Remote, context: Context) -> bool:
        """Waits until a worker has started; False if the run is over before."""
        for waits, seconds in enumerate(WAITS_SECONDS, 1):
            if self._arrives(remote.starting, seconds, context):
                break
            if not context.wait(0.0):
                return False
            if waits == len(WAITS_SECONDS):
                raise WorkerError(
                    f"not all workers started within {sum(WAITS_SECONDS):.0f} s: {lack(self._ray, self._asks)}"
                )
            with self._lock:  # all lanes wait at the same time, and one acts for all
                is_first, self._waits = waits > self._waits, max(waits, self._waits)
            if is_first and waits == 1:
                gc.collect()  # runs have reference cycles: loaders that are gone may still hold their workers
            elif is_first:
                _LOGGER.warning("RayEngine waits for workers: %s", lack(self._ray, self._asks))
        ready = Ready._make(self._ray.get(remote.starting))
        if ready.missing is not None:
            self._is_lost = True  # the file may be there at the next run
            raise PlanError(
                f"RayEngine: the worker on {ready.host} does not see {ready.missing}; put the files where all nodes "
                "see them, or use placement='near_consumer' on a cluster of one node"
            )
        remote.ready = ready
        return True

    def ask(self, lane: int, position: Position, before: Asked | None, context: Context) -> Asked:
        """Asks for the next piece of a lane, from a position on. `before` is its latest request, if there is a run of it.

        A lane that begins or moves gets a new run, and the run before is closed. So does a lane whose worker got more lanes,
        and so less memory for each.
        """
        remote, share, num_bytes = self.worker_of(lane), self.share_bytes, min(PIECE_BYTES, self._most_bytes)
        if before is not None and before.remote is remote and before.request.ram_budget <= share:
            run, share = before.request.run, before.request.ram_budget
        else:
            self.close(before)  # also where its worker is lost: Ray may have lost a piece, and not the worker
            before, run = None, os.urandom(8).hex()
            num_bytes = 1  # the loop waits for the first rows
        records = context.spans is not None
        request = Request(lane, context.epoch, position, records, run, share, num_bytes, self._most_bytes)
        return Asked(remote, request, remote.handle.pull.remote(request), before is None)

    def close(self, asked: Asked | None) -> None:
        """Ends a run of a lane. Waits for nothing."""
        if asked is not None and self._ray.is_initialized():  # a call would start Ray again
            asked.remote.handle.close.remote(asked.request.run)

    def take(self, asked: Asked, context: Context) -> Piece | None:
        """Waits for a piece; None where there is none: the worker has died and is replaced, or the run is over.

        Raises: As `await_workers`.
        """
        remote, began = asked.remote, context.now()
        piece: Piece | None = self._answer(remote, asked.promise, asked.request.lane, context)
        if piece is None:
            return None
        asked.promise = None  # the store frees the piece once nothing refers to its bytes
        with self._lock:
            self._has_pieces = True
            if piece.ended or not asked.is_first:
                self._deaths.pop(asked.request.lane, None)
            remote.cpu_seconds = piece.cpu_seconds
            remote.ahead_seconds = max(remote.ahead_seconds, piece.sent_at - context.now())
            remote.rows += piece.work.rows
            if self._scaling is not None:
                self._scaling.waited += context.now() - began
                self._look(self._scaling, context.now())
                context.elsewhere.move(self._scaling.reasons)
        return piece

    def _look(self, scaling: Scaling, now: float) -> None:
        """Asks how many workers there shall be, if it is time and none is coming."""
        if self._coming is not None:
            self._welcome(scaling, *self._coming, now)
            return
        count = scaling.look(now, len(self._workers), *self._totals()) or len(self._workers)
        if count > len(self._workers):
            self._coming = self._started(count - 1), now
        elif count < len(self._workers):
            self.resize(count)

    def _welcome(self, scaling: Scaling, coming: Remote, since: float, now: float) -> None:
        """Deals lanes to a worker that is added once it has started, or goes on without it."""
        ray, most_seconds = self._ray, WAITS_SECONDS[-1]
        why = f"did not start within {most_seconds:.0f} s"
        if ray.wait([coming.starting], timeout=0)[0]:
            try:
                coming.ready = ready = Ready._make(ray.get(coming.starting))
                why = "" if ready.missing is None else f"on {ready.host} does not see {ready.missing}"
            except ray.exceptions.RayError as error:
                why = f"failed: {said(error)}"
        elif now - since < most_seconds:
            return
        self._coming = None
        if why:
            scaling.refused(len(self._workers), why)
        else:
            self._workers.append(coming)
            self.resize(len(self._workers))
        scaling.begin(now, *self._totals())

    def _totals(self) -> tuple[float, int]:
        """Returns the CPU time and the rows of all workers until now."""
        return sum(each.cpu_seconds for each in self._workers), sum(each.rows for each in self._workers)

    def resize(self, count: int) -> None:
        """Has so many workers from now on. Lanes move when they ask for their next piece."""
        with self._lock:
            self._workers[count:] = [self._started(each) for each in range(len(self._workers), count)]
            self._places = dealt(self._places, self._lanes, count)

    def _arrives(self, promise: Any, seconds: float | None, context: Context) -> bool:
        """Waits until a promise is kept or broken; False if the run is over before, or the time."""
        for _ in itertools.count() if seconds is None else range(int(seconds / LOOK_SECONDS)):
            if not self._ray.is_initialized():  # to wait would start another cluster
                raise WorkerError(
                    "ray.shutdown() was called while the run waited for its workers; iterate anew"
                )
            if self._ray.wait([promise], timeout=LOOK_SECONDS)[0]:
                return True
            if not context.wait(0.0):
                return False
        return False
