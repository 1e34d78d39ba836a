"""`links`: folders that links lead to are listed once, by the way that goes through the fewest of them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

import arrowflow as af
from arrowflow.storage import below
from tests.ops.tables import ids, refused

pytestmark = pytest.mark.any_version


def write(folder: Path, **files: int) -> None:
    """Writes files of one row each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, number in files.items():
        (folder / f"{name}.csv").write_text(f"id\n{number}\n")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two folders, one in the other; both have a link to the one above them."""
    folder = tmp_path / "data"
    write(folder, a=0)
    write(folder / "below", b=1)
    (folder / "again").symlink_to(folder)
    (folder / "below/above").symlink_to("..")
    return folder


def found(path: Any, **options: Any) -> list[int]:
    return ids(af.read_csv(path, **options))


@pytest.mark.parametrize(
    "pattern", ["", "again", "*", "**", "**/*", "**/*.csv", "[ab]*", "*/**", "**/below/**", "again/**/*.csv"]
)
def test_a_link_to_a_folder_above_it_repeats_no_file(tree: Path, pattern: str) -> None:
    expected = [1] if "below" in pattern else [0, 1]
    assert sorted(found(f"{tree}/{pattern}")) == expected
    below = pafs.SubTreeFileSystem(str(tree.parent), pafs.LocalFileSystem())
    assert sorted(found(f"data/{pattern}", filesystem=below)) == expected


def test_the_way_with_the_fewest_links_counts(tree: Path, tmp_path: Path) -> None:
    assert af.list_files(tree).to_table()["path"].to_pylist() == [f"{tree}/a.csv", f"{tree}/below/b.csv"]
    (tree / "0").symlink_to(tree / "below")
    assert af.list_files(f"{tree}/**/*.csv").to_table()["path"].to_pylist() == [
        f"{tree}/a.csv",
        f"{tree}/below/b.csv",
    ]
    write(tmp_path / "other", c=2)
    for name in ("y", "x"):
        (tree / name).symlink_to(tmp_path / "other")
    assert af.list_files(tree).to_table()["path"].to_pylist()[-1] == f"{tree}/x/c.csv"
    assert af.list_files(f"{tree}/*").to_table()["path"].to_pylist()[-1] == f"{tree}/x/c.csv"


def test_links_to_folders_elsewhere_are_followed(tmp_path: Path) -> None:
    for number in (2023, 2024):
        write(tmp_path / f"store/{number}/deep", a=number)
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / f"data/year={number}").symlink_to(tmp_path / f"store/{number}")
    (tmp_path / "store/2023/back").symlink_to(tmp_path / "store/2024")
    (tmp_path / "store/2024/back").symlink_to(tmp_path / "data")
    for path in ("data", "data/year=*", "data/**/*.csv", "data/year=*/deep/*.csv"):
        table = af.read_csv(f"{tmp_path}/{path}").to_table()
        assert table.to_pydict() == {"id": [2023, 2024], "year": [2023, 2024]}


def test_a_link_into_a_hidden_folder(tmp_path: Path) -> None:
    """As tools switch versions: the hidden folder is left out, and does not count as listed."""
    for number in (1, 2):
        write(tmp_path / f".versions/{number}", a=number)
    (tmp_path / "current").symlink_to(".versions/2")
    for path in (tmp_path, f"{tmp_path}/*", f"{tmp_path}/**"):
        assert found(path) == [2]
    assert sorted(found(f"{tmp_path}/.versions/**")) == [1, 2]
    assert sorted(found(f"{tmp_path}/**/.versions/*/*.csv")) == [1, 2]


def test_links_to_files_are_followed(tree: Path, tmp_path: Path) -> None:
    write(tmp_path, c=2)
    (tree / "c.csv").symlink_to(tmp_path / "c.csv")
    assert sorted(found(tree)) == [0, 1, 2]


def test_links_that_lead_nowhere(tree: Path) -> None:
    (tree / "gone.csv").symlink_to("nowhere.csv")
    (tree / "one.csv").symlink_to("two.csv")
    (tree / "two.csv").symlink_to("one.csv")
    for path in (tree, f"{tree}/*.csv", f"{tree}/**/*.csv"):
        assert sorted(found(path))[0] == 0
    assert sorted(found(tree)) == [0, 1]
    for name in ("gone", "one"):
        refused(af.SourceError, lambda: found(tree / f"{name}.csv"), "read_csv", "leads nowhere", name)  # noqa: B023


# ------------------------------------------------------------------------------------- what is no file


READERS: list[Callable[[Any], Any]] = [
    lambda path: af.read_csv(path).to_table(),
    lambda path: af.read_json(path).to_table(),
    lambda path: af.read_parquet(path).to_table(),
    lambda path: af.read_ipc(path).to_table(),
    lambda path: af.read_tfrecord(path, schema=af.range(1).schema).to_table(),
    lambda path: af.list_files(path).to_table(),
]


@pytest.fixture
def special(tmp_path: Path) -> Iterator[dict[str, str]]:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "link.csv").symlink_to(tmp_path / "pipe.csv")
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(tmp_path)  # the names of sockets may have 107 bytes
        try:
            listening.bind("socket.csv")
        finally:
            os.chdir(here)
        names = ("pipe.csv", "link.csv", "socket.csv")
        yield {**{name: str(tmp_path / name) for name in names}, "device": "/dev/null"}


@pytest.mark.parametrize("read", READERS)
def test_what_is_no_file_is_refused_unopened(special: dict[str, str], read: Any) -> None:
    below = pafs.SubTreeFileSystem("/", pafs.LocalFileSystem())
    for path in special.values():
        refused(af.PlanError, lambda: read(path), "a pipe, socket or device", path)  # noqa: B023
    refused(
        af.PlanError,
        lambda: af.read_csv(special["pipe.csv"].lstrip("/"), filesystem=below).to_table(),
        "a pipe, socket or device",
    )


def test_what_is_no_file_is_left_out_of_folders(special: dict[str, str], tmp_path: Path) -> None:
    refused(af.SourceError, lambda: found(f"{tmp_path}/*.csv"), "matches no file")
    refused(af.SourceError, lambda: found(tmp_path), "the directory has no")
    write(tmp_path, a=3)
    assert found(tmp_path) == found(f"{tmp_path}/*.csv") == found(f"{tmp_path}/**") == [3]


def test_a_folder_that_goes_as_it_is_listed_was_not_there() -> None:
    class Going(pafs.SubTreeFileSystem):
        def get_file_info(self, selector: pafs.FileSelector) -> Any:
            raise FileNotFoundError(f"Cannot list directory {selector.base_dir!r}")

    assert below(Going("/nowhere", pafs.LocalFileSystem()), "data") == []
