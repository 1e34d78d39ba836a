"""The clock of a peer's process: some epochs of one workload, the first of which finds nothing warm.

An epoch ends early `--seconds` after its first batch. Its rate is then counted from the first batch on, which leaves out
the time to fill a buffer; so it flatters whoever is cut.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Any, Final

import numpy as np

Batch = Mapping[str, Any]
Epoch = Callable[[], Iterable[Batch]]
Workloads = Mapping[str, Callable[[], Epoch]]

CUT_EPOCHS: Final = 2
"""The most epochs of a library that is so slow that they are cut."""
CHECK_SECONDS: Final = 5.0
"""After which the epoch is cut whose columns are summed up."""


def main(package: str, workloads: Workloads) -> None:
    """Runs the workload that the command line names, and prints one line of JSON.

    The rate of `tokens` is in tokens a second, without those that fill a row; of the others, in rows.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", nargs="?", choices=list(workloads))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--check", action="store_true", help="sum up all columns of one more epoch")
    arguments = parser.parse_args()
    if arguments.workload is None:
        print(json.dumps(list(workloads)))
        return
    epoch = workloads[arguments.workload]()
    count = _tokens if arguments.workload.startswith("tokens") else _rows
    found: list[dict[str, Any]] = []
    while len(found) < arguments.epochs and (len(found) < CUT_EPOCHS or found[-1]["whole"]):
        found.append(_one(epoch, count, arguments.seconds, check=False))
    checked = _one(epoch, count, CHECK_SECONDS, check=True) if arguments.check else None
    print(json.dumps({"version": version(package), "epochs": found, "checked": checked}))


_OF_PACKING: Final = frozenset({"segment_ids", "positions"})
"""Columns that depend on the strategy of packing."""


def _rows(batch: Batch) -> int:
    return len(next(iter(batch.values())))


def _tokens(batch: Batch) -> int:
    return int(np.count_nonzero(np.asarray(batch["segment_ids"])))


def _one(epoch: Epoch, count: Callable[[Batch], int], limit: float, *, check: bool) -> dict[str, Any]:
    rows = first_rows = 0
    first_at = 0.0
    shapes: dict[str, str] = {}
    sums: dict[str, float] = {}
    wall, cpu = time.perf_counter(), time.process_time()
    is_whole = True
    for batch in epoch():
        rows += count(batch)
        if not first_rows:
            first_rows, first_at = rows, time.perf_counter() - wall
            shapes = {name: _shape(column) for name, column in batch.items()}
        if check:
            for name in batch.keys() - _OF_PACKING:
                sums[name] = sums.get(name, 0.0) + float(np.asarray(batch[name]).sum(dtype="float64"))
        if time.perf_counter() - wall > first_at + limit:
            is_whole = False
            break
    seconds = time.perf_counter() - wall
    rate = rows / seconds if is_whole else (rows - first_rows) / max(seconds - first_at, 1e-9)
    return {
        "rows_per_second": rate,
        "rows": rows,
        "seconds": seconds,
        "first_batch_seconds": first_at,
        "cpu_seconds": time.process_time() - cpu,
        "whole": is_whole,
        "shapes": shapes,
        "sums": sums,
    }


def _shape(column: Any) -> str:
    array = np.asarray(column)
    return f"{array.dtype} {list(array.shape[1:])}"
