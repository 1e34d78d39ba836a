"""Tables of lakes: their folders hold files of rows that were deleted, so they are no plain folders of files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow import PlanError

pytestmark = pytest.mark.any_version

LOGS = {
    "_delta_log/00000000000000000000.json": "af.read_delta",
    ".hoodie/hoodie.properties": "hudi",
    "metadata/v1.metadata.json": "read_iceberg",
    "_versions/1.manifest": "af.read_lance",
}


def table(folder: Path, log: str, part: str = "a.parquet") -> Path:
    for path in (folder / log, folder / part):
        path.parent.mkdir(parents=True, exist_ok=True)
    (folder / log).write_text("{}")
    pq.write_table(pa.table({"x": [1, 2]}), folder / part)
    return folder


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("paths", ["", "*.parquet", "**", "**/*.parquet"])
def test_a_table_names_its_reader(log: str, paths: str, tmp_path: Path) -> None:
    folder = table(tmp_path / "table", log)
    with pytest.raises(
        PlanError, match=f"read_parquet: .*{LOGS[log]}.*in file .*{log.split('/', maxsplit=1)[0]}"
    ):
        _ = af.read_parquet(f"{folder}/{paths}").schema


@pytest.mark.parametrize("log", ["_delta_log/0.json", "metadata/v1.metadata.json"])
@pytest.mark.parametrize(
    "paths", ["", "*/table", "table", "table/data", "table/data/day=1", "table/data/*/*.parquet"]
)
def test_a_table_inside_of_a_folder_and_a_part_of_a_table(log: str, paths: str, tmp_path: Path) -> None:
    table(tmp_path / "lake" / "table", log, "data/day=1/a.parquet")
    if log.startswith("_"):  # which has its parts beside the log
        table(tmp_path / "lake" / "table" / "data", log, "day=1/a.parquet")
    root = tmp_path if paths.startswith("*") else tmp_path / "lake"
    with pytest.raises(PlanError, match="is a table of"):
        _ = af.read_parquet(f"{root}/{paths}").schema


def test_files_that_are_named_and_the_log_itself_are_read(tmp_path: Path) -> None:
    folder = table(tmp_path / "table", "_delta_log/0.json")
    (folder / "_delta_log" / "0.json").write_text('{"add": 1}\n')
    assert af.read_parquet(folder / "a.parquet").num_rows == 2
    assert af.read_parquet([folder / "a.parquet"]).num_rows == 2
    assert af.read_json(folder / "_delta_log" / "*.json").num_rows == 1
    assert af.read_json(folder / "_delta_log").num_rows == 1
    assert af.list_files(folder).num_rows == 1


@pytest.mark.parametrize("folder", ["", "data"])
def test_folders_with_metadata_of_another_kind_are_no_tables(folder: str, tmp_path: Path) -> None:
    table(tmp_path, "metadata/notes.json", "data/a.parquet")
    table(tmp_path / "_old", "_delta_log/0.json")
    assert af.read_parquet(tmp_path / folder).num_rows == 2


@pytest.mark.parametrize("log", LOGS)
def test_a_table_on_another_file_system(log: str, tmp_path: Path) -> None:
    filesystem: Any = fsspec.filesystem("memory")
    filesystem.pipe("/lake/a.parquet", table(tmp_path, log).joinpath("a.parquet").read_bytes())
    filesystem.pipe(f"/lake/{log}", b"{}")
    try:
        for paths in "memory://lake", "memory://lake/*.parquet":
            with pytest.raises(PlanError, match=LOGS[log]):
                _ = af.read_parquet(paths).schema
    finally:
        filesystem.rm("/lake", recursive=True)


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["delta-0.8.0", "simple_table", "table-with-dv-small"])
def test_tables_of_others(name: str) -> None:
    root = os.environ.get("ARROWFLOW_CORPUS")
    if not root:
        pytest.skip("ARROWFLOW_CORPUS does not name the folder of the corpus")
    with pytest.raises(PlanError, match="is a table of Delta Lake"):
        _ = af.read_parquet(Path(root) / "delta" / name).num_rows
