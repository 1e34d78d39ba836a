"""What it costs to hand batches of mapped IPC files over to PyTorch, which has to be installed.

Embeddings, 8192 rows of 256 float32, and 32 columns of float32 as tensors of their own, 8192 rows. Nothing is copied:
`strict_zero_copy` sees to that. The loop to beat has its record batches in memory, cut already, and neither reads nor
slices. All figures are of the fastest of many epochs, behind its first batch: what a start takes is measured elsewhere.
"""

from __future__ import annotations

import time
import warnings
from typing import Any, Final

from benchmarks import data, harness

BATCH_ROWS: Final = 8192
EPOCHS: Final = 20
NEEDED_MICROSECONDS: Final = 60.0
NEEDED_RATIO: Final = 1.3


def _loaded(paths: list[str]) -> harness.Measurement:
    import arrowflow as af

    data.read_through(paths)
    loader = af.read_ipc(paths).batch(BATCH_ROWS).to_torch(strict_zero_copy=True)
    watch, best, batches = harness.Stopwatch(), float("inf"), 0
    for _ in range(EPOCHS):
        iterator = iter(loader)
        next(iterator)
        started = time.perf_counter()
        count = sum(1 for _ in iterator)
        best = min(best, (time.perf_counter() - started) / count)
        batches += count + 1
    return watch.measurement(batches * BATCH_ROWS, microseconds=1e6 * best)


def by_hand() -> harness.Measurement:
    """Measures `torch.from_numpy(column.to_numpy())` of each column, over record batches in memory."""
    import pyarrow as pa
    import torch

    warnings.simplefilter("ignore")  # that the memory must not be written
    paths = data.columns()
    data.read_through(paths)
    batches: list[Any] = []
    for path in paths:
        table = pa.ipc.open_file(pa.memory_map(path)).read_all()
        batches += [cut for whole in table.to_batches() for cut in _cut(whole)]
    watch, best = harness.Stopwatch(), float("inf")
    for _ in range(EPOCHS):
        started = time.perf_counter()
        for batch in batches:
            _ = {
                name: torch.from_numpy(column.to_numpy())
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }
        best = min(best, (time.perf_counter() - started) / len(batches))
    return watch.measurement(EPOCHS * len(batches) * BATCH_ROWS, microseconds=1e6 * best)


def _cut(batch: Any) -> list[Any]:
    return [batch.slice(start, BATCH_ROWS) for start in range(0, batch.num_rows, BATCH_ROWS)]


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars, from the fastest round."""
    best = {name: min(one.extra["microseconds"] for one in ones) for name, ones in rounds.items()}
    bars = []
    if "embeddings" in best:
        got = best["embeddings"]
        title, needed = "hand-over, embeddings", f"<= {NEEDED_MICROSECONDS:.0f} us a batch"
        bars.append(harness.Bar(title, needed, f"{got:.1f} us", got <= NEEDED_MICROSECONDS))
    if "columns" in best and "by_hand" in best:
        ratio = best["columns"] / best["by_hand"]
        got_text = f"{best['columns']:.1f} us against {best['by_hand']:.1f} us"
        title, needed = "hand-over, 32 columns", f"<= {NEEDED_RATIO} x by hand"
        bars.append(harness.Bar(title, needed, got_text, ratio <= NEEDED_RATIO, ratio))
    return bars


CONTENDERS: Final = {
    "embeddings": lambda: _loaded(data.embeddings()),
    "columns": lambda: _loaded(data.columns()),
    "by_hand": by_hand,
}

if __name__ == "__main__":
    harness.main("handover", CONTENDERS, judge)
