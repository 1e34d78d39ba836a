"""`list_files`: the paths of files, in a form in which each can be read by itself."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.ops.sources import list_files
from arrowflow.ops.sources.list_files import ListFilesKernel, Root, as_url, roots_of
from arrowflow.storage import Store
from arrowflow.testing import batches_of, check_dataset
from tests.ops.tables import ids, refused, rows_of, sizes

NAMES = [
    "a.parquet",
    "b/1.parquet",
    "b/c/2.txt",
    "d.txt",
    "odd[1]*.parquet",
    "spa ce%20.parquet",
    "ü.parquet",
]
HIDDEN = ["_SUCCESS", ".hidden.parquet", "_log/0.parquet", "b/.crc"]


def write(file: Any, number: int) -> None:
    pq.write_table(pa.table({"row": [number]}), file)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for number, name in enumerate(NAMES + HIDDEN):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        write(tmp_path / name, number)
    return tmp_path


@pytest.fixture
def memory() -> Iterator[Any]:
    filesystem = fsspec.filesystem("memory")
    for number, name in enumerate(["x.parquet", "y/50%.parquet", "y/odd[1].parquet", "y/z.parquet"]):
        with filesystem.open(f"/bucket/{name}", "wb") as file:
            write(file, number)
    yield filesystem
    filesystem.rm("/bucket", recursive=True)


def listed(paths: Any, **options: Any) -> list[str]:
    return rows_of(af.list_files(paths, **options), "path")


@pytest.mark.parametrize("kind", ["local", "memory"])
@pytest.mark.usefixtures("memory")
def test_datasets_made_of_a_listing_share_its_cache(kind: str, tree: Path) -> None:
    """Each looks at the file system anew, and finds the same files."""
    calls: list[int] = []

    def note(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        return batch

    ds = af.list_files(tree if kind == "local" else "memory://bucket").map(note).cache()
    others = ds.batch(2), ds.with_options(af.Options(retries=1)), ds.with_options(af.Options(seed=1))
    assert all(rows_of(other, "path") == rows_of(ds, "path") for other in others)
    assert calls == [len(NAMES) if kind == "local" else 4]


# ---------------------------------------------------------------------------------------------- rows


def test_contracts(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_dataset(lambda: af.list_files([str(tree / "*.parquet"), str(tree / "b")]).skip(1).take(4).batch(3))
    monkeypatch.setattr(list_files, "MAX_CHUNK_ROWS", 3)
    assert sizes(af.list_files(tree)) == [3, 3, 1]
    check_dataset(lambda: af.list_files(tree).batch(2))
    check_dataset(lambda: af.list_files(tree).shuffle(4, seed=1).batch(2), epochs_differ=True)


def test_a_directory_gives_all_files_that_are_not_hidden(tree: Path) -> None:
    ds = af.list_files(tree)
    assert rows_of(ds, "path") == [str(tree / name) for name in sorted(NAMES)]
    assert ds.schema == pa.schema([("path", pa.string())])
    assert ds.num_rows == len(NAMES)


def test_it_is_listed_for_each_run(tree: Path) -> None:
    ds = af.list_files(tree / "*.txt")
    assert not repr(ds).count(" files")
    assert sizes(ds) == [1]
    write(tree / "new.txt", 0)
    assert sizes(ds) == [2]
    assert "list_files(2 files)" in ds.explain()


def test_nothing_of_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "empty.parquet").touch()
    (tmp_path / "no.parquet").write_bytes(b"nothing that could be read")
    assert sizes(af.list_files(tmp_path)) == [2]


def test_a_long_listing_comes_in_chunks_that_are_made_when_they_are_read() -> None:
    names = tuple(f"/{number:06}" for number in range(150_000))
    kernel = ListFilesKernel(names)
    tasks = list(kernel.tasks(None))
    assert [(task.payload, task.origin.split) for task in tasks] == [(0, 0), (65_536, 1), (131_072, 2)]
    made = [made for task in tasks for made in kernel.read(task)]
    assert [one.position for one in made] == [(65_536,), (131_072,), (150_000,)]
    assert [name for one in made for name in one.chunk.column("path").to_pylist()] == list(names)
    assert list(kernel.tasks((65_536,))) == tasks[1:]
    assert not list(kernel.tasks((150_000,)))


# ---------------------------------------------------------------------------------------- round trips


def test_each_path_can_be_read_by_itself(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [[NAMES.index(name)] for name in sorted(NAMES)]
    monkeypatch.chdir(tree)
    for paths in (tree, str(tree), ".", f"file://{tree}", [tree / name for name in NAMES]):
        assert [rows_of(af.read_parquet(path)) for path in listed(paths)] == expected
    assert listed("*.txt") == listed(f"file://{tree}/*.txt") == [str(tree / "d.txt")]
    assert listed(f"file://{tree}/spa%20ce%2520.parquet") == [str(tree / "spa ce%20.parquet")]


def test_files_of_a_url_come_as_urls(memory: Any) -> None:
    found = listed("memory://bucket")
    names = ["x.parquet", "y/50%.parquet", "y/odd[1].parquet", "y/z.parquet"]
    assert found == [f"memory://bucket/{name}" for name in names]
    del found[1]  # pyarrow refuses a `%` that starts no escape before it sees that the URL is none of its own
    assert listed(found) == found
    assert [rows_of(af.read_parquet(path)) for path in found] == [[0], [2], [3]]
    assert listed("memory://bucket/x.*") == listed("memory://bucket/x.parquet") == found[:1]
    assert listed(["memory:///bucket/y/z.parquet", "memory://bucket/x.parquet"])[1].endswith("x.parquet")


def test_files_of_a_given_file_system_come_as_it_names_them(tree: Path, memory: Any) -> None:
    found = listed("memory://bucket/y", filesystem=memory)
    assert found == ["/bucket/y/50%.parquet", "/bucket/y/odd[1].parquet", "/bucket/y/z.parquet"]
    assert [rows_of(af.read_parquet(path, filesystem=memory)) for path in found] == [[1], [2], [3]]
    below = pafs.SubTreeFileSystem(str(tree), pafs.LocalFileSystem())
    assert listed("b", filesystem=below) == ["b/1.parquet", "b/c/2.txt"]
    assert rows_of(af.read_parquet("b/c/2.txt", filesystem=below)) == [2]


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/a%20b/c=1,d=2/%25%2A%5B1%5D%3F%23.parquet?region=eu-west-1",
        "s3://key:secret@bucket/x.parquet?endpoint_override=localhost:9000&scheme=http&region=x",
        "gs://anonymous@bucket/%C3%BC.parquet?retry_limit_seconds=3",
        "gs://anonymous@bucket/x.parquet",
        "abfs://container@account.dfs.core.windows.net/folder/x.parquet",
        "abfs://account.blob.core.windows.net/container/x.parquet",
    ],
)
def test_urls_lead_back_to_their_path(url: str) -> None:
    filesystem, path = pafs.FileSystem.from_uri(url)
    roots = roots_of(url, Store(filesystem))
    assert as_url(path, roots) == url
    again, same = pafs.FileSystem.from_uri(as_url(path + " ä+~", roots))
    assert same == path + " ä+~"
    assert again == filesystem


def test_urls_of_several_buckets() -> None:
    buckets = [
        "s3://one/x/*?region=eu-west-1",
        "s3://other/*?region=eu-west-1",
        "s3://one/y?region=eu-west-1",
    ]
    filesystem, _ = pafs.FileSystem.from_uri("s3://one?region=eu-west-1")
    roots = roots_of(buckets, Store(filesystem))
    assert [root.path for root in roots] == ["one", "other"]
    assert as_url("other/z", roots) == "s3://other/z?region=eu-west-1"
    refused(af.SourceError, lambda: as_url("one-more/z", roots), "list_files", "one-more/z", "filesystem=")


def test_urls_of_file_systems_whose_paths_name_no_host() -> None:
    root = Root("", "hdfs://node:8020", "?user=me", quoted=True)
    assert as_url("/data/a b", [root]) == "hdfs://node:8020/data/a%20b?user=me"
    root = Root("https://host", "https://host", "", quoted=False)
    assert as_url("https://host/a%20b?key=1", [root]) == "https://host/a%20b?key=1"


# ------------------------------------------------------------------------------------ what goes on top


def test_shuffle_permutes_the_files(tree: Path) -> None:
    ds = af.list_files(tree).shuffle(100, seed=3)
    orders = [rows_of(ds, "path", epoch=epoch) for epoch in range(3)]
    assert all(sorted(order) == sorted(map(str, map(tree.joinpath, NAMES))) for order in orders)
    assert len(set(map(tuple, orders))) > 1


# --------------------------------------------------------------------------------------------- states


def test_a_state_fits_the_same_files_elsewhere(tmp_path: Path) -> None:
    for folder, name in itertools.product(("here", "there", "more", "longer"), "abc"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text("x" * (1 + (folder + name == "longerc")))
    (tmp_path / "more" / "d").touch()
    with iter(af.list_files(tmp_path / "here").batch(1)) as iterator:
        next(iterator)
        state = json.loads(json.dumps(iterator.state_dict()))
    resumed = iter(af.list_files(tmp_path / "there").batch(1))
    resumed.load_state_dict(state)
    found = [path for batch in resumed for path in batch.column("path").to_pylist()]
    assert found == [str(tmp_path / "there/b"), str(tmp_path / "there/c")]
    for other in ("more", "longer"):
        with iter(af.list_files(tmp_path / other).batch(1)) as iterator:
            refused(af.StateError, lambda: iterator.load_state_dict(state), "list_files")


# --------------------------------------------------------------------------------------------- errors


def test_errors_name_it(tmp_path: Path) -> None:
    """Which there are is told in `tests/storage/test_addresses.py`."""
    cases: list[tuple[Any, type[Exception], str]] = [
        *((tmp_path / name, af.SourceError, str(tmp_path / name)) for name in ("none.parquet", "*", "")),
        ([], af.SourceError, "no paths given"),
        *((paths, af.PlanError, "expected a path") for paths in ("", None)),
        ([tmp_path, "memory://bucket/x.parquet"], af.PlanError, "one file system"),
    ]
    for paths, error, text in cases:
        refused(error, lambda paths=paths: af.list_files(paths).schema, "list_files", text)  # type: ignore[misc]
        refused(error, lambda paths=paths: batches_of(af.list_files(paths)), "list_files", text)  # type: ignore[misc]


def test_nothing_is_listed_before_it_is_bound() -> None:
    assert ids(af.list_files("/nowhere").apply(lambda ds: af.range(2))) == [0, 1]
