"""Four pipelines for a long time, with faults and random ends: `python -m tests.fuzz.soak --minutes 30`.

Each pipeline is run again and again, each time under other budgets. Runs end at the end, by `close`, by being forgotten,
or by an error of a function or of a damaged file. Others go on from a state. The program prints memory, threads and open files
once a minute. It exits with 1 if the memory grows, or if threads or files are left.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import arrowflow as af
from tests.fuzz.good_files import good_files

WARM_UP: Final = 0.25
"""The part of the time whose memory does not count: caches fill, and heaps grow to their size."""

MAX_MIB_A_MINUTE: Final = 1.0
ROWS: Final = 40_000

Make = Callable[[Path, random.Random], af.Dataset]


class Broken(Exception):
    """What functions raise here."""


def sometimes_broken(draw: random.Random) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Returns a function that may fail at some call."""
    calls, fails_at = itertools.count(), draw.choice([None, 0, 3, 10])

    def same(batch: pa.RecordBatch) -> pa.RecordBatch:
        if next(calls) == fails_at:
            raise Broken
        return batch

    return same


def shuffled(folder: Path, draw: random.Random) -> af.Dataset:
    """Parquet files, a filter, computed columns, and a shuffle."""
    ds = af.read_parquet(folder / "good").filter(pl.col("x") > 0.1).with_columns(y=pl.col("x") * 2)
    return ds.map(sometimes_broken(draw)).shuffle(5_000, seed=1).batch(256)


def mixed(folder: Path, draw: random.Random) -> af.Dataset:
    """Two sources of two formats, one cached in memory."""
    cached = af.read_ipc(folder / "mixed.arrow").cache()
    texts = af.read_csv(folder / "mixed.csv", block_bytes="64KiB").map(sometimes_broken(draw))
    return af.sample_from_datasets([cached, texts], weights=[0.7, 0.3], seed=2).batch(100)


def padded(folder: Path, draw: random.Random) -> af.Dataset:
    ds = af.read_json(folder / "lists.json", block_bytes="64KiB").map(sometimes_broken(draw))
    return ds.bucket_by_sequence_length("l", [4, 8], [64, 32, 16])


def damaged(folder: Path, draw: random.Random) -> af.Dataset:
    """A good file, and one of which bytes were changed."""
    name = draw.choice(["zstd.parquet", "snappy.parquet", "flat.parquet"])
    data = bytearray(good_files()["parquet"][name])
    for _ in range(draw.choice([0, 1, 3])):
        data[draw.randrange(len(data))] = draw.randrange(256)
    path = folder / f"damaged-{draw.randrange(4)}.parquet"
    path.write_bytes(data)
    (folder / "whole.parquet").write_bytes(good_files()["parquet"][name])
    return af.read_parquet([folder / "whole.parquet", path]).repeat(3).batch(7)


PIPELINES: Final[dict[str, Make]] = {each.__name__: each for each in (shuffled, mixed, padded, damaged)}


def write_files(folder: Path) -> None:
    values = np.random.default_rng(1).random(ROWS)
    (folder / "good").mkdir()
    for number in range(4):
        part = values[number * ROWS // 4 : (number + 1) * ROWS // 4]
        pq.write_table(
            pa.table({"row": np.arange(len(part)), "x": part}),
            folder / "good" / f"{number}.parquet",
            row_group_size=2_000,
        )
    table = pa.table({"row": np.arange(ROWS), "x": values})
    with pa.ipc.new_file(folder / "mixed.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=4_096)
    (folder / "mixed.csv").write_text("row,x\n" + "".join(f"{i},{x}\n" for i, x in enumerate(values)))
    (folder / "lists.json").write_text("".join(f'{{"l":{list(range(i % 13))}}}\n' for i in range(ROWS // 4)))


def run_once(make: Make, folder: Path, draw: random.Random) -> str:
    """Runs a pipeline, ends it in some way, and returns how it ended."""
    options = af.Options(
        cpu_budget=draw.choice([1, 2, 4]),
        ram_budget=draw.choice(["24MiB", "64MiB", "256MiB"]),
        autotune=draw.random() < 0.8,
    )
    how = draw.choice(["whole", "close", "forget", "resume", "numpy", "thread"])
    steps = draw.randrange(30)
    try:
        ds: Any = make(folder, draw).with_options(options)
        if how == "numpy":
            ds = ds.to_numpy(null="mask", lists="ragged")
        iterator = iter(ds)
        for _ in range(steps):
            if next(iterator, None) is None:
                break
        if how == "whole":
            for _ in iterator:
                pass
        elif how == "close":
            iterator.close()
        elif how == "thread":  # a `next` that another thread ends
            closer = threading.Thread(target=iterator.close)
            closer.start()
            for _ in iterator:
                pass
            closer.join()
        elif how == "resume":
            state = iterator.state_dict()
            iterator.close()
            with iter(ds) as again:
                again.load_state_dict(state)
                next(again, None)
    except af.ArrowflowError as error:
        return type(error).__name__
    return how


def resident() -> int:
    """Returns the memory of this process, once the heap has given back what it can."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def left() -> tuple[list[str], list[str]]:
    """Returns the threads and the open files of pipelines."""
    gc.collect()
    threads = [each.name for each in threading.enumerate() if each.name.startswith("arrowflow")]
    files = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            files.append(str(link.readlink()))
        except OSError:  # the descriptor of the listing itself
            continue
    return threads, sorted(files)


def main() -> int:
    """Runs the pipelines, and returns 1 if something grows or is left."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    draw, ends = random.Random(given.seed), Counter[str]()
    start = time.monotonic()
    samples: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        for make in PIPELINES.values():
            run_once(make, folder, draw)
        before, held = left()[1], pa.total_allocated_bytes()
        printed = start
        while (now := time.monotonic()) < start + 60 * given.minutes:
            for make in PIPELINES.values():
                ends[run_once(make, folder, draw)] += 1
            samples.append(((now - start) / 60, resident() / 2**20))
            if now >= printed + 60:
                printed = now
                print(
                    f"{samples[-1][0]:6.1f} min: {ends.total():,} runs, RSS {samples[-1][1]:.1f} MiB",
                    flush=True,
                )
        threads, files = left()
        bytes_left = pa.total_allocated_bytes() - held
    settled = [each for each in samples if each[0] >= WARM_UP * given.minutes]
    minutes, sizes = np.array(settled).T
    slope = float(np.polyfit(minutes, sizes, 1)[0]) if len(settled) > 1 else 0.0
    more = sorted((Counter(files) - Counter(before)).elements())
    print(f"{ends.total():,} runs: {dict(ends)}")
    print(
        f"RSS slope {slope:+.3f} MiB/min; {len(threads)} threads, {len(more)} files, {bytes_left:,} bytes left"
    )
    return 1 if slope > MAX_MIB_A_MINUTE or threads or more or bytes_left > 2**20 else 0


if __name__ == "__main__":
    sys.exit(main())
