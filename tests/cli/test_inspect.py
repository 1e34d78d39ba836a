from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Run

pytestmark = pytest.mark.any_version

TABLE = pa.table(
    {
        "x": np.arange(1000.0),
        "name": [f"name {number % 7}" for number in range(1000)],
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(4000, np.float32)), 4),
    }
)


def test_parquet_as_pyarrow_tells_it(tmp_path: Path, answer: Run) -> None:
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    pq.write_table(TABLE, files[0], row_group_size=300, compression="zstd", write_page_index=True)
    pq.write_table(TABLE, files[1], row_group_size=600, compression="snappy", write_statistics=False)
    found = answer("inspect", tmp_path)
    footers = [pq.ParquetFile(file).metadata for file in files]
    groups = [footer.row_group(index) for footer in footers for index in range(footer.num_row_groups)]
    assert (found["format"], found["files"], found["rows"]) == ("parquet", 2, 2000)
    assert found["bytes"] == sum(file.stat().st_size for file in files)
    assert found["splits"] == len(groups) == 6
    assert found["split_rows"] == {"least": 100, "median": 300, "most": 600}
    number, name, vector = found["columns"]
    chunks = [group.column(0) for group in groups]
    assert number == {
        "name": "x",
        "type": "double",
        "codecs": ["SNAPPY", "ZSTD"],
        "encodings": ["PLAIN", "RLE_DICTIONARY"],
        "bounds": pytest.approx(4 / 6),
        "page_index": pytest.approx(4 / 6),
        "stored_bytes": sum(chunk.total_compressed_size for chunk in chunks),
        "values_bytes": sum(chunk.total_uncompressed_size for chunk in chunks),
    }
    assert name["type"] == "string"
    assert vector["tensor_shape"] == [4]


def test_files_with_other_columns_are_counted(tmp_path: Path, run: Run) -> None:
    for number in range(3):
        pq.write_table(TABLE.select(["x"] if number else ["x", "name"]), tmp_path / f"{number}.parquet")
    assert "2 files with other columns or types than the first" in run("inspect", tmp_path).stdout


def test_the_formats_of_readers(tmp_path: Path, answer: Run) -> None:
    rows = TABLE.select(["x", "name"])
    pyarrow.csv.write_csv(rows, tmp_path / "a.csv")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink:
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_file(sink, rows.schema, options=options) as writer:
            writer.write_table(rows, 250)
    csv, ipc = (answer("inspect", tmp_path / name) for name in ("a.csv", "a.arrow"))
    assert (csv["format"], csv["rows"], csv["split"]) == ("csv", 1000, "block")
    assert (ipc["splits"], ipc["split"], ipc["compressed_splits"]) == (4, "record batch", 4)
    assert [column["name"] for column in csv["columns"]] == ["x", "name"]


def test_tables_say_it_in_words(tmp_path: Path, run: Run) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=400)
    lines = run("inspect", tmp_path / "a.parquet").stdout.splitlines()
    assert lines[0].startswith("1 parquet file, ") and lines[0].endswith(", 1,000 rows")
    assert lines[1].startswith("3 row groups: 200 to 400, median 400 rows, ")
    assert lines[2].split()[:3] == ["column", "type", "tensor"]
    assert [line.split()[0] for line in lines[4:]] == ["x", "name", "vector"]


def test_tables_of_one_row(tmp_path: Path, run: Run) -> None:
    pq.write_table(TABLE.slice(0, 1), tmp_path / "a.parquet")
    lines = run("inspect", tmp_path / "a.parquet").stdout.splitlines()
    assert lines[0].endswith(", 1 row") and lines[1].startswith("1 row group: 1 row, ")


def test_a_format_that_nothing_tells_is_asked_for(tmp_path: Path, run: Run) -> None:
    pq.write_table(TABLE, tmp_path / "data.parquet")
    (tmp_path / "data").write_bytes((tmp_path / "data.parquet").read_bytes())
    (tmp_path / "rows.csv").write_text("x\n1\n")
    assert "no ending tells it" in run("inspect", tmp_path / "data", code=2).stderr
    assert "['csv', 'parquet']" in run("inspect", tmp_path, code=2).stderr
    assert "1,000 rows" in run("inspect", tmp_path / "data", "--format", "parquet").stdout
    assert "known formats: parquet" in (told := run("inspect", tmp_path, "--format", "tsv", code=2).stderr)
    assert "images" in told and "delta" in told


def test_files_whose_ending_tells_nothing_stand_beside_data(tmp_path: Path, run: Run, answer: Run) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    (tmp_path / "README.md").write_text("What it is.")
    assert answer("inspect", tmp_path)["rows"] == 1000
    (tmp_path / "a.parquet").rename(tmp_path / "a.tfrecord-00000-of-00001")
    error = run("inspect", tmp_path, code=2).stderr
    assert "--format names the format" in error and "tfrecord" in error
    (tmp_path / "empty").mkdir()
    assert "the directory has no files (" in run("inspect", tmp_path / "empty", code=1).stderr


def test_folders_of_images(tmp_path: Path, run: Run, answer: Run) -> None:
    for name, size in (("cat/a.jpg", 3), ("dog/b.png", 5)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / "LICENSE").write_text("free")
    found = answer("inspect", tmp_path)
    assert (found["format"], found["files"], found["rows"], found["bytes"]) == ("images", 2, 2, 8)
    assert [column["name"] for column in found["columns"]] == ["path", "image"]
    assert answer("inspect", tmp_path, "--format", "images") == found
    assert run("inspect", tmp_path).stdout.startswith("2 image files, 8 B, 2 rows\na file: 3 B to 5 B")
    assert run("head", tmp_path, "-n", 1).stdout.splitlines()[-1].split()[-2:] == ["3", "bytes"]
    for command in (("doctor", tmp_path), ("rewrite", tmp_path, tmp_path / "new")):
        assert "read_images reads no files of Parquet" in run(*command, code=2).stderr


def test_plots_beside_data_and_tables_in_odd_folders(tmp_path: Path, answer: Run) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(TABLE, tmp_path / "data" / "a.parquet")
    (tmp_path / "data" / "plot.png").write_bytes(b"pixels")
    assert answer("inspect", tmp_path / "data")["format"] == "parquet"
    delta = pytest.importorskip("deltalake")
    delta.write_deltalake(tmp_path / "sales.parquet", TABLE.select(["x"]))
    assert answer("inspect", tmp_path / "sales.parquet")["rows"] == 1000


def test_tables_of_lance(tmp_path: Path, run: Run, answer: Run) -> None:
    lance = pytest.importorskip("lance")
    written = lance.write_dataset(TABLE, tmp_path / "table")
    written.delete("x < 100")
    found = answer("inspect", tmp_path / "table")
    assert (found["format"], found["rows"], found["files"]) == ("lance", 900, None)
    assert [column["name"] for column in found["columns"]] == TABLE.column_names
    assert answer("inspect", tmp_path / "table", "--format", "lance") == found
    assert run("inspect", tmp_path / "table").stdout.startswith("a table of Lance, 900 rows\n")
    two = run("inspect", tmp_path / "table", tmp_path / "table", "--format", "lance", code=2).stderr
    assert "a table of Lance is one folder, got 2 paths" in two


def test_failures_are_one_line_and_a_code(tmp_path: Path, run: Run) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"no Parquet")
    for path in (tmp_path / "bad.parquet", tmp_path / "none.parquet"):
        error = run("inspect", path, code=1).stderr
        assert error.startswith("arrowflow: ") and error.count("\n") == 1
    assert "known formats" in run("inspect", tmp_path, "--format", "parket", code=2).stderr.replace(
        "did you mean", "known formats"
    )


def test_a_delta_table_by_its_folder(tmp_path: Path, answer: Run) -> None:
    delta = pytest.importorskip("deltalake")
    for part in range(2):
        delta.write_deltalake(tmp_path / "table", TABLE.select(["x"]).slice(part * 300, 300), mode="append")
    delta.DeltaTable(tmp_path / "table").delete("x < 100")
    found = answer("inspect", tmp_path / "table")
    assert (found["rows"], found["columns"][0]["name"]) == (500, "x")
    assert answer("inspect", tmp_path / "table", "--format", "delta") == found
