"""Files that are not local: bytes are waited for in calls of their own, and decoding finds all that it needs."""

from __future__ import annotations

import io
import threading
import types
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import arrowflow as af
from arrowflow.executor.ledger import buffers_of
from arrowflow.formats import FORMATS, Footer, Split
from arrowflow.formats.parquet.parquet import ParquetFormat
from arrowflow.kernels.items import Item, Origin
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.sources.files import splits
from arrowflow.ops.sources.files.read import Read
from arrowflow.ops.sources.files.split_fetcher import SplitFetcher
from arrowflow.ops.sources.files.split_readers import SplitReader
from arrowflow.ops.sources.files.split_tasks import OpenFile, SplitTask
from arrowflow.ops.sources.files.splits import FOOTER_BYTES, FooterSource, SplitPlanner
from arrowflow.plan.walk import post_order
from arrowflow.run import prepare
from arrowflow.storage import Range, Store
from arrowflow.testing import Gate, assert_same_batches, batches_of, check_dataset
from tests.formats.records_format import RecordsFormat, write_records
from tests.formats.tfrecords import framed
from tests.ops.tables import Apply, rows_of, stands_for_all

GROUPS, ROWS = 8, 50
DATA = pa.table(
    {
        "row": pa.array(range(GROUPS * ROWS), pa.int64()),
        "x": np.random.default_rng(0).standard_normal(GROUPS * ROWS),
        "text": [None if i % 7 == 0 else f"text {i}" for i in range(GROUPS * ROWS)],
    }
)
PATH = "/bucket/a.parquet"
PARQUET = FORMATS["parquet"]


def as_bytes(format: str, table: pa.Table = DATA, rows: int = ROWS) -> bytes:
    sink = io.BytesIO()
    if format == "parquet":
        pq.write_table(table, sink, row_group_size=rows)
    else:
        with pyarrow.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


class Remote(MemoryFileSystem):
    """Counts what is fetched of its files, and may hold it or break it, but for their ends, where footers are."""

    protocol = "remote"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}  # not the one that all instances share
        self.hook: Callable[[int], object] = lambda number: None
        self.fetched: list[tuple[int, int]] = []
        self.running = self.most = 0
        self._counting = threading.Lock()

    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> Any:
        if start + FOOTER_BYTES >= end == len(self.store[path].getbuffer()) and not start:
            return super().cat_file(path, start, end, **kwargs)
        with self._counting:
            number = len(self.fetched)
            self.fetched.append((start, end))
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            self.hook(number)
            return super().cat_file(path, start, end, **kwargs)
        finally:
            with self._counting:
                self.running -= 1


class Alone:
    """The context of a kernel that no run has."""

    def __init__(self) -> None:
        self.run_storage: dict[Any, Any] = {}

    def now(self) -> float:
        return 0.0

    def wait(self, seconds: float) -> bool:
        return False

    def retried(self, why: str) -> None:
        pass

    def together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        return [call() for call in calls]

    def hedged(self, call: Callable[[], Any], seconds: float) -> Any:
        return call()


CONTEXT: Any = Alone()


@pytest.fixture(autouse=True)
def no_file_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files come whole with their footers, and are tested in `test_small_files`."""
    monkeypatch.setattr(splits, "SMALL_FILE_BYTES", 0)


@pytest.fixture
def remote() -> Remote:
    filesystem = Remote()
    filesystem.pipe_file(PATH, as_bytes("parquet"))
    return filesystem


def read(remote: Any, path: str = PATH, **arguments: Any) -> af.Dataset:
    return af.read_parquet(path, filesystem=remote, **arguments)


def node_of(dataset: af.Dataset) -> Read:
    (node,) = [node for node in post_order(prepare(dataset._plan).optimised) if isinstance(node, Read)]
    return node


def specs_of(dataset: af.Dataset) -> list[KernelSpec]:
    return [spec for stage in prepare(dataset._plan).chain.stages for spec in stage.specs]


def tasks_of(node: Read) -> list[SplitTask]:
    """Returns what the planner makes of the first file."""
    assert node.first is not None
    planner = SplitPlanner(node, None)
    return [item.chunk for item in planner.push(Item(OpenFile(0, node.first), None, (), Origin(0)))]


# ------------------------------------------------------------------------------------- the same rows


@pytest.fixture(params=["parquet", "ipc"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Three files of a few splits each, one without rows."""
    for number, (start, rows) in enumerate([(0, 9), (9, 0), (9, 7)]):
        part = DATA.slice(start, rows)
        (tmp_path / f"{number}.{request.param}").write_bytes(as_bytes(request.param, part, rows=3))
    return tmp_path


@pytest.fixture(params=["fsspec", "native"])
def elsewhere(request: pytest.FixtureRequest, folder: Path) -> Callable[[], af.Dataset]:
    """Makes the dataset of the same files on a file system of Python's or of Arrow's."""
    format = next(folder.iterdir()).suffix[1:]
    filesystem: Any = pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())
    where = ""
    if request.param == "fsspec":
        filesystem, where = fsspec.filesystem("memory"), f"/{folder.name}"
        for path in folder.iterdir():
            filesystem.pipe_file(f"{where}/{path.name}", path.read_bytes())
    return lambda: {"parquet": af.read_parquet, "ipc": af.read_ipc}[format](
        f"{where}/*.{format}", filesystem=filesystem
    )


PIPELINES: dict[str, Apply] = {
    "plain": lambda ds: ds,
    "columns": lambda ds: ds.select("text", "row").batch(4),
    "no columns of it": lambda ds: ds.with_columns(one=pl.lit(1)).select("one"),
    "rows": lambda ds: ds.skip(2).take(11).batch(3),
    "matches": lambda ds: ds.filter(pl.col("row") > 9).batch(2),
    "a .shuffle": lambda ds: ds.shuffle(5, seed=1).batch(3),
    "a .shuffle and a .repeat": lambda ds: ds.shuffle(100, seed=3).repeat(2).batch(5),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_other_file_systems_give_the_same_rows_and_states(
    folder: Path, elsewhere: Callable[[], af.Dataset], name: str
) -> None:
    local = (af.read_ipc if "ipc" in next(folder.iterdir()).name else af.read_parquet)(folder)
    apply = PIPELINES[name]
    for cpu_budget in (1, 3):
        options = af.Options(cpu_budget=cpu_budget)
        assert_same_batches(batches_of(apply(elsewhere()).with_options(options)), batches_of(apply(local)))
    check_dataset(
        lambda: apply(elsewhere()), epochs_differ=".shuffle" in name, in_full=stands_for_all(name, PIPELINES)
    )


# ---------------------------------------------------------------------------------- stages and calls


def test_local_files_are_not_fetched(remote: Remote, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(as_bytes("parquet"))
    assert [spec.phase for spec in specs_of(af.read_parquet(tmp_path))] == ["open", "", "decode"]
    found = specs_of(read(remote, num_parallel_calls=3))
    assert [spec.phase for spec in found] == ["open", "", "read", "decode"]
    assert [spec.cost for spec in found] == ["waits", "computes", "waits", "computes"]
    assert [spec.max_calls for spec in found] == [None, None, 3, 3]
    assert "fetch of 2 columns, one call a split" in read(remote, columns=["row", "text"]).explain()


def test_many_splits_are_on_their_way_while_nothing_is_decoded(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    original = ParquetFormat.read

    def counting(self: ParquetFormat, store: Store, footer: Footer, split: Split, *rest: Any) -> Any:
        decoded.append(split.index)
        return original(self, store, footer, split, *rest)

    monkeypatch.setattr(ParquetFormat, "read", counting)
    gate = Gate()
    remote.hook = lambda number: gate.pass_through()
    ds = read(remote, num_parallel_calls=4).with_options(af.Options(cpu_budget=1))
    with iter(ds) as iterator, ThreadPoolExecutor(1) as consumer:
        first = consumer.submit(next, iterator)
        try:
            gate.wait_for(4)
            assert (remote.running, decoded) == (4, [])
        finally:
            gate.open()
        rows = [
            *first.result().column("row").to_pylist(),
            *(r for b in iterator for r in b["row"].to_pylist()),
        ]
    assert rows == DATA.column("row").to_pylist()
    assert sorted(decoded) == list(range(GROUPS))
    assert remote.most == 4, "a given number is kept"


def test_one_call_is_one_call(remote: Remote) -> None:
    assert rows_of(read(remote, num_parallel_calls=1)) == list(range(GROUPS * ROWS))
    assert remote.most == 1
    assert len(remote.fetched) == GROUPS, "one request a split"


NEEDS: list[tuple[Apply, int]] = [
    (lambda ds: ds.filter(pl.col("row") >= 6 * ROWS), 2),
    (lambda ds: ds.take(ROWS + 1), 2),
    (lambda ds: ds.skip(ROWS).take(3), 1),
]


def test_what_is_not_needed_is_not_fetched(remote: Remote) -> None:
    for apply, needed in NEEDS:
        remote.fetched.clear()
        assert sum(batch.num_rows for batch in batches_of(apply(read(remote))))
        assert len(remote.fetched) == needed
    everything, row = (fetched_bytes(read(remote, columns=columns)) for columns in (None, ["row"]))
    assert 0 < row < everything / 2


# --------------------------------------------------------------------------------------------- memory


def fetched_bytes(dataset: af.Dataset) -> int:
    """Returns the bytes that are fetched of the first file."""
    fetcher = SplitFetcher(node_of(dataset), CONTEXT)
    return sum(fetcher.num_bytes(task) for task in tasks_of(node_of(dataset)))


@pytest.mark.parametrize("format", ["parquet", "ipc"])
def test_decoding_reads_nothing(remote: Remote, format: str) -> None:
    """What is fetched counts as the task's memory, is exactly what was announced, and is all there is to it."""
    path = f"/bucket/b.{format}"
    remote.pipe_file(path, as_bytes(format))
    names = ["text", "row"]
    ds = (af.read_ipc if format == "ipc" else af.read_parquet)(path, columns=names, filesystem=remote)
    node = node_of(ds)
    fetcher, reader = SplitFetcher(node, CONTEXT), SplitReader(node, 1)
    tasks = tasks_of(node)
    fetched = [made.chunk for task in tasks for made in fetcher.read(task)]
    remote.rm("/bucket", recursive=True)
    remote.fetched.clear()
    rows = []
    for task, ready in zip(tasks, fetched, strict=True):
        assert not buffers_of(task)
        assert 0 < sum(buffers_of(ready).values()) == fetcher.num_bytes(task)
        assert reader.num_bytes(ready) == reader.num_bytes(task)
        assert ready.num_rows == task.num_rows == ROWS
        (made,) = reader.read(ready)
        assert (made.position, made.last) == (task.position(ROWS), True)
        rows += made.chunk.select(names).to_pylist()
    assert rows == DATA.select(names).to_pylist()
    assert remote.fetched == []


def test_fetched_bytes_are_in_the_ledger_until_they_are_decoded(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    original = ParquetFormat.read
    held: list[Store] = []

    def waiting(self: ParquetFormat, store: Store, *rest: Any) -> Any:
        held.append(store)
        gate.pass_through()
        held.remove(store)
        return original(self, store, *rest)

    monkeypatch.setattr(ParquetFormat, "read", waiting)
    ds = read(remote, num_parallel_calls=1).with_options(af.Options(cpu_budget=1))
    decoded = SplitReader(node_of(ds), 1).num_bytes(tasks_of(node_of(ds))[0])
    with iter(ds) as iterator, ThreadPoolExecutor(1) as consumer:
        first = consumer.submit(next, iterator)
        try:
            gate.wait_for(1)
            stored = sum(buffer.size for store in held for buffer in store.buffers)
            assert iterator.stats().ledger_bytes >= decoded + stored > decoded
        finally:
            gate.open()
        assert first.result().num_rows == ROWS
        del first
        assert sum(batch.num_rows for batch in iterator) == (GROUPS - 1) * ROWS
        assert iterator.stats().ledger_bytes == 0


def test_files_that_are_read_through_count_while_they_are_opened() -> None:
    """Text files have no footer: their records are counted, window by window."""
    data = b"x\n" + b"1\n" * 5_000
    for name in "ab":
        fsspec.filesystem("memory").pipe(f"/lines/{name}.csv", data)
    context: Any = types.SimpleNamespace(run_storage={}, epoch=0)
    source = FooterSource(node_of(af.read_csv("memory://lines/*.csv")), context)
    assert [task.num_bytes for task in source.tasks(None)] == [FOOTER_BYTES + len(data)] * 2


def test_the_floor_of_the_budget_counts_what_is_fetched(remote: Remote, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(as_bytes("parquet"))
    local = sum(spec.floor_bytes for spec in specs_of(af.read_parquet(tmp_path)))
    ds = read(remote)
    floor = sum(spec.floor_bytes for spec in specs_of(ds))
    most = max(SplitFetcher(node_of(ds), CONTEXT).num_bytes(task) for task in tasks_of(node_of(ds)))
    assert 0 < floor - local <= most
    least = ds.with_options(af.Options(ram_budget=floor))
    assert_same_batches(batches_of(least), batches_of(ds))
    sink = io.BytesIO()
    pq.ParquetWriter(sink, DATA.schema).close()
    remote.pipe_file("/none/a.parquet", sink.getvalue())
    assert [spec.floor_bytes for spec in specs_of(read(remote, "/none/a.parquet"))] == [0, 0, 0, 0]


# --------------------------------------------------------------------------------------------- errors


def refused_at(dataset: af.Dataset, split: int, text: str, *, first: int = 0) -> af.SourceError:
    """Checks that the splits in front of one are delivered and then one error comes that says where."""
    with iter(dataset) as iterator:
        for _ in range(first, split):
            assert next(iterator).num_rows == ROWS
        with pytest.raises(af.SourceError, match=text) as caught:
            next(iterator)
        with pytest.raises(af.ClosedError, match="has raised"):
            next(iterator)
    error = caught.value
    assert (error.operator, error.file, error.row_group) == ("read_parquet", PATH, split)
    return error


def test_a_request_that_fails_names_file_and_row_group(remote: Remote) -> None:
    gone = OSError("the connection was reset")

    def hook(number: int) -> None:
        if number == 3:
            raise gone

    remote.hook = hook
    ds = read(remote, num_parallel_calls=1).with_options(af.Options(retries=0))
    error = refused_at(ds, 3, "OSError: the connection was reset")
    assert error.__cause__ is gone


def test_a_file_that_is_cut_after_its_footer_was_read(remote: Remote) -> None:
    content = as_bytes("parquet")

    def hook(number: int) -> None:
        if number == 1:
            remote.pipe_file(PATH, content[: len(content) // 8 + 10])

    remote.hook = hook
    refused_at(
        read(remote, num_parallel_calls=1),
        1,
        r"has changed since it was listed: it had [\d,]+ bytes, and has",
    )


def test_a_file_that_is_removed_after_its_footer_was_read(remote: Remote) -> None:
    remote.hook = lambda number: remote.rm(PATH) if number == 2 else None
    refused_at(read(remote, num_parallel_calls=1), 2, "removed after it was listed")


def test_ranges_that_cannot_be_told_name_their_split(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    original = ParquetFormat.ranges

    def ranges(self: ParquetFormat, footer: Footer, split: Split, columns: Sequence[str]) -> list[Range]:
        if split.index == 4:
            raise ValueError("no such leaf")
        return [Range(-9, 9)] if split.index == 2 else original(self, footer, split, columns)

    ds = read(remote)
    assert ds.num_rows
    monkeypatch.setattr(ParquetFormat, "ranges", ranges)
    refused_at(ds, 2, "bytes -9 to 9 lie outside of the file")
    refused_at(ds.filter(pl.col("row") >= 3 * ROWS), 4, "no such leaf", first=3)
    monkeypatch.setattr(ParquetFormat, "ranges", lambda *_: [(4, 8)])
    refused_at(ds, 0, "no part of the 1 ranges that were fetched")


# ------------------------------------------------------------------------------- formats of others


def test_a_format_reads_local_and_other_files_in_one_way(remote: Remote, tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2, 3], "value": [0.5, 1.5, 2.5]})
    write_records(table, tmp_path / "a.records")
    remote.pipe_file("/records/a.records", (tmp_path / "a.records").read_bytes())
    for paths, filesystem in ((tmp_path, None), ("/records", remote)):
        remote.fetched.clear()
        ds = af.read(paths, format=RecordsFormat(), filesystem=filesystem)
        assert ds.skip(1).to_table().equals(table.slice(1))
    assert remote.fetched == [(0, 16)] * 2 + [(16, 64)], "the schema, the footer, and what is decoded"


def test_rows_without_columns_are_refused_when_bound(tmp_path: Path) -> None:
    """Nobody could count them: they were written as none, and no batch can hold them."""
    (tmp_path / "a.json").write_text("{}\n{}\n")
    (tmp_path / "a.tfrecord").write_bytes(framed([b"", b""]))
    pq.write_table(pa.table({"x": [1, 2]}).select([]), tmp_path / "a.parquet")
    for read, name in (
        (af.read_json, "a.json"),
        (af.read_tfrecord, "a.tfrecord"),
        (af.read_parquet, "a.parquet"),
    ):
        with pytest.raises(af.SchemaError, match=r"no columns.*pass schema=") as caught:
            read(tmp_path / name).num_rows  # noqa: B018
        assert caught.value.file == str(tmp_path / name)
    given = pa.schema([("x", pa.int64())])
    assert af.read_json(tmp_path / "a.json", schema=given).to_table().num_rows == 2
    assert af.read_tfrecord(tmp_path / "a.tfrecord", schema=given).to_table().num_rows == 2
