"""Processes that are killed at a random moment, and started again with another number of them: for `ddp`, `hf_trainer`, `jax_processes`."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

import arrowflow as af

BATCH_ROWS: Final = 256  # of all processes together
COLUMNS: Final = ["a", "b", "c"]
STEPS_OF_CHECKPOINT: Final = 5
SIZES: Final = (2, 1, 4)
TRIES: Final = 20


def make(folder: Path, rows: int) -> None:
    """Writes made-up rows, whose label follows from their columns."""
    rng = np.random.default_rng(1)
    columns = {name: rng.normal(size=rows) for name in COLUMNS}
    label = 2 * columns["a"] - columns["b"] + 0.5 * columns["c"] + rng.normal(0, 0.1, rows)
    af.from_numpy({**columns, "label": label, "row": np.arange(rows)}).write_parquet(
        folder, shard_rows=rows // 8
    )


def batches(folder: Path) -> af.Dataset:
    """Returns this process's part of the batches, which are the same for any number of processes."""
    rows = af.read_parquet(folder).shuffle(2_000, seed=7).stack(x=COLUMNS)
    return rows.batch(BATCH_ROWS, drop_remainder=True).split_by_rank()


def run_killed(
    start: Callable[[int, bool], list[subprocess.Popen[bytes]]], checkpoint: Path, done: Path, kills: int
) -> list[int]:
    """Starts processes until they are done, with another number of them after each kill; returns these numbers.

    Args:
        start: Starts so many processes. Where they are to be killed, they may not end before.
        checkpoint: The file that they write again and again.
        done: The file that they write at the end.
        kills: How often they are killed.
    """
    rng = random.Random(3)
    sizes: list[int] = []
    for _ in range(TRIES):
        sizes.append(SIZES[len(sizes) % len(SIZES)])
        written = _time(checkpoint)
        is_killed = len(sizes) <= kills
        processes = start(sizes[-1], is_killed)
        if is_killed:
            # Once there is another checkpoint, all of them end at a random moment.
            while any(each.poll() is None for each in processes) and _time(checkpoint) == written:
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.05))
            for each in processes:
                _kill(each.pid)
        for each in processes:
            each.wait()
        if done.exists():
            return sizes
    raise SystemExit("the training did not end")


def _kill(pid: int) -> None:
    """Kills a process, and those that it has started: torchrun gives each a session of its own."""
    started = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    for number in (pid, *map(int, started.stdout.split())):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def _time(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None
