"""`storage`: what paths mean, in which order, and how bytes are fetched."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
import pytest

import arrowflow as af
from arrowflow.errors import PlanError, SourceError, WriteError
from arrowflow.storage import Fetched, File, Store, coalesce, resolve

pytestmark = pytest.mark.any_version

SUFFIXES = (".parquet", ".pq")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "b.parquet",
        "a.parquet",
        "c.PQ",
        "notes.txt",
        "_SUCCESS",
        ".hidden.parquet",
        "year=1/x.parquet",
        "year=2/y.parquet",
        "year=2/deep/z.parquet",
        "_temporary/0.parquet",
        "odd[1].parquet",
        "spa ce.parquet",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(name.encode())
    return tmp_path


@pytest.fixture
def memory() -> Iterator[Any]:
    filesystem = fsspec.filesystem("memory")
    for name in ("b", "a"):
        filesystem.pipe(f"/bucket/{name}.parquet", bytes(range(100)))
    yield filesystem
    filesystem.rm("/bucket", recursive=True)


def names(paths: object, **options: Any) -> list[str]:
    _, files = resolve(paths, suffixes=SUFFIXES, operator="read_parquet", **options)
    return [file.relative for file in files]


def test_directory(tree: Path) -> None:
    assert names(tree) == [
        "a.parquet",
        "b.parquet",
        "c.PQ",
        "odd[1].parquet",
        "spa ce.parquet",
        "year=1/x.parquet",
        "year=2/deep/z.parquet",
        "year=2/y.parquet",
    ]
    assert names(str(tree) + "/") == names(tree)


def test_one_file_and_its_size(tree: Path) -> None:
    store, files = resolve(tree / "a.parquet", suffixes=SUFFIXES, operator="read_parquet")
    assert files == (File(str(tree / "a.parquet"), "a.parquet", 9),)
    assert store.is_local
    assert not store.is_python


def test_a_list_keeps_its_order_and_duplicates(tree: Path) -> None:
    files = [tree / "b.parquet", str(tree / "a.parquet"), tree / "b.parquet"]
    assert names(files) == ["b.parquet", "a.parquet", "b.parquet"]
    assert names(set(files)) == ["a.parquet", "b.parquet"]
    assert names(iter([tree / "year=2", tree / "a.parquet"])) == [
        "year=2/deep/z.parquet",
        "year=2/y.parquet",
        "a.parquet",
    ]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.parquet", ["a.parquet", "b.parquet", "odd[1].parquet", "spa ce.parquet"]),
        ("[ab].parquet", ["a.parquet", "b.parquet"]),
        ("[!a].parquet", ["b.parquet"]),
        ("?.PQ", ["c.PQ"]),
        ("odd[1].parquet", ["odd[1].parquet"]),
        ("*.txt", ["notes.txt"]),
        (".h*.parquet", [".hidden.parquet"]),
        ("_S*", ["_SUCCESS"]),
        ("year=*/*.parquet", ["year=1/x.parquet", "year=2/y.parquet"]),
        ("year=*", ["year=1/x.parquet", "year=2/deep/z.parquet", "year=2/y.parquet"]),
        ("**/[xz].parquet", ["year=1/x.parquet", "year=2/deep/z.parquet"]),
        ("year=2/**", ["deep/z.parquet", "y.parquet"]),
        ("year=?/**/*.parquet", ["year=1/x.parquet", "year=2/deep/z.parquet", "year=2/y.parquet"]),
        ("_temporary/*", ["0.parquet"]),
    ],
)
def test_globs(tree: Path, pattern: str, expected: list[str]) -> None:
    assert names(str(tree / pattern)) == expected
    assert names(f"file://{tree}/{pattern}".replace("?", "[0-9c]")) == expected


def test_relative_paths_and_working_directory(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    _, files = resolve("*.PQ", suffixes=SUFFIXES, operator="read_parquet")
    assert files[0].path == str(tree / "c.PQ")


def test_url_escapes(tree: Path) -> None:
    assert names(f"file://{tree}/spa%20ce.parquet") == ["spa ce.parquet"]
    assert names(f"file://{tree}/spa%20*.parquet") == ["spa ce.parquet"]


def test_errors_of_listing(tree: Path) -> None:
    with pytest.raises(SourceError, match=r"read_parquet: there is no such file.*did you mean 'a.parquet'"):
        names(tree / "aa.parquet")
    with pytest.raises(SourceError, match="its folder is missing or empty"):
        names(tree / "nowhere" / "a.parquet")
    with pytest.raises(SourceError, match="the glob matches no file") as caught:
        names(str(tree / "*.csv"))
    assert caught.value.file == str(tree / "*.csv")
    assert caught.value.operator == "read_parquet"
    with pytest.raises(SourceError, match="the glob matches no file"):
        names(str(tree / "nowhere" / "*.csv"))
    (tree / "texts").mkdir()
    with pytest.raises(SourceError, match=r"no \.parquet or \.pq files \(in file"):
        names(tree / "texts")
    (tree / "texts" / "a.txt").touch()
    with pytest.raises(SourceError, match="it has 1 other files"):
        names(tree / "texts")
    with pytest.raises(SourceError, match="no paths given"):
        names([])


@pytest.mark.parametrize("paths", [3, [3], b"a", "", [None]])
def test_what_is_no_path(paths: object) -> None:
    with pytest.raises(PlanError, match="expected a path"):
        names(paths)


def test_fsspec_url(memory: Any) -> None:
    store, files = resolve("memory://bucket/*.parquet", suffixes=SUFFIXES, operator="read_parquet")
    assert [file.relative for file in files] == ["a.parquet", "b.parquet"]
    assert store.is_python
    assert not store.is_local
    with store.open(files[0]) as source:
        assert source.read() == bytes(range(100))


def test_fsspec_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(
        af.MissingPackageError, match=r"memory:// needs the package fsspec.*pip install fsspec"
    ):
        names("memory://bucket/*.parquet")


def test_unknown_scheme() -> None:
    with pytest.raises(SourceError, match="cannot list 'nosuch://bucket/x'"):
        names("nosuch://bucket/x")
    with pytest.raises(SourceError, match="and 1 more"):
        names(["nosuch://bucket/x"] * 4)


def test_broken_url() -> None:
    with pytest.raises(SourceError, match="check the address"):
        names("file://elsewhere/x")


def test_given_file_systems(tree: Path, memory: Any) -> None:
    assert names("/bucket", filesystem=memory) == ["a.parquet", "b.parquet"]
    assert names("memory://bucket/a.parquet", filesystem=memory) == ["a.parquet"]
    assert names(str(tree / "*.PQ"), filesystem=pafs.LocalFileSystem()) == ["c.PQ"]
    assert names(f"file://{tree}/c.PQ", filesystem=pafs.LocalFileSystem()) == ["c.PQ"]
    local = fsspec.filesystem("file")
    store, _ = resolve(tree, filesystem=local, suffixes=SUFFIXES, operator="read_parquet")
    assert store.is_local
    below = pafs.SubTreeFileSystem(str(tree), pafs.LocalFileSystem())
    assert names("year=*", filesystem=below) == names(str(tree / "year=*"))
    assert names("*.PQ", filesystem=below) == ["c.PQ"]
    with pytest.raises(PlanError, match=r"filesystem is a pyarrow\.fs"):
        names("a", filesystem="s3")


def test_one_file_system_per_source(tree: Path, memory: Any) -> None:
    with pytest.raises(PlanError, match="belong to one file system"):
        names([tree / "a.parquet", "memory://bucket/a.parquet"])


class _Unsized(fsspec.AbstractFileSystem):
    """A server that lists no sizes, as HTTP servers do."""

    protocol = "unsized"

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "type": "file", "size": None}

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        import io

        return io.BytesIO(b"12345")


def test_unknown_sizes() -> None:
    _, files = resolve("a.parquet", filesystem=_Unsized(), suffixes=SUFFIXES, operator="read_parquet")
    assert files[0].size == 5


def test_coalesce() -> None:
    assert coalesce([]) == []
    assert coalesce([(0, 0), (5, 5)]) == []
    assert coalesce([(0, 10), (20, 30)], hole_bytes=9) == [(0, 10), (20, 30)]
    assert coalesce([(20, 30), (0, 10), (2, 4)], hole_bytes=10) == [(0, 30)]


@pytest.mark.parametrize("kind", ["memory", "subtree", "mapped", "read"])
def test_fetching(kind: str, memory: Any, tmp_path: Path) -> None:
    data = bytes(range(100))
    (tmp_path / "a.parquet").write_bytes(data)
    if kind == "memory":
        store, files = resolve("/bucket/a.parquet", filesystem=memory, suffixes=SUFFIXES, operator="x")
    elif kind == "subtree":
        below = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
        store, files = resolve("a.parquet", filesystem=below, suffixes=SUFFIXES, operator="x")
    else:
        store, files = resolve(tmp_path / "a.parquet", suffixes=SUFFIXES, operator="x")
        store = Store(store.filesystem, memory_map=kind == "mapped")
    store = pickle.loads(pickle.dumps(store))
    file = pickle.loads(pickle.dumps(files[0]))
    assert [bytes(buffer) for buffer in store.fetch(file, [(0, 3), (97, 100)])] == [data[:3], data[97:]]
    assert store.fetch(file, []) == []
    with store.open(file) as source:
        assert isinstance(source, pa.MemoryMappedFile) == (kind == "mapped")
        assert source.read() == data
    with pytest.raises(SourceError, match="expected 20 bytes at offset 90, got 10"):
        store.fetch(file, [(90, 110)])


@pytest.mark.parametrize("kind", ["memory", "subtree"])
def test_fetched_bytes_serve_reads_from_memory(kind: str, memory: Any, tmp_path: Path) -> None:
    data = bytes(range(100))
    where: tuple[Any, str] = (memory, "/bucket/a.parquet")
    if kind == "subtree":
        (tmp_path / "a.parquet").write_bytes(data)
        where = (pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), "a.parquet")
    store, (file,) = resolve(where[1], filesystem=where[0], suffixes=SUFFIXES, operator="x")
    assert store.buffers == ()
    held = store.fetch_ahead(file, [(10, 15), (12, 20), (90, 100)])
    assert isinstance(held, Fetched)
    assert (held.is_local, held.is_python) == (False, True)
    assert [bytes(buffer) for buffer in held.buffers] == [data[10:]], "merged, as they lie close together"
    held = Fetched(
        store.filesystem,
        file=file,
        held={(10, 20): pa.py_buffer(data[10:20]), (90, 100): pa.py_buffer(data[90:])},
    )
    assert [bytes(buffer) for buffer in held.fetch(file, [(95, 97), (10, 20), (15, 15)])] == [
        data[95:97],
        data[10:20],
        b"",
    ]
    assert held.fetch(file, [(10, 20)])[0].address == held.buffers[0].address, "not copied"
    with pytest.raises(SourceError, match="bytes 19 to 21 are no part of the 2 ranges") as caught:
        held.fetch(file, [(19, 21)])
    assert caught.value.file == file.path
    with held.open(file) as source:
        source.seek(12)
        assert source.read(5) == data[12:17]
        assert source.tell() == 17
        source.seek(95)
        assert source.read() == data[95:]
        assert source.read(3) == b""
        assert source.size() == 100
        source.seek(50)
        with pytest.raises(SourceError, match="bytes 50 to 60"):
            source.read(10)
    assert source.closed
    with store.fetch_ahead(file, [(0, 100)]).open(file) as source:
        assert isinstance(source, pa.BufferReader)
        assert source.read() == data


@pytest.mark.parametrize("outside", [(-1, 5), (0, 101), (200, 300)])
def test_ranges_outside_of_a_file_are_not_asked_for(memory: Any, outside: tuple[int, int]) -> None:
    store, files = resolve("/bucket/a.parquet", filesystem=memory, suffixes=SUFFIXES, operator="x")
    with pytest.raises(SourceError, match=r"lie outside of the file of 100; the file is corrupt") as caught:
        store.fetch_ahead(files[0], [outside])
    assert caught.value.file == files[0].path
    assert store.fetch_ahead(files[0], [(5, 5), (7, 6)]).held == {}


def test_a_row_is_no_path() -> None:
    """What `interleave(af.read_parquet)` hands over."""
    with pytest.raises(PlanError, match=r'row\["path"\]'):
        resolve({"path": "x.parquet"}, suffixes=(".parquet",), operator="read_parquet")


ODD = {
    "a null byte": "a\0b",
    "no UTF-8": "\udcff",
    "a long name": "x" * 300,
    "a long path": "/".join(["y" * 200] * 30),
    "a link to itself": "loop",
    "below a link to itself": "loop/a",
    "below a file": "file/a",
}


def uses(path: str) -> dict[str, Callable[[], Any]]:
    """Returns all that takes paths of local files, but for the upkeep of caches."""
    small = af.Options(ram_budget="64KiB")
    return {
        "read": lambda: af.read_parquet(path).to_table(),
        "count": lambda: af.read_csv(path).num_rows,
        "list": lambda: af.list_files(path).to_table(),
        "write": lambda: af.range(3).write_parquet(path),
        "overwrite": lambda: af.range(3).write_ipc(path, overwrite=True),
        "cache": lambda: af.range(3).cache(path).to_table(),
        "bypass": lambda: af.range(3).cache(path, on_full="bypass").to_table(),
        "shuffled": lambda: af.range(3).cache(path).shuffle().to_table(),
        "spill": lambda: af.range(30_000).with_options(small).cache(spill=path).to_table(),
    }


@pytest.mark.parametrize("case", ODD)
def test_paths_that_cannot_be(tmp_path: Path, case: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    path = f"{tmp_path}/{ODD[case]}"
    for name, use in uses(path).items():
        with pytest.raises((PlanError, SourceError, WriteError)) as caught:
            use()
        assert caught.value.operator is not None or ":" in str(caught.value), name
    for upkeep in (af.cache_info, af.cache_clear):
        with suppress(PlanError, SourceError):
            assert upkeep(path) == []
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "loop"]


def test_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder called `~` in the working directory is never what was meant."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    af.range(3).write_parquet("~/numbers")
    assert af.read_parquet("~/numbers").num_rows == af.read_parquet("~/numb*/*.parquet").num_rows == 3
    assert af.range(3).cache("~/cache").to_table().num_rows == 3
    assert [entry.num_rows for entry in af.cache_info("~/cache")] == [3]
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["cache", "numbers"]
    assert list((tmp_path / "work").iterdir()) == []
    (tmp_path / "work/~a.parquet").touch()
    assert names("~a.parquet") == ["~a.parquet"]


def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    for use in uses("relative").values():
        with pytest.raises((PlanError, SourceError, WriteError)):
            use()
