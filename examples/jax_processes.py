"""Training in several JAX processes that are killed, and go on with another number of them.

Two processes train a linear model on the CPU, on global arrays: each reads its part of every batch, and a step computes with
all of it. The first process keeps a checkpoint every few steps: weights, and the merged states of all loaders.

Then the same again, but a loop kills all processes at a random moment, and starts another number of them from the last
checkpoint, until the training is over. Its weights are those of the run that nobody killed: the batches are the same, row
for row, and so are the updates, up to the rounding of sums.

    python examples/jax_processes.py            # needs JAX: the extra `jax`
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec
from restarts import COLUMNS, STEPS_OF_CHECKPOINT, batches, make, run_killed

import arrowflow as af

DATA: Final = Path(__file__).parent.parent / "demo-data"
RATE: Final = 0.05
NEAR: Final = 1e-9


@jax.jit
def update(weights: Any, x: jax.Array, label: jax.Array) -> Any:
    """Returns the weights after one step of gradient descent on the rows of all processes."""

    def loss(weights: Any) -> jax.Array:
        return jnp.mean((x @ weights["w"] + weights["b"] - label) ** 2)

    return jax.tree.map(lambda value, slope: value - RATE * slope, weights, jax.grad(loss)(weights))


def train(rows: Path, kept: Path, epochs: int, *, waits: bool = False) -> None:
    """Trains from the last checkpoint on; `waits` at the end for somebody who kills this process."""
    mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    loader = batches(rows).to_jax(sharding=NamedSharding(mesh, PartitionSpec("rows")))
    values = {"w": np.zeros(len(COLUMNS)), "b": np.zeros(())}
    steps = first_epoch = 0
    if kept.exists():
        with np.load(kept) as saved:
            values = {name: saved[name] for name in values}
            state = json.loads(str(saved["loader"]))
            steps, first_epoch = int(saved["steps"]), state["epoch"]
        loader.load_state_dict(state)
    weights = jax.device_put(values, NamedSharding(mesh, PartitionSpec()))  # the same on all devices
    for _ in range(first_epoch, epochs):
        for batch in loader:
            weights = update(weights, batch["x"], batch["label"])
            steps += 1
            if steps % STEPS_OF_CHECKPOINT == 0:
                save(kept, loader.state_dict(), steps, weights)
    if waits:
        signal.pause()
    save(kept, loader.state_dict(), steps, weights)
    if jax.process_index() == 0:
        kept.with_suffix(".done").touch()


def save(kept: Path, state: dict[str, Any], steps: int, weights: Any) -> None:
    """Keeps a checkpoint, which is there as a whole or not at all."""
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    most = int(np.max(multihost_utils.process_allgather(np.array([len(text)]))))
    texts = multihost_utils.process_allgather(np.pad(text, (0, most - len(text)), constant_values=ord(" ")))
    states = [json.loads(row.tobytes()) for row in np.atleast_2d(np.asarray(texts, np.uint8))]
    if jax.process_index() == 0:
        part = kept.with_suffix(".part")
        merged = json.dumps(af.merge_states(states))
        with part.open("wb") as file:
            np.savez(file, loader=merged, steps=steps, **jax.tree.map(np.asarray, weights))
        part.replace(kept)


def start(rows: Path, kept: Path, epochs: int, processes: int, waits: bool) -> list[subprocess.Popen[bytes]]:
    """Starts some processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    own = [sys.executable, __file__, f"--data={rows}", f"--kept={kept}", f"--epochs={epochs}"]
    own += ["--waits"] if waits else []
    worker = [*own, f"--address={address}", f"--processes={processes}"]
    return [subprocess.Popen([*worker, f"--worker={number}"]) for number in range(processes)]


def main() -> None:
    """Trains twice, and compares the weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--rows", type=int, default=64_000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--worker", type=int, help="is this one of the processes")
    parser.add_argument("--waits", action="store_true", help="does not end before it is killed")
    parser.add_argument("--kept", type=Path, help="the checkpoint of the processes")
    parser.add_argument("--address", help="where the first process listens")
    parser.add_argument("--processes", type=int)
    arguments = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    if arguments.worker is not None:
        if arguments.processes > 1:
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            jax.distributed.initialize(arguments.address, arguments.processes, arguments.worker)
        train(arguments.data, arguments.kept, arguments.epochs, waits=arguments.waits)
        return
    data = arguments.data / "jax_processes"
    data.mkdir(parents=True, exist_ok=True)
    rows = data / "rows"
    if not rows.exists():
        make(rows, arguments.rows)
    for path in data.glob("*.*"):
        path.unlink()
    whole, killed = data / "whole.npz", data / "killed.npz"
    train(rows, whole, arguments.epochs)
    starts = partial(start, rows, killed, arguments.epochs)
    sizes = run_killed(starts, killed, killed.with_suffix(".done"), arguments.kills)
    with np.load(killed) as found, np.load(whole) as expected:
        steps = f"not killed: {int(expected['steps'])} steps"
        print(f"{int(found['steps'])} steps by {', '.join(map(str, sizes))} processes; {steps}")
        for name in ("w", "b"):
            difference = float(np.abs(found[name] - expected[name]).max())
            print(f"{name}: {expected[name].tolist()}, off by {difference:.1e}")
            if not difference < NEAR:
                raise SystemExit("the weights differ")


if __name__ == "__main__":
    main()
