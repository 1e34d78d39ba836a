"""`LaneWorker`: the actor that runs lanes."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from arrowflow import run
from arrowflow.bad_rows import LeftOut
from arrowflow.clock import WallClock
from arrowflow.delivery import Delivered, RecordBatches, sliced
from arrowflow.executor import Engine
from arrowflow.executor.processes.wire import pack_error, unpack
from arrowflow.executor.workers import cores
from arrowflow.kernels.items import Slices
from arrowflow.observe.timeline import Timeline
from arrowflow.ops.ranks.split_by_rank import SplitByRank
from arrowflow.options import ResolvedOptions
from arrowflow.physical.planner import plan_chain
from arrowflow.physical.totals import since
from arrowflow.physical.tuning import Setting, StageKey, StageStatistics
from arrowflow.plan.position import Position
from arrowflow.plan.walk import post_order
from arrowflow.run import Prepared
from arrowflow.workarounds.slices import concatenable

PIECE_SECONDS: Final = 0.1
"""A piece with rows is sent after so long, however small it is."""
TELL_SECONDS: Final = 0.25
"""Pieces tell of a lane's stages so often: to measure and pack three stages takes 0.16 ms."""
KEPT_NAMES: Final = 4096
"""Runs that were closed and that a worker remembers: more than it may have calls at a time."""


class Work(NamedTuple):
    """What all workers of a session run.

    Attributes:
        split: The lanes' plan.
        options: The pipeline's; the byte budget is that of a worker.
    """

    split: SplitByRank
    options: ResolvedOptions


class Start(NamedTuple):
    """Where a run of a lane begins, and its part of the worker's byte budget."""

    lane: int
    epoch: int
    position: Position
    ram_budget: int


class Request(NamedTuple):
    """The piece that a consumer asks for.

    Attributes:
        num_bytes: Bytes from which on it is sent.
        records: Whether somebody wants to see what runs when.
    """

    num_bytes: int
    records: bool = False


class Piece(NamedTuple):
    """The answer to a request.

    Attributes:
        batches: Record batches, each with the lane's position after it.
        ended: Whether the lane has no more rows.
        error: What ended the lane behind the batches, as bytes of `pack_error`.
        cpu_seconds: CPU time of the worker's process until now.
        stages: The work of the run's stages since a piece told of it, a few times a second and at the end.
        bad_rows: Bad rows that were left out since the piece before: the operator, their place, and how many.
        spans: What ran when since the piece before, by the worker's clock.
    """

    batches: list[tuple[pa.RecordBatch, Position]]
    ended: bool
    error: tuple[bytes, ...] | None
    cpu_seconds: float
    stages: tuple[StageStatistics, ...] = ()
    bad_rows: tuple[tuple[str, Any, LeftOut], ...] = ()
    spans: Sequence[Any] = ()


class Ready(NamedTuple):
    """A worker that has started: its process, and the file of a disk of its consumer's that it does not see."""

    host: str
    process: int
    missing: str | None


@dataclass(slots=True)
class _Run:
    """A run of a lane.

    Attributes:
        engine: Runs it.
        told_at: When a piece last told of its stages.
        rest: Batches of its latest item that were not taken yet.
        told: Its stages as they were then.
    """

    engine: Engine
    told_at: float
    rest: Iterator[Delivered[pa.RecordBatch]] | None = None
    told: dict[StageKey, StageStatistics] = field(default_factory=dict)

    def next(self) -> tuple[pa.RecordBatch, Position] | None:
        """Returns the next record batch and the position after it; None at the end."""
        found = None if self.rest is None else next(self.rest, None)
        if found is not None:
            return found[0], found[1]
        item = self.engine.next_item()
        if item is None:
            return None
        if type(item.chunk) is not Slices:
            return item.chunk, item.position
        self.rest = sliced(item, RecordBatches().slicer(item.chunk.chunk))
        batch, position, _ = next(self.rest)
        return batch, position

    def record(self) -> None:
        """Records from now on what runs when."""
        if self.engine.timeline is None:
            self.engine.timeline = Timeline()

    def told_by(self, piece: Piece, now: float, *, ends: bool) -> Piece:
        """Returns a piece with what there is to tell of the run."""
        timeline, noted = self.engine.timeline, self.engine.bad_rows
        stages: tuple[StageStatistics, ...] = ()
        if ends or now - self.told_at >= TELL_SECONDS:
            found = self.engine.statistics().stages
            stages = tuple(since(self.told.get(stage.key), stage) for stage in found)
            self.told, self.told_at = {stage.key: stage for stage in found}, now
        return piece._replace(
            stages=stages,
            bad_rows=tuple(noted.popleft() for _ in range(len(noted))) if noted else (),
            spans=() if timeline is None else timeline.take(),
        )


def _compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns a batch with no more than twice the bytes of its rows. A slice pickles with the whole buffers that it is of.

    To copy the rows pays from there on: the store would copy more that is not needed.
    """
    if batch.get_total_buffer_size() <= 2 * batch.nbytes:
        return batch
    columns = [pa.concat_arrays([concatenable(column)]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


class LaneWorker:
    """Runs lanes, each as an ordinary run. An actor with one thread for each lane.

    Args:
        packed: The `Work`, as bytes of `pack`.
        num_cores: Cores of this worker.
    """

    def __init__(self, packed: bytes, num_cores: int) -> None:
        self._split, self._options = Work._make(unpack(packed))
        self._options = replace(self._options, cpu_budget=num_cores, shares_ram=False, progress=False)
        self._clock = WallClock()
        self._plans: dict[int, Prepared] = {}
        self._found: dict[StageKey, Setting] = {}
        self._runs: dict[str, _Run] = {}
        # Closed, perhaps before they were opened: calls of a worker overtake each other.
        self._closed: dict[str, None] = {}
        cores.limit(num_cores)

    def ready(self) -> Ready:
        """Returns what the consumer wants to know before it asks for rows."""
        files = [path for node in post_order(self._split.inputs[0]) for path in node.local_files()]
        missing = next((path for path in files if not Path(path).exists()), None)
        return Ready(socket.gethostname(), os.getpid(), missing)

    def now(self) -> float:
        """Returns the time of its clock."""
        return self._clock.now()

    def pull(self, name: str, start: Start | None, request: Request) -> Piece:
        """Returns the next record batches of a run of a lane, which begins with the first request."""
        batches: list[tuple[pa.RecordBatch, Position]] = []
        size, began = 0, self._clock.now()
        error, current, ended = None, None, False
        try:
            current = self._runs.get(name)
            if current is None:
                if start is None:
                    raise KeyError(f"the run {name} was closed")
                current = self._runs[name] = self._open(start)
                # `close` tells first and looks then, so one of the two sees the other.
                if name in self._closed:
                    self.close(name)
                    return Piece(batches, True, None, self._clock.process_cpu())
            if request.records:
                current.record()
            while size < request.num_bytes and (not batches or self._clock.now() - began < PIECE_SECONDS):
                found = current.next()
                if found is None:
                    ended = True
                    self.close(name)
                    break
                batch = _compact(found[0])
                batches.append((batch, found[1]))
                size += batch.get_total_buffer_size()
        except Exception as raised:  # noqa: BLE001  (the consumer raises it)
            raised.add_note(f"on the node {socket.gethostname()}, in the worker of process {os.getpid()}")
            error = pack_error(raised)
            self.close(name)
        piece = Piece(batches, ended, error, self._clock.process_cpu())
        if current is None:
            return piece
        return current.told_by(piece, self._clock.now(), ends=ended or error is not None)

    def close(self, name: str) -> None:
        """Ends a run of a lane; again is fine, and also before its first piece."""
        self._closed[name] = None
        found = self._runs.pop(name, None)
        if found is not None:
            found.engine.close()
        for oldest in list(self._closed)[: max(0, len(self._closed) - KEPT_NAMES)]:
            self._closed.pop(oldest, None)

    def _open(self, start: Start) -> _Run:
        options = replace(self._options, ram_budget=start.ram_budget)
        lane = self._plans.get(start.lane)
        if lane is None:
            (plan,) = self._split.lane_plans([start.lane])
            chain = plan_chain(plan, options)
            lane = Prepared(
                bound=plan, optimised=plan, applied=(), chain=chain, options=options, found=self._found
            )
            self._plans[start.lane] = lane
        lane = replace(lane, options=options)
        engine = run.start(lane, start.epoch, start.position, self._clock, None)
        engine.bad_rows = deque()
        return _Run(engine, self._clock.now())
