"""The benchmarks' data: made once, seeded, kept under `benchmarks/data/` (ignored by git)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DATA: Final = Path(__file__).parent / "data"

WIDE_ROWS: Final = 4_000_000
WIDE_FILES: Final = 16
WIDE_ROW_GROUP_ROWS: Final = 125_000
DENSE: Final = tuple(f"dense_{i}" for i in range(13))
SPARSE: Final = tuple(f"sparse_{i}" for i in range(26))
NULL_SHARE: Final = 0.1


def lineitem(*, scale_factor: int = 2, parts: int = 16) -> list[str]:
    """Returns the paths of TPC-H `lineitem` shards, in sorted order."""
    folder = _made_once(
        f"lineitem-sf{scale_factor}-{parts}", lambda to: _write_lineitem(to, scale_factor, parts)
    )
    return _parquet_files(folder / "lineitem")


def wide() -> list[str]:
    """Returns the paths of 4 M rows of a recommender's table: 13 nullable float32, 26 int32, a label."""
    return _parquet_files(_made_once("wide", _write_wide))


def shards(number: int, *, rows: int = 1_000) -> list[str]:
    """Returns the paths of `number` small Parquet files with the columns `id` and `value`."""
    return _parquet_files(_made_once(f"shards-{number}", lambda to: _write_shards(to, number, rows)))


def read_through(paths: list[str]) -> None:
    """Brings the files into the page cache."""
    for path in paths:
        with Path(path).open("rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


def _made_once(name: str, write: Callable[[Path], None]) -> Path:
    folder = DATA / name
    if not folder.exists():
        unfinished = DATA / f"{name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        print(f"writing {folder} ...", file=sys.stderr, flush=True)
        write(unfinished)
        unfinished.rename(folder)
    return folder


def _parquet_files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.glob("*.parquet"))


def _write_lineitem(folder: Path, scale_factor: int, parts: int) -> None:
    command = [str(Path(sysconfig.get_path("scripts")) / "tpchgen-cli"), "parquet", "--quiet"]
    command += [f"--scale-factor={scale_factor}", f"--parts={parts}", "--tables=lineitem"]
    subprocess.run([*command, f"--output-dir={folder}"], check=True)


def _write_wide(folder: Path) -> None:
    rows = WIDE_ROWS // WIDE_FILES
    for number in range(WIDE_FILES):
        table = _wide_table(np.random.default_rng((7, number)), rows)
        path = folder / f"part-{number:03}.parquet"
        pq.write_table(table, path, compression="zstd", row_group_size=WIDE_ROW_GROUP_ROWS)


def _wide_table(rng: np.random.Generator, rows: int) -> pa.Table:
    columns: dict[str, pa.Array] = {"label": pa.array(rng.integers(0, 2, rows, dtype=np.int32))}
    for name in DENSE:
        values = rng.lognormal(1.0, 1.0, rows).astype(np.float32)
        columns[name] = pa.array(values, mask=rng.random(rows) < NULL_SHARE)
    for name in SPARSE:
        columns[name] = pa.array((rng.zipf(1.2, rows) % 1_000_000).astype(np.int32))
    return pa.table(columns)


def _write_shards(folder: Path, number: int, rows: int) -> None:
    rng = np.random.default_rng(number)
    for shard in range(number):
        ids = np.arange(shard * rows, (shard + 1) * rows)
        table = pa.table({"id": ids, "value": rng.random(rows, dtype=np.float32)})
        pq.write_table(table, folder / f"shard-{shard:05}.parquet")
