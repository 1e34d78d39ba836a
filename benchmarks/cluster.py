"""A pipeline on a Ray cluster against one machine, and against Ray Data. Each contender has a local cluster of its own.

Of two epochs the second one counts. The time to the first batch is that of a cluster that runs already, and of workers that
start. `wide` comes in lanes with an engine; the local run has the plan without lanes.
"""

from __future__ import annotations

import functools
import logging
import os
import statistics
import time
from typing import Any, Final

import pyarrow as pa

from benchmarks import data, harness, lanes

CORES: Final = len(os.sched_getaffinity(0))
STEP_SECONDS: Final = 0.005
STEP_ROWS: Final = 2_000
STORE_BYTES: Final = 2 << 30
NEEDED_LOCAL: Final = 0.85
NEEDED_WORKERS: Final = 1.8
NEEDED_PEER: Final = 3.0
NEEDED_START: Final = 1.0
SETTLED_SECONDS: Final = 4.0
"""Time for a node to start its idle processes, which import what they preload: a warm cluster has them."""


def _ray() -> Any:
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray

    ray.init(
        num_cpus=max(CORES, 4),
        object_store_memory=STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    return ray


def _second_epoch(loader: Any) -> harness.Measurement:
    for _ in loader:
        pass
    watch = harness.Stopwatch()
    return watch.measurement(sum(len(next(iter(batch.values()))) for batch in loader))


def _engine(workers: int, cores: int) -> Any:
    import arrowflow as af

    return af.RayEngine(workers=workers, cpus_per_worker=cores)


def _local(workload: str) -> harness.Contender:
    return lambda: _second_epoch(lanes.pipeline(workload).to_numpy())


def _one_worker(workload: str) -> harness.Contender:
    def measure() -> harness.Measurement:
        plan = lanes.pipeline(workload)
        _ray()
        split = plan.split_by_rank(0, 1, lanes=lanes.LANES, equal_steps="drop")
        return _second_epoch(split.to_numpy(engine=_engine(1, CORES)))

    return measure


def _spin(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Python that holds the interpreter lock for 5 ms."""
    end = time.perf_counter() + STEP_SECONDS
    while time.perf_counter() < end:
        pass
    return batch


def _map(workers: int) -> harness.Contender:
    def measure() -> harness.Measurement:
        import arrowflow as af

        options = af.Options(max_chunk_rows=STEP_ROWS)
        plan = af.range(640 * STEP_ROWS).map(_spin, keeps_rows=True).batch(16_000).with_options(options)
        _ray()
        return _second_epoch(plan.to_numpy(engine=_engine(workers, 1)))

    return measure


def _ray_data(workload: str) -> harness.Contender:
    """The same table, read by Ray Data and consumed in batches of the same size.

    Features and filter are left out: its rows are those of the files, ours those that pass the filter.
    """

    def measure() -> harness.Measurement:
        plan = lanes.pipeline(workload)
        paths = data.lineitem() if workload == "stream" else data.wide()
        ray = _ray()
        columns = None if workload == "stream" else [*data.DENSE, *data.SPARSE, "label"]
        found = ray.data.read_parquet([str(path) for path in paths], columns=columns)
        ray.data.DataContext.get_current().enable_progress_bars = False
        size = plan._plan.size
        batches = functools.partial(
            found.iter_batches, batch_size=size, batch_format="pyarrow", drop_last=True
        )
        for _ in batches():
            pass
        watch = harness.Stopwatch()
        rows = sum(batch.num_rows for batch in batches())
        return watch.measurement(rows)

    return measure


def _start(*, clustered: bool, preloads: bool = False) -> harness.Contender:
    def measure() -> harness.Measurement:
        plan = lanes.pipeline("wide")
        if preloads:
            os.environ.update({"RAY_preload_python_modules": "arrowflow.cluster.lane_worker"})
        if clustered:
            _ray()
            time.sleep(SETTLED_SECONDS)
            plan = plan.with_engine(_engine(1, CORES))
        watch = harness.Stopwatch()
        with iter(plan) as batches:
            rows = next(batches).num_rows
        return watch.measurement(rows)

    return measure


def _asleep() -> harness.Measurement:
    """Bytes in the store by its own numbers while the consumer holds its first batch: the most, and the least.

    The first two seconds do not count, in which the store frees what nobody refers to.
    """
    plan = lanes.pipeline("wide")
    _ray()
    with iter(plan.with_engine(_engine(1, CORES))) as batches:
        rows = next(batches).num_rows
        watch = harness.Stopwatch()
        used = []
        for _ in range(50):
            time.sleep(0.1)
            used.append(store_statistics().object_store_bytes_used)
        settled = used[20:]
        spilled = float(store_statistics().spilled_bytes_total)
        return watch.measurement(rows, most=float(max(settled)), least=float(min(settled)), spilled=spilled)


def store_statistics() -> Any:
    """Returns the figures of all object stores of the cluster, as these tell them: bytes in use, bytes spilled, and more."""
    import ray
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    address = ray.get_runtime_context().gcs_address  # without it Ray looks for any cluster of the machine
    return get_memory_info_reply(get_state_from_address(address)).store_stats


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars."""
    bars = []

    def ratio(name: str, this: str, other: str, needed: float) -> None:
        if {this, other} <= rounds.keys():
            found = harness.ratio(rounds, this, other)
            told = f"{harness.millions(rounds, this)} against {harness.millions(rounds, other)} M rows/s"
            bars.append(harness.Bar(name, f">= {needed} x", told, found >= needed, found))

    ratio("wide: one worker against the local run", "wide, 1 worker", "wide, local", NEEDED_LOCAL)
    ratio("5 ms of Python a batch: 2 workers against 1", "map, 2 workers", "map, 1 worker", NEEDED_WORKERS)
    for workload in ("stream", "wide"):
        ratio(f"{workload}: against Ray Data", f"{workload}, 1 worker", f"{workload}, Ray Data", NEEDED_PEER)
    for name in ("first batch, 1 worker", "first batch, 1 worker, preloaded"):
        if {name, "first batch, local"} <= rounds.keys():
            names = (name, "first batch, local")
            there, here = (statistics.median(one.seconds for one in rounds[each]) for each in names)
            more = there - here
            told = f"{more:.2f} s more than the local run"
            bars.append(harness.Bar(name, f"<= {NEEDED_START} s more", told, more <= NEEDED_START, more))
    if "asleep" in rounds:
        most, least, spilled = (
            harness.median_extra(rounds["asleep"], name) / 2**20 for name in ("most", "least", "spilled")
        )
        budget = STORE_BYTES / 4 / 2**20
        told = f"{least:.0f} to {most:.0f} MiB of {budget:.0f}, {spilled:.0f} spilled"
        holds = least == most <= budget and not spilled
        bars.append(harness.Bar("store, consumer asleep", "<= its part, flat", told, holds, None))
    return bars


CONTENDERS: Final[dict[str, harness.Contender]] = {
    "wide, local": _local("wide"),
    "wide, 1 worker": _one_worker("wide"),
    "wide, Ray Data": _ray_data("wide"),
    "stream, 1 worker": _one_worker("stream"),
    "stream, Ray Data": _ray_data("stream"),
    "map, 1 worker": _map(1),
    "map, 2 workers": _map(2),
    "first batch, local": _start(clustered=False),
    "first batch, 1 worker": _start(clustered=True),
    "first batch, 1 worker, preloaded": _start(clustered=True, preloads=True),
    "asleep": _asleep,
}

if __name__ == "__main__":
    harness.main("cluster", CONTENDERS, judge)
