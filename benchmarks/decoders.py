"""Which of the two Parquet decoders is faster, for flat columns of one kind each: what `polars_decoder.suits` rests on.

4 M rows of 8 columns in 4 files, called a file at a time by two threads, with the conversion to record batches. A bar is
met where the decoder that arrowflow picks takes at most 1.1 times as long as the other one.

`one thread` is the largest row group that Polars decodes where its pool is over the CPU budget: a call takes one core.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import harness

ROWS: Final = 1_000_000
COLUMNS: Final = 8
FILES: Final = 4
TIMES: Final = 5
NEEDED: Final = 1.1
MOST_CORES: Final = 1.1
ONE_THREAD: Final = "one thread"
DECODERS: Final = ("polars", "arrow")

KINDS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "float64, plain": ("float64", {"compression": "none", "use_dictionary": False}),
    "float64, snappy": ("float64", {"use_dictionary": False}),
    "float64 with nulls, zstd": ("nulls", {"compression": "zstd"}),
    "float64, BYTE_STREAM_SPLIT": (
        "float64",
        {"compression": "zstd", "use_dictionary": False, "use_byte_stream_split": True},
    ),
    "int64, dictionary": ("int64", {}),
    "int64, DELTA_BINARY_PACKED": (
        "sorted",
        {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"},
    ),
    "int8, dictionary": ("int8", {}),
    "bool": ("bool", {}),
    "date32, dictionary": ("date32", {}),
}


def _column(kind: str, rng: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    if kind in ("float64", "nulls"):
        return pa.array(rng.standard_normal(ROWS), mask=rng.random(ROWS) < 0.1 if kind == "nulls" else None)
    if kind == "sorted":
        return pa.array(np.sort(rng.integers(0, 2**60, ROWS)))
    few = rng.integers(0, 100, ROWS)
    return pa.array(few > 50) if kind == "bool" else pa.array(few.astype(np.int32)).cast(kind)


def _table(kind: str) -> Any:
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(0)
    return pa.table({f"column_{number}": _column(kind, rng) for number in range(COLUMNS)})


def measure(kind: str, decoder: str) -> harness.Measurement:
    """Measures a decoder on files of one kind."""
    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq

    from arrowflow.formats import FORMATS
    from arrowflow.formats.parquet import polars_decoder
    from arrowflow.storage import resolve

    table, options = _table(KINDS[kind][0]), KINDS[kind][1]

    def by_polars(path: str) -> Any:
        scan = pl.scan_parquet(path, glob=False, hive_partitioning=False, use_statistics=False)
        return scan.collect().to_arrow(compat_level=pl.CompatLevel.oldest()).to_batches()

    def by_arrow(path: str) -> Any:
        file = pq.ParquetFile(pa.memory_map(path), pre_buffer=False)
        return file.reader.read_all(use_threads=False).to_batches()

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as threads:
        paths = [str(Path(folder) / f"{number}.parquet") for number in range(FILES)]
        for path in paths:
            pq.write_table(table, path, row_group_size=ROWS // 4, **options)
        decode = by_polars if decoder == "polars" else by_arrow
        list(threads.map(decode, paths))
        watch = harness.Stopwatch()
        for _ in range(TIMES):
            list(threads.map(decode, paths))
        measured = watch.measurement(TIMES * FILES * ROWS)
        store, (file, *_) = resolve(paths, suffixes=(".parquet",), operator="read_parquet")
        footer = FORMATS["parquet"].footer(store, file)
        run = [(footer, split) for split in footer.splits]
        measured.extra["suits"] = float(polars_decoder.suits(store, run, footer.schema.names, 1 << 10))
    return measured


def one_thread() -> harness.Measurement:
    """Measures the cores that a call takes for the largest row group of one thread."""
    import time

    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq

    from arrowflow.formats.parquet.polars_decoder import ONE_THREAD_VALUES

    rows, cores = ONE_THREAD_VALUES // COLUMNS, []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "0.parquet"
        table = _table("float64")
        pq.write_table(pa.concat_tables([table] * 3).slice(0, rows), path, row_group_size=rows)
        watch = harness.Stopwatch()
        for _ in range(TIMES):
            cpu, wall = time.process_time(), time.perf_counter()
            pl.scan_parquet(path, glob=False, hive_partitioning=False, use_statistics=False).collect()
            cores.append((time.process_time() - cpu) / (time.perf_counter() - wall))
        return watch.measurement(TIMES * rows, cores=sorted(cores)[TIMES // 2])


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns a bar for each kind: the time of the decoder that is picked, against the other one; and that of a thread."""
    bars = []
    for kind in KINDS:
        names = [f"{kind}: {decoder}" for decoder in DECODERS]
        if all(name in rounds for name in names):
            picked, other = names if rounds[names[0]][0].extra["suits"] else reversed(names)
            times = harness.ratio(rounds, other, picked)
            needed = f"<= {NEEDED} x the other"
            title = f"{picked}, which is picked"
            bars.append(harness.Bar(title, needed, f"{times:.2f}", times <= NEEDED, times))
    if ONE_THREAD in rounds:
        cores = max(each.extra["cores"] for each in rounds[ONE_THREAD])
        bars.append(
            harness.Bar(
                ONE_THREAD, f"<= {MOST_CORES} cores a call", f"{cores:.2f}", cores <= MOST_CORES, cores
            )
        )
    return bars


CONTENDERS: Final[dict[str, harness.Contender]] = {
    f"{kind}: {decoder}": partial(measure, kind, decoder) for kind in KINDS for decoder in DECODERS
} | {ONE_THREAD: one_thread}

if __name__ == "__main__":
    harness.main("decoders", CONTENDERS, judge, rounds=3)
