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
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from restarts import COLUMNS, STEPS_OF_CHECKPOINT, batches, make, run_killed
from torch import distributed, nn

import arrowflow as af

DATA: Final = Path(__file__).parent.parent / "demo-data"
NEAR: Final = 1e-9


def train(rows: Path, kept: Path, epochs: int, *, waits: bool = False) -> None:
    """Trains from the last checkpoint on; `waits` at the end for somebody who kills this process."""
    if distributed.is_torchelastic_launched():
        distributed.init_process_group("gloo")
    else:
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    torch.manual_seed(5)
    model = nn.parallel.DistributedDataParallel(nn.Linear(len(COLUMNS), 1, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = batches(rows).to_torch()
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
    if waits:
        signal.pause()
    save(kept, loader, steps, model=model.state_dict(), optimizer=optimizer.state_dict())
    if distributed.get_rank() == 0:
        kept.with_suffix(".done").touch()
    distributed.destroy_process_group()


def save(kept: Path, loader: Any, steps: int, **more: Any) -> None:
    """Keeps a checkpoint, which is there as a whole or not at all."""
    states: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(states, loader.state_dict())
    if distributed.get_rank() == 0:
        part = kept.with_suffix(".part")
        torch.save({"loader": af.merge_states(states), "steps": steps, **more}, part)
        part.replace(kept)


def start(rows: Path, kept: Path, epochs: int, processes: int, waits: bool) -> list[subprocess.Popen[bytes]]:
    """Starts some processes by torchrun."""
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
    ]
    own = [__file__, "--worker", f"--data={rows}", f"--kept={kept}", f"--epochs={epochs}"]
    own += ["--waits"] if waits else []
    return [subprocess.Popen([*torchrun, *own], env=os.environ | {"OMP_NUM_THREADS": "1"})]


def main() -> None:
    """Trains twice, and compares the weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--rows", type=int, default=64_000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--worker", action="store_true", help="is one of the processes")
    parser.add_argument("--waits", action="store_true", help="does not end before it is killed")
    parser.add_argument("--kept", type=Path, help="the checkpoint of the processes")
    arguments = parser.parse_args()
    if arguments.worker:
        train(arguments.data, arguments.kept, arguments.epochs, waits=arguments.waits)
        return
    data = arguments.data / "ddp"
    data.mkdir(parents=True, exist_ok=True)
    rows = data / "rows"
    if not rows.exists():
        make(rows, arguments.rows)
    for path in data.glob("*.*"):
        path.unlink()
    whole, killed = data / "whole.pt", data / "killed.pt"
    train(rows, whole, arguments.epochs)
    starts = partial(start, rows, killed, arguments.epochs)
    sizes = run_killed(starts, killed, killed.with_suffix(".done"), arguments.kills)
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
