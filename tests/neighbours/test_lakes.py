"""`from_arrow` asks tables of lakes and cursors of databases for their rows, by the methods that their libraries have."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.testing import check_dataset, check_resume
from tests.ops.tables import refused

pytestmark = pytest.mark.any_version

TABLE = pa.table({"x": range(1_000), "s": [str(row) for row in range(1_000)]})


class Source:
    """An object of another library, with one method."""

    def __init__(self) -> None:
        self.calls = 0

    def _reader(self) -> pa.RecordBatchReader:
        self.calls += 1
        return TABLE.to_reader(max_chunksize=90)


class Scan(Source):
    """As a scan of Iceberg, which also holds all rows if it is asked to."""

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        return self._reader()

    def to_arrow(self) -> pa.Table:
        raise AssertionError("would hold all rows")


class Cursor(Source):
    """As a cursor of ADBC."""

    def fetch_record_batch(self) -> pa.RecordBatchReader:
        return self._reader()


class Held(Source):
    """As a scan of a library that streams nothing."""

    def to_arrow(self) -> pa.Table:
        return self._reader().read_all()


class Broken(Source):
    """Each method fails."""

    def _reader(self) -> pa.RecordBatchReader:
        raise RuntimeError("no such snapshot")


class BrokenScan(Broken, Scan):
    pass


class BrokenCursor(Broken, Cursor):
    pass


def test_a_table_of_delta_lake(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(tmp_path, TABLE.slice(0, 600))
    deltalake.write_deltalake(tmp_path, TABLE.slice(600), mode="append")
    deltalake.DeltaTable(tmp_path).delete("x < 10")
    table = deltalake.DeltaTable(tmp_path)
    rows = [row["x"] for row in af.from_arrow(table).to_table().to_pylist()]
    assert sorted(rows) == list(range(10, 1_000))
    assert rows == af.from_arrow(table.to_pyarrow_dataset()).to_table()["x"].to_pylist()
    check_resume(lambda: af.from_arrow(table).batch(90))
    first = deltalake.DeltaTable(tmp_path, version=0)
    assert af.from_arrow(first).to_table().equals(TABLE.slice(0, 600))


def test_a_scan_is_run_once_an_epoch() -> None:
    scan = Scan()
    ds = af.from_arrow(scan)
    assert scan.calls == 0
    assert ds.to_table().equals(TABLE) and ds.to_table().equals(TABLE)
    assert pickle.loads(pickle.dumps(ds)).to_table().equals(TABLE)
    check_resume(lambda: af.from_arrow(scan).batch(64))


def test_rows_that_are_held_are_found_by_number() -> None:
    held = Held()
    check_dataset(lambda: af.from_arrow(held).shuffle(seed=1).batch(64), epochs_differ=True)
    assert af.from_arrow(held).num_rows == 1_000


def test_a_cursor_gives_one_epoch() -> None:
    cursor = Cursor()
    ds = af.from_arrow(cursor)
    assert ds.to_table().equals(TABLE)
    assert cursor.calls == 1
    refused(af.SourceError, lambda: ds.to_table(), "can be read once, and it was")
    batches = iter(af.from_arrow(Cursor()).batch(10))
    next(batches)
    refused(af.StateError, lambda: batches.state_dict(), "from_arrow")


@pytest.mark.filterwarnings("ignore:Arrow output on a DB-API result")
def test_a_cursor_of_duckdb() -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT range AS x FROM range(5)")
        assert af.from_arrow(cursor).to_table()["x"].to_pylist() == [0, 1, 2, 3, 4]


def test_a_source_that_gives_nothing() -> None:
    refused(
        af.SourceError,
        lambda: af.from_arrow(BrokenCursor()),
        "BrokenCursor.fetch_record_batch() gave no data: ",
        "no such snapshot",
    )
    refused(af.SourceError, lambda: af.from_arrow(BrokenScan()).schema, "its schema: ", "no such snapshot")


def test_a_class_is_no_source() -> None:
    refused(af.PlanError, lambda: af.from_arrow(Scan), "expected a table", "got type")


def test_a_cache_of_a_scan_needs_a_key(tmp_path: Path) -> None:
    refused(af.FingerprintError, lambda: af.from_arrow(Scan()).cache(tmp_path).to_table(), "key=")
    kept = af.from_arrow(Scan()).cache(tmp_path, key="snapshot 1")
    assert kept.to_table().equals(TABLE)
