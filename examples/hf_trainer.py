"""Training by the `Trainer` of transformers, in processes that are killed, and go on with another number of them.

One process trains a linear model on the CPU, and notes the rows of each step. Then the same again, but a loop kills all
processes at a random moment, and starts another number of them from the last checkpoint, until the training is over. Each
process has to train on its part of the very rows that the process had that nobody killed.

`Trainer` counts steps, and after a restart reads the epoch again up to the step of its checkpoint. So a checkpoint needs no
state of the loader. But `Trainer` has to tell the loader which epoch it is, and it does so if the loader is accelerate's.

    python examples/hf_trainer.py            # needs PyTorch (the extra `torch`), transformers and accelerate
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from accelerate.data_loader import DataLoaderShard
from restarts import COLUMNS, STEPS_OF_CHECKPOINT, batches, make, run_killed
from torch import distributed, nn

DATA: Final = Path(__file__).parent.parent / "demo-data"
LATEST: Final = "latest"
DONE: Final = "done"


class Line(nn.Module):
    """A linear model, which returns its loss. Arguments are columns."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(len(COLUMNS), 1, dtype=torch.float64)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the loss of the rows of this process."""
        return {"loss": nn.functional.mse_loss(self.layer(x)[:, 0], label)}


class Trainer(transformers.Trainer):
    """Trains on this process's part of the batches, and notes their rows.

    Args:
        rows: The folder with the rows.
        arguments: All others.
    """

    def __init__(self, rows: Path, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._rows = rows
        self._notes = Path(self.args.output_dir, f"rows of {os.getpid()}")

    def get_train_dataloader(self) -> Any:
        """Returns a loader of which `Trainer` sets the epoch. Not `accelerator.prepare`, which would share out rows again."""
        return DataLoaderShard(batches(self._rows).to_torch_dataset(), batch_size=None)

    def training_step(self, model: Any, inputs: dict[str, Any], *others: Any) -> Any:
        """Notes the number of the step and the rows, and trains."""
        note = (
            self.state.global_step,
            self.args.process_index,
            self.args.world_size,
            inputs.pop("row").tolist(),
        )
        with self._notes.open("a", encoding="utf-8") as file:
            file.write(json.dumps(note) + "\n")
        return super().training_step(model, inputs, *others)


class Latest(transformers.TrainerCallback):
    """Keeps the name of the last checkpoint that all processes have written. A process may be killed while it writes one."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by `Trainer` in each process."""
        if distributed.is_initialized():
            distributed.barrier()
        if state.is_world_process_zero:
            latest = Path(args.output_dir, LATEST)
            part = latest.with_suffix(".part")
            part.write_text(f"checkpoint-{state.global_step}", encoding="utf-8")
            part.replace(latest)


def train(rows: Path, kept: Path, epochs: int, *, waits: bool = False) -> None:
    """Trains from the last checkpoint on; `waits` at the end for somebody who kills this process."""
    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(5)
    arguments = transformers.TrainingArguments(
        str(kept),
        num_train_epochs=epochs,
        save_steps=STEPS_OF_CHECKPOINT,
        learning_rate=0.05,
        use_cpu=True,
        ddp_find_unused_parameters=False,
        report_to=[],
        logging_strategy="no",
        disable_tqdm=True,
    )
    kept.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(rows, model=Line(), args=arguments, callbacks=[Latest()])
    trainer.remove_callback(transformers.PrinterCallback)
    latest = kept / LATEST
    trainer.train(kept / latest.read_text(encoding="utf-8") if latest.exists() else None)
    if waits:
        signal.pause()
    if trainer.is_world_process_zero():
        (kept / DONE).touch()


def start(rows: Path, kept: Path, epochs: int, processes: int, waits: bool) -> list[subprocess.Popen[bytes]]:
    """Starts some processes by torchrun."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    own = [__file__, "--worker", f"--data={rows}", f"--kept={kept}", f"--epochs={epochs}"]
    own += ["--waits"] if waits else []
    return [subprocess.Popen([sys.executable, *torchrun, *own], env=os.environ | {"OMP_NUM_THREADS": "1"})]


def trained_on(kept: Path) -> dict[int, dict[tuple[int, int], list[int]]]:
    """Returns the rows of each step, by the number of a process and that of all processes."""
    found: dict[int, dict[tuple[int, int], list[int]]] = defaultdict(dict)
    for notes in kept.glob("rows of *"):
        for line in notes.read_text(encoding="utf-8").splitlines():
            step, process, processes, rows = json.loads(line)
            if found[step].setdefault((process, processes), rows) != rows:
                raise SystemExit(f"step {step} had other rows after a restart")
    return found


def compare(killed: Path, whole: Path) -> None:
    """Compares the rows of each step of each process with those of the training that nobody killed."""
    expected = {step: rows[0, 1] for step, rows in trained_on(whole).items()}
    found = trained_on(killed)
    if found.keys() != expected.keys():
        raise SystemExit(f"{len(found)} steps, not {len(expected)}")
    for step, rows in found.items():
        for (process, processes), part in rows.items():
            share = len(expected[step]) // processes
            if part != expected[step][process * share : (process + 1) * share]:
                raise SystemExit(f"process {process} of {processes} had other rows in step {step}")
        if not any(all((each, count) in rows for each in range(count)) for _, count in rows):
            raise SystemExit(f"step {step} lacks rows")


def main() -> None:
    """Trains twice, and compares the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--rows", type=int, default=16_000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--worker", action="store_true", help="is one of the processes")
    parser.add_argument("--waits", action="store_true", help="does not end before it is killed")
    parser.add_argument("--kept", type=Path, help="the folder with the checkpoints of the processes")
    arguments = parser.parse_args()
    if arguments.worker:
        train(arguments.data, arguments.kept, arguments.epochs, waits=arguments.waits)
        return
    data = arguments.data / "hf_trainer"
    data.mkdir(parents=True, exist_ok=True)
    rows, whole, killed = data / "rows", data / "whole", data / "killed"
    if not rows.exists():
        make(rows, arguments.rows)
    for folder in (whole, killed):
        shutil.rmtree(folder, ignore_errors=True)
    train(rows, whole, arguments.epochs)
    starts = partial(start, rows, killed, arguments.epochs)
    sizes = run_killed(starts, killed / LATEST, killed / DONE, arguments.kills)
    compare(killed, whole)
    steps = len(trained_on(whole))
    print(
        f"{steps} steps by {', '.join(map(str, sizes))} processes, on the rows of a training that nobody killed"
    )


if __name__ == "__main__":
    main()
