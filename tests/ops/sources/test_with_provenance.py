"""`with_provenance`: each row says where it came from, whatever happened to it since."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.errors import PlanError, SchemaError
from arrowflow.testing.contracts import check_resume
from tests.ops.tables import refused

GROUP_ROWS = 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        table = pa.table({"id": range(100 * number, 100 * number + 100)})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=GROUP_ROWS)
    return tmp_path


def rows_of(dataset: af.Dataset) -> list[dict[str, Any]]:
    return [row for batch in dataset for row in batch.to_pylist()]


def check(rows: list[dict[str, Any]]) -> None:
    """Every row stands where it says."""
    assert rows
    for row in rows:
        file, (group, at) = row["id"] // 100, divmod(row["id"] % 100, GROUP_ROWS)
        assert (Path(row["file"]).name, row["row_group"], row["row"]) == (f"{file}.parquet", group, at)


@pytest.mark.parametrize(
    "then",
    [
        lambda ds: ds,
        lambda ds: ds.skip(47).take(100),
        lambda ds: ds.filter(pl.col("id") % 7 == 3).shuffle(64, seed=1),
        lambda ds: ds.filter(pl.col("row") > 25),
        lambda ds: ds.shuffle(200, seed=3).batch(16),
        lambda ds: ds.shuffle(40).repeat(2).batch(7),
        lambda ds: ds.map(lambda batch: batch, keeps_rows=True).cache().batch(16),
        lambda ds: ds.shuffle(50, seed=1).batch(16).split_by_rank(1, 4),
        lambda ds: af.sample_from_datasets([ds, ds], seed=2).unique("id"),
    ],
)
def test_rows_keep_their_provenance(folder: Path, then: Callable[[af.Dataset], af.Dataset]) -> None:
    check(rows_of(then(af.read_parquet(folder).with_provenance())))


def test_a_run_goes_on_in_the_middle_of_a_row_group(folder: Path) -> None:
    check_resume(lambda: af.read_parquet(folder).with_provenance().batch(8))


def test_rows_of_a_mapped_file_gathered_in_place(tmp_path: Path) -> None:
    af.range(500).write_ipc(tmp_path, shard_rows=250)
    rows = rows_of(af.read_ipc(tmp_path).with_provenance().shuffle(seed=1))
    paths = sorted({row["file"] for row in rows})
    assert len(paths) == 2
    starts: dict[tuple[str, int], int] = {}
    for row in sorted(rows, key=lambda row: row["id"]):
        start = starts.setdefault((row["file"], row["row_group"]), row["id"])
        assert row["id"] - start == row["row"]
    assert len(rows) == 500


def test_types_and_names(folder: Path) -> None:
    ds = af.read_parquet(folder).with_provenance("path", row="number")
    expected = {"id": pa.int64(), "path": pa.string(), "row_group": pa.int32(), "number": pa.int64()}
    assert ds.schema == pa.schema(expected)
    assert next(iter(ds)).schema == ds.schema


def test_columns_that_nobody_uses_cost_nothing(folder: Path) -> None:
    plain, traced = af.read_parquet(folder), af.read_parquet(folder).with_provenance()
    assert list(traced.select("id")) == list(plain)
    assert "decode of 1 columns" in traced.select("id").explain()


def test_a_filter_by_file_opens_no_other(folder: Path) -> None:
    ds = af.read_parquet(folder).with_provenance().filter(pl.col("file") == str(folder / "1.parquet"))
    assert ds.to_table()["id"].to_pylist() == list(range(100, 200))
    assert "folders rule out 2 of 3 files" in ds.explain()


def test_folders_and_their_types(tmp_path: Path) -> None:
    for year in (2023, 2024):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(pa.table({"x": [1, 2]}), tmp_path / f"year={year}" / "a.parquet")
    rows = rows_of(af.read_parquet(tmp_path).with_provenance())
    assert [(row["year"], row["row"]) for row in rows] == [(2023, 0), (2023, 1), (2024, 0), (2024, 1)]
    assert all(f"year={row['year']}" in row["file"] for row in rows)
    schema = pa.schema({"x": pa.int32(), "year": pa.string()})
    ds = af.read_parquet(tmp_path, schema=schema).with_provenance()
    assert ds.schema.names == ["x", "year", "file", "row_group", "row"]
    assert rows_of(ds)[3]["year"] == "2024"


def test_what_is_wrong_is_said(folder: Path) -> None:
    files = af.read_parquet(folder)
    rows = af.read_parquet(folder, schema=pa.schema({"row": pa.int64()}))
    after = "right after a source of files, such as read_parquet, and not after batch"
    cases: list[tuple[type[Exception], Callable[[], object], str]] = [
        (PlanError, lambda: files.batch(2).with_provenance(), after),
        (
            PlanError,
            lambda: af.range(3).with_provenance().schema,
            "not after range; rows of other sources can be numbered",
        ),
        (PlanError, lambda: files.with_provenance("a", "a"), "three different names, got"),
        (PlanError, lambda: rows.with_provenance().schema, "columns ['row'] already; give it other names"),
        (
            SchemaError,
            lambda: files.with_provenance("id").schema,
            "column 'id' is in the file and is made by with_provenance",
        ),
    ]
    for error, call, text in cases:
        refused(error, call, text)
