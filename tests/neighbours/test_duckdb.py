"""DuckDB reads a dataset by the name of its variable; `from_arrow` reads a relation anew in each epoch."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.testing import batches_of
from tests.neighbours.snippets import run_snippet
from tests.ops.tables import refused

pytestmark = pytest.mark.any_version

duckdb: Any = pytest.importorskip("duckdb", reason="DuckDB is not installed")


def test_the_snippet_does_what_it_says(tmp_path: Any) -> None:
    af.range(10).with_columns(price=pl.col("id") * 1.5, day=pl.col("id") % 3).write_parquet(
        tmp_path / "train"
    )
    found = run_snippet("duckdb", af=af, duckdb=duckdb, folder=tmp_path / "train")
    assert found["totals"] == [(0, 27.0), (1, 18.0), (2, 22.5)]
    assert found["recent"].to_table()["id"].to_pylist() == [1, 2, 4, 5, 7, 8]


def test_duckdb_reads_a_dataset_as_often_as_it_is_asked() -> None:
    numbers = af.range(100_000).batch(3000)
    relation = duckdb.sql("SELECT count(*), sum(id) FROM numbers WHERE id > 9")
    assert relation.fetchall() == duckdb.sql("SELECT count(*), sum(id) FROM numbers WHERE id > 9").fetchall()
    assert duckdb.sql("SELECT count(*) FROM numbers a JOIN numbers b ON a.id = b.id").fetchall() == [
        (100_000,)
    ]
    assert duckdb.sql("SELECT id FROM numbers LIMIT 2").fetchall() == [(0,), (1,)]
    assert next(iter(numbers)).num_rows == 3000 and len(numbers.to_numpy()) == 34, "queries count no epochs"


def test_an_error_of_a_pipeline_reaches_the_query() -> None:
    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("no luck")

    broken = af.range(10).map(fails, schema=pa.schema({"id": pa.int64()}))  # noqa: F841  (the query names it)
    with pytest.raises(duckdb.Error, match="no luck"):
        duckdb.sql("SELECT * FROM broken").fetchall()


def test_a_relation_is_asked_anew() -> None:
    connection = duckdb.connect()
    connection.sql("CREATE TABLE t AS SELECT range AS x, range::VARCHAR AS s FROM range(5)")
    ds = af.from_arrow(connection.sql("SELECT * FROM t ORDER BY x"))
    assert ds.schema == pa.schema({"x": pa.int64(), "s": pa.string()})
    assert [sum(batch.num_rows for batch in ds) for _ in range(2)] == [5, 5]
    connection.sql("INSERT INTO t VALUES (5, 'five')")
    assert ds.to_table()["s"].to_pylist() == ["0", "1", "2", "3", "4", "five"]


def test_a_stopped_epoch_frees_the_connection() -> None:
    connection = duckdb.connect()
    with iter(af.from_arrow(connection.sql("SELECT range AS x FROM range(1_000_000)")).batch(10)) as iterator:
        assert next(iterator).num_rows == 10
    assert connection.sql("SELECT 1").fetchall() == [(1,)]


def test_an_error_of_a_query_is_one_of_the_source() -> None:
    query = "SELECT CASE WHEN range < 5 THEN range ELSE error('boom') END AS x FROM range(9)"
    refused(af.SourceError, lambda: batches_of(af.from_arrow(duckdb.sql(query))), "from_arrow", "boom")
