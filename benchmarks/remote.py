"""Reads of an S3 server on this machine that answers each request after 50 ms, and fails some.

    python -m benchmarks.remote
    python -m benchmarks.remote --only small small-dataset --rounds 3

* A wide table in files of 50 MB: the rate with latency against the rate without, with 1 % of the requests failed, 0.5 %
  cut and 0.5 % reset against none, through `s3fs` against pyarrow's client, and of one rank of four against the plan that
  is not split. Rates begin after a third of the batches.
  Nothing is kept from epoch to epoch, but in `large-kept`.
* What both clients deliver by themselves, which is the limit of the last one.
* 200 small files against `pyarrow.dataset`.
* 10,000 files: the first batch.
* 1,000 files: `arrowflow inspect`, from the start of its process to the end.

Each contender has a server of its own, in another process, which answers some thousand requests a second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import data, harness

DELAY_SECONDS: Final = 0.05
FAULTS: Final = ("unavailable=0.01", "cut=0.005", "reset=0.005")
BATCH_ROWS: Final = 8_192

LARGE_FILES, LARGE_ROWS, LARGE_COLUMNS, GROUP_ROWS = 12, 320_000, 40, 64_000
EPOCHS, RAM_BUDGET = 8, "512MiB"
THREADS: Final = 24
"""Requests beside each other where a client is measured alone: as many row groups as the budget has room for."""
SMALL_FILES, SMALL_ROWS = 200, 500
SHARDS, INSPECTED = 10_000, 1_000

NEEDED_FAULTS, NEEDED_LATENCY, NEEDED_S3FS, NEEDED_RANK = 0.8, 0.8, 0.8, 0.5
MOST_SMALL, MOST_FIRST_SECONDS = 0.7, 2.0
RANKS: Final = 4
"""So many ranks have 16 lanes, which read 15 of the 60 row groups twice."""
MOST_INSPECT_SECONDS: Final = 5.0


def _write(folder: Path, files: int, rows: int, columns: int, group_rows: int) -> None:
    rng = np.random.default_rng(11)
    for number in range(files):
        table = pa.table({f"c{index}": rng.random(rows, dtype=np.float32) for index in range(columns)})
        path = folder / f"{number:05}.parquet"
        pq.write_table(table, path, row_group_size=group_rows, compression="none", use_dictionary=False)


def _write_shards(files: int, folder: Path) -> None:
    _write(folder, 1, SMALL_ROWS, 10, SMALL_ROWS)
    for number in range(1, files):
        os.link(folder / "00000.parquet", folder / f"{number:05}.parquet")


def _large(folder: Path) -> None:
    _write(folder, LARGE_FILES, LARGE_ROWS, LARGE_COLUMNS, GROUP_ROWS)


def _small(folder: Path) -> None:
    _write(folder, SMALL_FILES, SMALL_ROWS, 10, SMALL_ROWS)


FOLDERS: Final[dict[str, Callable[[Path], None]]] = {
    "remote-large": _large,
    "remote-small": _small,
    "remote-shards": partial(_write_shards, SHARDS),
    "remote-inspected": partial(_write_shards, INSPECTED),
}


@contextmanager
def served(name: str, *faults: str, delay_seconds: float = DELAY_SECONDS) -> Iterator[str]:
    """Serves a folder; yields the address of the server."""
    folder = data.made_once(name, FOLDERS[name])
    command = [sys.executable, "-m", "tests.servers.objects", str(folder), str(delay_seconds), *faults]
    root = Path(__file__).parent.parent
    os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        yield f"127.0.0.1:{int(server.stdout.readline())}"
        server.stdin.close()


def url_of(host: str, name: str) -> str:
    """Returns the URL of a folder."""
    return f"s3://bucket/{name}?region=us-east-1&scheme=http&endpoint_override={host}"


def s3fs_of(host: str) -> Any:
    """Returns a client as a user makes it who knows of its connections."""
    import s3fs

    return s3fs.S3FileSystem(
        client_kwargs={"endpoint_url": f"http://{host}"}, config_kwargs={"max_pool_connections": 64}
    )


def large(
    *faults: str,
    delay_seconds: float = DELAY_SECONDS,
    by_s3fs: bool = False,
    keeps: bool = False,
    ranks: int = 1,
) -> harness.Measurement:
    """Measures some epochs over large files, after a third of all batches.

    All rows have room in memory if it `keeps` them. With several `ranks` it is the first of them, and reads its part of
    as many epochs more.
    """
    import arrowflow as af

    with served("remote-large", *faults, delay_seconds=delay_seconds) as host:
        ds = (
            af.read_parquet("bucket/remote-large", filesystem=s3fs_of(host))
            if by_s3fs
            else af.read_parquet(url_of(host, "remote-large"))
        )
        epochs = EPOCHS * ranks
        batches = epochs * LARGE_FILES * LARGE_ROWS // BATCH_ROWS
        rows, total, watch = 0, 0.0, harness.Stopwatch()
        ds = ds.repeat(epochs).batch(BATCH_ROWS, drop_remainder=True)
        kept = af.Options(ram_budget="2GiB") if keeps else af.Options(ram_budget=RAM_BUDGET, keep=False)
        ds = ds.with_options(kept)
        iterator = iter(ds.split_by_rank(0, ranks) if ranks > 1 else ds)
        for number, batch in enumerate(iterator):
            if number == batches // 3:
                rows, watch = 0, harness.Stopwatch()
            rows += batch.num_rows
            total += float(batch.column(0)[0].as_py())
        found = watch.measurement(rows, total=total, retries=float(sum(iterator.stats().retries.values())))
    if rows != (batches - batches // 3) * BATCH_ROWS // ranks:
        raise AssertionError(f"expected {batches - batches // 3} batches, got {rows} rows")
    return found


def bytes_alone(*, by_s3fs: bool = False) -> harness.Measurement:
    """Measures what a client itself delivers of the same files: ranges as large as row groups, which nobody decodes."""
    import pyarrow.fs as pafs

    pa.set_io_thread_count(THREADS)
    paths = [f"bucket/remote-large/{number:05}.parquet" for number in range(LARGE_FILES)]
    size = GROUP_ROWS * LARGE_COLUMNS * 4
    starts = range(0, LARGE_ROWS // GROUP_ROWS * size, size)
    with served("remote-large") as host, ThreadPoolExecutor(THREADS) as pool:
        if by_s3fs:
            client = s3fs_of(host)
            calls = [
                partial(client.cat_file, path, start=start, end=start + size)
                for path in paths
                for start in starts
            ]
        else:
            client = pafs.FileSystem.from_uri(url_of(host, "remote-large"))[0]
            handles = [client.open_input_file(path) for path in paths]
            calls = [partial(handle.read_at, size, start) for handle in handles for start in starts]
        watch = harness.Stopwatch()
        sizes = pool.map(lambda call: len(call()), EPOCHS * calls)
        return watch.measurement(sum(sizes) // (LARGE_COLUMNS * 4))


def small() -> harness.Measurement:
    """Measures an epoch over small files."""
    import arrowflow as af

    with served("remote-small") as host:
        watch = harness.Stopwatch()
        return watch.measurement(
            sum(batch.num_rows for batch in af.read_parquet(url_of(host, "remote-small")).batch(BATCH_ROWS))
        )


def small_dataset() -> harness.Measurement:
    """Measures the same by `pyarrow.dataset`, with as many I/O threads as this library has connections."""
    import pyarrow.dataset

    pa.set_io_thread_count(128)
    with served("remote-small") as host:
        watch = harness.Stopwatch()
        dataset = pyarrow.dataset.dataset(url_of(host, "remote-small"))
        return watch.measurement(sum(batch.num_rows for batch in dataset.to_batches(batch_size=BATCH_ROWS)))


def shards() -> harness.Measurement:
    """Measures the first batch of many files."""
    import arrowflow as af

    with served("remote-shards") as host:
        watch = harness.Stopwatch()
        with iter(af.read_parquet(url_of(host, "remote-shards")).batch(SMALL_ROWS)) as iterator:
            return watch.measurement(next(iterator).num_rows)


def inspect() -> harness.Measurement:
    """Measures the command that reads the footers of many files."""
    with served("remote-inspected") as host:
        command = [sys.executable, "-m", "arrowflow", "inspect", url_of(host, "remote-inspected"), "--json"]
        watch = harness.Stopwatch()
        found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        if found["rows"] != INSPECTED * SMALL_ROWS:
            raise AssertionError(f"expected {INSPECTED * SMALL_ROWS} rows, got {found['rows']}")
        return watch.measurement(found["files"])


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars."""
    races = [
        ("50 ms with faults", "large-faults", "large", NEEDED_FAULTS),
        ("50 ms", "large", "large-at-once", NEEDED_LATENCY),
        ("50 ms through s3fs", "large-s3fs", "large", NEEDED_S3FS),
        (f"50 ms, one of {RANKS} ranks", "large-rank", "large", NEEDED_RANK),
    ]
    bars = [
        bar for title, ours, theirs, needed in races for bar in _race(rounds, title, ours, theirs, needed)
    ]
    if {"large-kept", "large"} <= rounds.keys():
        gain, shown = harness.ratio(rounds, "large-kept", "large"), _rates(rounds, "large-kept", "large")
        bars.append(harness.Bar("50 ms, kept from epoch to epoch", "no bar", shown, True, gain))
    if {"bytes-s3fs", "bytes"} <= rounds.keys():
        limit = harness.ratio(rounds, "bytes-s3fs", "bytes")
        shown = _rates(rounds, "bytes-s3fs", "bytes")
        bars.append(harness.Bar("the clients alone, s3fs against pyarrow's", "no bar", shown, True, limit))
    if {"small", "small-dataset"} <= rounds.keys():
        share = 1 / harness.ratio(rounds, "small", "small-dataset")
        shown = f"{_seconds(rounds, 'small'):.2f} against {_seconds(rounds, 'small-dataset'):.2f} s"
        needed = f"<= {MOST_SMALL:g} x pyarrow.dataset"
        bars.append(harness.Bar("200 small files at 50 ms", needed, shown, share <= MOST_SMALL, share))
    for name, title, most in (
        ("shards", "first batch of 10,000 files at 50 ms", MOST_FIRST_SECONDS),
        ("inspect", "arrowflow inspect of 1,000 files at 50 ms", MOST_INSPECT_SECONDS),
    ):
        if name in rounds:
            seconds = _seconds(rounds, name)
            bars.append(harness.Bar(title, f"<= {most:g} s", f"{seconds:.2f} s", seconds <= most))
    return bars


def _race(rounds: harness.Rounds, title: str, ours: str, theirs: str, needed: float) -> list[harness.Bar]:
    if not {ours, theirs} <= rounds.keys():
        return []
    got = harness.ratio(rounds, ours, theirs)
    shown = _rates(rounds, ours, theirs)
    retries = harness.median_extra(rounds[ours], "retries")
    return [
        harness.Bar(title, f">= {needed:g} x {theirs}", f"{shown}; {retries:.0f} retries", got >= needed, got)
    ]


def _rates(rounds: harness.Rounds, ours: str, theirs: str) -> str:
    return f"{harness.millions(rounds, ours)} against {harness.millions(rounds, theirs)} M rows/s"


def _seconds(rounds: harness.Rounds, name: str) -> float:
    return sorted(one.seconds for one in rounds[name])[len(rounds[name]) // 2]


CONTENDERS: Final[dict[str, harness.Contender]] = {
    "large-at-once": lambda: large(delay_seconds=0.0),
    "large": large,
    "large-faults": lambda: large(*FAULTS),
    "large-s3fs": lambda: large(by_s3fs=True),
    "large-kept": lambda: large(keeps=True),
    "large-rank": lambda: large(ranks=RANKS),
    "bytes": bytes_alone,
    "bytes-s3fs": lambda: bytes_alone(by_s3fs=True),
    "small": small,
    "small-dataset": small_dataset,
    "shards": shards,
    "inspect": inspect,
}

if __name__ == "__main__":
    harness.main("remote", CONTENDERS, judge, rounds=3)
