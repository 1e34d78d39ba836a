"""Ill-laid files: what `arrowflow doctor` promises of each fault, and what `arrowflow rewrite` then gives.

Ten datasets of the same rows have one fault each, or two. The doctor has to name it. The gain that it promises is compared with
that of the whole dataset. Epochs before and after the command that it shows are read in turns, and the shortest of each counts.
Two findings are not among the faults, since their cures gain at most 1.25 on two cores, which the doctor tells only sometimes.
Encodings: two million rows are read at most 1.2 times as fast without BYTE_STREAM_SPLIT, DELTA_BYTE_ARRAY or DELTA_BINARY_PACKED.
Whole numbers under snappy are read 2.9 times as fast with the last one. Few row groups: a large one is decoded by several calls.

Beside it, `rewrite` races the writer of `pyarrow.dataset` over the same files, with the same codec and row groups.
"""

from __future__ import annotations

import json
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as pds
import pyarrow.parquet as pq

from benchmarks import data, harness

ROWS: Final = 2_000_000
FEW_ROWS: Final = 200_000
"""Of tiny files and of text, which are slow to read."""
TURNS: Final = 7
WITHIN: Final = 0.3
NEEDED: Final = 0.8
GROUP_ROWS: Final = 131_072


def _table(rows: int) -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "id": np.arange(rows),
            "price": rng.normal(100, 20, rows).round(2),
            "feature": rng.normal(size=rows).astype(np.float32),
            "shop": rng.integers(0, 1000, rows, dtype=np.int32),
            "word": pa.array([f"word {number}" for number in range(1000)]).take(
                pa.array(rng.integers(0, 1000, rows))
            ),
        }
    )


def _one(folder: Path, table: pa.Table | None = None, **options: Any) -> None:
    """Writes files of four row groups each, sound but for what is given."""
    rows = _table(ROWS) if table is None else table
    given = {"compression": "snappy", "row_group_size": GROUP_ROWS, **options}
    each = -(-rows.num_rows // 4)
    for number in range(4):
        pq.write_table(rows.slice(number * each, each), folder / f"{number}.parquet", **given)


def _tiny_files(folder: Path) -> None:
    rows, each = _table(FEW_ROWS), 500
    for number in range(FEW_ROWS // each):
        pq.write_table(rows.slice(number * each, each), folder / f"{number:04}.parquet", compression="snappy")


def _skewed(folder: Path) -> None:
    rows, small = _table(ROWS), 20_000
    for number in range(20):
        pq.write_table(
            rows.slice(number * small, small), folder / f"{number:02}.parquet", compression="snappy"
        )
    pq.write_table(rows.slice(20 * small), folder / "20.parquet", compression="snappy", row_group_size=ROWS)


def _huge(folder: Path) -> None:
    wide = pa.table({f"x{number}": np.random.default_rng(number).normal(size=ROWS) for number in range(20)})
    pq.write_table(wide, folder / "0.parquet", compression="snappy", row_group_size=ROWS)


def _lists(folder: Path, **options: Any) -> None:
    values = np.random.default_rng(0).normal(size=ROWS // 8 * 64).astype(np.float32)
    offsets = np.arange(0, len(values) + 1, 64, dtype=np.int32)
    _one(folder, pa.table({"v": pa.ListArray.from_arrays(offsets, values)}), **options)


def _text(folder: Path) -> None:
    pyarrow.csv.write_csv(_table(FEW_ROWS), folder / "0.csv")


FAULTS: Final[dict[str, Callable[[Path], None]]] = {
    "tiny-files": _tiny_files,
    "tiny-row-groups": partial(_one, row_group_size=500),
    "huge-row-groups": _huge,
    "skew": _skewed,
    "no-bounds": partial(_one, write_statistics=False),
    "compression": partial(_one, compression="gzip"),
    "tiny-row-groups, compression": partial(_one, row_group_size=500, compression="gzip"),
    "fixed-size-lists": _lists,
    "fixed-size-lists, compression": partial(_lists, compression="gzip"),
    "text": _text,
}
"""By the names of the findings."""


def _folder(name: str, make: Callable[[Path], None]) -> Path:
    folder = data.DATA / f"layout-{name}"
    if not folder.exists():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        make(part)
        part.rename(folder)
    return folder


def _arrowflow(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "arrowflow", *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in (0, 1):  # 1: something was found
        raise SystemExit(f"arrowflow {shlex.join(arguments)} ended with {done.returncode}")
    return done.stdout


def _epoch(folder: Path) -> float:
    import arrowflow as af

    read = af.read_csv if any(folder.glob("*.csv")) else af.read_parquet
    began = time.perf_counter()
    for _ in read(folder):
        pass
    return time.perf_counter() - began


def doctor(name: str) -> harness.Measurement:
    """Measures a fault: what is promised, and what is got."""
    source = _folder(name, FAULTS[name])
    target = data.DATA / f"layout-{name}-cured"
    shutil.rmtree(target, ignore_errors=True)
    data.read_through([str(path) for path in sorted(source.iterdir())])
    watch = harness.Stopwatch()
    (report,) = json.loads(_arrowflow("doctor", str(source), "--json"))
    measured = watch.measurement(report["rows"])
    found = [finding["name"] for finding in report["findings"]]
    if report["cure"] is None:
        raise SystemExit(f"doctor: {name} is not found, but {found}")
    _arrowflow(*(str(target) if word == "DST" else word for word in shlex.split(report["cure"])[1:]))
    _epoch(source), _epoch(target)  # imports, and the page cache
    before, after = (
        min(each) for each in zip(*((_epoch(source), _epoch(target)) for _ in range(TURNS)), strict=True)
    )
    planted = set(name.split(", "))
    extra = {"found": float(planted.issubset(found)), "others": float(len(set(found) - planted))}
    extra |= {"promised": report["gain"], "got": before / after}
    return harness.Measurement(measured.rows, measured.seconds, measured.cpu_seconds, extra)


# ---------------------------------------------------------------- rewrite


def _sound() -> Path:
    return _folder("sound", _one)


def rewrite() -> harness.Measurement:
    """Measures `arrowflow rewrite`; a small one before it imports what it needs."""
    source, target = _sound(), data.DATA / "layout-rewritten"
    few = _folder("few", lambda folder: pq.write_table(_table(1000), folder / "0.parquet"))
    _rewrite(few, target)
    data.read_through([str(path) for path in sorted(source.iterdir())])
    watch = harness.Stopwatch()
    _rewrite(source, target)
    return watch.measurement(ROWS)


def _rewrite(source: Path, target: Path) -> None:
    from arrowflow.cli import rewrite

    shutil.rmtree(target, ignore_errors=True)
    rewrite.run(
        [str(source)],
        str(target),
        to="parquet",
        group_rows=GROUP_ROWS,
        shard_rows=ROWS // 4,
        compression="zstd",
        sort=[],
        fixed=[],
        partition_by=[],
        format=None,
        overwrite=False,
        as_json=True,
    )


def by_pyarrow() -> harness.Measurement:
    """Measures the writer of `pyarrow.dataset`."""
    source, target = _sound(), data.DATA / "layout-by-pyarrow"
    shutil.rmtree(target, ignore_errors=True)
    data.read_through([str(path) for path in sorted(source.iterdir())])
    options = pds.ParquetFileFormat().make_write_options(compression="zstd")
    sizes = {
        "max_rows_per_group": GROUP_ROWS,
        "min_rows_per_group": GROUP_ROWS,
        "max_rows_per_file": ROWS // 4,
    }
    watch = harness.Stopwatch()
    pds.write_dataset(pds.dataset(source), target, format="parquet", file_options=options, **sizes)
    return watch.measurement(ROWS)


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns a bar for each fault, and that of `rewrite`."""
    bars = []
    for name in FAULTS:
        ones = rounds.get(f"doctor, {name}", ())
        if ones:
            promised, got = (harness.median_extra(ones, key) for key in ("promised", "got"))
            ratio = statistics.median(one.extra["promised"] / one.extra["got"] for one in ones)
            is_found = all(one.extra["found"] for one in ones)
            text = f"{'found' if is_found else 'NOT FOUND'}, {promised:.2f} x promised, {got:.2f} x measured"
            met = is_found and abs(ratio - 1) <= WITHIN
            bars.append(harness.Bar(f"doctor, {name}", f"found, gain within {WITHIN:.0%}", text, met, ratio))
    return bars + harness.race_bar(
        rounds, "rewrite, 2 M rows", ours="rewrite", theirs=["pyarrow.dataset"], needed=NEEDED
    )


CONTENDERS: Final[dict[str, harness.Contender]] = {
    **{f"doctor, {name}": partial(doctor, name) for name in FAULTS},
    "rewrite": rewrite,
    "pyarrow.dataset": by_pyarrow,
}

if __name__ == "__main__":
    harness.main("layout", CONTENDERS, judge, rounds=3)
