"""`missing_columns="null"`: the columns of all files, null where a file lacks one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.errors import PlanError, SchemaError
from arrowflow.testing import check_dataset, check_resume
from tests.ops.sources.files.written import write_file

ROWS: list[list[dict[str, Any]]] = [
    [{"a": 1, "b": "x"}, {"a": 2, "b": None}],
    [{"b": "y", "c": 0.5}],
    [{"a": 3, "b": "z", "c": 1.5, "d": True}],
]
SCHEMA = pa.schema({"a": pa.int64(), "b": pa.string(), "c": pa.float64(), "d": pa.bool_()})
EXPECTED = [{name: row.get(name) for name in SCHEMA.names} for rows in ROWS for row in rows]


def write(folder: Path, kind: str) -> None:
    for number, rows in enumerate(ROWS):
        table = pa.Table.from_pylist(rows, pa.schema([SCHEMA.field(name) for name in rows[0]]))
        write_file(folder / f"{number}.{kind}", table)


@pytest.mark.parametrize("kind", ["parquet", "ipc", "csv", "json"])
def test_rows(tmp_path: Path, kind: str) -> None:
    write(tmp_path, kind)
    ds = af.read(tmp_path, format=kind, missing_columns="null")
    assert ds.schema == SCHEMA
    assert ds.to_table().to_pylist() == EXPECTED
    assert ds.num_rows == 4
    assert ds.filter(pl.col("c") > 0.4).to_table().to_pylist() == EXPECTED[2:]
    assert ds.filter(pl.col("d")).select("a").to_table().to_pydict() == {"a": [3]}
    assert ds.select("d").skip(2).to_table().to_pydict() == {"d": [None, True]}
    if kind == "parquet":
        check_dataset(lambda: ds.batch(2), in_full=True)
    else:
        check_resume(lambda: ds.batch(2), in_full=False)


@pytest.mark.parametrize("kind", ["parquet", "ipc", "csv"])
def test_without_it_a_file_that_lacks_a_column_is_an_error(tmp_path: Path, kind: str) -> None:
    write(tmp_path, kind)
    with pytest.raises(SchemaError, match=r"column 'a' .* is missing.*missing_columns='null'.*1\."):
        af.read(tmp_path, format=kind).to_table()


def test_other_types_are_errors_all_the_same(tmp_path: Path) -> None:
    write(tmp_path, "parquet")
    pq.write_table(pa.table({"c": ["text"]}), tmp_path / "3.parquet")
    with pytest.raises(SchemaError, match="column 'c': expected double, found string"):
        af.read_parquet(tmp_path, missing_columns="null").to_table()


def test_folders_give_columns_too(tmp_path: Path) -> None:
    for key in "uv":
        (tmp_path / f"key={key}").mkdir()
        pq.write_table(pa.table({"a" if key == "u" else "b": [1]}), tmp_path / f"key={key}" / "0.parquet")
    found = af.read_parquet(tmp_path, missing_columns="null").to_table()
    assert found.to_pylist() == [{"a": 1, "b": None, "key": "u"}, {"a": None, "b": 1, "key": "v"}]


def test_states_know_it(tmp_path: Path) -> None:
    write(tmp_path, "parquet")
    paths = [tmp_path / "0.parquet", tmp_path / "2.parquet"]
    with iter(af.read_parquet(paths).batch(1)) as iterator:
        next(iterator)
        state = iterator.state_dict()
    with (
        iter(af.read_parquet(paths, missing_columns="null").batch(1)) as iterator,
        pytest.raises(af.StateError, match="missing_columns"),
    ):
        iterator.load_state_dict(state)


def test_an_argument_that_makes_no_sense() -> None:
    with pytest.raises(PlanError, match="missing_columns is 'error' or 'null', got 'insert'"):
        af.read_parquet("a", missing_columns="insert")  # type: ignore[arg-type]
