"""Training on a cluster, of which a worker is killed: with the weights of one machine, bit for bit.

A network learns from rows with 256 features. At first all happens in this process. Then again, with the same pipeline on a Ray
cluster: two nodes, which are processes of this machine here, with one worker each. A function normalises the rows in the
workers. It also adds a column that tells which process it ran in. In the middle of the epoch the loop kills that process, as
the kernel does where memory runs out. Another worker takes over, and no row is lost or comes twice. So the batches are the
same, and so are the weights.

    python examples/cluster.py        # needs PyTorch and Ray: the extras `torch` and `ray`
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import ray
import torch
from ray.cluster_utils import Cluster
from torch import nn

import arrowflow as af

DATA: Final = Path(__file__).parent.parent / "demo-data"
WIDTH: Final = 256
SHARDS: Final = 16
BATCH_ROWS: Final = 256
NODES: Final = 2
STORE_BYTES: Final = 100 << 20  # of each node


def make(folder: Path, rows: int) -> None:
    """Writes made-up rows, whose label follows from their features."""
    rng = np.random.default_rng(1)
    vector = rng.normal(3, 2, (rows, WIDTH)).astype(np.float32)
    label = vector @ rng.normal(size=WIDTH).astype(np.float32) > 0
    af.from_numpy({"vector": vector, "label": label.astype(np.float32)}).write_parquet(
        folder, shard_rows=rows // SHARDS, row_group_rows=250, compression=None
    )


def normalise(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns rows of mean 0 and deviation 1, and which process this is."""
    vector = batch["vector"].flatten().to_numpy().reshape(-1, WIDTH)
    vector = (vector - vector.mean(axis=1, keepdims=True)) / vector.std(axis=1, keepdims=True)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(vector.ravel()), WIDTH)
    process = pa.array(np.full(batch.num_rows, os.getpid()))
    return pa.record_batch({"vector": rows, "label": batch["label"], "process": process})


def pipeline(folder: Path) -> af.Dataset:
    """Returns the batches of one machine, and of a cluster."""
    rows = af.read_parquet(folder).map(normalise, keeps_rows=True).shuffle(1_000, seed=7)
    batches = rows.batch(BATCH_ROWS, drop_remainder=True).split_by_rank(0, 1, lanes=8)
    return batches.with_options(af.Options(ram_budget="48MiB"))


def train(batches: Any, *, kill: bool) -> tuple[nn.Module, list[int]]:
    """Returns the network after one epoch, and the processes whose rows it got; kills one of them after a quarter."""
    torch.manual_seed(5)
    network = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    processes: dict[int, None] = {}
    losses = []
    for step, batch in enumerate(batches, 1):
        loss = nn.functional.binary_cross_entropy_with_logits(network(batch["vector"])[:, 0], batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        processes |= dict.fromkeys(batch["process"].tolist())
        if kill and step == len(batches) // 4:
            os.kill(int(batch["process"][0]), signal.SIGKILL)
    print(f"{len(losses)} steps, the last loss {losses[-1]:.4f}", flush=True)
    return network, list(processes)


@contextmanager
def local_cluster() -> Iterator[None]:
    """Starts a cluster of two nodes on this machine, and ends it."""
    node = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(NODES - 1):
            cluster.add_node(**node)
        ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains twice, and compares the weights."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder for the data, which is made once")
    parser.add_argument("--rows", type=int, default=100_000)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # sums of one thread have one order

    folder = options.data / f"cluster-{options.rows}"
    if not folder.exists():  # it gets its name when all of it is written
        make(folder, options.rows)

    alone, _ = train(pipeline(folder).to_torch(), kill=False)
    with local_cluster():
        loader = pipeline(folder).to_torch(engine=af.RayEngine(workers=NODES, cpus_per_worker=1))
        together, processes = train(loader, kill=True)
    print(f"rows came from {len(processes)} processes in {NODES} places, of which one was killed")
    if len(processes) <= NODES:
        sys.exit("the worker was killed when all of its rows had come: take more rows")
    for (name, here), there in zip(alone.named_parameters(), together.parameters(), strict=True):
        if not torch.equal(here, there):
            sys.exit(f"{name} differs by up to {float((here - there).abs().max()):.1e}")
    print("the weights are those of one machine, bit for bit")


if __name__ == "__main__":
    main()
