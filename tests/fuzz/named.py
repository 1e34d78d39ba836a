"""What the texts of plans name: sources of rows of (`id`, `x`), and functions of users.

Each row has an `id` of its own, and an `x` that follows from it: so a row that was put together of two is found.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import fsspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from pyarrow import orc

import arrowflow as af

SCHEMA: Final = pa.schema({"id": pa.int64(), "x": pa.float64()})
LISTS: Final = pa.schema({"id": pa.int64(), "tokens": pa.list_(pa.int64())})
FILES: Final[dict[str, list[list[int]]]] = {
    "few": [[5, 3], [], [17]],
    "many": [[64, 36], [100], [1, 99], [100], [40], [160], [33, 67], [100]],
    "large": [[300, 300], [600], [150, 250]],
}
"""Rows of the row groups of each file."""
KINDS: Final = ("parquet", "ipc", "csv", "json", "orc", "avro")
_FIRST: Final = {"few": 10_000, "many": 20_000, "large": 30_000}
_FOLDERS: Final[list[Path]] = []
_ELSEWHERE: Final = [False]

Row = dict[str, Any]
LOOKED_UP: Final = pl.DataFrame({"id": range(0, 40, 3), "j": range(14)})


def use_folder(path: Path) -> None:
    """Lets files and caches lie in `path` from now on."""
    _FOLDERS[:] = [path]
    written.cache_clear()


def read_elsewhere(*, is_on: bool) -> None:
    """Lets `files` read from a file system that is not local from now on, or from a disk."""
    _ELSEWHERE[0] = is_on


def table(first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    return pa.table({"id": ids, "x": ids * 0.5}, schema=SCHEMA)


# --------------------------------------------------------------------------------------------- sources


def numbers(first: int, count: int) -> af.Dataset:
    return af.range(first, first + count).with_columns(x=pl.col("id") * 0.5)


def memory(first: int, count: int) -> af.Dataset:
    return af.from_arrow(table(first, count))


def batches(first: int, count: int, rows: int) -> af.Dataset:
    return af.from_arrow(table(first, count).to_batches(max_chunksize=rows))


def arrays(first: int, count: int) -> af.Dataset:
    return af.from_numpy({"id": np.arange(first, first + count), "x": np.arange(first, first + count) * 0.5})


def generator(first: int, count: int) -> af.Dataset:
    return af.from_generator(functools.partial(_rows, first, count), schema=SCHEMA)


def _rows(first: int, count: int) -> Iterator[Row]:
    return ({"id": number, "x": number * 0.5} for number in range(first, first + count))


def stream(first: int, count: int) -> af.Dataset:
    """A stream that can be read once."""
    return af.from_arrow(table(first, count).to_reader(max_chunksize=7))


@functools.cache
def written(kind: str, name: str) -> Path:
    """Writes files, unless another process did."""
    folder = _FOLDERS[0] / kind / name
    if folder.exists():
        return folder
    folder.mkdir(parents=True)
    first = _FIRST[name]
    for number, groups in enumerate(FILES[name]):
        whole = table(first, sum(groups))
        first += whole.num_rows
        _write(folder / f"{number}.{kind}", kind, whole, groups)
    return folder


def _write(path: Path, kind: str, whole: pa.Table, groups: list[int]) -> None:
    starts = np.cumsum([0, *groups])
    parts = [whole.slice(start, rows) for start, rows in zip(starts, groups, strict=False)]
    if kind == "parquet":
        with pq.ParquetWriter(path, SCHEMA) as parquet:
            for part in parts:
                parquet.write_table(part)
    elif kind == "ipc":
        with pa.ipc.new_file(path, SCHEMA) as ipc:
            for part in parts:
                ipc.write_table(part)
    elif kind == "csv":
        pa_csv.write_csv(whole, path)
    elif kind == "orc":
        orc.write_table(whole, path)
    elif kind == "avro":
        pl.DataFrame(whole).write_avro(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in whole.to_pylist()))


def write_all() -> None:
    """Writes all files, so that other processes find them."""
    for kind in KINDS:
        for name in FILES:
            written(kind, name)


def files(kind: str, name: str) -> af.Dataset:
    path = written(kind, name)
    return _read(kind, _uploaded(path) if _ELSEWHERE[0] else str(path))


def _uploaded(folder: Path) -> str:
    """Copies files to a file system that is not local, once, and returns where they are."""
    memory = fsspec.filesystem("memory")
    for path in [] if memory.exists(str(folder)) else folder.iterdir():
        memory.pipe(str(path), path.read_bytes())
    return f"memory:/{folder}"


def _read(kind: str, path: str) -> af.Dataset:
    if kind == "parquet":
        return af.read_parquet(path)
    if kind == "ipc":
        return af.read_ipc(path)
    if kind in {"orc", "avro"}:
        return af.read_orc(path) if kind == "orc" else af.read_avro(path)
    return (af.read_csv if kind == "csv" else af.read_json)(path, schema=SCHEMA)


def scanned(name: str) -> af.Dataset:
    return af.from_arrow(pads.dataset(written("parquet", name), format="parquet"))


def listed(name: str, cycle: int) -> af.Dataset:
    """Files that are found by one dataset and read by another."""
    found = af.list_files(str(written("parquet", name) / "*.parquet"))
    return found.interleave(read_file, cycle_length=cycle)


def read_file(row: Row) -> af.Dataset:
    return af.read_parquet(row["path"], schema=SCHEMA)


def choices(count: int, inputs: int) -> af.Dataset:
    """Numbers of inputs, in an order that no pattern tells."""
    drawn = np.random.default_rng(count).integers(0, inputs, count)
    return af.from_numpy({"choice": np.sort(drawn) if count % 2 else drawn})


def cache_folder() -> Path:
    return _FOLDERS[0] / "cache"


def counted(dataset: af.Dataset) -> af.Dataset:
    """Tells how many rows of each row group are left."""
    return dataset.assert_cardinality(af.count_rows(dataset))


# ------------------------------------------------------------------------------------------- functions


def changed(batch: pa.RecordBatch) -> pa.RecordBatch:
    ids = batch.column("id").to_numpy()
    return batch.set_column(batch.schema.get_field_index("x"), "x", pa.array(ids * 0.25))


def some(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(keeps(batch))


def keeps(batch: pa.RecordBatch) -> pa.Array:
    return pa.array(batch.column("id").to_numpy() % 3 != 1)


def first_two(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(0, 2)


def noisy(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index("x"), "x", pa.array(rng.random(batch.num_rows)))


def row(old: Row) -> Row:
    return {"id": old["id"], "x": old["id"] * 0.75}


def good_row(old: Row) -> Row:
    if old["id"] % 5 == 1:
        raise ValueError(f"row {old['id']} is bad")
    return row(old)


def elements(old: Row) -> af.Dataset:
    return numbers(old["id"] * 4, old["id"] % 4)


def summed(total: int, batch: pa.RecordBatch) -> tuple[int, pa.RecordBatch]:
    """Adds the number of rows so far."""
    sums = total + np.arange(batch.num_rows)
    column = batch.schema.get_field_index("x")
    return total + batch.num_rows, batch.set_column(column, "x", pa.array(sums.astype(np.float64)))


def tokens(batch: pa.RecordBatch, least: int = 0) -> pa.RecordBatch:
    """Makes a document of each row, of `least` tokens or up to five more; its tokens name the row."""
    ids = batch.column("id").to_pylist()
    documents = [[number + 1] * (least + number % 6) for number in ids]
    return pa.RecordBatch.from_arrays(
        [batch.column("id"), pa.array(documents, pa.list_(pa.int64()))], schema=LISTS
    )


def some_tokens(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Makes documents that are never empty: of empty ones alone nothing is packed, and if they never end, for ever."""
    return tokens(batch, least=1)
