"""Chunks: what is written comes back, what is not the chunk that its name says is told, and failures leave nothing."""

from __future__ import annotations

import errno
import itertools
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.caching.store import files as module
from arrowflow.caching.store.chunk import HEADER, Chunk, ChunkError, Draft, Link, Name
from arrowflow.caching.store.files import open_chunk, write_chunk
from arrowflow.errors import CacheFullError, SchemaError, SourceError, WriteError
from arrowflow.formats.ipc.aligned import ALIGNMENT
from arrowflow.plan.position import Position
from tests.formats.ipc_columns import CODE_BENEATH_A_NULL, COLUMNS, ROWS, batches

pytestmark = pytest.mark.any_version

FINGERPRINT = "0123456789abcdef" * 2
BATCH = pa.record_batch(COLUMNS)
SMALL = pa.record_batch({"x": [1, 2, 3], "s": ["a", None, "bc"]}).replace_schema_metadata({"k": "v"})
BEFORE: Position = (0, ("x", None, 1.5), ())
COMPRESSIONS = (None, "lz4", "zstd")

Items = list[tuple[pa.RecordBatch, Link]]


def items_of(*given: pa.RecordBatch) -> Items:
    return [
        (batch, Link(batch.num_rows, (1, index, (None, True)), index // 2, index % 2 == 0))
        for index, batch in enumerate(given)
    ]


def write(folder: Path, items: Items, *, first_row: int = 7, **arguments: Any) -> Name:
    given: dict[str, Any] = {
        "schema": items[0][0].schema if items else None,
        "fingerprint": FINGERPRINT,
        "end": False,
    }
    return write_chunk(folder, Draft(first_row, BEFORE, items, **(given | arguments)))


def load(folder: Path, name: Name, *, verify: bool = True) -> Chunk:
    return open_chunk(folder, name, fingerprint=FINGERPRINT, verify=verify)


def small(folder: Path) -> Name:
    return write(folder, items_of(SMALL, SMALL.slice(1)))


def place(folder: Path, data: bytes, *, first_row: int = 7, num_rows: int = 5, end: bool = False) -> Name:
    """Puts bytes under a name that has their checksum."""
    name = Name(first_row, num_rows, xxhash.xxh3_64_intdigest(data), end)
    (folder / name.render()).write_bytes(data)
    return name


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# ---------------------------------------------------------------- names


@given(st.integers(0, 10**17), st.integers(0, 10**12), st.integers(0, 2**64 - 1), st.booleans())
def test_names(first_row: int, num_rows: int, checksum: int, end: bool) -> None:
    name = Name(first_row, num_rows, checksum, end)
    assert Name.parse(name.render()) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "entry.json",
        "lock",
        ".tmp-1-2",
        "_UNFINISHED",
        "000000000000007-5-000000000012abcd.arrow.tmp",
        ".000000000000007-5-000000000012abcd.arrow",
        "7-5-000000000012abcd.arrow",
        "0000000000000007-5-000000000012abcd.arrow",
        "000000000000007-05-000000000012abcd.arrow",
        "000000000000007-5-000000000012ABCD.arrow",
        "000000000000007-5-000000000012abc.arrow",
        "000000000000007-5-000000000012abcd-End.arrow",
        "000000000000007-\u0665-000000000012abcd.arrow",
        "000000000000007-5-000000000012abcd.arrow\n",
        "-00000000000007-5-000000000012abcd.arrow",
    ],
)
def test_other_names(text: str) -> None:
    assert Name.parse(text) is None


def test_names_sort_by_rows() -> None:
    names = [Name(row, 5, 0, False) for row in (0, 5, 90, 1_000, 10**14)]
    assert sorted(name.render() for name in names) == [name.render() for name in names]


# ---------------------------------------------------------------- there and back


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("verify", [True, False])
def test_there_and_back(tmp_path: Path, compression: str | None, verify: bool) -> None:
    schema = BATCH.schema.with_metadata({"a": "b"})
    items = items_of(BATCH.slice(0, 0), BATCH, BATCH.slice(2, 3), BATCH.slice(0, 0), BATCH.slice(10))
    name = write(tmp_path, items, schema=schema, compression=compression, end=True)
    assert (name.first_row, name.num_rows, name.end) == (7, ROWS + 4, True)
    assert [path.name for path in tmp_path.iterdir()] == [name.render()]
    chunk = load(tmp_path, name, verify=verify)
    assert chunk.before == BEFORE
    assert chunk.links == tuple(link for _, link in items)
    assert chunk.name == name == (7, ROWS + 4, name.checksum, True)
    assert chunk.schema.equals(schema, check_metadata=True)
    for index in (4, 0, 1, 2, 3, 1):  # in any order, several times
        batch = chunk.batch(index)
        batch.validate(full=True)
        assert batch.schema.equals(schema, check_metadata=True)
        assert str(batch) == str(items[index][0])  # NaN is not equal to itself


@given(batches(), st.sampled_from(COMPRESSIONS))
@example(CODE_BENEATH_A_NULL, None)
def test_any_batch(
    tmp_path_factory: pytest.TempPathFactory, batch: pa.RecordBatch, compression: str | None
) -> None:
    folder = tmp_path_factory.getbasetemp()
    items = items_of(batch, batch.slice(batch.num_rows // 2))
    name = write(folder, items, compression=compression)
    chunk = load(folder, name)
    assert [chunk.batch(index).equals(each) for index, (each, _) in enumerate(items)] == [True, True]
    (folder / name.render()).unlink()


def test_columns_are_aligned_views_of_the_file(tmp_path: Path) -> None:
    chunk = load(tmp_path, write(tmp_path, items_of(BATCH, BATCH.slice(3))))
    low, high = chunk.mapped.address, chunk.mapped.address + chunk.mapped.size
    assert low % 4096 == 0
    for index, column in itertools.product(range(2), range(BATCH.num_columns)):
        for buffer in chunk.batch(index).column(column).buffers():
            if buffer is not None and buffer.size:
                assert low <= buffer.address < high
                assert buffer.address % ALIGNMENT == 0


def test_a_chunk_without_rows_ends_an_entry(tmp_path: Path) -> None:
    name = write(tmp_path, [], first_row=12, schema=BATCH.schema, end=True)
    chunk = load(tmp_path, name)
    assert (chunk.name.num_rows, chunk.links, chunk.name.end) == (0, (), True)
    assert chunk.schema.equals(BATCH.schema)


def test_chunks_are_an_ordinary_dataset(tmp_path: Path) -> None:
    write(tmp_path, items_of(SMALL, SMALL.slice(1)), first_row=0)
    write(tmp_path, items_of(SMALL), first_row=5)
    write(tmp_path, [], first_row=8, schema=SMALL.schema, end=True)
    expected = pa.Table.from_batches([SMALL, SMALL.slice(1), SMALL])
    assert af.read_ipc(tmp_path).to_table().equals(expected.replace_schema_metadata())


def test_the_same_chunk_has_the_same_name(tmp_path: Path) -> None:
    assert small(tmp_path) == small(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_nullability_is_that_of_the_declared_schema(tmp_path: Path) -> None:
    strict = pa.schema([pa.field("x", pa.int64(), nullable=False), ("s", pa.string())])
    given = pa.RecordBatch.from_arrays(SMALL.columns, schema=strict)
    name = write(tmp_path, items_of(given), schema=SMALL.schema)
    assert load(tmp_path, name).batch(0).schema.equals(SMALL.schema)


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    name = small(tmp_path)
    before = num_descriptors()
    chunks = [load(tmp_path, name) for _ in range(200)]
    held = [chunk.batch(0) for chunk in chunks]
    assert num_descriptors() == before
    (tmp_path / name.render()).unlink()  # whoever has it mapped keeps it
    assert all(batch.equals(SMALL) for batch in held)
    assert chunks[0].batch(1).equals(SMALL.slice(1))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_many_threads_read_a_chunk(tmp_path: Path, compression: str | None) -> None:
    table = BATCH.select([name for name in COLUMNS if name != "large_list"])  # it holds NaN
    parts = [table.slice(index % 5) for index in range(20)]
    name = write(tmp_path, items_of(*parts), compression=compression)
    for _ in range(5):
        chunk = load(tmp_path, name)  # of which nobody has read the dictionaries yet
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(chunk.batch, range(20)))
        assert [batch.equals(part) for batch, part in zip(found, parts, strict=True)] == [True] * 20


def test_many_threads_write_the_same_chunk(tmp_path: Path) -> None:
    before = num_descriptors()
    with ThreadPoolExecutor(8) as pool:
        names = set(pool.map(lambda _: small(tmp_path), range(40)))
    assert len(names) == 1
    assert [path.name for path in tmp_path.iterdir()] == [names.pop().render()]
    assert num_descriptors() == before


# ---------------------------------------------------------------- what is not that chunk


def places(size: int) -> list[int]:
    """Returns all places near both ends of a file, and one of each few between them."""
    return sorted({*range(64), *range(0, size, 23), *range(size - 64, size)})


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    name = small(tmp_path)
    path = tmp_path / name.render()
    data = path.read_bytes()
    for index in places(len(data)):
        path.write_bytes(data[:index] + bytes([data[index] ^ (1 << index % 8)]) + data[index + 1 :])
        with pytest.raises(ChunkError, match="damaged"):
            load(tmp_path, name)
    path.write_bytes(data)
    assert load(tmp_path, name).batch(0).equals(SMALL)


@pytest.mark.parametrize("verify", [True, False])
def test_every_truncation_is_noticed(tmp_path: Path, verify: bool) -> None:
    name = small(tmp_path)
    path = tmp_path / name.render()
    data = path.read_bytes()
    for size in places(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(ChunkError):
            load(tmp_path, name, verify=verify)
    path.write_bytes(data + b"\0")
    with pytest.raises(ChunkError):
        load(tmp_path, name, verify=verify)


def as_file(header: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    metadata = None if header is None else {HEADER: header}
    with pa.ipc.new_file(sink, SMALL.schema, metadata=metadata) as writer:
        writer.write_batch(SMALL)
        writer.write_batch(SMALL.slice(1))
    return bytes(sink.getvalue())


def header(**changes: Any) -> str:
    items = [[3, [1], 0, True], [2, [2], 0, True]]
    whole = {
        "version": 2,
        "fingerprint": FINGERPRINT,
        "first_row": 7,
        "end": False,
        "before": None,
        "items": items,
    }
    return json.dumps(whole | changes)


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(SMALL), sink)
    return bytes(sink.getvalue())


def stream() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SMALL.schema) as writer:
        writer.write_batch(SMALL)
    return bytes(sink.getvalue())


FOREIGN: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "text": lambda: b"hello",
    "zeros": lambda: bytes(5_000),
    "parquet": parquet,
    "stream": stream,
    "no header": lambda: as_file(None),
    "no JSON": lambda: as_file("{"),
    "deep JSON": lambda: as_file("[" * 100_000),
    "a list": lambda: as_file("[]"),
    "a number": lambda: as_file("1"),
    "nothing in it": lambda: as_file("{}"),
    "version": lambda: as_file(header(version=1)),
    "fingerprint": lambda: as_file(header(fingerprint="f" * 32)),
    "first row": lambda: as_file(header(first_row=8)),
    "end": lambda: as_file(header(end=True)),
    "no items": lambda: as_file(header(items=None)),
    "short items": lambda: as_file(header(items=[[3, [1]], [2, [2]]])),
    "odd items": lambda: as_file(header(items=["abcd", "efgh"])),
    "other rows": lambda: as_file(header(items=[[3, [1], 0, True], [1, [2], 0, True]])),
    "other batches": lambda: as_file(header(items=[[5, [1], 0, True]])),
}


def test_the_header_of_these_tests_is_right(tmp_path: Path) -> None:
    assert load(tmp_path, place(tmp_path, as_file(header()))).batch(1).equals(SMALL.slice(1))


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_files(tmp_path: Path, kind: str, verify: bool) -> None:
    name = place(tmp_path, FOREIGN[kind]())
    before = num_descriptors()
    with pytest.raises(ChunkError) as caught:
        load(tmp_path, name, verify=verify)
    assert caught.value.file == str(tmp_path / name.render())
    assert num_descriptors() == before


def test_batches_with_other_rows_than_the_header_says(tmp_path: Path) -> None:
    items = [[2, [1], 0, True], [3, [2], 0, True]]
    chunk = load(tmp_path, place(tmp_path, as_file(header(items=items))))
    with pytest.raises(ChunkError, match="expected 2 rows in record batch 0, found 3"):
        chunk.batch(0)


@pytest.mark.parametrize("changed", [{"first_row": 8}, {"num_rows": 4}, {"end": True}, {"checksum": 1}])
def test_renamed_chunks(tmp_path: Path, changed: dict[str, Any]) -> None:
    name = small(tmp_path)
    other = name._replace(**changed)
    (tmp_path / name.render()).rename(tmp_path / other.render())
    with pytest.raises(ChunkError):
        load(tmp_path, other)


def test_chunks_of_another_plan(tmp_path: Path) -> None:
    name = small(tmp_path)
    with pytest.raises(ChunkError, match="with fingerprint 'other', found '0123"):
        open_chunk(tmp_path, name, fingerprint="other", verify=True)


def test_damage_that_only_reading_tells(tmp_path: Path) -> None:
    name = small(tmp_path)
    path = tmp_path / name.render()
    data = bytearray(path.read_bytes())
    start = data.index(b"\xff\xff\xff\xff", 64)  # the first record batch
    data[start + 8 : start + 64] = bytes(56)
    path.write_bytes(data)
    with pytest.raises(ChunkError, match="damaged"):
        load(tmp_path, name)
    chunk = load(tmp_path, name, verify=False)
    with pytest.raises(ChunkError, match="damaged") as caught:
        chunk.batch(0)
    assert name.render() in str(caught.value)


def test_what_is_no_file_or_not_there(tmp_path: Path) -> None:
    name = Name(7, 5, 0, False)
    with pytest.raises(FileNotFoundError):
        load(tmp_path, name)
    (tmp_path / name.render()).mkdir()
    with pytest.raises(ChunkError, match="no file"):
        load(tmp_path, name)
    (tmp_path / name.render()).rmdir()
    os.mkfifo(tmp_path / name.render())
    with pytest.raises(ChunkError, match="no file"):
        load(tmp_path, name)


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = small(tmp_path)

    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(pa, "memory_map", refuse)
    with pytest.raises(SourceError, match="Permission denied") as caught:
        load(tmp_path, name)
    assert not isinstance(caught.value, ChunkError)


# ---------------------------------------------------------------- failures while writing


def failing(number: int, calls: int) -> Callable[..., Any]:
    """Returns a system call that fails after some calls."""
    count = itertools.count()
    original = os.writev

    def call(descriptor: int, pieces: Sequence[memoryview] = ()) -> int:
        if next(count) >= calls:
            raise OSError(number, os.strerror(number))
        return original(descriptor, pieces)

    return call


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("call", ["open", "writev", "second writev", "fsync", "close", "rename"])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    large = pa.record_batch({"x": pa.nulls(300_000, pa.int64())})
    items = items_of(large)
    earlier = small(tmp_path)
    before = num_descriptors()
    close = os.close

    def refuse(*given: Any) -> None:
        if call == "close":
            close(given[0])
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        if "writev" in call:
            patch.setattr(os, "writev", failing(number, calls=call == "second writev"))
        else:
            patch.setattr(os, call, refuse)
        with pytest.raises(CacheFullError) as caught:
            write(tmp_path, items)
    assert [path.name for path in tmp_path.iterdir()] == [earlier.render()]
    assert num_descriptors() == before
    text = str(caught.value)
    for part in (
        f"{large.nbytes:,} bytes",
        "bytes are free",
        "af.cache_clear",
        'on_full="bypass"',
        str(tmp_path),
    ):
        assert part in text
    assert isinstance(caught.value.__cause__, OSError)
    write(tmp_path, items)  # there is room again


def test_a_full_disk_whatever_the_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "writev", failing(errno.ENOSPC, calls=0))
    with pytest.raises(CacheFullError, match=r"[0-9],[0-9]{3} bytes"):
        write(tmp_path, items_of(BATCH))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["writev", "fsync"])
def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.setattr(os, call, failing(errno.EIO, calls=0))
    with pytest.raises(WriteError, match="Input/output error") as caught:
        small(tmp_path)
    assert caught.value.file == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int, pieces: Sequence[memoryview]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "writev", interrupt)
    before = num_descriptors()
    with pytest.raises(KeyboardInterrupt):
        small(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert num_descriptors() == before


def test_the_order_of_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are on the disk before the name is, and the name before anybody is told."""
    done: list[str] = []
    originals = {call: getattr(os, call) for call in ("writev", "fsync", "rename")}

    def noted(call: str) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            target = Path(f"/proc/self/fd/{given[0]}").readlink() if isinstance(given[0], int) else None
            done.append(f"{call} {'folder' if target == tmp_path else 'file'}")
            return originals[call](*given)

        return run

    for call in originals:
        monkeypatch.setattr(os, call, noted(call))
    small(tmp_path)
    assert done == ["writev file", "fsync file", "rename file", "fsync folder"]


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="cannot be written") as caught:
        small(tmp_path / "gone")
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_what_a_killed_writer_left_is_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_counter", itertools.count())
    left = tmp_path / f".tmp-{os.getpid()}-0"
    left.write_bytes(b"a part")
    name = small(tmp_path)
    assert load(tmp_path, name).batch(0).equals(SMALL)
    assert left.read_bytes() == b"a part"  # it may be of a writer that is alive, elsewhere


def test_batches_that_do_not_fit_together(tmp_path: Path) -> None:
    first, second = (pa.record_batch({"x": pa.array([x]).dictionary_encode()}) for x in "ab")
    with pytest.raises(WriteError, match="one Arrow IPC file"):
        write(tmp_path, items_of(first, second))
    for other in (
        SMALL.rename_columns(["x", "t"]),
        SMALL.select(["s", "x"]),
        pa.record_batch({"x": [1.5], "s": ["a"]}),
    ):
        with pytest.raises(SchemaError, match="expected record batches of"):
            write(tmp_path, items_of(SMALL, other))
    with pytest.raises(ValueError, match="another number of rows"):
        write(tmp_path, [(SMALL, Link(2, None, 0, True))])
    assert list(tmp_path.iterdir()) == []
