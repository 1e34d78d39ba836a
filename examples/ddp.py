"""Training in several processes that are killed, and go on with another number of them.

`torchrun` starts two processes, which train a linear model with `DistributedDataParallel` on the CPU. Each reads its part of
every batch. The first one keeps a checkpoint every few steps: weights, optimizer, and the merged states of all loaders.

Then the same again, but a loop kills all processes at a random moment, and starts another number of them from the last
checkpoint, until the training is over. Its weights are those of the run that nobody killed: the batches are the same, row
for row, and so are the updates, up to the rounding of sums.

    python examples/ddp.py            # needs PyTorch: the extra `torch`
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import distributed, nn

import arrowflow as af

DATA: Final = Path(__file__).parent.parent / "demo-data"
BATCH_ROWS: Final = 256  # of all processes together
COLUMNS: Final = ["a", "b", "c"]
STEPS_OF_CHECKPOINT: Final = 5
TRIES: Final = 20
NEAR: Final = 1e-9


def make(folder: Path, rows: int) -> None:
    """Writes made-up rows, whose label follows from their columns."""
    rng = np.random.default_rng(1)
    columns = {name: rng.normal(size=rows) for name in COLUMNS}
    label = 2 * columns["a"] - columns["b"] + 0.5 * columns["c"] + rng.normal(0, 0.1, rows)
    af.from_numpy({**columns, "label": label}).write_parquet(folder, shard_rows=rows // 8)


# ---------------------------------------------------------------- one of the processes


def train(data: Path, kept: Path, epochs: int) -> None:
    """Trains from the last checkpoint on."""
    distributed.init_process_group("gloo")
    torch.manual_seed(5)
    model = nn.parallel.DistributedDataParallel(nn.Linear(len(COLUMNS), 1, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rows = af.read_parquet(data / "rows").shuffle(2_000, seed=7).stack(x=COLUMNS)
    loader = rows.batch(BATCH_ROWS, drop_remainder=True).split_by_rank().to_torch()
    steps = first_epoch = 0
    if kept.exists():
        saved = torch.load(kept, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        steps, first_epoch = saved["steps"], saved["loader"]["epoch"]
    for _ in range(first_epoch, epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch["x"])[:, 0], batch["label"])
            loss.backward()
            optimizer.step()
            steps += 1
            if steps % STEPS_OF_CHECKPOINT == 0:
                save(kept, loader, steps, model=model.state_dict(), optimizer=optimizer.state_dict())
    save(kept, loader, steps, model=model.state_dict(), optimizer=optimizer.state_dict(), done=True)
    distributed.destroy_process_group()


def save(kept: Path, loader: Any, steps: int, **more: Any) -> None:
    """Keeps a checkpoint, which is there as a whole or not at all."""
    states: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(states, loader.state_dict())
    if distributed.get_rank() == 0:
        part = kept.with_suffix(".part")
        torch.save({"loader": af.merge_states(states), "steps": steps, **more}, part)
        part.replace(kept)


# ---------------------------------------------------------------- what starts and kills them


def start(data: Path, kept: Path, processes: int, epochs: int) -> subprocess.Popen[bytes]:
    """Starts some processes, in a group of their own."""
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
    ]
    own = [__file__, "--worker", f"--data={data}", f"--kept={kept}", f"--epochs={epochs}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*torchrun, *own], start_new_session=True, env=environment)


def is_done(kept: Path) -> bool:
    """Returns whether the training is over."""
    return kept.exists() and "done" in torch.load(kept, weights_only=True)


def run_killed(data: Path, kept: Path, epochs: int, kills: int, rng: random.Random) -> list[int]:
    """Trains to the end, with another number of processes after each kill, and returns these numbers."""
    sizes: list[int] = []
    for _ in range(TRIES):
        sizes.append((2, 1, 4)[len(sizes) % 3])
        written = kept.stat().st_mtime_ns if kept.exists() else None
        processes = start(data, kept, sizes[-1], epochs)
        if len(sizes) <= kills:
            # Once there is another checkpoint, all of them end at a random moment.
            while processes.poll() is None and (not kept.exists() or kept.stat().st_mtime_ns == written):
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.05))
            os.killpg(processes.pid, signal.SIGKILL)
        processes.wait()
        if is_done(kept):
            return sizes
    raise SystemExit("the training did not end")


def main() -> None:
    """Trains twice, and compares the weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--rows", type=int, default=64_000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--worker", action="store_true", help="is one of the processes")
    parser.add_argument("--kept", type=Path, help="the checkpoint of the processes")
    arguments = parser.parse_args()
    if arguments.worker:
        train(arguments.data, arguments.kept, arguments.epochs)
        return
    data = arguments.data / "ddp"
    data.mkdir(parents=True, exist_ok=True)
    if not (data / "rows").exists():
        make(data / "rows", arguments.rows)
    whole, killed = data / "whole.pt", data / "killed.pt"
    for kept in (whole, killed):
        kept.unlink(missing_ok=True)
    start(data, whole, 1, arguments.epochs).wait()
    sizes = run_killed(data, killed, arguments.epochs, arguments.kills, random.Random(3))
    found, expected = (torch.load(kept, weights_only=True) for kept in (killed, whole))
    print(
        f"{found['steps']} steps by {', '.join(map(str, sizes))} processes; not killed: {expected['steps']} steps"
    )
    for name, weights in expected["model"].items():
        difference = float((found["model"][name] - weights).abs().max())
        print(f"{name}: {weights.flatten().tolist()}, off by {difference:.1e}")
        if not difference < NEAR:
            raise SystemExit("the weights differ")


if __name__ == "__main__":
    main()
