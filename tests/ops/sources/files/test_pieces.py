"""Row groups that are too large for one call: read in pieces, which change neither rows, nor positions, nor errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.formats import Footer, Split, Store
from arrowflow.formats.parquet.parquet import ParquetFormat
from tests.ops.sources.files.test_runs import resumed, rows_and_error

pytestmark = pytest.mark.any_version

ROWS = 40_000
SMALL = af.Options(ram_budget="1MiB")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    rows = pa.table(
        {"id": np.arange(ROWS), "x": rng.random(ROWS), "y": rng.integers(0, 99, ROWS).astype(np.int16)}
    )
    path = tmp_path / "a.parquet"
    options = {"data_page_size": 4096, "write_batch_size": 256, "use_dictionary": ["y"]}
    pq.write_table(rows, path, row_group_size=ROWS // 2, **options)
    return path


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Lists split, start and stop of the pieces that are read."""
    found: list[tuple[int, int, int]] = []
    original = ParquetFormat.read_rows

    def read_rows(
        self: ParquetFormat,
        store: Store,
        footer: Footer,
        split: Split,
        schema: pa.Schema,
        start: int,
        stop: int,
    ) -> Iterator[pa.RecordBatch]:
        found.append((split.index, start, stop))
        return original(self, store, footer, split, schema, start, stop)

    monkeypatch.setattr(ParquetFormat, "read_rows", read_rows)
    return found


def test_rows_and_random_values_do_not_depend_on_the_budget(file: Path, pieces: list[Any]) -> None:
    def drawn(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
        return pa.record_batch({"id": batch["id"], "draw": rng.random(batch.num_rows)})

    ds = af.read_parquet(file).map(drawn, seed=2).with_options(af.Options(max_chunk_rows=3000))
    whole = [batch.to_pydict() for batch in ds]
    assert not pieces
    assert [batch.to_pydict() for batch in ds.with_options(SMALL)] == whole
    assert len(pieces) > 10
    assert {split for split, _, _ in pieces} == {0, 1}


def test_less_memory_is_needed_than_a_row_group_takes(file: Path, pieces: list[Any]) -> None:
    iterator = iter(af.read_parquet(file).with_options(SMALL))
    assert sum(batch.num_rows for batch in iterator) == ROWS
    assert pieces
    assert iterator.stats().ledger_peak_bytes < 1 << 20


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_resume_begins_in_the_middle_of_a_split(file: Path, pieces: list[Any], *, shuffled: bool) -> None:
    ds = af.read_parquet(file).filter(pl.col("y") < 50).with_options(SMALL)
    ds = ds.shuffle(500, seed=3, reshuffle_each_iteration=False).batch(333) if shuffled else ds.batch(333)
    expected = [batch.to_pydict() for batch in ds]
    for taken in range(0, len(expected), 13):
        other = resumed(ds, taken)
        pieces.clear()
        assert [batch.to_pydict() for batch in other] == expected[taken:]
        if not shuffled:
            read = sum(stop - start for _, start, stop in pieces)
            assert read <= (len(expected) - taken + 4) * 333 * 2.1, "rows before the position are not read"


def test_rows_that_are_skipped_or_not_taken_are_not_read(file: Path, pieces: list[Any]) -> None:
    ds = af.read_parquet(file).skip(15_000).take(100).with_options(SMALL)
    assert ds.to_table()["id"].to_pylist() == list(range(15_000, 15_100))
    assert sum(stop - start for _, start, stop in pieces) == 100


def test_a_damaged_page_is_an_error_after_all_rows_before_it(file: Path) -> None:
    column = pq.read_metadata(file).row_group(1).column(1)
    data = bytearray(file.read_bytes())
    middle = column.data_page_offset + column.total_compressed_size // 2
    data[middle : middle + 9000] = b"\xff" * 9000
    file.write_bytes(data)
    rows, error = rows_and_error(af.read_parquet(file).with_options(SMALL))
    assert (type(error), error.row_group) == (af.SourceError, 1)
    assert rows >= ROWS // 2


def test_other_columns_and_remote_files_are_read_whole(tmp_path: Path, pieces: list[Any]) -> None:
    path = tmp_path / "lists.parquet"
    pq.write_table(pa.table({"id": np.arange(9000), "list": [[1, 2, 3]] * 9000}), path)
    ds = af.read_parquet(path).with_options(af.Options(ram_budget="1MiB"))
    assert ds.select("list").to_table().num_rows == 9000
    assert not pieces
