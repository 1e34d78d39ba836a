"""Small files that announce, or unfold to, more than there is memory for: errors before anything is allocated."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.formats.parquet.pages import stored_footer
from arrowflow.formats.parquet.thrift import Field, fields, list_header
from arrowflow.formats.text import blocks
from arrowflow.formats.varints import written_number
from tests.formats.reading import write_table
from tests.formats.tfrecords import crc, framed
from tests.ops.tables import refused

BUDGET = 16 << 20
BOMB_BYTES = 40 << 20
HUGE = 1 << 40
_pools: list[pa.MemoryPool] = []
"""Memory that outlives its pool would end the process."""


@pytest.fixture(autouse=True)
def _within_the_budget() -> Iterator[None]:
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.system_memory_pool())
    _pools.append(pool)
    pa.set_memory_pool(pool)
    yield
    pa.set_memory_pool(before)
    assert (pool.max_memory() or 0) <= 2 * BUDGET


def read(format: str, path: Path, **options: Any) -> pa.Table:
    ds: af.Dataset = getattr(af, f"read_{format}")(path, **options)
    return ds.with_options(af.Options(cpu_budget=2, ram_budget=BUDGET)).to_table()


# ---------------------------------------------------------------- Arrow IPC


def announcing(data: bytes, stored: int, announced: int) -> bytes:
    """Returns a file in which the buffers of so many bytes announce another size."""
    old, new = struct.pack("<q", stored), struct.pack("<q", announced)
    assert data.count(old + b"\x28\xb5\x2f\xfd")  # where a frame of zstd follows
    return data.replace(old + b"\x28\xb5\x2f\xfd", new + b"\x28\xb5\x2f\xfd")


COLUMNS = {
    "numbers": pa.array(np.zeros(1000, np.int64)),
    "texts": pa.array(["x" * 8] * 1000),
    "codes": pa.DictionaryArray.from_arrays(
        pa.array(np.arange(1000) % 100, pa.int32()), [f"{number:080}" for number in range(100)]
    ),
}


@pytest.mark.parametrize("column", COLUMNS)
def test_a_buffer_that_announces_more_than_the_budget(tmp_path: Path, column: str) -> None:
    path = write_table(tmp_path / "a.arrow", pa.table({column: COLUMNS[column]}), compression="zstd")
    assert read("ipc", path).num_rows == 1000
    path.write_bytes(announcing(path.read_bytes(), 8000, HUGE))
    refused(af.BudgetError, lambda: read("ipc", path), "as the file says", path.name)


def test_rows_that_a_batch_does_not_have(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.arrow", pa.table({"x": np.arange(1001)}))
    data, rows = path.read_bytes(), struct.pack("<q", 1001)
    assert data.count(rows) == 2  # of the batch and of its column
    path.write_bytes(data.replace(rows, struct.pack("<q", HUGE - 1)))
    refused(af.SourceError, lambda: read("ipc", path), "column 'x' does not have so many values", path.name)


# ---------------------------------------------------------------- Parquet


def test_texts_beyond_2_gib_in_a_small_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    codes = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10_000, np.int32)), pa.array(["x" * (1 << 20)]))
    pq.write_table(pa.table({"s": codes}), path, compression="zstd", write_statistics=False)
    assert path.stat().st_size < 100_000
    refused(af.BudgetError, lambda: read("parquet", path), "10,485,8")


def changed(data: bytes, field: Field, number: int) -> bytes:
    footer = stored_footer(data)
    footer = footer[: field.start] + written_number(number) + footer[field.end :]
    return data[: -8 - len(stored_footer(data))] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def test_rows_that_a_row_group_does_not_have(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1, 2, 3]}), path)
    data = path.read_bytes()
    footer = stored_footer(data)
    groups = next(field for field in fields(footer, 0) if field.number == 4)
    _, _, at = list_header(footer, groups.start)
    data = changed(data, next(field for field in fields(footer, at) if field.number == 3), HUGE)
    data = changed(data, next(field for field in fields(stored_footer(data), 0) if field.number == 3), HUGE)
    path.write_bytes(data)
    refused(af.BudgetError, lambda: read("parquet", path), "read_parquet")


# ---------------------------------------------------------------- texts and records


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.csv.gz", b"x\n"), ("a.json.gz", b'{"x":"'), ("b.json.gz", b'[{"x":"')],
    ids=["csv", "lines", "array"],
)
def test_a_record_that_unfolds_without_an_end(
    tmp_path: Path, name: str, start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_MAX_RECORD_BYTES", BUDGET)
    path = tmp_path / name
    path.write_bytes(gzip.compress(start + bytes(BOMB_BYTES), 1, mtime=0))
    assert path.stat().st_size < 1 << 20
    refused(af.BudgetError, lambda: read(name.split(".")[1], path), "has more than", "schema=", path.name)


def test_a_record_that_announces_more_than_the_file_has(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    for length in (1 << 28, 1 << 33, 1 << 63):
        header = struct.pack("<Q", length)
        path.write_bytes(framed([b"a record"]) + header + crc(header) + bytes(100))
        refused(af.SourceError, lambda: read("tfrecord", path, raw=True), "record 1 at byte", path.name)


def test_a_compressed_record_beyond_the_budget(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord.gz"
    path.write_bytes(gzip.compress(framed([bytes(BOMB_BYTES)]), 1, mtime=0))
    refused(af.BudgetError, lambda: read("tfrecord", path, raw=True), "read_tfrecord")
