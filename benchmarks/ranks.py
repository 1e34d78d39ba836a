"""Several processes: four ranks against one that runs all lanes, and in parts against whole.

All run four epochs, of which the last three count (see `lanes`), from a barrier to the end of the last of them. Each
rank has its part of the cores, Polars' pool too (`POLARS_MAX_THREADS`), as docs/ranks.md advises. `torch_wide` has the
workers of a PyTorch `DataLoader`.

"In parts" and "whole" have four ranks, and a function after `batch`. It takes some 10 µs a row, as features of texts or
images do. Whole, each rank decodes all rows, and calls the function for its own.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any, Final

from benchmarks import data, harness, lanes, wide

WORKLOAD: Final = "wide, shuffled"
RANKS: Final = 4
NEEDED_SPEED: Final = 1.0
NEEDED_OF_WHOLE: Final = 0.9
COSTLY_ROWS: Final = 200_000
COSTLY_PASSES: Final = 60
CORES: Final = len(os.sched_getaffinity(0))


def costly(batch: dict[str, Any]) -> dict[str, Any]:
    """A user's function of a batch, some 10 µs a row."""
    import numpy as np

    values = batch["sparse"].astype(np.float64)
    for _ in range(COSTLY_PASSES):
        values = np.sqrt(values * values + 1.0)
    return {"value": values.sum(axis=1)}


def _costly() -> Any:
    rows = wide.rows(data.wide()).take(COSTLY_ROWS)
    return rows.batch(1024, drop_remainder=True).map(
        costly, format="numpy", columns=["sparse"], keeps_rows=True
    )


def _rank(rank: int, size: int, how: str | None, barrier: Any, found: Any) -> None:
    os.environ["LOCAL_WORLD_SIZE"] = str(size)
    os.environ["POLARS_MAX_THREADS"] = str(max(1, CORES // size))
    if how is None:
        loader = lanes.pipeline(WORKLOAD).split_by_rank(rank, size, lanes=lanes.LANES).to_numpy()
    else:
        loader = _costly().split_by_rank(rank, size, how=how).to_numpy()
    for _ in loader:
        pass
    barrier.wait()
    began, cpu = time.monotonic(), time.process_time()
    rows = _rows(loader)
    found.put((rows, began, time.monotonic(), time.process_time() - cpu))


def _rows(loader: Any) -> int:
    """Runs the epochs that count; returns their rows."""
    return sum(len(next(iter(batch.values()))) for _ in range(lanes.EPOCHS) for batch in loader)


def _ranks(size: int, how: str | None = None) -> harness.Contender:
    def measure() -> harness.Measurement:
        lanes.pipeline(WORKLOAD)  # makes the data
        context = multiprocessing.get_context("spawn")
        barrier, found = context.Barrier(size), context.Queue()
        processes = [
            context.Process(target=_rank, args=(rank, size, how, barrier, found)) for rank in range(size)
        ]
        for process in processes:
            process.start()
        parts = [found.get(timeout=harness.CONTENDER_TIMEOUT_SECONDS) for _ in processes]
        for process in processes:
            process.join()
        rows, began, ended, cpu = zip(*parts, strict=True)
        return harness.Measurement(sum(rows), max(ended) - min(began), sum(cpu))

    return measure


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars."""
    bars = []
    if {"4 ranks", "1 rank"} <= rounds.keys():
        speed = harness.ratio(rounds, "4 ranks", "1 rank")
        told = f"{harness.millions(rounds, '4 ranks')} against {harness.millions(rounds, '1 rank')} M rows/s"
        bars.append(
            harness.Bar(
                "4 ranks in all, against 1", f">= {NEEDED_SPEED} x", told, speed >= NEEDED_SPEED, speed
            )
        )
    if {"whole", "in parts"} <= rounds.keys():
        speed = harness.ratio(rounds, "whole", "in parts")
        told = f"{harness.millions(rounds, 'whole')} against {harness.millions(rounds, 'in parts')} M rows/s"
        needed = NEEDED_OF_WHOLE
        bars.append(
            harness.Bar("whole, 4 ranks, against in parts", f">= {needed} x", told, speed >= needed, speed)
        )
    return bars


CONTENDERS: Final[dict[str, harness.Contender]] = {
    "1 rank": _ranks(1),
    "4 ranks": _ranks(RANKS),
    "in parts": _ranks(RANKS, "parts"),
    "whole": _ranks(RANKS, "whole"),
}

if __name__ == "__main__":
    harness.main("ranks", CONTENDERS, judge)
