"""`LaneWorker`: the actor that runs lanes."""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from arrowflow import run
from arrowflow.bad_rows import LeftOut
from arrowflow.clock import WallClock
from arrowflow.cluster.parts import BatchPart, parts_of
from arrowflow.delivery import Delivered, RecordBatches, sliced
from arrowflow.executor import Engine
from arrowflow.executor.processes.wire import pack, pack_error, unpack, unportable
from arrowflow.executor.workers import cores
from arrowflow.kernels.items import Slices
from arrowflow.observe.timeline import Timeline
from arrowflow.ops.functions.invocation import MappingOperator
from arrowflow.ops.ranks.split_by_rank import SplitByRank
from arrowflow.options import ResolvedOptions
from arrowflow.physical.planner import plan_chain
from arrowflow.physical.stage import check_position
from arrowflow.physical.totals import since
from arrowflow.physical.tuning import StageKey, StageLimits, StageStatistics, WorkerStatistics
from arrowflow.plan.file_source import FileSource
from arrowflow.plan.node import Node
from arrowflow.plan.position import Position
from arrowflow.plan.walk import post_order, rewritten
from arrowflow.run import Prepared

PIECE_SECONDS: Final = 0.3
"""A piece with rows is sent after so long, however small it is. A piece costs both sides a millisecond. Where
a function takes 5 ms, a second worker makes a loop 1.8 times as fast, and with 0.1 s only 1.65 times (`benchmarks.cluster`)."""
KEPT_NAMES: Final = 4096
"""Runs that were closed and that a worker remembers: more than it may have calls at a time."""


class Request(NamedTuple):
    """The next piece of a lane that a consumer asks for. A worker begins a run with the first request that names it.

    Attributes:
        lane: Number of the lane.
        epoch: Its epoch.
        position: The lane's position after the rows that the consumer has.
        records: Whether somebody wants to see what runs when.
        run: Name of the run. The session tells it, as all that follows.
        ram_budget: The run's part of the worker's byte budget.
        num_bytes: Bytes from which on the piece is sent.
        most_bytes: Bytes that it may have at most: the object store has room for them.
    """

    lane: int
    epoch: int
    position: Position
    records: bool = False
    run: str = ""
    ram_budget: int = 0
    num_bytes: int = 0
    most_bytes: int = 0


class Piece(NamedTuple):
    """The answer to a request.

    Attributes:
        parts: Record batches, or parts of one.
        ended: Whether the lane has no more rows.
        error: The error that ended the lane after the batches, as bytes of `pack_error`.
        work: The worker's work for the run since the piece before, without the time that the consumer waits for it.
        cpu_seconds: CPU time of the worker's process until now.
        sent_at: The time, by the worker's clock.
        bad_rows: Bad rows that were left out since the piece before: the operator, their place, and how many.
        spans: The calls since the piece before, by the worker's clock.
    """

    parts: list[BatchPart]
    ended: bool
    error: tuple[bytes, ...] | None
    work: WorkerStatistics
    cpu_seconds: float = 0.0
    sent_at: float = 0.0
    bad_rows: tuple[tuple[str, Any, LeftOut], ...] = ()
    spans: Sequence[Any] = ()


class Ready(NamedTuple):
    """A worker that has started: its process, and the file of a disk of its consumer's that it does not see."""

    host: str
    process: int
    missing: str | None


@dataclass(slots=True)
class _Run:
    """A run of a lane."""

    engine: Engine
    parts: Iterator[BatchPart]
    waiting: BatchPart | None = None  # the part that had no room in the latest piece
    told: dict[StageKey, StageStatistics] = field(default_factory=dict)  # its stages, by the latest piece

    def next_part(self) -> BatchPart | None:
        """Returns the next part of a batch; None at the end."""
        part, self.waiting = self.waiting, None
        return next(self.parts, None) if part is None else part

    def told_by(self, piece: Piece) -> Piece:
        """Returns a piece with what there is to tell of the run since the piece before."""
        timeline, noted, found = self.engine.timeline, self.engine.bad_rows, self.engine.statistics().stages
        stages = tuple(since(self.told.get(stage.key), stage) for stage in found)
        self.told = {stage.key: stage for stage in found}
        bad_rows = tuple(noted.popleft() for _ in range(len(noted))) if noted else ()
        spans = () if timeline is None else timeline.take()
        return piece._replace(work=replace(piece.work, stages=stages), bad_rows=bad_rows, spans=spans)


def _parts(engine: Engine, most_bytes: int) -> Iterator[BatchPart]:
    """Yields the batches of a run in parts of so many bytes at most."""
    while (item := engine.next_item()) is not None:
        found: Iterator[Delivered[pa.RecordBatch]] = iter([(item.chunk, item.position, 0)])
        if type(item.chunk) is Slices:
            found = sliced(item, RecordBatches().slicer(item.chunk.chunk))
        del item
        for batch, position, _ in found:
            parts = deque(parts_of(batch, position, most_bytes))
            del batch
            while parts:
                yield parts.popleft()


def _apart(node: Node) -> Node:
    return replace(node, executor="process") if isinstance(node, MappingOperator) else node


def packed(work: Node, options: ResolvedOptions) -> bytes:
    """Returns what a worker gets, as bytes: a split whose lanes it runs, or a whole plan; and the options of its runs.

    Settings that differ between machines are left out: consumers on all of them send the same, and so share workers.

    Raises:
        PlanError: Something in it does not pickle.
    """
    try:
        return pack((work, replace(options, ram_budget=1, cpu_budget=1, shares_ram=False, progress=False)))
    except Exception as error:
        sent = f"{_fault(work)}RayEngine sends the plan to workers"
        raise unportable(sent, "a function", error) from error


def _fault(work: Node) -> str:
    for node in post_order(work):
        try:
            pack(replace(node, inputs=()))
        except Exception:  # noqa: BLE001  (whatever it is that does not pickle)
            return f"{node.name}: "
    return ""


class LaneWorker:
    """Runs lanes, each as an ordinary run. An actor with one thread for each lane.

    Args:
        packed: What it runs, see `packed`.
        num_cores: Cores of this worker.
        careful: Whether it calls functions in processes of their own, so that it outlives a function that ends its process.
    """

    def __init__(self, packed: bytes, num_cores: int, careful: bool = False) -> None:
        plan, options = unpack(packed)
        self._plan: Node = rewritten(plan, _apart) if careful else plan
        self._options: ResolvedOptions = replace(options, cpu_budget=num_cores)
        self._clock = WallClock()
        self._plans: dict[int, Prepared] = {}
        # All lanes begin at once. The first one compiles what the others then find compiled.
        self._planning = threading.Lock()
        self._found: dict[StageKey, StageLimits] = {}
        self._runs: dict[str, _Run] = {}
        # Closed, perhaps before they were opened: calls of a worker overtake each other.
        self._closed: deque[str] = deque(maxlen=KEPT_NAMES)
        cores.limit(num_cores)

    def ready(self) -> Ready:
        """Returns what the consumer wants to know before it asks for rows."""
        sources = (node for node in post_order(self._plan) if isinstance(node, FileSource))
        files = (path for source in sources for path in source.local_files())
        missing = next((path for path in files if not Path(path).exists()), None)
        return Ready(socket.gethostname(), os.getpid(), missing)

    def pull(self, request: Request) -> Piece:
        """Returns the next record batches of a run of a lane, which begins with the first request."""
        parts: list[BatchPart] = []
        size, until = 0, self._clock.now() + PIECE_SECONDS
        error, current, ended = None, None, False
        node, process = socket.gethostname(), os.getpid()
        try:
            current = self._runs.get(request.run)
            if current is None:
                current = self._runs[request.run] = self._open(request)
                # `close` tells first and looks then, so one of the two sees the other.
                ended = request.run in self._closed
            if request.records and current.engine.timeline is None:
                current.engine.timeline = Timeline()
            while not ended and size < request.num_bytes and (not parts or self._clock.now() < until):
                part = current.next_part()
                if part is None:
                    ended = True
                elif parts and size + part.num_bytes > request.most_bytes:
                    current.waiting = part
                    break
                else:
                    parts.append(part)
                    size += part.num_bytes
        except Exception as raised:  # noqa: BLE001  (the consumer raises it)
            raised.add_note(f"on the node {node}, in the worker of process {process}")
            error = pack_error(raised)
        if ended or error is not None:
            self.close(request.run)
        rows = sum(part.rows for part in parts)
        work = WorkerStatistics(node=node, process=process, pieces=1, rows=rows, bytes=size)
        piece = Piece(parts, ended, error, work, self._clock.process_cpu(), self._clock.now())
        return piece if current is None else current.told_by(piece)

    def close(self, name: str) -> None:
        """Ends a run of a lane; again is fine, and also before its first piece."""
        self._closed.append(name)
        found = self._runs.pop(name, None)
        if found is not None:
            found.engine.close()

    def _open(self, request: Request) -> _Run:
        options = replace(self._options, ram_budget=request.ram_budget)
        with self._planning:
            lane = self._plans.get(request.lane)
            if lane is None:
                plan = self._plan
                if isinstance(plan, SplitByRank):
                    plan = plan.lane_plan(request.lane)
                chain = plan_chain(plan, options)
                lane = self._plans[request.lane] = Prepared(
                    bound=plan, optimised=plan, applied=(), chain=chain, options=options, found=self._found
                )
        lane = replace(lane, options=options)
        check_position(lane.chain, request.position, ordered=True)
        engine = run.start(lane, request.epoch, request.position, self._clock, None, keeps=True)
        engine.bad_rows = deque()
        return _Run(engine, _parts(engine, request.most_bytes))
