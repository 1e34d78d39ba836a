"""The constants behind `docs/cluster.md`: what calls, pieces, workers and states of a cluster cost. Judges nothing.

python -m benchmarks.cluster_costs            # all of them, in a few minutes
python -m benchmarks.cluster_costs --only calls state
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks import lanes

CORES: Final = len(os.sched_getaffinity(0))
STORE_BYTES: Final = 2 << 30
CALLS: Final = 1_000
IN_FLIGHT: Final = 16
PIECE_BYTES: Final = (1 << 20, 4 << 20, 16 << 20)
PIECES: Final = 160
STARTS: Final = 6
LANES: Final = (16, 64)


class Sender:
    """An actor that does nothing but send pieces."""

    def __init__(self) -> None:
        self._rows = pa.record_batch({"x": np.zeros(0)})

    def pid(self) -> int:
        """Returns its process."""
        return os.getpid()

    def piece(self, num_bytes: int) -> list[tuple[pa.RecordBatch, Any]]:
        """Returns rows in the form of a piece."""
        if self._rows.nbytes != num_bytes:
            self._rows = pa.record_batch({"x": np.zeros(num_bytes // 8)})
        return [(self._rows, (0, 0))]


@contextmanager
def cluster(nodes: int) -> Iterator[Any]:
    """Starts a cluster on this machine; its second node has the resource `second`."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": max(CORES, 16), "object_store_memory": STORE_BYTES}
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            made.add_node(**node, resources={"second": 1})
        ray.init(made.address, log_to_driver=False, logging_level=logging.ERROR)
        yield ray
    finally:
        ray.shutdown()
        made.shutdown()


def calls() -> None:
    """Prints the time of a call that does nothing: one at a time, and many in flight."""
    with cluster(1) as ray:
        actor = ray.remote(Sender).options(max_concurrency=IN_FLIGHT).remote()
        ray.get(actor.pid.remote())
        times = []
        for _ in range(CALLS):
            began = time.perf_counter()
            ray.get(actor.pid.remote())
            times.append(time.perf_counter() - began)
        say("a call, one at a time", f"{1e3 * statistics.median(times):.2f} ms")
        began, cpu = time.perf_counter(), time.process_time()
        waiting = [actor.pid.remote() for _ in range(IN_FLIGHT)]
        for _ in range(CALLS):
            (done,), waiting = ray.wait(waiting)
            ray.get(done)
            waiting.append(actor.pid.remote())
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        say(f"calls a second, {IN_FLIGHT} in flight, of one loop", f"{CALLS / seconds:,.0f}")
        say("CPU of the loop's process for a call", f"{1e3 * cpu / CALLS:.2f} ms")


def pieces() -> None:
    """Prints how fast pieces come through the object store: on one node, and from another one."""
    with cluster(2) as ray:
        for place in ("one node", "two nodes over loopback"):
            resources = {"second": 0.1} if place != "one node" else {}
            actor = ray.remote(Sender).options(resources=resources, max_concurrency=IN_FLIGHT).remote()
            ray.get(actor.pid.remote())
            for num_bytes in PIECE_BYTES:
                began, cpu = time.perf_counter(), time.process_time()
                waiting = [actor.piece.remote(num_bytes) for _ in range(IN_FLIGHT)]
                total = 0
                for number in range(PIECES):
                    batches = ray.get(waiting.pop(0))
                    total += sum(batch["x"].to_numpy()[::512].size for batch, _ in batches)
                    if number < PIECES - IN_FLIGHT:
                        waiting.append(actor.piece.remote(num_bytes))
                    del batches
                seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
                name = f"pieces of {num_bytes >> 20} MiB, {place}"
                say(
                    name,
                    f"{PIECES * num_bytes / seconds / 1e9:.2f} GB/s, {1e3 * cpu / PIECES:.2f} ms of CPU each",
                )


def starts() -> None:
    """Prints how long a worker takes until it is ready, and its memory."""
    from arrowflow.cluster.session import Session

    with cluster(1) as ray:
        seconds, sizes = [], []
        for _ in range(STARTS):
            plan = lanes.pipeline("wide").with_engine(_engine())
            began = time.perf_counter()
            with iter(plan) as batches:
                next(batches)
                seconds.append(time.perf_counter() - began)
                (session,) = {node.session for node in plan._ready().optimised.planned_inputs}
                assert isinstance(session, Session)
                process = ray.get(session._workers[0].handle.ready.remote()).process
                sizes.append(_resident(process))
        say("first batch, the first time on a cluster", f"{seconds[0]:.1f} s")
        say("first batch, later", f"{statistics.median(seconds[1:]):.1f} s")
        say(
            "memory of a worker's process with the first pieces",
            f"{statistics.median(sizes) / 2**20:,.0f} MiB",
        )
        began = time.perf_counter()
        actors = [ray.remote(Sender).remote() for _ in range(8)]
        ray.get([actor.pid.remote() for actor in actors])
        say("8 empty actors at the same time", f"{time.perf_counter() - began:.1f} s")


def state() -> None:
    """Prints the bytes of a state."""
    for order in ("wide", "wide, shuffled"):
        sizes = {}
        for count in LANES:
            plan = lanes.pipeline(order).split_by_rank(0, 1, lanes=count, equal_steps="drop")
            with iter(plan) as run:
                for _ in range(20):
                    next(run)
                began = time.perf_counter()
                sizes[count] = len(json.dumps(run.state_dict()))
                took = time.perf_counter() - began
            say(f"state of {count} lanes, {order}", f"{sizes[count]:,} bytes, taken in {1e3 * took:.1f} ms")
        few, many = LANES
        say(f"a lane's part, {order}", f"{(sizes[many] - sizes[few]) / (many - few):.0f} bytes")


def rows() -> None:
    """Prints rows for a second of CPU, local and by one worker, and the bytes that such a row has."""
    for workload in ("stream", "wide"):
        plan = lanes.pipeline(workload)
        with iter(plan) as batches:
            first = next(batches)
        width = first.nbytes / first.num_rows
        say(f"{workload}: bytes of a row", f"{width:.0f}")
        local = _second_epoch(plan.split_by_rank(0, 1, equal_steps="drop").to_numpy(), lambda: 0.0)
        say(f"{workload}, this process", local)
        with cluster(1):
            split = lanes.pipeline(workload).split_by_rank(0, 1, equal_steps="drop").with_engine(_engine())
            session: list[Any] = []

            def used(split: Any = split, session: list[Any] = session) -> float:
                if not session:
                    session.extend({node.session for node in split._ready().optimised.planned_inputs})
                return sum(each.cpu_seconds for each in session[0]._workers)

            say(f"{workload}, one worker of {CORES} cores", _second_epoch(split.to_numpy(), used))


def _second_epoch(loader: Any, other: Callable[[], float]) -> str:
    for _ in loader:
        pass
    before, cpu, began = other(), time.process_time(), time.perf_counter()
    rows = sum(len(next(iter(batch.values()))) for batch in loader)
    seconds, own, others = time.perf_counter() - began, time.process_time() - cpu, other() - before
    worker = f", worker's {others:.2f} s" if others else ""
    return f"{rows / seconds / 1e6:.2f} M rows/s; CPU of the loop's process {own:.2f} s{worker} for {rows / 1e6:.1f} M rows"


def _engine() -> Any:
    import arrowflow as af

    return af.RayEngine(workers=1, cpus_per_worker=CORES)


def _resident(process: int) -> int:
    """Returns the bytes of a process that it shares with no other."""
    _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_text("ascii").split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def say(name: str, figure: str) -> None:
    """Prints a figure."""
    print(f"{name:<60} {figure}", flush=True)


PARTS: Final = {part.__name__: part for part in (calls, pieces, starts, state, rows)}


def main() -> None:
    """Prints all figures, or those of some parts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_costs", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    for name in parser.parse_args().only:
        PARTS[name]()


if __name__ == "__main__":
    main()
