"""Caches: what they cost when they are full, when they are filled, and when four processes fill one together.

* The third epoch over 4 M rows of 40 float32 columns in batches of 8192 that nobody looks at: from memory against a
  loop that slices the same record batches, and from `cache(path)` against a loop that maps one IPC file of the same
  bytes and slices it. The same with every value summed up.
* The first epoch of the wide table, featurised and stacked, with `cache(path)` and without; and how long the disk
  takes for the same bytes, written and flushed plainly.
* Four processes on one folder against one, over a map that computes: who computed what is written down by the map.
* A global shuffle of 10 M rows of 16 float32 side by side, from a finished cache, against reading it in order.

Caches are made in `--folder`, which is `/dev/shm` where there is one: there, the disk keeps up. `--rows` makes all of
it smaller, to see that it works.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks import harness

ROWS: Final = 4_000_000
COLUMNS: Final = 40
CHUNK_ROWS: Final = 65_536
BATCH_ROWS: Final = 8_192
EPOCHS: Final = 5
PROCESSES: Final = 4
COMPUTED_ROWS: Final = 48 * CHUNK_ROWS
WORK: Final = 300  # passes over a chunk: some 75 ms of a core
VECTOR_ROWS: Final = 10_000_000
BLOCK_BYTES: Final = 64 << 20

FOLDER: Final = "ARROWFLOW_BENCHMARK_FOLDER"
LIMIT: Final = "ARROWFLOW_BENCHMARK_ROWS"
CALLS: Final = "ARROWFLOW_BENCHMARK_CALLS"


def folder() -> Path:
    """Returns where caches of this run of the benchmark lie."""
    return Path(os.environ[FOLDER])


@contextmanager
def fresh() -> Iterator[Path]:
    """Makes a folder and removes it."""
    with tempfile.TemporaryDirectory(dir=folder()) as path:
        yield Path(path)


def limited(rows: int) -> int:
    """Returns a number of rows, or what `--rows` makes of it."""
    return min(rows, int(os.environ.get(LIMIT, rows)))


# ------------------------------------------------------------------------------------------- the third epoch


def record_batches() -> Iterator[pa.RecordBatch]:
    """Yields the table: 4 M rows of 40 float32."""
    rng = np.random.default_rng(5)
    rows = limited(ROWS)
    for start in range(0, rows, CHUNK_ROWS):
        count = min(CHUNK_ROWS, rows - start)
        yield pa.record_batch({f"c{index}": rng.random(count, dtype=np.float32) for index in range(COLUMNS)})


def ipc_file() -> str:
    """Returns the path of the table as one IPC file, and brings it into the page cache."""
    from benchmarks import data

    path = folder() / "table.arrow"
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}")
        batches = record_batches()
        first = next(batches)
        with pa.ipc.new_file(str(unfinished), first.schema) as writer:
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)
        unfinished.rename(path)
    data.read_through([str(path)])
    return str(path)


def from_memory() -> harness.Measurement:
    """Measures the epochs from the third on, from memory."""
    import arrowflow as af

    dataset = af.from_arrow(list(record_batches())).cache().batch(BATCH_ROWS)
    return later_epochs(lambda: dataset)


def stored_batches() -> harness.Measurement:
    """The same of batches that are cached as such: each costs what passing on an item costs."""
    import arrowflow as af

    dataset = af.from_arrow(list(record_batches())).batch(BATCH_ROWS).cache()
    return later_epochs(lambda: dataset)


def memory_loop() -> harness.Measurement:
    """Measures a loop over slices of the same record batches."""
    chunks = list(record_batches())
    return later_epochs(lambda: slices(chunks))


def from_disk(*, summed: bool) -> harness.Measurement:
    """Measures the epochs from the third on, from a cache on disk."""
    import arrowflow as af

    batches = af.read_ipc(ipc_file()).cache(str(folder() / "table")).batch(BATCH_ROWS)
    if summed:
        return later_epochs(batches.to_numpy, lambda batch: sum(float(each.sum()) for each in batch.values()))
    return later_epochs(lambda: batches)


def disk_loop(*, summed: bool) -> harness.Measurement:
    """Measures a loop that maps the same bytes and slices them."""
    import pandas  # noqa: F401  (pyarrow imports it at the first `to_numpy`: 0.6 s that are not the loop's)

    path = ipc_file()

    def mapped() -> Iterator[pa.RecordBatch]:
        with pa.memory_map(path) as source:
            reader = pa.ipc.open_file(source)
            yield from slices(reader.get_batch(index) for index in range(reader.num_record_batches))

    if summed:
        return later_epochs(mapped, lambda batch: sum(float(each.to_numpy().sum()) for each in batch.columns))
    return later_epochs(mapped)


def slices(chunks: Any) -> Iterator[pa.RecordBatch]:
    """Yields batches of at most 8192 rows, without a copy."""
    for chunk in chunks:
        for start in range(0, chunk.num_rows, BATCH_ROWS):
            yield chunk.slice(start, BATCH_ROWS)


def later_epochs(make: Callable[[], Any], use: Callable[[Any], float] | None = None) -> harness.Measurement:
    """Measures some epochs after two that are not measured."""
    for _ in range(2):
        for _ in make():
            pass
    total, batches = 0.0, 0
    gc.collect()  # what the imports left behind: 25 to 50 ms, whoever happens to start it
    watch = harness.Stopwatch()
    for _ in range(EPOCHS):
        for batch in make():
            batches += 1
            if use is not None:
                total += use(batch)
    sums = {} if use is None else {"sum of all": total}
    found = watch.measurement(limited(ROWS) * EPOCHS, **sums)
    if batches != EPOCHS * -(-limited(ROWS) // BATCH_ROWS):
        raise AssertionError(f"expected batches of {BATCH_ROWS} rows, got {batches} of {found.rows} rows")
    return found


# ------------------------------------------------------------------------------------------- the first epoch


def first_epoch(*, cached: bool) -> harness.Measurement:
    """Measures the first epoch of the wide table, featurised and stacked."""
    import arrowflow as _  # noqa: F401  (imports are not measured)
    from benchmarks import data, wide

    paths = data.wide()[: -(-limited(ROWS) * data.WIDE_FILES // data.WIDE_ROWS)]
    data.read_through(paths)
    with fresh() as cache:
        watch = harness.Stopwatch()
        dataset = wide.rows(paths)
        if cached:
            dataset = dataset.cache(str(cache))
        rows = sum(batch.num_rows for batch in dataset.batch(BATCH_ROWS))
        found = watch.measurement(rows)
        sizes = [path.stat().st_size for path in cache.rglob("*") if path.is_file()]
    return harness.Measurement(
        found.rows, found.seconds, found.cpu_seconds, {**found.extra, "written": sum(sizes)}
    )


def plain_writing() -> harness.Measurement:
    """Measures how fast as many bytes as the wide table's cache has are written and flushed."""
    rows = limited(ROWS)
    block = np.random.default_rng(3).bytes(BLOCK_BYTES)
    left = rows * COLUMNS * 4
    with fresh() as target:
        watch = harness.Stopwatch()
        number = 0
        while left:
            count = min(left, BLOCK_BYTES)
            with (target / str(number)).open("wb", buffering=0) as file:
                file.write(memoryview(block)[:count])
                os.fsync(file.fileno())
            left -= count
            number += 1
        return watch.measurement(rows)


# ------------------------------------------------------------------------------------------- several processes


def costly(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Computes for some 75 ms, and notes that it did."""
    ids = batch.column("id").to_numpy()
    line = f"{ids[0]}\n".encode()
    calls = os.open(os.environ[CALLS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(calls, line)  # one system call a line: lines of several processes do not mix
    os.close(calls)
    values = ids.astype(np.float64)
    for _ in range(WORK):
        np.sqrt(values, out=values)
        values += 1.0
    return pa.record_batch({"id": batch.column("id"), "x": pa.array(values.astype(np.float32))})


def computed(path: str) -> int:
    """Runs an epoch over the cache in a folder and returns its rows; what a process of `together` does."""
    import arrowflow as af

    dataset = af.range(limited(COMPUTED_ROWS)).map(costly).cache(path, key="costly")
    print("ready", flush=True)
    sys.stdin.readline()
    return sum(batch.num_rows for batch in dataset)


def together(processes: int) -> harness.Measurement:
    """Measures how long some processes take that are started on one empty folder at the same time."""
    rows = limited(COMPUTED_ROWS)
    with fresh() as target:
        calls = target / "calls"
        command = [sys.executable, "-m", "benchmarks.caching", "--process", str(target / "cache")]
        running = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, CALLS: str(calls)},
            )
            for _ in range(processes)
        ]
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        watch = harness.Stopwatch()
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        found = [int(process.communicate()[0]) for process in running]
        measured = watch.measurement(rows)
        firsts = calls.read_text(encoding="ascii").split()
    if found != [rows] * processes:
        raise AssertionError(f"expected {rows} rows in each process, got {found}")
    extra = {**measured.extra, "calls": len(firsts), "chunks": len(set(firsts))}
    return harness.Measurement(rows, measured.seconds, measured.cpu_seconds, extra)


# ------------------------------------------------------------------------------------------- global shuffle


def vectors(*, shuffle: bool) -> harness.Measurement:
    """Measures an epoch over a finished cache of vectors, each batch summed up so that all of it is read."""
    import arrowflow as af
    from benchmarks import data

    rows = limited(VECTOR_ROWS)
    cached = af.read_ipc(data.vectors()).take(rows).cache(str(folder() / "vectors"))
    for _ in range(2):
        for _ in cached:
            pass
    total, memory = 0.0, []
    watch = harness.Stopwatch()
    for batch in (cached.shuffle(seed=7) if shuffle else cached).batch(BATCH_ROWS).to_numpy():
        total += float(batch["x"].sum())
        memory.append(anonymous_bytes())
    half = len(memory) // 2
    growth = max(memory[half:]) - max(memory[: half + 1])
    return watch.measurement(rows, total=total, growth=growth, anonymous=max(memory))


def anonymous_bytes() -> int:
    """Returns the resident memory that is no file's: mapped pages belong to the page cache."""
    try:
        text = Path("/proc/self/statm").read_text(encoding="ascii").split()
    except OSError:  # not Linux
        return 0
    return (int(text[1]) - int(text[2])) * os.sysconf("SC_PAGE_SIZE")


# ------------------------------------------------------------------------------------------- bars


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars."""
    return [
        *_time_bar(rounds, "third epoch from memory", "memory", "memory-loop", 1.5),
        *_time_bar(rounds, "third epoch from disk", "disk", "disk-loop", 2.0),
        *harness.race_bar(
            rounds, "the same, summed", ours="disk-summed", theirs=["disk-loop-summed"], needed=0.9
        ),
        *_writing_bar(rounds),
        *_together_bars(rounds),
        *_shuffle_bars(rounds),
    ]


def _time_bar(
    rounds: harness.Rounds, title: str, ours: str, theirs: str, most: float, note: str = ""
) -> list[harness.Bar]:
    if ours not in rounds or theirs not in rounds:
        return []
    got = 1 / harness.ratio(rounds, ours, theirs)
    seconds = [_seconds(rounds, name) for name in (ours, theirs)]
    shown = f"{seconds[0]:.4f} against {seconds[1]:.4f} s{note}"
    return [harness.Bar(title, f"<= {most:.2f} x {theirs}", shown, got <= most, got)]


def _seconds(rounds: harness.Rounds, name: str) -> float:
    return sorted(one.seconds for one in rounds[name])[len(rounds[name]) // 2]


def _writing_bar(rounds: harness.Rounds) -> list[harness.Bar]:
    """Where plain writing alone takes longer than the bar allows, the disk does not keep up."""
    names = ("first-epoch-cached", "first-epoch", "plain-writing")
    if any(name not in rounds for name in names):
        return []
    disk = _seconds(rounds, "plain-writing")
    keeps_up = disk <= 1.25 * _seconds(rounds, "first-epoch")
    note = f"; the same bytes, plainly: {disk:.2f} s" + ("" if keeps_up else ": the disk does not keep up")
    (bar,) = _time_bar(rounds, "first epoch, writing", *names[:2], 1.25, note)
    return [harness.Bar(bar.name, bar.needed, bar.got, bar.met or not keeps_up, bar.ratio)]


def _together_bars(rounds: harness.Rounds) -> list[harness.Bar]:
    bars = _time_bar(rounds, "four processes, one folder", "four-processes", "one-process", 1.2)
    for name in ("four-processes", "one-process"):
        if name in rounds:
            calls = [int(one.extra["calls"]) for one in rounds[name]]
            chunks = max(int(one.extra["chunks"]) for one in rounds[name])
            shown = f"{max(calls)} calls for {chunks} chunks"
            bars.append(harness.Bar(f"{name}: once", "each chunk once", shown, set(calls) == {chunks}))
    return bars


def _shuffle_bars(rounds: harness.Rounds) -> list[harness.Bar]:
    if "shuffled" not in rounds:
        return []
    growth = harness.median_extra(rounds["shuffled"], "growth") / (1 << 20)
    peak = harness.median_extra(rounds["shuffled"], "anonymous") / (1 << 20)
    shown = f"{growth:+.0f} MiB in the second half of the epoch, {peak:.0f} MiB at most"
    bars = [harness.Bar("shuffle() from disk, memory", "flat (<= 32 MiB)", shown, growth <= 32)]
    return bars + harness.race_bar(
        rounds, "shuffle() from disk", ours="shuffled", theirs=["in-order"], needed=0.3
    )


CONTENDERS: Final[dict[str, harness.Contender]] = {
    "memory": from_memory,
    "memory-stored-batches": stored_batches,
    "memory-loop": memory_loop,
    "disk": lambda: from_disk(summed=False),
    "disk-loop": lambda: disk_loop(summed=False),
    "disk-summed": lambda: from_disk(summed=True),
    "disk-loop-summed": lambda: disk_loop(summed=True),
    "first-epoch": lambda: first_epoch(cached=False),
    "first-epoch-cached": lambda: first_epoch(cached=True),
    "plain-writing": plain_writing,
    "one-process": lambda: together(1),
    "four-processes": lambda: together(PROCESSES),
    "in-order": lambda: vectors(shuffle=False),
    "shuffled": lambda: vectors(shuffle=True),
}


def main() -> None:
    """Runs the benchmark in a folder that is removed afterwards."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--folder", help="where caches are made; default: /dev/shm, or the system's")
    parser.add_argument("--rows", help="at most so many rows")
    parser.add_argument("--process", help=argparse.SUPPRESS)
    arguments, rest = parser.parse_known_args()
    if arguments.process:
        print(computed(arguments.process))
        return
    if arguments.rows:
        os.environ[LIMIT] = arguments.rows
    sys.argv[1:] = rest
    if FOLDER in os.environ and not arguments.folder:
        harness.main("caching", CONTENDERS, judge, rounds=3)
        return
    parent = arguments.folder or ("/dev/shm" if Path("/dev/shm").is_dir() else None)
    with tempfile.TemporaryDirectory(prefix="arrowflow-caching-", dir=parent) as path:
        os.environ[FOLDER] = path
        harness.main("caching", CONTENDERS, judge, rounds=3)


if __name__ == "__main__":
    main()
