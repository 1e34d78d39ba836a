"""Several processes: four ranks against one that runs all lanes, and the workers of a PyTorch `DataLoader`.

Ranks run two epochs, of which the second one counts, from a barrier to the end of the last of them. The workers run one
epoch in fresh processes, with what it takes to plan it; what counts is the CPU time of all processes for a row. PyTorch has
to be installed for that, else it is left out.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import resource
import time
from typing import Any, Final

from benchmarks import harness, lanes

WORKLOAD: Final = "wide, shuffled"
RANKS: Final = 4
NEEDED_SPEED: Final = 1.0
NEEDED_CPU: Final = 1.15
HAS_TORCH: Final = importlib.util.find_spec("torch") is not None


def _rank(rank: int, size: int, barrier: Any, found: Any) -> None:
    import os

    os.environ["LOCAL_WORLD_SIZE"] = str(size)
    loader = lanes.pipeline(WORKLOAD).split_by_rank(rank, size, lanes=lanes.LANES).to_numpy()
    for _ in loader:
        pass
    barrier.wait()
    began, cpu = time.monotonic(), time.process_time()
    rows = sum(len(next(iter(batch.values()))) for batch in loader)
    found.put((rows, began, time.monotonic(), time.process_time() - cpu))


def _ranks(size: int) -> harness.Contender:
    def measure() -> harness.Measurement:
        lanes.pipeline(WORKLOAD)  # makes the data
        context = multiprocessing.get_context("spawn")
        barrier, found = context.Barrier(size), context.Queue()
        processes = [context.Process(target=_rank, args=(rank, size, barrier, found)) for rank in range(size)]
        for process in processes:
            process.start()
        parts = [found.get(timeout=harness.CONTENDER_TIMEOUT_SECONDS) for _ in processes]
        for process in processes:
            process.join()
        rows, began, ended, cpu = zip(*parts, strict=True)
        return harness.Measurement(sum(rows), max(ended) - min(began), sum(cpu))

    return measure


def _loader(workers: int) -> harness.Contender:
    def measure() -> harness.Measurement:
        from torch.utils.data import DataLoader

        watch = harness.Stopwatch()
        dataset = lanes.pipeline(WORKLOAD).to_torch_dataset()
        context = "fork" if workers else None
        batches = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context)
        rows = sum(len(next(iter(batch.values()))) for batch in batches)
        del batches
        one = watch.measurement(rows)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = one.cpu_seconds + children.ru_utime + children.ru_stime
        return harness.Measurement(rows, one.seconds, cpu)

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
    if {"2 workers", "no workers"} <= rounds.keys():
        cpu = [harness.median_cpu(rounds[name]) for name in ("2 workers", "no workers")]
        told = f"{cpu[0]:.2f} against {cpu[1]:.2f} s"
        share = cpu[0] / cpu[1]
        bars.append(
            harness.Bar(
                "CPU of 2 workers, against none", f"<= {NEEDED_CPU} x", told, share <= NEEDED_CPU, share
            )
        )
    return bars


CONTENDERS: Final[dict[str, harness.Contender]] = {
    "1 rank": _ranks(1),
    "4 ranks": _ranks(RANKS),
    **({"no workers": _loader(0), "2 workers": _loader(2)} if HAS_TORCH else {}),
}

if __name__ == "__main__":
    harness.main("ranks", CONTENDERS, judge)
