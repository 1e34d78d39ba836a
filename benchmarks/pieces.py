"""Pieces of functions before `batch`: are calls neither so long that batches come late, nor so short that they cost?

Functions of `images`, `paths` and `tensors` take 2 ms a row without a core, as those do that decode elsewhere or wait.
Each plan stands beside the same one with `batch` before `map`, whose calls have as many rows as a batch. Functions of
`numbers` and `floats` are a line of NumPy. They stand beside 65,536 rows a call.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import data, harness

MIB: Final = 1 << 20
BUDGET: Final = 1 << 30
ROWS, IMAGE_BYTES, GROUP_ROWS, FILES = 20_000, 20_000, 1_000, 4
PATHS, TENSORS, NUMBERS = 4_000, 256, 10_000_000
ROW_SECONDS: Final = 0.002
MAX_FIRST_SECONDS: Final = 0.5
NEEDED, NEEDED_CPU = 0.95, 0.9


def images() -> Any:
    """Returns a dataset of 20,000 images of 20 kB in Parquet."""
    import arrowflow as af

    folder = data.DATA / "images-20k"
    if not folder.exists():
        rng = np.random.default_rng(0)
        part = folder.with_suffix(".part")
        part.mkdir(parents=True, exist_ok=True)
        for number in range(FILES):
            values = [rng.bytes(IMAGE_BYTES) for _ in range(ROWS // FILES)]
            table = pa.table({"jpeg": pa.array(values, pa.binary()), "label": np.arange(len(values))})
            pq.write_table(table, part / f"{number}.parquet", row_group_size=GROUP_ROWS, compression=None)
        part.rename(folder)
    return af.read_parquet(folder)


def paths() -> Any:
    """Returns a dataset of the paths of 4,000 files."""
    import arrowflow as af

    folder = data.DATA / "paths"
    if not folder.exists():
        part = folder.with_suffix(".part")
        part.mkdir(parents=True, exist_ok=True)
        for number in range(PATHS):
            (part / f"{number:05}.txt").write_bytes(b"x" * 64)
        part.rename(folder)
    return af.list_files(folder / "*.txt")


def tensors() -> Any:
    """Returns a dataset of 256 tensors of a megabyte."""
    import arrowflow as af

    return af.from_numpy({"t": np.ones((TENSORS, MIB // 4), np.float32)})


def decode(columns: dict[str, Any]) -> dict[str, Any]:
    """Makes small images, in 2 ms a row."""
    rows = len(columns["jpeg"])
    time.sleep(ROW_SECONDS * rows)
    return {"image": np.zeros((rows, 64, 64, 3), np.uint8), "label": columns["label"]}


def load(columns: dict[str, Any]) -> dict[str, Any]:
    """Reads the files, and takes 2 ms a row."""
    time.sleep(ROW_SECONDS * len(columns["path"]))
    return {"size": np.array([len(Path(path).read_bytes()) for path in columns["path"]])}


def average(columns: dict[str, Any]) -> dict[str, Any]:
    """Sums each row, and takes 2 ms a row."""
    time.sleep(ROW_SECONDS * len(columns["t"]))
    return {"mean": columns["t"].mean(axis=1)}


DEAR: Final[dict[str, tuple[Callable[[], Any], Callable[..., Any], int]]] = {
    "recipe": (lambda: images().shuffle(10_000), decode, 128),
    "images": (images, decode, 128),
    "paths": (lambda: paths().shuffle(10_000), load, 128),
    "tensors": (tensors, average, 4),
}
CHEAP: Final[dict[str, Callable[[], Any]]] = {
    "numbers": lambda: _range().map(lambda columns: {"y": columns["id"] + 1}, format="numpy"),
    "floats": lambda: _range().map(
        lambda columns: {"y": np.log1p(columns["id"].astype(np.float32))}, format="numpy"
    ),
}


def _range() -> Any:
    import arrowflow as af

    return af.range(NUMBERS)


def _dear(name: str, *, batch_first: bool) -> harness.Contender:
    def measure() -> harness.Measurement:
        import arrowflow as af

        make, function, size = DEAR[name]
        rows = make()
        ds = (
            rows.batch(size).map(function, format="numpy")
            if batch_first
            else rows.map(function, format="numpy").batch(size)
        )
        with iter(ds.with_options(af.Options(ram_budget=BUDGET))) as run:
            watch = harness.Stopwatch()
            count, largest = next(run).num_rows, 0
            first = watch.measurement(count).seconds
            for batch in run:
                count += batch.num_rows
                largest = max(largest, batch.nbytes)
            peak = run.stats().ledger_peak_bytes
            return watch.measurement(count, first_seconds=first, over_bytes=peak - BUDGET - largest)

    return measure


def _cheap(name: str, **options: Any) -> harness.Contender:
    def measure() -> harness.Measurement:
        import arrowflow as af

        ds = CHEAP[name]().batch(64).with_options(af.Options(**options))
        watch = harness.Stopwatch()
        return watch.measurement(sum(batch.num_rows for batch in ds))

    return measure


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns, for each plan, the bar beside its other order, and when its first batch comes."""
    bars = []
    for name in DEAR:
        bars += harness.race_bar(
            rounds, f"pieces: {name}", ours=name, theirs=[f"{name}-batched"], needed=NEEDED
        )
    for name in CHEAP:
        if name in rounds:
            pairs = zip(rounds[name], rounds[f"{name}-whole"], strict=True)
            got = statistics.median(whole.cpu_seconds / ours.cpu_seconds for ours, whole in pairs)
            bars.append(
                harness.Bar(
                    f"pieces: {name}, CPU",
                    f">= {NEEDED_CPU:.2f} x 65,536 rows a call",
                    f"{got:.2f}",
                    got >= NEEDED_CPU,
                    got,
                )
            )
    if "recipe" in rounds:
        first, over = (
            harness.median_extra(rounds["recipe"], which) for which in ("first_seconds", "over_bytes")
        )
        needed = f"<= {MAX_FIRST_SECONDS} s"
        met = first <= MAX_FIRST_SECONDS
        bars.append(harness.Bar("pieces: recipe, first batch", needed, f"{first:.2f} s", met, first))
        shown = f"{over / MIB:+.0f} MiB"
        bars.append(harness.Bar("pieces: recipe, ledger", "<= budget + a chunk", shown, over <= 0))
    return bars


CONTENDERS: Final = {
    **{name: _dear(name, batch_first=False) for name in DEAR},
    **{f"{name}-batched": _dear(name, batch_first=True) for name in DEAR},
    **{name: _cheap(name) for name in CHEAP},
    **{f"{name}-whole": _cheap(name, max_chunk_rows=65_536) for name in CHEAP},
}

if __name__ == "__main__":
    harness.main("pieces", CONTENDERS, judge)
