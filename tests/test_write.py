"""Writers: what they write is read back, and a half-written dataset never looks whole."""

from __future__ import annotations

import errno
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
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
from hypothesis import example, given, settings
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.storage import UNFINISHED
from arrowflow.testing import assert_same_rows, batches_of, chunked, cut, failing
from arrowflow.write import Written, encoders, shards, targets, writer
from arrowflow.write.shards import value_bits
from tests.effort import scaled
from tests.ops.tables import ALL_TYPES, ALL_TYPES_INSIDE, NUMBERS, ids, refused, rows_of

FORMATS = ["parquet", "ipc"]
"""Formats that keep types, and whose row groups or record batches have a size."""
ALL_FORMATS = [*FORMATS, "csv", "json", "tfrecord"]


def write(format: str, ds: af.Dataset, path: Any, **arguments: Any) -> Written:
    found: Written = getattr(ds, f"write_{format}")(path, **arguments)
    return found


def read(format: str, path: Any, **arguments: Any) -> af.Dataset:
    found: af.Dataset = getattr(af, f"read_{format}")(path, **arguments)
    return found


def group_sizes(written: Written) -> list[list[int]]:
    """Returns the rows of each row group or record batch, by file."""
    found = []
    for file in written.files:
        if file.endswith(".parquet"):
            metadata = pq.ParquetFile(file).metadata
            found.append([metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)])
        else:
            with pa.ipc.open_file(file) as opened:
                found.append([opened.get_batch(index).num_rows for index in range(opened.num_record_batches)])
    return found


# ------------------------------------------------------------------------------------- what is written


def writable(table: pa.Table) -> pa.Table:
    """Returns the columns that Parquet takes: the oldest pyarrow writes no fixed-size lists that are null."""
    if int(pa.__version__.split(".")[0]) >= 26:
        return table
    kept = [
        field.name
        for field, column in zip(table.schema, table.columns, strict=True)
        if not (
            column.null_count and pa.types.is_fixed_size_list(getattr(field.type, "storage_type", field.type))
        )
    ]
    return table.select(kept)


WRITABLE, WRITABLE_INSIDE = writable(ALL_TYPES), writable(ALL_TYPES_INSIDE)


@pytest.mark.parametrize("format", FORMATS)
def test_all_types_come_back(tmp_path: Path, format: str) -> None:
    written = write(format, af.from_arrow(WRITABLE), tmp_path / "out")
    assert_same_rows(batches_of(read(format, tmp_path / "out")), WRITABLE_INSIDE.to_batches())
    assert written.files == (str(tmp_path / f"out/part-00000.{'arrow' if format == 'ipc' else 'parquet'}"),)
    assert written.num_rows == WRITABLE.num_rows
    assert written.num_bytes == sum(Path(file).stat().st_size for file in written.files)


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_gives_one_file_with_the_schema(tmp_path: Path, format: str) -> None:
    written = write(format, af.from_arrow(NUMBERS).take(5).skip(5), tmp_path / "out")
    assert (len(written.files), written.num_rows) == (1, 0)
    ds = read(format, tmp_path / "out")
    assert ds.schema.equals(NUMBERS.schema)
    assert ds.num_rows == 0
    assert batches_of(ds) == []


def test_a_schema_that_only_rows_tell(tmp_path: Path) -> None:
    ds = af.range(10).map(lambda batch: batch.append_column("x", batch["id"]))
    assert ds.write_parquet(tmp_path / "a").num_rows == 10
    assert af.read_parquet(tmp_path / "a").schema.names == ["id", "x"]
    refused(af.PlanError, lambda: ds.take(0).write_parquet(tmp_path / "b"), "pass schema=")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("format", FORMATS)
def test_order_and_sizes_of_shards(tmp_path: Path, format: str) -> None:
    name = "row_group_rows" if format == "parquet" else "batch_rows"
    written = write(format, af.range(100).batch(7), tmp_path / "a", shard_rows=30, **{name: 12})
    assert group_sizes(written) == [[12, 12, 6], [12, 12, 6], [12, 12, 6], [10]]
    assert [Path(file).name.partition(".")[0] for file in written.files] == [f"part-{n:05}" for n in range(4)]
    assert ids(read(format, tmp_path / "a")) == list(range(100))
    whole = write(format, af.range(90), tmp_path / "b", shard_rows=30)
    assert group_sizes(whole) == [[30], [30], [30]], "no shard without rows at the end"


@pytest.mark.parametrize("format", ALL_FORMATS[2:])
def test_rows_of_shards(tmp_path: Path, format: str) -> None:
    written = write(format, af.range(100).batch(7), tmp_path / "a", shard_rows=30)
    assert [read(format, file).to_table().num_rows for file in written.files] == [30, 30, 30, 10]
    assert ids(read(format, tmp_path / "a")) == list(range(100))


@pytest.mark.parametrize("format", FORMATS)
def test_shards_of_a_size(tmp_path: Path, format: str) -> None:
    data = {"x": np.random.default_rng(0).standard_normal(200_000)}
    name = "row_group_rows" if format == "parquet" else "batch_rows"
    written = write(format, af.from_numpy(data), tmp_path / "a", shard_bytes="200 KiB", **{name: 5_000})
    sizes = [Path(file).stat().st_size for file in written.files]
    assert len(sizes) > 5
    assert all(200 << 10 <= size < (200 << 10) + 50_000 for size in sizes[:-1]), sizes
    assert sum(sizes) == written.num_bytes
    both = write(
        format, af.from_numpy(data), tmp_path / "b", shard_bytes="200 KiB", shard_rows=10_000, **{name: 5_000}
    )
    assert len(both.files) == 20


def test_row_groups_have_a_limit_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "GROUP_BYTES", 1000)
    table = pa.table({"text": ["x" * (100 if number < 40 else 700) for number in range(60)]})
    found = [
        group_sizes(ds.write_parquet(tmp_path / str(number)))
        for number, ds in enumerate([af.from_arrow(table), af.from_arrow(table).batch(7)])
    ]
    assert found == [[[10, 10, 10, 10, *[2] * 10]]] * 2
    exact = af.from_arrow(table).write_parquet(tmp_path / "exact", row_group_rows=30)
    assert group_sizes(exact) == [[30, 30]], "who gives the rows gets them"


@pytest.mark.parametrize("format", FORMATS)
def test_files_do_not_depend_on_how_rows_arrive(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "GROUP_BYTES", 600)
    batch = pa.concat_tables([WRITABLE_INSIDE] * 5).combine_chunks().to_batches()[0]
    contents = []
    for number, borders in enumerate([[55], [1] * 55, [13, 0, 30, 12]]):
        ds = chunked([cut(batch, borders)], batch.schema)
        written = write(format, ds, tmp_path / str(number), shard_rows=21)
        contents.append([Path(file).read_bytes() for file in written.files])
    assert len(contents[0]) == 3
    assert [[len(file) for file in each] for each in contents] == [[len(file) for file in contents[0]]] * 3
    if format == "parquet":
        assert contents[0] == contents[1] == contents[2]


@settings(max_examples=scaled(25))
@given(
    st.lists(st.integers(0, 40), max_size=8),
    st.integers(1, 50),
    st.none() | st.integers(1, 60),
    st.none() | st.integers(1, 3000),
    st.sampled_from(FORMATS),
)
@example([30, 0, 25], 10, 21, None, "parquet")
@example([30, 0, 25], 10, 21, 1000, "ipc")
def test_any_sizes(
    borders: list[int], group_rows: int, shard_rows: int | None, shard_bytes: int | None, format: str
) -> None:
    batch = pa.record_batch({"id": pa.array(range(sum(borders)), pa.int64())})
    name = "row_group_rows" if format == "parquet" else "batch_rows"
    sizes: dict[str, Any] = {name: group_rows, "shard_rows": shard_rows, "shard_bytes": shard_bytes}
    with tempfile.TemporaryDirectory() as folder:
        ds = chunked([cut(batch, borders)], batch.schema)
        written = write(format, ds, Path(folder) / "out", **sizes)
        found = group_sizes(written)
        table = read(format, Path(folder) / "out").to_table()  # of more batches than other tests take
        assert table["id"].to_pylist() == list(range(batch.num_rows))
    assert sum(map(sum, found)) == written.num_rows == batch.num_rows
    assert all(found) or batch.num_rows == 0
    for groups in found[:-1] if shard_rows is not None and shard_bytes is None else []:
        assert sum(groups) == shard_rows
    for groups in found:
        assert all(size == group_rows for size in groups[:-1])
        assert shard_rows is None or sum(groups) <= shard_rows


def test_memory_is_that_of_a_row_group(tmp_path: Path) -> None:
    held: list[int] = []

    def rows() -> Iterator[pa.RecordBatch]:
        for _ in range(60):
            yield pa.record_batch({"x": np.zeros(1 << 17) + len(held)})
            held.append(pa.total_allocated_bytes())

    schema = pa.schema([("x", pa.float64())])
    ds = af.from_generator(rows, schema).with_options(af.Options(ram_budget="8MiB"))
    before = pa.total_allocated_bytes()
    for format, name in (("parquet", "row_group_rows"), ("ipc", "batch_rows")):
        held.clear()
        arguments: dict[str, Any] = {name: 1 << 18}
        write(format, ds, tmp_path / format, shard_bytes="20MiB", **arguments)
        assert max(held) - before < 40 << 20, "of 60 MiB"


def test_bits_of_values_add_up() -> None:
    table = pa.concat_tables([ALL_TYPES] * 3).combine_chunks()
    for name in table.column_names:
        batch = table.select([name]).to_batches()[0]
        if name == "view":
            continue  # no such type travels in a pipeline
        parts = [batch.slice(start, size) for start, size in [(0, 7), (7, 0), (7, 15), (22, 11)]]
        assert sum(map(value_bits, parts)) == value_bits(batch) or name == "dictionary", name


def test_what_can_be_mapped(tmp_path: Path) -> None:
    af.range(10_000).write_ipc(tmp_path / "plain")
    before = pa.total_allocated_bytes()
    (batch,) = batches_of(af.read_ipc(tmp_path / "plain"))
    assert batch.num_rows == 10_000
    assert pa.total_allocated_bytes() < before + 10_000
    af.range(1000).write_ipc(tmp_path / "packed", compression="zstd")
    assert ids(af.read_ipc(tmp_path / "packed")) == list(range(1000))


@pytest.mark.parametrize("codec", ["zstd", "SNAPPY", "gzip", "lz4", None])
def test_codecs(tmp_path: Path, codec: str | None) -> None:
    (file,) = af.range(10).write_parquet(tmp_path / "a", compression=codec).files
    found = pq.ParquetFile(file).metadata.row_group(0).column(0).compression
    assert found.lower() == (codec or "uncompressed").lower()


def test_arguments() -> None:
    ds = af.range(3)
    never: Any = "never written"
    refused(
        af.PlanError, lambda: ds.write_parquet(never, compression="rar"), "write_parquet", "zstd", "'rar'"
    )
    refused(af.PlanError, lambda: ds.write_ipc(never, compression="snappy"), "write_ipc", "lz4")
    refused(af.PlanError, lambda: ds.write_parquet(never, shard_bytes="many"), "shard_bytes")
    refused(af.PlanError, lambda: ds.write_parquet(never, shard_rows=0), "shard_rows is at least 1")
    refused(af.PlanError, lambda: ds.write_parquet(never, row_group_rows=1.5), "row_group_rows")  # type: ignore[arg-type]
    refused(af.PlanError, lambda: ds.write_ipc(never, batch_rows=0), "batch_rows")
    paths: list[Any] = [3, ["a"], "", b"a"]
    for path in paths:
        refused(af.PlanError, partial(ds.write_parquet, path), "write_parquet", "path")
    refused(af.SourceError, lambda: ds.write_parquet("nosuch://a/b"), "write_parquet", "cannot reach")
    assert not Path(never).exists()


def test_few_paths_are_shown(tmp_path: Path) -> None:
    written = af.range(50).write_parquet(tmp_path / "many", shard_rows=10)
    shown = ", ".join(map(repr, written.files[:3]))
    assert repr(written) == f"Written(files=[{shown}, … 2 more], num_rows=50, num_bytes={written.num_bytes})"
    written = af.range(50).write_parquet(tmp_path / "one")
    assert f"files=['{written.files[0]}'], num_rows=50" in repr(written)
    with pytest.raises(af.WriteError, match=r"a folder of 1 file; pass overwrite=True to replace it, "):
        af.range(50).write_parquet(tmp_path / "one")


def test_epochs_are_not_counted(tmp_path: Path) -> None:
    ds = af.range(50).shuffle(50)
    ds.write_parquet(tmp_path / "a")
    assert ids(af.read_parquet(tmp_path / "a")) == ids(ds, epoch=0)
    assert rows_of(ds, "id") == ids(ds, epoch=0)


def test_a_type_without_a_place_is_found_before_any_row(tmp_path: Path) -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    calls: list[int] = []

    def rows() -> Iterator[pa.RecordBatch]:
        calls.append(1)
        yield pa.record_batch([union], names=["u"])

    ds = af.from_generator(rows, schema=pa.schema([("u", union.type)]))
    refused(af.WriteError, lambda: ds.write_parquet(tmp_path / "out"), "write_parquet", "nothing of it is")
    assert calls == []
    assert list(tmp_path.iterdir()) == []


def test_types_that_parquet_changes(tmp_path: Path) -> None:
    """As the docstring of `write_parquet` lists them."""
    given = pa.table(
        {
            "timestamp": pa.array([1, None, 3], pa.timestamp("s")),
            "time": pa.array([1, None, 3], pa.time32("s")),
            "date": pa.array([0, None, -86_400_000], pa.int64()).cast(pa.date64()),
        }
    )
    af.from_arrow(given).write_parquet(tmp_path / "out")
    found = af.read_parquet(tmp_path / "out").to_table()
    assert found.schema.types == [pa.timestamp("ms"), pa.time32("ms"), pa.date32()]
    assert found.cast(given.schema).equals(given)


HOURS = pa.array([0, None, 3_600_000], pa.int64()).cast(pa.date64())


@pytest.mark.parametrize(
    "column",
    [
        HOURS,
        pa.StructArray.from_arrays([HOURS], ["a"]),
        pa.FixedSizeListArray.from_arrays(HOURS, 3),
        pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["k"]), HOURS[2:]),
    ],
    ids=lambda column: str(column.type),
)
def test_dates_that_parquet_does_not_keep(tmp_path: Path, column: pa.Array) -> None:
    ds = af.from_arrow(pa.table({"x": column}))
    refused(af.WriteError, lambda: ds.write_parquet(tmp_path / "out"), "'x'", "whole days", "timestamp('ms')")
    assert list(tmp_path.iterdir()) == []


def test_lists_that_parquet_does_not_keep(tmp_path: Path) -> None:
    calls: list[int] = []
    for type in (pa.list_(pa.int8(), 0), pa.struct([("a", pa.list_(pa.list_(pa.int8(), 0)))])):
        ds = counted(calls, pa.schema([("x", type)]))
        refused(af.WriteError, lambda: ds.write_parquet(tmp_path / "out"), "'x'", "cannot be read back")  # noqa: B023
    assert calls == []
    empty = af.from_arrow(pa.table({"x": pa.array([[], None], pa.list_(pa.int8(), 0))}))
    empty.write_ipc(tmp_path / "out")
    assert rows_of(af.read_ipc(tmp_path / "out"), "x") == [[], None]


# ---------------------------------------------------------------------------------- what is there already


@pytest.mark.parametrize("format", ALL_FORMATS)
def test_what_is_there_is_not_replaced_unasked(tmp_path: Path, format: str) -> None:
    path = tmp_path / "a/b/out"
    write(format, af.range(3), path)
    refused(af.WriteError, lambda: write(format, af.range(5), path), f"write_{format}", "overwrite=True")
    assert ids(read(format, path)) == [0, 1, 2]
    write(format, af.range(5), path, overwrite=True)
    assert ids(read(format, path)) == list(range(5))
    assert [each.name for each in path.parent.iterdir()] == ["out"]


def test_only_folders_of_shards_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.mkdir()
    assert af.range(1).write_parquet(path).num_rows == 1, "an empty folder is free"
    (path / "_SUCCESS").touch()
    (path / ".part-00000.parquet.crc").touch()
    assert af.range(2).write_parquet(path, overwrite=True).num_rows == 2
    (path / "thesis.txt").touch()
    refused(af.WriteError, lambda: af.range(3).write_parquet(path, overwrite=True), "thesis.txt")
    refused(af.WriteError, lambda: af.range(3).write_ipc(path, overwrite=True), ".arrow files alone")
    (tmp_path / "file").touch()
    refused(af.WriteError, lambda: af.range(3).write_parquet(tmp_path / "file", overwrite=True), "a file")
    refused(af.WriteError, lambda: af.range(3).write_parquet(tmp_path / "file" / "x"), "")
    assert ids(af.read_parquet(path)) == [0, 1]


def test_links_stay(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    af.range(3).write_parquet(tmp_path / "link")
    af.range(4).write_parquet(tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert af.read_parquet(tmp_path / "real").num_rows == 4


@pytest.mark.parametrize("local", [True, False])
def test_links_to_folders_are_not_replaced(tmp_path: Path, local: bool) -> None:
    """Elsewhere deleting what they lead to would delete it there."""
    af.range(3).write_parquet(tmp_path / "elsewhere")
    filesystem = None if local else pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    for number, target in enumerate((str(tmp_path / "elsewhere"), "..")):
        path = tmp_path / str(number) / "out"
        af.range(4).write_parquet(path)
        (path / "link").symlink_to(target)
        refused(
            af.WriteError,
            lambda: af.range(9).write_parquet(
                path if local else f"{number}/out",  # noqa: B023
                filesystem=filesystem,
                overwrite=True,
            ),
            "/link'",
        )
        assert (path / "part-00000.parquet").exists()
    assert ids(af.read_parquet(tmp_path / "elsewhere")) == [0, 1, 2]


def test_a_dataset_may_replace_what_it_reads(tmp_path: Path) -> None:
    for format in ALL_FORMATS:
        path = tmp_path / format
        write(format, af.range(200), path, shard_rows=50)
        write(format, read(format, path).filter(pl.col("id") % 2 == 0), path, shard_rows=50, overwrite=True)
        assert ids(read(format, path)) == list(range(0, 200, 2))


def test_of_two_writers_one_is_told(tmp_path: Path) -> None:
    path = tmp_path / "out"

    def meanwhile(batch: pa.RecordBatch) -> pa.RecordBatch:
        if not path.exists():
            af.range(3).write_parquet(path)
        return batch

    ds = af.range(5).map(meanwhile, schema=af.range(5).schema)
    refused(af.WriteError, lambda: ds.write_parquet(path), "somebody else")
    assert ids(af.read_parquet(path)) == [0, 1, 2]
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def counted(calls: list[int], schema: pa.Schema | None) -> af.Dataset:
    """Returns rows that say when they are asked for."""

    def rows() -> Iterator[pa.RecordBatch]:
        calls.append(1)
        yield pa.record_batch({"x": [1, 2]})

    return af.from_generator(rows, schema=schema)


@pytest.mark.parametrize("schema", [None, pa.schema([("x", pa.int64())])], ids=["unknown", "known"])
def test_the_target_is_looked_at_before_the_pipeline_starts(
    tmp_path: Path, schema: pa.Schema | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    shelf = Shelf()
    for path, arguments in (tmp_path / "out", {}), (PLACE, {"filesystem": shelf}):
        af.range(3).write_parquet(path, **arguments)
        ds = counted(calls, schema)
        refused(af.WriteError, lambda: ds.write_parquet(path, **arguments), "write_parquet", "overwrite=True")  # noqa: B023
    assert calls == []
    counted(calls, schema).write_parquet(tmp_path / "out", overwrite=True)
    assert calls == [1]
    monkeypatch.setattr("arrowflow.dataset.Run", None)
    refused(af.WriteError, lambda: counted(calls, schema).write_ipc(tmp_path / "out"), "write_ipc")


def test_a_mount_point_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr("os.path.ismount", lambda path: str(path) == str(tmp_path / "disk"))
    (tmp_path / "disk").mkdir()
    for overwrite in (False, True):
        refused(
            af.WriteError,
            lambda: counted(calls, None).write_parquet(tmp_path / "disk", overwrite=overwrite),  # noqa: B023
            "write_parquet",
            "mounted there",
            "name a folder below it",
        )
    assert calls == []
    assert counted(calls, None).write_parquet(tmp_path / "disk" / "out").num_rows == 2


def test_the_root_is_refused_at_once() -> None:
    refused(af.WriteError, lambda: af.range(3).write_parquet("/", overwrite=True), "mounted there")


def test_files_that_arrive_meanwhile_are_not_deleted(tmp_path: Path) -> None:
    path = tmp_path / "out"
    af.range(3).write_parquet(path)

    def meanwhile(batch: pa.RecordBatch) -> pa.RecordBatch:
        (path / "year=1").mkdir(exist_ok=True)
        (path / "year=1/thesis.txt").write_text("precious")
        return batch

    ds = af.range(5).map(meanwhile, schema=af.range(5).schema)
    thesis = str(path / "year=1/thesis.txt")
    refused(af.WriteError, lambda: ds.write_parquet(path, overwrite=True), thesis, "write_parquet")
    assert ids(af.read_parquet(path)) == [0, 1, 2]
    assert Path(thesis).read_text() == "precious"
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_names_of_shards_sort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MAX_SHARDS", 3)
    assert len(af.range(6).write_parquet(tmp_path / "three", shard_rows=2).files) == 3
    refused(
        af.WriteError, lambda: af.range(7).write_parquet(tmp_path / "four", shard_rows=2), "shard_rows=", "3"
    )
    assert [each.name for each in tmp_path.iterdir()] == ["three"]


# --------------------------------------------------------------------------------------------- faults


class Steps:
    """Counts what a writer does to a file system, and does something before or after one of these steps."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.hook: Callable[[int, bool], object] = lambda number, done: None

    def wrap(self, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        original = getattr(owner, name)

        def step(*args: Any, **kwargs: Any) -> Any:
            number = len(self.names)
            self.names.append(name)
            self.hook(number, False)
            result = original(*args, **kwargs)
            self.hook(number, True)
            return result

        monkeypatch.setattr(owner, name, step)


def watched(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Returns what a writer of local Parquet files does."""
    found = Steps()
    for owner, name in (
        (targets.LocalFolder, "open"),
        (targets, "flush"),
        (encoders.ParquetEncoder, "write"),
        (encoders.ParquetEncoder, "close"),
        (shards.ShardWriter, "open"),
        (Path, "mkdir"),
        (Path, "rename"),
        (shutil, "rmtree"),
    ):
        found.wrap(owner, name, monkeypatch)
    return found


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return watched(monkeypatch)


OLD, NEW = list(range(4)), list(range(9))


def look(path: Any, **arguments: Any) -> list[int] | None:
    """Returns the rows that a reader finds now; None where it is told that there is no dataset."""
    try:
        return ids(af.read_parquet(path, **arguments).with_options(af.Options(cpu_budget=1, autotune=False)))
    except af.SourceError:
        return None


def attempt(path: Any, error: type[BaseException] | None, **arguments: Any) -> None:
    """Writes; expects an error as it is, or as the cause of a `WriteError`."""
    caught: BaseException | None = None
    try:
        af.range(9).write_parquet(path, shard_rows=4, **arguments)
    except (af.WriteError, KeyboardInterrupt) as found:
        caught = found.__cause__ or found
    assert type(caught) is (type(None) if error is None else error)


def raising_at(number: int, done: bool, error: BaseException) -> Callable[[int, bool], None]:
    def hook(step: int, after: bool) -> None:
        if (step, after) == (number, done):
            raise error

    return hook


def count_steps(steps: Steps, folder: Path, **arguments: Any) -> int:
    steps.names.clear()
    attempt(folder, None, **arguments)
    return len(steps.names)


@pytest.mark.slow
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space left"), KeyboardInterrupt()], ids=type)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_fault_at_any_step_leaves_nothing(
    tmp_path: Path, steps: Steps, error: BaseException, overwrite: bool
) -> None:
    def prepare(folder: Path) -> Path:
        steps.hook = lambda number, done: None
        folder.mkdir()
        if overwrite:
            af.range(4).write_parquet(folder / "out")
        return folder / "out"

    count = count_steps(steps, prepare(tmp_path / "clean"), overwrite=overwrite)
    assert count > 20
    names = list(steps.names)
    last_flush = max(number for number, name in enumerate(names) if name == "flush")
    for number in range(count):
        for done in (False, True):
            path = prepare(tmp_path / f"{number}{done}")
            steps.names.clear()
            steps.hook = raising_at(number, done, error)
            # What is visible and whole is no failure, even if the disk does not confirm the name.
            name = names[number]
            is_late = number == last_flush or (number > last_flush and name == "rename")
            is_late &= isinstance(error, OSError)
            attempt(path, None if is_late else type(error), overwrite=overwrite)
            published = name == "rmtree" or "rename" in steps.names[:number] + [name] * done
            found = look(path)
            if found == NEW:
                assert published, "visible, and not complete"
            else:
                assert found == (OLD if overwrite else None), f"{name} {number} {done}"
            left = {each.name for each in path.parent.iterdir()} - {"out"}
            assert left == set() or (name == "rmtree" and not done), f"{name} left {left}"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_crash_at_any_step_leaves_nothing_that_looks_whole(
    tmp_path: Path, steps: Steps, overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed cleans nothing up."""
    monkeypatch.setattr(targets.LocalFolder, "discard", lambda self: None)
    count = 1
    number = 0
    while number < count:
        folder = tmp_path / str(number)
        steps.hook = lambda number, done: None
        folder.mkdir()
        if overwrite:
            af.range(4).write_parquet(folder / "out")
        if number == 0:
            count = count_steps(steps, tmp_path / "clean")
        steps.names.clear()
        steps.hook = raising_at(number, True, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            af.range(9).write_parquet(folder / "out", shard_rows=4, overwrite=overwrite)
        steps.hook = lambda number, done: None
        between = overwrite and steps.names.count("rename") == 1 and not (folder / "out").exists()
        assert look(folder / "out") in ([None] if between else [OLD if overwrite else None, NEW])
        patterns = ("", "*", "*/*.parquet", "**/*.parquet")
        # Until a folder is renamed all steps leave a folder of the same kind: each of them shows one pattern.
        for pattern in patterns if "rename" in steps.names else patterns[number % 4 :][:1]:
            assert look(str(folder / pattern)) in (None, OLD, NEW), "readers of the folder above"
        number += 1
    assert count > 20


@pytest.mark.parametrize("overwrite", [False, True])
def test_readers_that_list_while_a_writer_writes(tmp_path: Path, steps: Steps, overwrite: bool) -> None:
    path = tmp_path / "out"
    if overwrite:
        af.range(4).write_parquet(path)
    seen: list[Any] = []

    def hook(number: int, done: bool) -> None:
        seen.append(look(path))
        assert not done or look(tmp_path) == seen[-1], "readers of the folder above"

    steps.hook = hook
    attempt(path, None, overwrite=overwrite)
    changes = [now for before, now in zip([..., *seen], seen, strict=False) if now != before]
    assert changes == ([OLD, None, NEW] if overwrite else [None, NEW])


def test_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "out"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    data = af.from_numpy({"x": np.random.default_rng(0).standard_normal(200_000, np.float32)})
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
        for format in ALL_FORMATS:
            with pytest.raises(af.WriteError, match=r"File too large.*nothing of it is visible") as caught:
                write(format, data, path)
            assert isinstance(caught.value.__cause__, OSError)
            assert caught.value.file == str(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_pipeline_stay_what_they_are(tmp_path: Path) -> None:
    batch = pa.record_batch({"x": [1, 2]})
    ds = af.from_generator(failing([batch], ValueError("gone")), schema=batch.schema)
    with pytest.raises(af.FunctionError) as caught:
        ds.write_parquet(tmp_path / "out")
    assert caught.value.operator == "from_generator"
    assert isinstance(caught.value.__cause__, ValueError)
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------- other file systems


class Shelf(MemoryFileSystem):
    """A store of its own that counts what changes it, and may fail."""

    protocol = "shelf"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]
        self.steps: list[str] = []
        self.hook: Callable[[int, bool], object] = lambda number, done: None

    def _step(self, name: str, call: Callable[[], Any]) -> Any:
        number = len(self.steps)
        self.steps.append(name)
        self.hook(number, False)
        result = call()
        self.hook(number, True)
        return result

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        call = partial(super()._open, path, mode, **kwargs)
        return self._step("open", call) if "w" in mode else call()

    def mv(self, path1: str, path2: str, **kwargs: Any) -> Any:
        return self._step("mv", partial(super().mv, path1, path2, **kwargs))

    def rm(self, path: str, **kwargs: Any) -> Any:
        return self._step("rm", partial(super().rm, path, **kwargs))

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> Any:
        call = partial(super().mkdir, path, create_parents, **kwargs)
        return self._step("mkdir", call) if "_writing" in path else call()  # and not for those above it


PLACE = "/bucket/out"


def test_shards_in_another_file_system(tmp_path: Path) -> None:
    shelf = Shelf()
    written = af.range(9).write_parquet(PLACE, shard_rows=4, filesystem=shelf)
    assert written.files == tuple(f"{PLACE}/part-0000{number}.parquet" for number in range(3))
    assert sorted(shelf.find("/bucket")) == list(written.files)
    assert written.num_bytes == sum(shelf.size(file) for file in written.files)
    refused(af.WriteError, lambda: af.range(2).write_parquet(PLACE, filesystem=shelf), "overwrite=True")
    af.range(2).write_ipc("/bucket/ipc", filesystem=shelf)
    assert ids(af.read_ipc("/bucket/ipc", filesystem=shelf)) == [0, 1]
    refused(af.WriteError, lambda: af.range(2).write_ipc(PLACE, filesystem=shelf, overwrite=True), ".arrow")
    af.range(4).write_parquet(PLACE, filesystem=shelf, overwrite=True)
    assert sorted(shelf.find(PLACE)) == [f"{PLACE}/part-00000.parquet"]
    native = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    assert af.range(9).write_parquet("a/b/", shard_rows=4, filesystem=native).num_rows == 9
    assert af.range(4).write_parquet("a/b", filesystem=native, overwrite=True).num_rows == 4
    assert ids(af.read_parquet(tmp_path / "a/b")) == OLD
    assert [path.name for path in (tmp_path / "a/b").iterdir()] == ["part-00000.parquet"]


def test_urls(tmp_path: Path) -> None:
    assert af.range(3).write_parquet(f"file://{tmp_path}/a%20b").files == (
        f"{tmp_path}/a b/part-00000.parquet",
    )
    memory = fsspec.filesystem("memory")
    try:
        for rows in (9, 3):
            af.range(rows).write_parquet("memory://written/out", shard_rows=4, overwrite=rows == 3)
            assert ids(af.read_parquet("memory://written/out")) == list(range(rows))
        assert len(memory.find("/written")) == 1
    finally:
        memory.rm("/written", recursive=True)


@pytest.mark.slow
@pytest.mark.parametrize("error", [OSError("the connection was reset"), KeyboardInterrupt()], ids=type)
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_fault_at_any_request_leaves_nothing_that_looks_whole(
    error: BaseException, crash: bool, overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepared() -> Shelf:
        shelf = Shelf()
        if overwrite:
            af.range(4).write_parquet(PLACE, filesystem=shelf)
            shelf.steps.clear()
        return shelf

    clean = prepared()
    attempt(PLACE, None, filesystem=clean, overwrite=overwrite)
    if crash:
        monkeypatch.setattr(targets.RemoteFolder, "discard", lambda self: None)
    outcomes = []
    for number in range(len(clean.steps)):
        for done in (False, True):
            shelf = prepared()
            shelf.hook = raising_at(number, done, error)
            attempt(PLACE, type(error), filesystem=shelf, overwrite=overwrite)
            shelf.hook = lambda number, done: None
            found = look(PLACE, filesystem=shelf)
            outcomes.append(found)
            assert found in (None, OLD, NEW) if overwrite else found in (None, NEW)
            assert found == look("/bucket", filesystem=shelf), "readers of the folder above"
            if not crash and not overwrite and found is None:
                assert shelf.find("/bucket") == []
            af.range(5).write_parquet(PLACE, filesystem=shelf, overwrite=True)
            assert ids(af.read_parquet(PLACE, filesystem=shelf)) == list(range(5)), "it can be written again"
    assert outcomes.count(NEW) <= 1, "after the last step alone"


@pytest.mark.parametrize("overwrite", [False, True])
def test_readers_that_list_while_a_writer_writes_elsewhere(overwrite: bool) -> None:
    shelf = Shelf()
    if overwrite:
        af.range(4).write_parquet(PLACE, filesystem=shelf)
    seen: list[Any] = []
    shelf.hook = lambda number, done: seen.append(look(PLACE, filesystem=shelf))
    attempt(PLACE, None, filesystem=shelf, overwrite=overwrite)
    changes = [now for before, now in zip([..., *seen], seen, strict=False) if now != before]
    assert changes == ([OLD, None, NEW] if overwrite else [None, NEW])


def test_readers_refuse_what_is_not_finished(tmp_path: Path) -> None:
    af.range(9).write_parquet(tmp_path / "out", shard_rows=4)
    (tmp_path / "out" / UNFINISHED).touch()
    for path in (tmp_path, tmp_path / "out", str(tmp_path / "*"), str(tmp_path / "out/*.parquet")):
        refused(af.SourceError, af.read_parquet(path).to_table, "a part of a dataset", f"out/{UNFINISHED}")
    af.range(2).write_parquet(tmp_path / "whole")
    (tmp_path / "out").rename(tmp_path / "_out")
    assert ids(af.read_parquet(tmp_path)) == [0, 1], "what readers skip need not be finished"
    (tmp_path / "whole" / f"not{UNFINISHED}").touch()
    assert ids(af.read_parquet(tmp_path)) == [0, 1]
    (tmp_path / "_out").rename(tmp_path / "out")
    shutil.rmtree(tmp_path / "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["out", "seed=1"])
def test_readers_refuse_each_part_of_what_is_not_finished(name: str, tmp_path: Path) -> None:
    table = pa.table({"y": [1, 1, 2], "m": [3, 4, 3], "x": [0, 1, 2]})
    af.from_arrow(table).write_parquet(tmp_path / name, partition_by=["y", "m"])
    parts = [f"{name}/y=1", f"{name}/y=1/m=4", f"{name}/y=1/*", f"{name}/y=1/m=4/*.parquet", f"{name}/*/m=3"]
    wanted = [[0, 1], [1], [0, 1], [1], [0, 2]]
    for part, rows in zip(parts, wanted, strict=True):
        assert af.read_parquet(tmp_path / part).to_table()["x"].to_pylist() == rows
    (tmp_path / name / UNFINISHED).touch()
    for part in parts:
        read = af.read_parquet(str(tmp_path / part))
        refused(af.SourceError, read.to_table, "a part of a dataset", f"{name}/{UNFINISHED}")
    (tmp_path / name / UNFINISHED).rename(tmp_path / name / "y=1" / UNFINISHED)
    refused(af.SourceError, af.read_parquet(tmp_path / name / "y=1/m=4").to_table, "a part of a dataset")
    assert af.read_parquet(tmp_path / name / "y=2").to_table()["x"].to_pylist() == [2]


def test_readers_in_a_store_refuse_each_part_of_what_is_not_finished() -> None:
    memory = fsspec.filesystem("memory")
    place = "memory://unfinished-partitions"
    af.from_arrow(pa.table({"y": [1, 2], "x": [3, 4]})).write_parquet(place, partition_by="y")
    assert af.read_parquet(f"{place}/y=2").to_table()["x"].to_pylist() == [4]
    memory.pipe(f"/unfinished-partitions/{UNFINISHED}", b"")
    refused(af.SourceError, af.read_parquet(f"{place}/y=2").to_table, "a part of a dataset")
    memory.rm("/unfinished-partitions", recursive=True)


# ------------------------------------------------------------------------------------ names of files


@pytest.mark.parametrize(
    ("write", "name"),
    [
        ("write_parquet", "one.parquet"),
        ("write_parquet", "One.PQ"),
        ("write_ipc", "one.arrow"),
        ("write_ipc", "one.feather"),
    ],
)
def test_the_name_of_a_file_is_no_folder(
    write: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ds = af.range(3)
    stem = name.partition(".")[0]
    for path in (name, tmp_path / name, f"memory://bucket/{name}"):
        write_there = partial(getattr(ds, write), path)
        refused(af.PlanError, write_there, write, "folder of files", "is the name of a file")
    refused(
        af.PlanError,
        lambda: getattr(ds, write)(name),
        f"as in {write}('{stem}')",
        f"pl.DataFrame(ds).{write}('{name}')",
    )
    assert not list(tmp_path.iterdir())
    getattr(pl.DataFrame(ds), write)(name)  # as the text says
    assert (tmp_path / name).is_file()
    (tmp_path / name).unlink()
    getattr(ds, write)(f"{name}/")
    assert (tmp_path / name).is_dir()
