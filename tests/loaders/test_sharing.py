"""What is handed out may be written, or cannot be; nothing that anybody else reads ever changes by that."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.interchange.to_numpy import Ragged
from arrowflow.loaders.numpy import ArraysExport
from tests.loaders.frameworks import ARRAYS, installed, load

array_loaders = pytest.mark.parametrize("name", installed(ARRAYS))
needs_proc = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no /proc here")
ROWS = 60


def table() -> pa.Table:
    numbers = np.arange(ROWS, dtype=np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(ROWS * 4, dtype=np.int32)), 4)
    return pa.table({
        "x": pa.array(numbers),
        "n": pa.array(np.arange(ROWS)),
        "v": lists,
        "b": pa.array([i % 3 == 0 for i in range(ROWS)]),
        "l": pa.array([[i, i + 1] for i in range(ROWS)], pa.list_(pa.int16())),
        "null": pa.array([None if i % 7 == 0 else i for i in range(ROWS)], pa.float64()),
    })  # fmt: skip


def written(folder: Path, format: str, **options: Any) -> Path:
    path = folder / f"t.{format}"
    batches = table().to_batches(max_chunksize=25)
    if format == "parquet":
        pq.write_table(table(), path, row_group_size=25)
    else:
        with pa.OSFile(str(path), "wb") as file:
            writer = pa.ipc.new_file(file, table().schema, options=pa.ipc.IpcWriteOptions(**options))
            for batch in batches:
                writer.write_batch(batch)
            writer.close()
    return path


SOURCES: dict[str, Callable[[Path], af.Dataset]] = {
    "ipc": lambda folder: af.read_ipc(written(folder, "arrow")),
    "ipc, compressed": lambda folder: af.read_ipc(written(folder, "arrow", compression="lz4")),
    "ipc, not mapped": lambda folder: af.read_ipc(
        written(folder, "arrow").name, filesystem=pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())
    ),
    "parquet": lambda folder: af.read_parquet(written(folder, "parquet")),
    "memory": lambda folder: af.from_arrow(table()),
    "cache": lambda folder: af.read_ipc(written(folder, "arrow")).cache(),
    "cache of parquet": lambda folder: af.read_parquet(written(folder, "parquet")).cache(),
    "cache in a folder": lambda folder: af.read_ipc(written(folder, "arrow")).cache(folder / "cache"),
    "compressed cache": lambda folder: af.from_arrow(table()).cache(folder / "cache", compression="zstd"),
    "shuffle": lambda folder: af.read_ipc(written(folder, "arrow")).shuffle(20, seed=1),
    "global shuffle": lambda folder: af.read_ipc(written(folder, "arrow")).shuffle(seed=1),
    "repeat": lambda folder: af.read_ipc(written(folder, "arrow")).repeat(2),
    "aliases": lambda folder: af.read_ipc(written(folder, "arrow")).with_columns(
        y=pl.col("x"), w=pl.col("v")
    ),
    "window": lambda folder: af.read_ipc(written(folder, "arrow")).window(5, shift=2),
    "zip": lambda folder: af.zip(
        af.read_ipc(written(folder, "arrow")).select("x"), af.read_ipc(written(folder, "arrow")).select(y="x")
    ),
    "the same twice": lambda folder: af.sample_from_datasets(
        [af.read_ipc(written(folder, "arrow"))] * 2, weights=[0.5, 0.5], seed=1
    ),
    "concatenate": lambda folder: af.read_ipc(written(folder, "arrow")).concatenate(
        af.read_ipc(folder / "t.arrow")
    ),
}
ASKED: dict[str, dict[str, Any]] = {
    "as it is": {"null": {"null": "nan"}},
    "masks": {"null": "mask", "lists": "padded"},
    "ragged": {"null": {"null": 0}, "lists": "ragged"},
}


def arrays(batch: Any) -> Iterator[np.ndarray[Any, Any]]:
    """Yields what can be written in a batch, as NumPy sees it."""
    for value in batch.values() if isinstance(batch, dict) else batch:
        if isinstance(value, Ragged):
            yield from arrays(value)
        elif getattr(value, "is_nested", False):
            yield from (value.values().numpy(), value.offsets().numpy())
        else:
            yield np.asarray(value)


def overwrite(batch: Any) -> None:
    for array in arrays(batch):
        if array.flags.writeable:
            array[...] = np.ones((), array.dtype)


def copied(batches: list[Any]) -> list[list[Any]]:
    return [[array.copy() for array in arrays(batch)] for batch in batches]


def assert_equal(found: list[list[Any]], expected: list[list[Any]]) -> None:
    for batch, other in zip(found, expected, strict=True):
        for array, same in zip(batch, other, strict=True):
            assert np.array_equal(array, same, equal_nan=array.dtype.kind == "f")


def ways(name: str) -> list[tuple[str, str]]:
    """Returns all sources for one loader, and some for the others, which differ in the memory that they copy."""
    sources = SOURCES if name == "to_numpy" else ("ipc", "memory", "cache", "aliases", "shuffle")
    asked = itertools.product(("ipc", "cache", "aliases"), ("masks", "ragged"))
    return [*((source, "as it is") for source in sources), *asked]


@pytest.mark.parametrize(
    ("name", "source", "asked"),
    [
        pytest.param(name, source, asked, marks=loader.marks)
        for loader in installed(ARRAYS)
        for (name,) in [loader.values]
        for source, asked in ways(name)
    ],
)
def test_writing_into_every_batch_changes_nothing_else(
    name: str, source: str, asked: str, tmp_path: Path
) -> None:
    data = SOURCES[source](tmp_path)
    request = {} if "null" not in data.schema.names else ASKED[asked]
    if source == "window":
        data, request = data.select("x"), {}
    loader = load(data.batch(7), name, **request)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    loader.set_epoch(0)
    expected = copied(list(loader))

    loader.set_epoch(0)
    kept = list(loader)
    assert_equal(copied(kept), expected)
    for number, batch in enumerate(kept):
        overwrite(batch)
        assert_equal(copied(kept[number + 1 :]), expected[number + 1 :])

    loader.set_epoch(0)
    with iter(loader) as one, iter(load(data.batch(7), name, **request)) as other:
        other.set_epoch(0)
        found = []
        for batch in one:  # two runs over one file side by side
            overwrite(batch)
            found += copied([next(other)])
    assert_equal(found, expected)
    assert {path: path.read_bytes() for path in files} == files


@pytest.mark.parametrize(
    "source", ["ipc", "ipc, compressed", "ipc, not mapped", "parquet", "shuffle", "repeat"]
)
@pytest.mark.parametrize("name", installed(("to_numpy", "to_dlpack", "to_torch")))
def test_what_a_batch_owns_is_aliased_and_writable(name: str, source: str, tmp_path: Path) -> None:
    data = SOURCES[source](tmp_path).select("x", "n", "v").batch(5)
    loader = load(data, name, strict_zero_copy=True)
    assert len(list(loader)) == (24 if source == "repeat" else 12)
    for batch in load(data, name):
        for array in arrays(batch):
            assert array.flags.writeable
    assert "copied" not in loader.explain(copies=True)


@needs_proc
@pytest.mark.parametrize("name", installed(("to_numpy", "to_dlpack", "to_torch")))
def test_batches_of_a_mapped_file_lie_in_the_page_cache(name: str, tmp_path: Path) -> None:
    """By address: all batches of a record batch lie one behind the other, where the file is mapped."""
    data = af.read_ipc(written(tmp_path, "arrow")).select("v").batch(5)
    batches = list(load(data, name))
    places = [next(arrays(batch)).__array_interface__["data"][0] for batch in batches]
    assert [places[i + 1] - places[i] for i in range(4)] == [5 * 16] * 4
    spans = [line.split()[0].split("-") for line in maps().splitlines() if line.endswith("t.arrow")]
    for place in places:
        assert any(int(start, 16) <= place < int(stop, 16) for start, stop in spans)


def maps() -> str:
    return Path("/proc/self/maps").read_text(encoding="utf-8")


@needs_proc
def test_maps_end_with_their_batches(tmp_path: Path) -> None:
    path = written(tmp_path, "arrow")
    batches = list(af.read_ipc(path).batch(5).to_numpy(null={"null": 0}))
    assert str(path) in maps()
    descriptors = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    assert not any(str(entry.readlink()) == str(path) for entry in descriptors if entry.exists())
    del batches
    assert str(path) not in maps()


# ---------------------------------------------------------------- strict_zero_copy

COPIES = {"bit-packed": pa.array([True, False] * 4), "dtype": pa.array([1, 2] * 4, pa.date32())}


@pytest.mark.parametrize("reason", COPIES)
def test_strictness_refuses_what_the_schema_says_is_copied(reason: str) -> None:
    data = af.from_arrow(pa.table({"fine": np.arange(8), "x": COPIES[reason]})).shuffle(4).batch(4)
    loader = data.to_numpy(strict_zero_copy=True)
    with pytest.raises(
        af.SchemaError, match=rf"to_numpy: column 'x' would be copied \({reason}.*strict_zero_copy"
    ):
        iter(loader)
    assert f"copied: {reason}" in loader.explain(copies=True), "which is there to be asked"


@pytest.mark.parametrize("name", installed(("to_dlpack", "to_torch", "to_jax")))
def test_strictness_refuses_shared_memory_where_it_would_be_copied(name: str) -> None:
    data = af.from_numpy({"x": np.arange(8.0, dtype=np.float32)}).batch(4)
    with pytest.raises(af.SchemaError, match="'x' would be copied \\(shared"):
        iter(load(data, name, strict_zero_copy=True))
    assert "copied: shared" in load(data, name).explain(copies=True)
    assert len(list(data.to_numpy(strict_zero_copy=True))) == 2, "where it is read-only"


@pytest.mark.parametrize("name", installed(("to_dlpack", "to_torch")))
def test_strictness_refuses_columns_that_alias_when_they_come(name: str) -> None:
    data = af.range(8).with_columns(x=pl.col("id")).batch(4)
    with pytest.raises(af.DataError, match="would be copied \\(shared: a second column"):
        list(load(data, name, strict_zero_copy=True))


def test_strictness_refuses_nulls_that_are_replaced_when_they_come(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0, 2.0, None, 4.0]}), tmp_path / "t.parquet")
    batches = iter(af.read_parquet(tmp_path).batch(2).to_numpy(null=0, strict_zero_copy=True))
    assert next(batches)["x"].tolist() == [1.0, 2.0]
    with pytest.raises(af.DataError, match="'x' would be copied \\(null"):
        next(batches)


def test_strictness_refuses_batches_that_cross_a_border(tmp_path: Path) -> None:
    data = af.read_ipc(written(tmp_path, "arrow")).select("x")
    batches = iter(data.batch(10).to_numpy(strict_zero_copy=True))
    assert [len(next(batches)["x"]) for _ in range(2)] == [10, 10]
    with pytest.raises(af.DataError, match=r"chunked: .*batch size"):
        next(batches)
    assert "batch: chunked" in data.batch(10).to_numpy().explain(copies=True)


def test_explain_says_that_compressed_files_are_decoded(tmp_path: Path) -> None:
    for source, said in (("ipc", False), ("ipc, compressed", True), ("ipc, not mapped", True)):
        lines = SOURCES[source](tmp_path).to_numpy(null={"null": 0}).explain(copies=True)
        assert ("read_ipc: compressed" in lines) == said, source


def test_copies_lie_where_a_framework_that_asks_for_alignment_takes_them() -> None:
    class Aligned(ArraysExport):
        framework, shared, alignment = "an array", "shared", 64

    batch = pa.RecordBatch.from_pydict({"x": [1, 2, 3], "y": [[1], [2], [3]]})
    found = Aligned(batch.schema, owned=False)(batch.slice(1))
    assert [(each.tolist(), each.ctypes.data % 64) for each in found.values()] == [
        ([2, 3], 0),
        ([[2], [3]], 0),
    ]


def test_misaligned_memory_is_copied_for_torch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    raw = pa.py_buffer(np.zeros(33, np.uint8)).slice(1)
    column = pa.Array.from_buffers(pa.float32(), 8, [None, raw])
    data = af.from_arrow(pa.RecordBatch.from_arrays([column], names=["x"]))
    assert torch.equal(next(iter(data.to_torch()))["x"], torch.zeros(8))


def test_autograd_sees_each_batch_alone(tmp_path: Path) -> None:
    """Batches of one chunk are no views of one tensor: writing into one is no change of another that a graph holds."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    weight = torch.ones(4, requires_grad=True)
    batches = iter(
        af.read_ipc(written(tmp_path, "arrow")).select("v").batch(5).to_torch(dtypes={"v": "float32"})
    )
    first = next(batches)["v"]
    loss = (first * weight).sum()
    next(batches)["v"].zero_()
    loss.backward()
    assert torch.equal(weight.grad, first.sum(0))
    plain = iter(af.read_ipc(tmp_path).select("x").batch(4).to_torch())
    first = next(plain)["x"]
    loss = (first * weight).sum()
    next(plain)["x"].zero_()
    loss.backward()
