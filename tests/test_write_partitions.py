"""`write_parquet(partition_by=)`: rows in folders that other readers read, too, whatever the batches of their arrival."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.ops.sources.files.partitions import NULL
from arrowflow.testing import chunked, cut, failing
from arrowflow.write import partitions, targets
from tests.ops.tables import refused

TABLE = pa.table(
    {
        "year": pa.array([2024, 2023, None, 2024] * 30, pa.int16()),
        "x": range(120),
        "_of": ["a/b", "c=d", "e%f", "ü x", "", "a/b"] * 20,
        "y": pa.array([[row] * (row % 3) for row in range(120)], pa.list_(pa.int8())),
    }
)
KEYS = ["year", "_of"]


def sorted_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Returns the rows, of which `x` has no two alike."""
    columns = table.select(["x", "year", "_of", "y"]).to_pydict().values()
    return sorted(zip(*columns, strict=True))


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.parquet")}


def test_rows_come_back_in_their_order(tmp_path: Path) -> None:
    written = af.from_arrow(TABLE).write_parquet(tmp_path / "out", partition_by=KEYS)
    ds = af.read_parquet(tmp_path / "out")
    assert ds.schema == pa.schema({"x": "int64", "y": pa.list_(pa.int8()), "year": "int64", "_of": "string"})
    table = ds.to_table()
    assert sorted_rows(table) == sorted_rows(TABLE)
    ours = pl.DataFrame(table).group_by(KEYS).agg("x").sort(KEYS)
    assert ours["x"].to_list() == [sorted(each) for each in ours["x"]], "rows of a folder keep their order"
    theirs = pads.dataset(tmp_path / "out", partitioning="hive").to_table()
    assert sorted_rows(theirs) == sorted_rows(TABLE)
    assert (written.num_rows, list(written.files)) == (120, sorted(written.files))
    assert written.num_bytes == sum(map(len, files_in(tmp_path / "out").values()))
    (null,) = (tmp_path / "out").glob("year=__HIVE_DEFAULT_PARTITION__/%5Fof=e%25f")
    assert pq.read_table(null / "part-00000.parquet", partitioning=None).column_names == ["x", "y"]


def test_files_depend_on_the_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where few files may be open, and few rows may wait."""
    monkeypatch.setattr(partitions, "MAX_OPEN", 3)
    monkeypatch.setattr(partitions, "MAX_CHUNK_ROWS", 5)
    monkeypatch.setattr(partitions, "HELD_BYTES", 100)
    expected = af.from_arrow(TABLE).write_parquet(tmp_path / "whole", partition_by=KEYS, row_group_rows=4)
    folders = {Path(file).parent for file in expected.files}
    assert len(expected.files) > len(folders), "files were closed early"
    assert sorted_rows(af.read_parquet(tmp_path / "whole").to_table()) == sorted_rows(TABLE)
    (whole,) = TABLE.combine_chunks().to_batches()
    for rows in (1, 7):
        place, pieces = tmp_path / f"cut{rows}", [cut(whole, [rows])]
        chunked(pieces, TABLE.schema).write_parquet(place, partition_by=KEYS, row_group_rows=4)
        assert files_in(place) == files_in(tmp_path / "whole")


def test_few_files_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now: set[str] = set()
    most = 0

    def opened(self: targets.LocalFolder, name: str) -> Any:
        nonlocal most
        now.add(name)
        most = max(most, len(now))
        return original(self, name)

    def closed(self: targets.LocalFolder, name: str) -> None:
        now.discard(name)
        sealed(self, name)

    original, sealed = targets.LocalFolder.open, targets.LocalFolder.seal
    monkeypatch.setattr(targets.LocalFolder, "open", opened)
    monkeypatch.setattr(targets.LocalFolder, "seal", closed)
    monkeypatch.setattr(partitions, "MAX_OPEN", 10)
    ds = af.range(400).with_columns(key=pl.col("id") % 50)
    ds.write_parquet(tmp_path / "out", partition_by="key", row_group_rows=3)
    assert most <= 11
    assert sorted(af.read_parquet(tmp_path / "out").to_table()["id"].to_pylist()) == list(range(400))


TYPES = {
    "uint64": pa.array([2**64 - 1, 0], pa.uint64()),
    "bool": pa.array([True, False]),
    "date32": pa.array([datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)]),
    "timestamp[us]": pa.array([datetime.datetime(2024, 1, 2, 3, 4, 5, 6), None], pa.timestamp("us")),
    "timestamp[ms, tz=UTC]": pa.array([1, 2**40], pa.timestamp("ms", tz="UTC")),
    "decimal128(5, 2)": pa.array([decimal.Decimal("-1.20"), decimal.Decimal("123.45")]),
    "dictionary": pa.array(["01", "1"]).dictionary_encode(),
    "string": pa.array(["01", "1"]),
}


@pytest.mark.parametrize("name", TYPES)
def test_types_that_schema_gives_back(tmp_path: Path, name: str) -> None:
    values = TYPES[name].dictionary_decode() if name == "dictionary" else TYPES[name]
    af.from_arrow(pa.table({"k": TYPES[name], "x": [0, 1]})).write_parquet(tmp_path / "out", partition_by="k")
    schema = pa.schema({"x": pa.int64(), "k": values.type})
    found = af.read_parquet(tmp_path / "out", schema=schema).to_table().sort_by("x")
    assert found["k"].combine_chunks().equals(values)


def test_no_rows_tell_the_columns(tmp_path: Path) -> None:
    written = af.from_arrow(TABLE).take(0).write_parquet(tmp_path / "out", partition_by=KEYS)
    assert (written.num_rows, len(written.files)) == (0, 1)
    ds = af.read_parquet(tmp_path / "out", schema=TABLE.schema)
    assert (ds.num_rows, ds.schema.names) == (0, TABLE.column_names)


def test_overwriting_and_errors_leave_no_half(tmp_path: Path) -> None:
    place = tmp_path / "out"
    af.from_arrow(TABLE).write_parquet(place, partition_by="year")
    before = files_in(place)
    broken = af.from_generator(
        failing(TABLE.to_batches(), ValueError("gone")), TABLE.schema, elements="batches"
    )
    with pytest.raises(af.FunctionError):
        broken.write_parquet(place, partition_by="_of", overwrite=True)
    refused(af.WriteError, lambda: af.range(1).write_parquet(place), "overwrite=True")
    assert files_in(place) == before
    af.from_arrow(TABLE).write_parquet(place, partition_by="_of", overwrite=True)
    assert {file.parent.parent for file in place.rglob("*.parquet")} == {place}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_store_without_folders() -> None:
    store, ds = fsspec.filesystem("memory"), af.from_arrow(TABLE)
    ds.write_parquet("memory://partitions/out", partition_by="_of")
    ds.write_parquet("memory://partitions/out", partition_by=KEYS, overwrite=True)
    assert all("year=" in path for path in store.find("/partitions"))
    assert sorted_rows(af.read_parquet("memory://partitions/out").to_table()) == sorted_rows(TABLE)
    store.rm("/partitions", recursive=True)


INTS = [1, 2]


@pytest.mark.parametrize(
    ("error", "columns", "by", "text"),
    [
        (af.PlanError, {"x": INTS}, [], "partition_by is the name of a column"),
        (af.PlanError, {"x": INTS}, ["x", "x"], "different names"),
        (af.PlanError, {"x": INTS}, 3, "got 3"),
        (af.WriteError, {"year": INTS, "x": INTS}, "yaer", "no column 'yaer'; did you mean 'year'?"),
        (af.WriteError, {"x": INTS}, ["x"], "names all columns"),
        (af.WriteError, {"x": [0.5, 1.5], "y": INTS}, "x", "column 'x' of type double"),
        (af.WriteError, {"k": ["a", "../b"], "y": INTS}, "k", "'../b' of column 'k'"),
        (af.WriteError, {"k": ["a", NULL], "y": INTS}, "k", "read back as another one"),
        (af.WriteError, {"..": INTS, "y": INTS}, "..", "cannot be called after column '..'"),
        (af.WriteError, {"k": ["a", "x" * 300], "y": INTS}, "k", "cannot write"),
    ],
)
def test_errors(tmp_path: Path, error: type[Exception], columns: dict[str, Any], by: Any, text: str) -> None:
    ds = af.from_arrow(pa.table(columns))
    refused(error, lambda: ds.write_parquet(tmp_path / "out", partition_by=by), "write_parquet", text)
    assert list(tmp_path.iterdir()) == []


def test_too_many_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "MAX_SHARDS", 9)
    ds = af.range(10).with_columns(x=pl.col("id"))
    refused(
        af.WriteError,
        lambda: ds.write_parquet(tmp_path / "out", partition_by="id"),
        "at most 9 folders",
        "fewer values",
    )
