"""The pipelines of the autotuner's bars: their data, a remote file system, functions of every cost, and the grid.

A pipeline is `read_parquet`, some maps and a `batch`, with every number left to the tuner or given by `Settings`.
Runs end by the clock and not with the data, so the same files are listed many times: a setting that is 30 times as
slow as another one is measured for as long. Costs are counts of work, not times, except where a function waits.
"""

from __future__ import annotations

import io
import itertools
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.memory import SCRATCH

Columns = Mapping[str, NDArray[Any]]
Function = Callable[[Columns], dict[str, NDArray[Any]]]

LATENCY_SECONDS: Final = 0.02
# Of a read that is none: 64 of 20 ms at a time would take all of two cores to decode.
STRAGGLER_SECONDS: Final = 0.04
STRAGGLER_SHARE: Final = 0.05
STRAGGLER_TIMES: Final = 20
SINES: Final = 64  # over 16,384 float64: about 10 ms on the machine where this was written
LOOPS: Final = 120_000  # of Python: about 6 ms there
INFLATION: Final = 50
WAIT_SECONDS: Final = 0.02
STEP_SECONDS: Final = 0.015  # the consumer's; both cores together deliver nearly three times as fast
SLOWER_TIMES: Final = 5

SMALL_ROWS: Final = 512  # a row group that costs next to nothing to decode
PLAIN_ROWS: Final = 16_384
DECODED_ROWS: Final = 65_536
WIDE_ROWS: Final = 131_072  # with 20 columns over the 2 M values from which Polars decodes
DECODED_COLUMNS: Final = 12
WIDE_COLUMNS: Final = 20
SHARD_ROWS: Final = (500, 200_000, 500, 8_000, 1_000, 60_000, 500, 3_000, 500, 20_000, 500, 500)

LOCAL_CALLS: Final = (1, 2, 4)
REMOTE_CALLS: Final = (1, 2, 4, 8, 16, 32)
COMPUTING_CALLS: Final = (1, 2, 4)
WAITING_CALLS: Final = (4, 8, 16, 32)  # 1 and 2 cannot be the best of a function that only waits
PREFETCHED: Final = (2, 8)


# ---------------------------------------------------------------- data


@dataclass(frozen=True, slots=True)
class Files:
    """What a pipeline reads.

    Attributes:
        paths: Paths, many of them several times.
        filesystem: Where they lie; None for this machine.
    """

    paths: list[str]
    filesystem: Any = None

    def read_through(self) -> None:
        """Brings the files into the page cache."""
        data.read_through(sorted(set(self.paths)))

    def remote(self, latency: Callable[[str, int], float]) -> Files:
        """Returns the same files behind a file system whose reads take `latency(path, offset)` seconds."""
        return replace(self, filesystem=SlowFileSystem(latency))


def _files(name: str, write: Callable[[Path], None], *, times: int) -> Files:
    folder = data.made_once(f"autotune-{name}", write)
    return Files(data._parquet_files(folder) * times)


def decoded() -> Files:
    """Returns compressed files: 32 row groups of 65,536 rows and 12 columns, about 10 ms of decoding each."""
    return _files("decoded", lambda to: _write_decoded(to, 4, 8, DECODED_ROWS, DECODED_COLUMNS), times=80)


def wide() -> Files:
    """Returns compressed files: 8 row groups of 131,072 rows and 20 columns."""
    return _files("wide", lambda to: _write_decoded(to, 2, 4, WIDE_ROWS, WIDE_COLUMNS), times=120)


def plain() -> Files:
    """Returns uncompressed files: 128 row groups of 16,384 rows and two columns, under 1 ms of decoding each."""
    return _files("plain", lambda to: _write_plain(to, 4, 32, PLAIN_ROWS), times=160)


def small() -> Files:
    """Returns uncompressed files: 8,192 row groups of 512 rows, so that few footers come between them."""
    return _files("small", lambda to: _write_plain(to, 4, 2048, SMALL_ROWS), times=8)


def skewed() -> Files:
    """Returns 3,600 shards of 500 to 200,000 rows. Twelve sizes take turns, so that every moment has all of them."""
    return _files("skewed", lambda to: _write_skewed(to, 300), times=1)


def _write_decoded(folder: Path, files: int, groups: int, rows: int, columns: int) -> None:
    for number in range(files):
        table = _compressible(np.random.default_rng((11, number)), groups * rows, columns)
        pq.write_table(table, folder / f"part-{number:02}.parquet", compression="zstd", row_group_size=rows)


def _compressible(rng: np.random.Generator, rows: int, columns: int) -> pa.Table:
    """Returns as many float32 as int32 columns; half the bytes are left when they are compressed."""
    made: dict[str, Any] = {}
    for column in range(columns // 2):
        made[f"price_{column}"] = (rng.lognormal(3.0, 1.0, rows) * 100).round().astype(np.float32)
        made[f"code_{column}"] = (rng.zipf(1.3, rows) % 100_000).astype(np.int32)
    return pa.table(made)


def _write_plain(folder: Path, files: int, groups: int, rows: int) -> None:
    for number in range(files):
        rng = np.random.default_rng((12, number))
        ids = np.arange(groups * rows) + number * groups * rows
        table = pa.table({"id": ids, "value": rng.random(groups * rows)})
        path = folder / f"part-{number:02}.parquet"
        pq.write_table(table, path, compression="none", use_dictionary=False, row_group_size=rows)


def _write_skewed(folder: Path, times: int) -> None:
    """Writes each shard once, and links the others: sorted paths must come size by size, again and again."""
    for shard, rows in enumerate(SHARD_ROWS):
        table = _compressible(np.random.default_rng((13, shard)), rows, DECODED_COLUMNS)
        first = folder / f"000-{shard:02}.parquet"
        pq.write_table(table, first, compression="zstd", row_group_size=100_000)
        for time_over in range(1, times):
            os.link(first, folder / f"{time_over:03}-{shard:02}.parquet")


# ---------------------------------------------------------------- a remote file system


class SlowFileSystem(fsspec.AbstractFileSystem):
    """Local files, each read of which takes as long as it would from far away, without using a core.

    Listing takes no time. `reads` has begin and end of every read of a range, by `time.perf_counter`: those of row
    groups, but not those of footers, which come through `open`.
    """

    protocol = "slow"
    cachable = False

    def __init__(self, latency: Callable[[str, int], float]) -> None:
        super().__init__()
        self.latency = latency
        self.reads: list[tuple[float, float]] = []

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Returns name and size; never sleeps."""
        return {"name": path, "size": Path(path).stat().st_size, "type": "file"}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Returns a range, late."""
        began = time.perf_counter()
        first = start or 0
        time.sleep(self.latency(path, first))
        with Path(path).open("rb", buffering=0) as file:
            file.seek(first)
            found = file.read(-1 if end is None else end - first)
        self.reads.append((began, time.perf_counter()))
        return found

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> io.FileIO:
        return _SlowFile(path)


class _SlowFile(io.FileIO):
    """A file whose reads take the usual latency."""

    def read(self, size: int | None = -1, /) -> bytes:
        time.sleep(LATENCY_SECONDS)
        return super().read(-1 if size is None else size)


def steady(path: str, offset: int) -> float:
    """Returns the same latency for every read."""
    return LATENCY_SECONDS


def straggling(path: str, offset: int) -> float:
    """Returns a latency that is 20 times as long for 5 % of the reads, always the same ones."""
    share = zlib.crc32(f"7 {Path(path).name} {offset}".encode()) / 2**32
    return STRAGGLER_SECONDS * (STRAGGLER_TIMES if share < STRAGGLER_SHARE else 1)


# ---------------------------------------------------------------- functions


def cheap(columns: Columns) -> dict[str, NDArray[Any]]:
    """Costs tens of microseconds."""
    return {"id": columns["id"], "value": columns["value"] * 2.0 + 1.0}


def computing(sines: int) -> Function:
    """Returns a function that computes in NumPy, without the interpreter lock."""

    def sine(columns: Columns) -> dict[str, NDArray[Any]]:
        rows = len(columns["value"])
        value = np.resize(columns["value"], max(rows, PLAIN_ROWS))  # shorter loops fight for the lock
        for _ in range(sines):
            np.sin(value, out=value)
        return {"id": columns["id"], "value": value[:rows]}

    return sine


def interpreted(columns: Columns) -> dict[str, NDArray[Any]]:
    """Computes in Python: holds the interpreter lock."""
    total = 0
    for number in range(LOOPS):
        total += number & 7
    return {"id": columns["id"], "value": columns["value"] + total}


def inflating(columns: Columns) -> dict[str, NDArray[Any]]:
    """Makes 50 rows of each."""
    value = np.repeat(columns["value"].astype(np.float32), INFLATION)
    return {"id": np.repeat(columns["id"], INFLATION), "value": np.sin(value, out=value)}


def waiting(seconds: float) -> Function:
    """Returns a function that waits, as for an answer from far away, and uses no core."""

    def wait(columns: Columns) -> dict[str, NDArray[Any]]:
        time.sleep(seconds)
        return dict(columns)

    return wait


def changing(first: Function, later: Function, phase_seconds: float) -> Function:
    """Returns a function that is `first`, then `later`, and so on, by the time since its first call."""
    began: list[float] = []

    def change(columns: Columns) -> dict[str, NDArray[Any]]:
        began.append(time.perf_counter())
        phase = int((began[-1] - began[0]) / phase_seconds)
        return (later if phase % 2 else first)(columns)

    return change


# ---------------------------------------------------------------- pipelines


@dataclass(frozen=True, slots=True)
class Settings:
    """Numbers for everything that could be tuned.

    Attributes:
        read: Row groups read at the same time.
        maps: Calls at the same time, of each map.
        prefetch: Batches made before they are asked for.
    """

    read: int
    maps: tuple[int, ...]
    prefetch: int

    @property
    def label(self) -> str:
        """A name for command lines and tables."""
        return "-".join((f"r{self.read}", *(f"m{calls}" for calls in self.maps), f"p{self.prefetch}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One pipeline, and the settings that may be the best ones for it.

    Attributes:
        files: Makes, or finds, what it reads.
        maps: Functions, upstream first.
        batch_rows: Rows of a batch.
        reads: Calls of the source that are tried.
        calls: Calls of each map that are tried.
        step_seconds: What the consumer takes for each batch, without using a core.
        largest_chunk_bytes: The largest chunk, with what making it takes.
    """

    files: Callable[[], Files]
    maps: tuple[Function, ...] = ()
    batch_rows: int = PLAIN_ROWS
    reads: tuple[int, ...] = LOCAL_CALLS
    calls: tuple[int, ...] = COMPUTING_CALLS
    step_seconds: float = 0.0
    largest_chunk_bytes: int = 0

    def dataset(self, files: Files, settings: Settings | None, **options: Any) -> Any:
        """Returns the dataset; without settings everything is left to the tuner."""
        import arrowflow as af

        calls = (af.AUTOTUNE,) * (1 + len(self.maps)) if settings is None else (settings.read, *settings.maps)
        dataset = af.read_parquet(files.paths, filesystem=files.filesystem, num_parallel_calls=calls[0])
        for function, number in zip(self.maps, calls[1:], strict=True):
            dataset = dataset.map(function, format="numpy", num_parallel_calls=number)
        dataset = dataset.batch(self.batch_rows, drop_remainder=True)
        if settings is not None:
            dataset = dataset.prefetch(settings.prefetch)
        return dataset.with_options(af.Options(autotune=settings is None, **options))

    def grid(self) -> Iterator[Settings]:
        """Yields the fixed settings that are compared."""
        for read, prefetch in itertools.product(self.reads, PREFETCHED):
            for maps in itertools.product(self.calls, repeat=len(self.maps)):
                yield Settings(read, maps, prefetch)


def _remote() -> Files:
    return small().remote(steady)


def straggler(row_groups: int) -> Pipeline:
    """Returns a pipeline that only reads: one remote file, once, some of whose row groups are very far away."""
    name = f"straggler-{row_groups}"

    def remote() -> Files:
        return _files(name, lambda to: _write_plain(to, 1, row_groups, SMALL_ROWS), times=1).remote(
            straggling
        )

    return Pipeline(files=remote, batch_rows=SMALL_ROWS)


PIPELINES: Final[dict[str, Pipeline]] = {
    "decode": Pipeline(
        files=decoded, batch_rows=8192, largest_chunk_bytes=SCRATCH * 4 * DECODED_ROWS * DECODED_COLUMNS
    ),
    "decode-wide": Pipeline(
        files=wide, batch_rows=8192, largest_chunk_bytes=SCRATCH * 4 * WIDE_ROWS * WIDE_COLUMNS
    ),
    "latency": Pipeline(files=_remote, batch_rows=SMALL_ROWS, reads=REMOTE_CALLS),
    "cheap-map": Pipeline(files=plain, maps=(cheap,)),
    "numpy-map": Pipeline(files=plain, maps=(computing(SINES),)),
    "python-map": Pipeline(files=plain, maps=(interpreted,)),
    "inflating-map": Pipeline(
        files=plain,
        maps=(inflating,),
        batch_rows=5 * PLAIN_ROWS,
        largest_chunk_bytes=(8 + 4) * INFLATION * PLAIN_ROWS,
    ),
    "skewed": Pipeline(files=skewed, batch_rows=8192),
    "slow-consumer": Pipeline(files=plain, maps=(computing(SINES),), step_seconds=STEP_SECONDS),
    "two-stages": Pipeline(files=plain, maps=(computing(SINES // 4), computing(SINES)), reads=(1, 2)),
    "latency-map": Pipeline(
        files=_remote, maps=(computing(SINES // 3),), batch_rows=SMALL_ROWS, reads=REMOTE_CALLS
    ),
}
"""Those of the bar on throughput."""

PHASES: Final[dict[str, tuple[Function, Function]]] = {
    "waiting": (waiting(WAIT_SECONDS), waiting(SLOWER_TIMES * WAIT_SECONDS)),
    "numpy": (computing(SINES // 4), computing(SLOWER_TIMES * SINES // 4)),
}
"""Functions that become slower in mid-run and recover: as they begin, and slower."""


def _phased(kind: str, function: Function) -> Pipeline:
    if kind == "waiting":
        return Pipeline(files=small, maps=(function,), batch_rows=SMALL_ROWS, reads=(2,), calls=WAITING_CALLS)
    return Pipeline(files=plain, maps=(function,), reads=(2,))


STEADY: Final[dict[str, Pipeline]] = {
    f"{kind}-{speed}": _phased(kind, function)
    for kind, functions in PHASES.items()
    for speed, function in zip(("fast", "slow"), functions, strict=True)
}
"""What a pipeline with a changing map is compared with: the same one with a map that stays as it is in one phase."""


def load_change(kind: str, phase_seconds: float) -> Pipeline:
    """Returns a pipeline whose map becomes slower after one phase and recovers after two."""
    return _phased(kind, changing(*PHASES[kind], phase_seconds))
