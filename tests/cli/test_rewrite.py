from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest

from arrowflow.cli import rewrite
from arrowflow.storage import flush

pytestmark = pytest.mark.any_version

ROWS = 1000
TABLE = pa.table(
    {
        "x": np.random.default_rng(0).permutation(ROWS),
        "name": [f"name {number % 7}" for number in range(ROWS)],
        "tokens": [[number, 1, 2] for number in range(ROWS)],
    }
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for number in range(4):
        rows = TABLE.slice(number * 250, 250)
        pq.write_table(rows, tmp_path / f"in/{number}.parquet", row_group_size=10, compression="none")
    return tmp_path / "in"


def groups(folder: Path) -> list[list[int]]:
    footers = [pq.ParquetFile(file).metadata for file in sorted(folder.iterdir())]
    return [
        [footer.row_group(index).num_rows for index in range(footer.num_row_groups)] for footer in footers
    ]


def test_the_same_rows_in_another_layout(source: Path, tmp_path: Path, answer: Callable[..., Any]) -> None:
    out = tmp_path / "out"
    found = answer(
        "rewrite", source, out, "--group-rows", 100, "--shard-rows", 400, "--compression", "snappy"
    )
    assert pds.dataset(out).to_table().equals(TABLE)
    assert groups(out) == [[100] * 4, [100] * 4, [100] * 2]
    assert pq.ParquetFile(out / "part-00000.parquet").metadata.row_group(0).column(0).compression == "SNAPPY"
    assert (found["files"], found["rows"]) == (3, ROWS)
    assert found["bytes"] == sum(file.stat().st_size for file in out.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_sorted_with_lists_of_one_size_as_ipc(source: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    run("rewrite", source, tmp_path / "out", "--to", "ipc", "--sort", "name,x", "--fixed", "tokens:3")
    found = pds.dataset(tmp_path / "out", format="ipc").to_table()
    wanted = TABLE.sort_by([("name", "ascending"), ("x", "ascending")])
    assert found.schema.field("tokens").type.list_size == 3
    assert found.to_pylist() == wanted.to_pylist()


@pytest.mark.parametrize("after", [False, True], ids=["while-writing", "before-its-name"])
def test_a_broken_rewrite_shows_nothing_and_goes_on(
    after: bool, source: Path, tmp_path: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    whole = rewrite._Job._write

    def broken(job: Any, file: Path, start: int, rows: int) -> None:
        calls.append(start)
        if len(calls) == 3:
            if after:
                job._dataset.skip(start).take(rows).write_parquet(job._hidden / file.stem)
            raise KeyboardInterrupt
        whole(job, file, start, rows)

    arguments = ("rewrite", source, tmp_path / "out", "--shard-rows", 300)
    monkeypatch.setenv("ARROWFLOW_CPU_BUDGET", "1")  # one shard after the other
    with monkeypatch.context() as patched:
        patched.setattr(rewrite._Job, "_write", broken)
        run(*arguments, code=130)
    assert not (tmp_path / "out").exists()
    (hidden,) = tmp_path.glob(".rewriting-*")
    there = {file.name: file.stat().st_ino for file in (hidden / "data").iterdir()}
    assert sorted(there) == ["part-00000.parquet", "part-00001.parquet"]
    run(*arguments)
    found = {file.name: file.stat().st_ino for file in (tmp_path / "out").iterdir()}
    assert there.items() < found.items() and len(found) == 4
    assert pds.dataset(tmp_path / "out").to_table().equals(TABLE)
    assert not hidden.exists()


def test_shards_of_another_source_are_not_taken(
    source: Path, tmp_path: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(path: Path) -> None:
        flush(path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rewrite, "flush", stops)
        run("rewrite", source, tmp_path / "out", "--shard-rows", 300, code=130)
    other = TABLE.set_column(0, "x", pa.array(np.arange(ROWS)))
    pq.write_table(other.slice(0, 250), source / "0.parquet", compression="none")
    run("rewrite", source, tmp_path / "out", "--shard-rows", 300)
    wanted = pa.concat_tables([other.slice(0, 250), TABLE.slice(250)])
    assert pds.dataset(tmp_path / "out").to_table().equals(wanted)


def test_a_taken_place_stays(source: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    run("rewrite", source, source, code=1)
    assert pds.dataset(source).to_table().equals(TABLE)
    (tmp_path / "own").mkdir()
    (tmp_path / "own/notes.txt").write_text("mine")
    run("rewrite", source, tmp_path / "own", code=1)
    assert (tmp_path / "own/notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "options",
    [
        ["--to", "cvs"],
        ["--fixed", "tokens"],
        ["--fixed", "token:3"],
        ["--fixed", "x:3"],
        ["--compression", "zip"],
        ["--to", "csv", "--group-rows", "3"],
        ["--sort", "y"],
    ],
    ids=" ".join,
)
def test_bad_options_are_usage(
    options: list[str], source: Path, tmp_path: Path, run: Callable[..., Any]
) -> None:
    run("rewrite", source, tmp_path / "out", *options, code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_lists_of_other_sizes_are_no_fixed_ones(
    source: Path, tmp_path: Path, run: Callable[..., Any]
) -> None:
    run("rewrite", source, tmp_path / "out", "--fixed", "tokens:4", code=1)
    assert not (tmp_path / "out").exists()
