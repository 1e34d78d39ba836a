"""Tar shards beside the package `webdataset`, and a Delta table beside `deltalake`'s own dataset, each read whole once.

The shards hold images of 20 kB and labels. `webdataset` runs as its pages show it, in a `WebLoader` of two workers, and delivers
lists of bytes. The Delta table has 100 files. It is read with two predicates: statistics answer one for 90 of the files, and the
other needs each file. By hand a `pyarrow.dataset` scans with the same predicate, in Arrow's own threads.
"""

from __future__ import annotations

import importlib.util
import io
import os
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

import arrowflow as af
from benchmarks import data, harness

SHARDS: Final = 8
SHARD_ROWS: Final = 1_000
IMAGE_BYTES: Final = 20_000
BATCH_ROWS: Final = 100
FILES: Final = 100
FILE_ROWS: Final = 50_000
PREDICATES: Final = {"ten files": ("day", 90), "all files": ("amount", 0.7)}
"""A column, and the least of its values that are wanted."""


def _write_shards(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for row in range(SHARD_ROWS):
                for name, content in (("jpg", rng.bytes(IMAGE_BYTES)), ("cls", str(row % 10).encode())):
                    member = tarfile.TarInfo(f"{shard:03}-{row:05}.{name}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))


def _shards() -> list[str]:
    return sorted(map(str, data.made_once("shards-of-tar", _write_shards).iterdir()))


def _write_delta(folder: Path) -> None:
    import deltalake

    rng = np.random.default_rng(0)
    for day in range(FILES):
        columns = {f"x{number}": rng.random(FILE_ROWS, np.float32) for number in range(6)}
        table = {"day": np.full(FILE_ROWS, day), "amount": rng.random(FILE_ROWS), **columns}
        deltalake.write_deltalake(folder, pa.table(table), mode="append")


def _delta() -> str:
    """Returns the path of the table; what is imported here is not measured."""
    import deltalake  # noqa: F401
    import pyarrow.dataset  # noqa: F401

    path = str(data.made_once("delta", _write_delta))
    for _ in af.read_delta(path).filter(pl.col("day") < 0):  # no file has such a row
        pass
    return path


def _summed(watch: harness.Stopwatch, column: str, batches: Iterator[Any], what: str) -> harness.Measurement:
    rows, total = 0, 0.0
    for batch in batches:
        rows += batch.num_rows
        if harness.CHECKING in os.environ:
            total += float(pc.sum(batch[column].cast(pa.float64())).as_py() or 0)
    return watch.measurement(rows, **({f"sum of {what}": total} if harness.CHECKING in os.environ else {}))


def tar_arrowflow() -> harness.Measurement:
    """Reads the shards by arrowflow."""
    paths = _shards()
    data.read_through(paths)
    watch = harness.Stopwatch()
    batches = iter(af.read_webdataset(paths).select("jpg", "cls").batch(BATCH_ROWS))
    return _summed(watch, "cls", batches, "cls")


def tar_webdataset() -> harness.Measurement:
    """Reads the shards by the package, in as many workers as there are cores here."""
    import webdataset

    paths = _shards()
    data.read_through(paths)
    watch = harness.Stopwatch()
    shards: Any = webdataset.WebDataset(paths, shardshuffle=False).to_tuple("jpg", "cls")
    loader = webdataset.WebLoader(
        shards.batched(BATCH_ROWS, collation_fn=webdataset.utils.identity), batch_size=None, num_workers=2
    )
    rows, total = 0, 0.0
    for batch in loader:
        rows += len(batch)
        total += sum(int(label) for _, label in batch)
    return watch.measurement(rows, **({"sum of cls": total} if harness.CHECKING in os.environ else {}))


def delta_arrowflow(column: str, least: float) -> harness.Measurement:
    """Filters the table by arrowflow."""
    import deltalake  # noqa: F401  (imports are not measured)

    path = _delta()
    data.read_through([str(each) for each in Path(path).glob("*.parquet")])
    watch = harness.Stopwatch()
    return _summed(watch, "x0", iter(af.read_delta(path).filter(pl.col(column) >= least)), column)


def delta_by_hand(column: str, least: float) -> harness.Measurement:
    """Filters the table by a dataset of pyarrow."""
    import deltalake

    path = _delta()
    data.read_through([str(each) for each in Path(path).glob("*.parquet")])
    predicate = pc.field(column) >= least  # imports pandas
    files = fs.SubTreeFileSystem(
        path, fs.LocalFileSystem()
    )  # deltalake's own one may end the process at its exit
    watch = harness.Stopwatch()
    dataset = deltalake.DeltaTable(path).to_pyarrow_dataset(filesystem=files)
    return _summed(watch, "x0", iter(dataset.scanner(filter=predicate).to_reader()), column)


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns a bar for each pair."""
    pairs = [("tar shards", "webdataset"), *((f"delta, {name}", "deltalake") for name in PREDICATES)]
    return [
        bar
        for name, package in pairs
        for bar in harness.race_bar(
            rounds, name, ours=f"arrowflow, {name}", theirs=[f"{package}, {name}"], needed=1.0
        )
    ]


CONTENDERS: Final[dict[str, harness.Contender]] = {
    "arrowflow, tar shards": tar_arrowflow,
    **({"webdataset, tar shards": tar_webdataset} if importlib.util.find_spec("webdataset") else {}),
    **{
        f"{title}, delta, {name}": partial(read, *case)
        for name, case in PREDICATES.items()
        for title, read in {"arrowflow": delta_arrowflow, "deltalake": delta_by_hand}.items()
    },
}

if __name__ == "__main__":
    harness.main("sources", CONTENDERS, judge)
