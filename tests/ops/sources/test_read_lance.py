"""`read_lance`: each version of a dataset has the rows that `lance` reads, in its order; and rows are found by their numbers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.ops.sources import read_lance
from arrowflow.testing import check_dataset
from tests.ops.sources.bounds_of_logs import check_state_of_version
from tests.ops.tables import refused

lance = pytest.importorskip("lance")

ROWS = pa.table(
    {
        "x": range(60),
        "text": [None if row % 7 == 3 else f"row {row}" * (row % 4) for row in range(60)],
        "vector": pa.array([[row / 4, 0.0] for row in range(60)], pa.list_(pa.float32(), 2)),
        "deep": [{"a": [row, None], "word": "ab"[row % 2]} for row in range(60)],
    }
)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Versions: 60 rows in fragments of 20; without every fifth; two more; and a column that came later."""
    monkeypatch.setattr(read_lance, "SPLIT_BYTES", 600)
    path = tmp_path / "rows.lance"
    lance.write_dataset(ROWS, path, max_rows_per_file=20)
    lance.dataset(path).delete("x % 5 = 1")
    lance.write_dataset(ROWS.slice(0, 2), path, mode="append")
    lance.dataset(path).add_columns({"new": "x * 2"})
    return path


def test_every_version_has_the_rows_that_its_own_library_reads(table: Path) -> None:
    assert len(lance.dataset(table).versions()) == 4
    for version in (1, 2, 3, 4):
        theirs = lance.dataset(table, version=version).to_table()
        ours = af.read_lance(table, version=version)
        assert ours.to_table().equals(theirs)
        assert ours.num_rows == theirs.num_rows == (60, 48, 50, 50)[version - 1]
    whole = lance.dataset(table).to_table()
    assert af.read_lance(table).schema.names == [*ROWS.column_names, "new"]
    for start, count in ((0, 3), (14, 9), (40, 99)):  # splits, fragments and deleted rows lie in between
        found = af.read_lance(table).select("text", "x").skip(start).take(count).to_table()
        assert found.equals(whole.select(["text", "x"]).slice(start, count))
    found = af.read_lance(table).filter(pl.col("x") > 30).select("deep").to_table()
    assert found.equals(whole.filter(pa.compute.field("x") > 30).select(["deep"]))


def test_splits_are_rows_and_columns_are_left_out(table: Path) -> None:
    ds = af.read_lance(table)
    assert 3 < sum(1 for _ in ds) < 30
    assert "columns 1 of 5: x" in ds.select("x").explain()
    assert "50 rows" in ds.explain() and "version 4" in ds.explain()


@pytest.mark.parametrize("size", [None, 12])
def test_a_shuffle_has_each_row_once(table: Path, size: int | None) -> None:
    rows = lance.dataset(table).to_table().to_pylist()
    shuffled = af.read_lance(table).shuffle(size, seed=1).batch(7)
    orders = []
    for _ in range(2):
        epoch = [row for batch in shuffled for row in batch.to_pylist()]
        assert all(row in rows for row in epoch)
        orders.append([row["x"] for row in epoch])
        assert sorted(orders[-1]) == sorted(row["x"] for row in rows)
    assert orders[0] != orders[1]


@pytest.mark.parametrize("size", [None, 12])
def test_contracts(table: Path, size: int | None) -> None:
    check_dataset(lambda: af.read_lance(table).shuffle(size, seed=1).batch(6), epochs_differ=True)


def test_parts_of_ranks_are_the_plan(table: Path) -> None:
    plan = af.read_lance(table).select("x").batch(10)
    ranks = [plan.split_by_rank(rank, 2, lanes=2) for rank in range(2)]
    found = [value for rank in ranks for batch in rank for value in batch["x"].to_pylist()]
    assert sorted(found) == sorted(lance.dataset(table).to_table()["x"].to_pylist())


def test_a_state_goes_on_with_its_own_version_alone(table: Path) -> None:
    def append() -> None:
        lance.write_dataset(ROWS, table, mode="append")

    state = check_state_of_version(
        lambda then=False: af.read_lance(table, version=4 if then else None), append, "version"
    )
    shutil.rmtree(table)
    for _ in range(4):
        append()  # another dataset of the same name and version
    with iter(af.read_lance(table, version=4).batch(2)) as other:
        refused(af.StateError, lambda: other.load_state_dict(state))


def test_blobs_are_bytes(tmp_path: Path) -> None:
    blob = pa.field("data", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    rows = pa.table({"x": [1, 2], "data": [b"abc", b"d"]}, pa.schema([("x", pa.int64()), blob]))
    lance.write_dataset(rows, tmp_path / "a.lance", data_storage_version="2.0")
    ds = af.read_lance(tmp_path / "a.lance")
    assert ds.to_table().to_pydict() == rows.to_pydict()
    refused(af.PlanError, lambda: ds.shuffle().to_table(), "no bytes of blobs (columns data)")
    assert sorted(ds.select("x").shuffle(seed=1).to_table()["x"].to_pylist()) == [1, 2]


def test_datasets_without_rows_and_without_wanted_columns(table: Path) -> None:
    assert af.read_lance(table).select(pl.lit(1).alias("one")).to_table().num_rows == 50
    lance.dataset(table).delete("true")
    empty = af.read_lance(table)
    assert empty.to_table().num_rows == empty.shuffle().to_table().num_rows == empty.num_rows == 0
    assert empty.to_table().schema.field("vector").type == pa.list_(pa.float32(), 2)


def test_bad_datasets(table: Path, tmp_path: Path) -> None:
    cases: list[tuple[type[Exception], Any, str]] = [
        (af.SourceError, lambda: af.read_lance(tmp_path / "nothing").schema, "the dataset cannot be read: "),
        (af.SourceError, lambda: af.read_lance(tmp_path).schema, "was not found"),
        (
            af.SourceError,
            lambda: af.read_lance(tmp_path).schema,
            "_versions (in file",
        ),  # no place in its code
        (
            af.SourceError,
            lambda: af.read_lance(table, version=9).schema,
            "there is no version 9; there are 1, 2, 3, 4",
        ),
        (af.PlanError, lambda: af.read_lance(table, version=0), "version is at least 1, got 0"),
        (af.PlanError, lambda: af.read_lance(table, version="v1"), "version is a whole number"),  # type: ignore[arg-type]
        (af.PlanError, lambda: af.read_parquet(table).schema, "af.read_lance"),
    ]
    for error, call, text in cases:
        refused(error, call, text)
    ds = af.read_lance(table)
    assert ds.num_rows == 50
    for file in (table / "data").iterdir():
        file.unlink()
    refused(af.SourceError, lambda: ds.to_table(), "the dataset cannot be read", str(table))
