from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest

from arrowflow.caching.store.claim import claim
from arrowflow.cli import rewrite
from arrowflow.storage import flush
from tests.cli.conftest import Run

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
        pq.write_table(rows, tmp_path / f"in/{number}.parquet", row_group_size=50, compression="none")
    return tmp_path / "in"


def groups(folder: Path) -> list[list[int]]:
    footers = [pq.ParquetFile(file).metadata for file in sorted(folder.iterdir())]
    return [
        [footer.row_group(index).num_rows for index in range(footer.num_row_groups)] for footer in footers
    ]


def test_the_same_rows_in_another_layout(source: Path, tmp_path: Path, answer: Run) -> None:
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


def test_sorted_with_lists_of_one_size_as_ipc(source: Path, tmp_path: Path, run: Run) -> None:
    run("rewrite", source, tmp_path / "out", "--to", "ipc", "--sort", "name,x", "--fixed", "tokens:3")
    found = pds.dataset(tmp_path / "out", format="ipc").to_table()
    wanted = TABLE.sort_by([("name", "ascending"), ("x", "ascending")])
    assert found.schema.field("tokens").type.list_size == 3
    assert found.to_pylist() == wanted.to_pylist()


@pytest.mark.parametrize("after", [False, True], ids=["while-writing", "before-its-name"])
def test_a_broken_rewrite_shows_nothing_and_goes_on(
    after: bool, source: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    whole = rewrite._Job._write

    def broken(job: Any, file: Path, start: int, rows: int) -> None:
        calls.append(start)
        if len(calls) == 3:
            if after:
                job.dataset.skip(start).take(rows).write_parquet(job.hidden / file.stem)
            raise KeyboardInterrupt
        whole(job, file, start, rows)

    arguments = ("rewrite", source, tmp_path / "out", "--shard-rows", 300)
    monkeypatch.setenv("ARROWFLOW_CPU_BUDGET", "1")  # one shard after the other
    with monkeypatch.context() as patched:
        patched.setattr(rewrite._Job, "_write", broken)
        stopped = run(*arguments, code=130)
    assert not (tmp_path / "out").exists()
    (hidden,) = tmp_path.glob(".rewriting-*")
    there = {file.name: file.stat().st_ino for file in (hidden / "data").iterdir()}
    assert sorted(there) == ["part-00000.parquet", "part-00001.parquet"]
    assert "2 of 4 files are whole" in stopped.stderr and str(hidden) in stopped.stderr
    run(*arguments)
    found = {file.name: file.stat().st_ino for file in (tmp_path / "out").iterdir()}
    assert there.items() < found.items() and len(found) == 4
    assert pds.dataset(tmp_path / "out").to_table().equals(TABLE)
    assert not hidden.exists()


def stopped(source: Path, target: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a rewrite that is interrupted after its first shard."""

    def stops(path: Path) -> None:
        flush(path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rewrite, "flush", stops)
        run("rewrite", source, target, "--shard-rows", 300, code=130)


def test_shards_of_another_source_are_not_taken(
    source: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(source, tmp_path / "out", run, monkeypatch)
    other = TABLE.set_column(0, "x", pa.array(np.arange(ROWS)))
    pq.write_table(other.slice(0, 250), source / "0.parquet", compression="none")
    run("rewrite", source, tmp_path / "out", "--shard-rows", 300)
    wanted = pa.concat_tables([other.slice(0, 250), TABLE.slice(250)])
    assert pds.dataset(tmp_path / "out").to_table().equals(wanted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_what_another_process_writes_stays(
    source: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(source, tmp_path / "out", run, monkeypatch)
    (hidden,) = tmp_path.glob(".rewriting-*")
    held = claim(hidden / "lock")
    assert held is not None
    run("rewrite", source, tmp_path / "out", "--shard-rows", 500)
    assert hidden.exists()
    held.release()
    run("rewrite", source, tmp_path / "out", "--shard-rows", 400, "--overwrite")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_a_target_is_replaced_if_that_is_wished(source: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    run("rewrite", source, out, "--shard-rows", 300)
    refused = run("rewrite", source, out, "--sort", "x", code=1)
    assert "--overwrite" in refused.stderr and "overwrite=True" not in refused.stderr
    assert pds.dataset(out).to_table().equals(TABLE)
    run("rewrite", source, out, "--sort", "x", "--overwrite")
    assert pds.dataset(out).to_table().equals(TABLE.sort_by("x"))
    (out / "notes.txt").write_text("mine")
    run("rewrite", source, out, "--overwrite", code=1)
    assert (out / "notes.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_a_target_is_whole_after_an_error_while_it_is_replaced(
    source: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    run("rewrite", source, out)
    rename = Path.rename

    def broken(path: Path, target: Path) -> Path:
        if path.name == "data":
            raise OSError(5, "the disk is gone")
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", broken)
        failed = run("rewrite", source, out, "--sort", "x", "--overwrite", code=1)
    assert "the disk is gone" in failed.stderr and "1 of 1 file" in failed.stderr
    assert pds.dataset(out).to_table().equals(TABLE)
    run("rewrite", source, out, "--sort", "x", "--overwrite")
    assert pds.dataset(out).to_table().equals(TABLE.sort_by("x"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.parametrize("options", [[], ["--overwrite"]], ids=["plainly", "overwriting"])
def test_a_source_in_the_target_is_refused(
    options: list[str], source: Path, tmp_path: Path, run: Run
) -> None:
    for target in (source, tmp_path):
        done = run("rewrite", source, target, *options, code=2)
        assert "the source lies in the target" in done.stderr
    assert pds.dataset(source).to_table().equals(TABLE)


def test_a_taken_place_stays(source: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/notes.txt").write_text("mine")
    run("rewrite", source, tmp_path / "own", code=1)
    assert (tmp_path / "own/notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("--to cvs", 2),
        ("--fixed tokens", 2),
        ("--fixed token:3", 2),
        ("--fixed x:3", 2),
        ("--compression zip", 2),
        ("--to csv --group-rows 3", 2),
        ("--sort y", 2),
        ("--to ipc --partition-by name", 2),
        ("--fixed tokens:4", 1),  # a size that the lists do not have
    ],
)
def test_options_that_do_not_fit_leave_nothing(
    options: str, code: int, source: Path, tmp_path: Path, run: Run
) -> None:
    run("rewrite", source, tmp_path / "out", *options.split(), code=code)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_partitions(source: Path, tmp_path: Path, run: Run, answer: Run) -> None:
    left = tmp_path / f"{rewrite._prefix(tmp_path / 'out')}1"
    left.mkdir()
    found = answer("rewrite", source, tmp_path / "out", "--partition-by", "name", "--group-rows", 20)
    assert found["rows"] == ROWS and found["files"] == 7 and not left.exists()
    for number in range(7):
        (file,) = (tmp_path / f"out/name=name%20{number}").iterdir()
        rows = TABLE.filter(pc.equal(TABLE["name"], f"name {number}")).drop_columns("name")
        assert pq.ParquetFile(file).read().equals(rows)
        assert pq.ParquetFile(file).metadata.row_group(0).num_rows == 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.parametrize("column", ["y", "tokens"])
def test_columns_that_name_no_partitions(column: str, source: Path, tmp_path: Path, run: Run) -> None:
    done = run("rewrite", source, tmp_path / "out", "--partition-by", column, code=1)
    assert "--partition-by" in done.stderr and repr(column) in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_target_in_the_source_is_refused(source: Path, run: Run) -> None:
    done = run("rewrite", source, source / "a" / "b", code=2)
    assert "lies in the source" in done.stderr
    assert pds.dataset(source).to_table().num_rows == ROWS


def test_a_remote_target_is_written_as_writers_do(source: Path, run: Run, answer: Run) -> None:
    target = "memory://rewritten-by-the-command-line"
    run("rewrite", source, target, "--shard-rows", 600)
    assert [json.loads(line)["x"] for line in run("head", target, "-n", 5, "--json").stdout.splitlines()] == [
        int(value) for value in TABLE["x"][:5].to_pylist()
    ]
    found = answer("inspect", target)
    assert (found["files"], found["rows"], found["columns"][0]["codecs"]) == (2, ROWS, ["ZSTD"])
    assert "--overwrite" in run("rewrite", source, target, code=1).stderr
    run("rewrite", source, target, "--sort", "x", "--overwrite")
    assert [json.loads(line)["x"] for line in run("head", target, "-n", 3, "--json").stdout.splitlines()] == [
        0,
        1,
        2,
    ]


KILLED = """
import os, sys
from arrowflow.cli import rewrite
from arrowflow_cli import main

def kills(path):
    os._exit(9)

if len(list(rewrite.Path(sys.argv[2]).parent.glob(".rewriting-*/data/*"))) < 3:
    rewrite.flush = kills
main()
"""


@pytest.mark.slow
def test_killed_again_and_again_it_is_never_half(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = KILLED.replace("sys.argv[2]", repr(str(out)))
    codes: list[int] = []
    while not codes or codes[-1] == 9:
        assert len(codes) < 5
        assert not out.exists()
        done = subprocess.run(
            [sys.executable, "-c", code, "rewrite", source, out, "--shard-rows", "250"],
            env={**os.environ, "ARROWFLOW_CPU_BUDGET": "1"},
            check=False,
            timeout=60,
        )
        codes.append(done.returncode)
    assert codes == [9, 9, 9, 0]
    assert pds.dataset(out).to_table().equals(TABLE)
