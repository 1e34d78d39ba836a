"""Files that other processes change: an error that names the file and the change, and never rows of two versions."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest

import arrowflow as af
from arrowflow.ops.order import global_shuffle
from arrowflow.run import prepare
from arrowflow.storage import File, Store, remote_change
from tests.ops.sources.files.written import write_file

pytestmark = pytest.mark.any_version

SPLITS, SPLIT_ROWS = 200, 50
ROWS = SPLITS * SPLIT_ROWS
"""More splits than a run reads ahead."""


def write(path: Path, first: int, rows: int = ROWS) -> None:
    """Writes numbers of six digits from `first` on, so that files of as many rows have one size."""
    write_file(path, pa.table({"x": np.arange(first, first + rows)}), SPLIT_ROWS)


def read(*paths: Path | str, **options: Any) -> af.Dataset:
    suffix = Path(paths[0]).suffix or ".parquet"
    if suffix in (".csv", ".json"):
        options["block_bytes"] = 1024
    ds: af.Dataset = getattr(af, f"read_{suffix[1:]}")(paths, **options)
    return ds.with_options(af.Options(cpu_budget=1))


def values(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [value for batch in batches for value in batch["x"].to_pylist()]


def take_rest(running: Iterable[pa.RecordBatch], found: list[int]) -> None:
    for batch in running:
        found += batch["x"].to_pylist()


def another(path: Path, rows: int = ROWS) -> Path:
    """Returns a file of the same size and time with other rows."""
    other = path.with_name("other" + path.suffix)
    write(other, 500_000, rows)
    assert other.stat().st_size == path.stat().st_size
    shutil.copystat(path, other)
    return other


def replaced(path: Path, by: Path) -> None:
    by.replace(path)


def rewritten(path: Path, by: Path) -> None:
    with path.open("r+b") as file:
        file.write(by.read_bytes())
    os.utime(path, ns=(0, 0))  # two writes may come in one tick of the file system's clock


def shortened(path: Path, by: Path) -> None:
    os.truncate(path, 4096)


def removed(path: Path, by: Path) -> None:
    path.unlink()


CHANGES: dict[Callable[[Path, Path], None], str] = {
    replaced: "another file of the same size took its place",
    rewritten: "it was written again, with the same size",
    shortened: r"it had [0-9,]+ bytes, and has [0-9,]+",
    removed: "removed",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("suffix", ["parquet", "ipc", "csv", "json"])
def test_a_change_in_the_middle_of_an_epoch(
    tmp_path: Path, suffix: str, change: Callable[[Path, Path], None]
) -> None:
    path = tmp_path / f"a.{suffix}"
    write(path, 100_000)
    found: list[int] = []
    other = another(path)
    # Rows of a map change with the file, and to read one that became shorter would end the process.
    in_place = change in (rewritten, shortened) and suffix in ("parquet", "ipc")
    maps = {"memory_map": False} if in_place else {}
    with iter(read(path, **maps)) as running:
        found += next(running)["x"].to_pylist()
        change(path, other)
        with pytest.raises(af.SourceError, match=CHANGES[change]) as caught:
            take_rest(running, found)
    assert caught.value.file == str(path)
    assert str(caught.value).startswith(f"read_{suffix}: the file ")
    assert found == list(range(100_000, 100_000 + len(found)))


def test_one_small_file_that_lost_a_row_and_one_that_gained_a_row(tmp_path: Path) -> None:
    names = [tmp_path / f"{number:03}.parquet" for number in range(200)]
    for number, name in enumerate(names):
        write(name, 100_000 + 10 * number, 10)
    found: list[int] = []
    with iter(read(tmp_path)) as running:
        found += next(running)["x"].to_pylist()
        write(names[-2], 200_000, 9)
        write(names[-1], 200_009, 11)
        with pytest.raises(af.SourceError, match=r"changed since it was listed.*198.parquet"):
            take_rest(running, found)
    assert found == list(range(100_000, 100_000 + len(found)))


@pytest.mark.parametrize("change", [rewritten, replaced])
def test_a_change_below_a_global_shuffle(
    tmp_path: Path, change: Callable[[Path, Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(global_shuffle, "MAX_PART_ROWS", 100)  # more parts than a run gathers ahead
    path = tmp_path / "a.ipc"
    write(path, 100_000)
    found: list[int] = []
    other = another(path)
    with iter(read(path).shuffle(seed=1).batch(100)) as running:
        found += next(running)["x"].to_pylist()
        change(path, other)
        with pytest.raises(af.SourceError, match=CHANGES[change]):
            take_rest(running, found)
    assert found and all(100_000 <= each < 200_000 for each in found)


def state_of(ds: af.Dataset) -> dict[str, Any]:
    with iter(ds) as running:
        next(running)
        return dict(json.loads(json.dumps(running.state_dict())))


def rest_of(ds: af.Dataset, state: dict[str, Any], **options: Any) -> list[int]:
    with iter(ds) as running:
        running.load_state_dict(state, **options)
        return values(running)


@pytest.mark.parametrize("suffix", ["parquet", "ipc", "csv", "json"])
def test_a_state_knows_a_copy_from_a_rewrite(tmp_path: Path, suffix: str) -> None:
    folder, copy = tmp_path / "here", tmp_path / "there"
    folder.mkdir()
    paths = [folder / f"{name}.{suffix}" for name in "ab"]
    for number, path in enumerate(paths):
        write(path, 100_000 + number * ROWS)

    def files(where: Path) -> af.Dataset:
        return read(*(where / path.name for path in paths)).batch(64)

    state = state_of(files(folder))
    shutil.copytree(folder, copy, copy_function=shutil.copyfile)
    os.utime(copy / paths[0].name, ns=(0, 0))
    assert rest_of(files(copy), state) == list(range(100_064, 100_000 + 2 * ROWS))
    rewritten(copy / paths[1].name, another(paths[1]))
    with pytest.raises(af.StateError, match=f"the file '.*there/b.{suffix}' has other contents"):
        rest_of(files(copy), state)


def test_a_state_with_fewer_files_knows_those_it_had(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.parquet" for name in "abc"]
    for number, path in enumerate(paths):
        write(path, 100_000 + number * ROWS)
    state = state_of(read(*paths[:2]).batch(64))
    longer = read(*paths).batch(64)
    with pytest.warns(UserWarning, match="1 new files"):
        assert rest_of(longer, state, strict=False) == list(range(100_064, 100_000 + 3 * ROWS))
    rewritten(paths[0], another(paths[0]))
    with pytest.raises(af.StateError, match=r"the file '.*a.parquet' has other contents"):
        rest_of(longer, state, strict=False)


def test_a_state_stays_small_and_names_the_neighbourhood(tmp_path: Path) -> None:
    for number in range(600):
        write(tmp_path / f"{number:04}.json", 100_000 + number, 1)
    ds = af.read_json(tmp_path).batch(7)
    state = state_of(ds)
    assert len(json.dumps(state)) < 2_000
    rewritten_one = tmp_path / "0400.json"
    write(rewritten_one, 200_000, 1)
    with pytest.raises(af.StateError, match=r"one of the files from '.*0399.json' to '.*0401.json'"):
        rest_of(af.read_json(tmp_path).batch(7), state)


def test_a_state_after_a_file_was_removed_has_no_contents(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.json", 100_000, 5)
    with iter(af.read_json(tmp_path).batch(5)) as running:
        next(running)
        next(running)
        (tmp_path / "a.json").unlink()
        assert "contents" not in running.state_dict()


Elsewhere = tuple[Any, str, Callable[[bytes | None], None]]
"""A file system, the path of a copy there, and what replaces or removes it."""


def of_memory(path: Path) -> Elsewhere:
    filesystem, where = fsspec.filesystem("memory"), f"/changed/{path.name}"
    filesystem.pipe(where, path.read_bytes())
    return (
        filesystem,
        where,
        lambda data: filesystem.rm(where) if data is None else filesystem.pipe(where, data),
    )


def of_subtree(path: Path) -> Elsewhere:
    """The same for a file system of pyarrow that is not local."""

    def replace(data: bytes | None) -> None:
        if data is None:
            path.unlink()
            return
        # In one step: a run that reads meanwhile finds the old file or the new one.
        new = path.with_name(f"{path.name}.new")
        new.write_bytes(data)
        os.utime(new, ns=(0, 0))
        new.replace(path)

    return pafs.SubTreeFileSystem(str(path.parent), pafs.LocalFileSystem()), path.name, replace


REMOTE: dict[str, tuple[Callable[[Path], bytes | None], str]] = {
    "replaced": (lambda path: another(path).read_bytes(), "it was written again, with the same size"),
    "longer": (lambda path: path.read_bytes() + bytes(8), r"it had [0-9,]+ bytes"),
    "removed": (lambda path: None, "removed"),
}


@pytest.mark.parametrize("change", REMOTE)
@pytest.mark.parametrize("kind", [of_memory, of_subtree], ids=["fsspec", "pyarrow"])
@pytest.mark.parametrize("suffix", ["parquet", "ipc", "csv"])
def test_a_change_of_a_file_that_is_not_local(tmp_path: Path, suffix: str, kind: Any, change: str) -> None:
    path = tmp_path / f"a.{suffix}"
    write(path, 100_000)
    made, text = REMOTE[change]
    other = made(path)
    filesystem, where, replace = kind(path)
    found: list[int] = []
    one_at_a_time = af.Options(cpu_budget=1, autotune=False)
    ds = read(where, filesystem=filesystem, num_parallel_calls=1)
    with iter(ds.with_options(one_at_a_time)) as running:
        found += next(running)["x"].to_pylist()
        replace(other)
        with pytest.raises(af.SourceError, match=text) as caught:
            take_rest(running, found)
    assert str(caught.value.file).endswith(path.name)
    assert found == list(range(100_000, 100_000 + len(found)))


@pytest.mark.parametrize("change", REMOTE)
@pytest.mark.parametrize("kind", [of_memory, of_subtree], ids=["fsspec", "pyarrow"])
def test_a_change_between_two_epochs_of_a_file_that_is_not_local(
    tmp_path: Path, kind: Any, change: str
) -> None:
    """Where its file system tells the time, the footer of the first epoch serves in the second one."""
    path = tmp_path / "a.parquet"
    write(path, 100_000)
    other = REMOTE[change][0](path)
    filesystem, where, replace = kind(path)
    ds = af.read_parquet(where, filesystem=filesystem)
    assert values(ds) == list(range(100_000, 100_000 + ROWS))
    replace(other)
    if (kind, change) == (of_memory, "replaced"):
        assert values(ds) == list(range(500_000, 500_000 + ROWS))
        return
    found: list[int] = []
    with pytest.raises(af.SourceError):
        take_rest(ds, found)
    assert found == []


def test_times_of_a_listing_may_be_finer_than_other_answers() -> None:
    class Coarse:
        type_name = "coarse"

        def get_file_info(self, path: str) -> Any:
            return pafs.FileInfo(path, type=pafs.FileType.File, size=3, mtime_ns=5 * 10**9)

    store = Store(Coarse())
    known: dict[str, str | None] = {}
    assert remote_change(store, File("a", "a", 3, mtime_ns=5_123_456_789), known, 30.0) is None
    assert (
        remote_change(store, File("b", "b", 3, mtime_ns=7_123_456_789), known, 30.0)
        == "it was written again, with the same size"
    )
    assert remote_change(store, File("c", "c", 3), known, 30.0) is None


def test_a_question_after_changes_that_hangs_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.asyn import AsyncFileSystem

    class Client(AsyncFileSystem):
        cachable = False

        async def _info(self, path: str, **_: object) -> dict[str, Any]:
            await asyncio.Future()
            return {}

    store = Store(pafs.PyFileSystem(pafs.FSSpecHandler(Client())))
    with pytest.raises(TimeoutError):
        remote_change(store, File("a", "a", 3), {}, 0.01)


def test_files_are_not_mapped_where_they_are_not_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.ipc"
    write(path, 100_000)

    def store(**options: Any) -> Store:
        bound: Any = prepare(af.read_ipc(path, **options)._plan).bound
        return bound.store

    assert store().memory_map
    assert not store(memory_map=False).memory_map
    monkeypatch.setattr("arrowflow.storage.local.network_devices", lambda: frozenset([path.stat().st_dev]))
    assert not store().memory_map
    assert store(memory_map=True).memory_map
    with pytest.raises(af.PlanError, match="memory_map is True or False, got 1"):
        af.read_ipc(path, memory_map=1)  # type: ignore[arg-type]
