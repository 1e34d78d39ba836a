"""Aligned IPC files: what pyarrow would have written, byte for byte, only with room between the buffers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import xxhash
from hypothesis import example, given

from arrowflow.formats import FORMATS, decoded_schema
from arrowflow.formats.ipc.aligned import ALIGNMENT, Written, same_file, write_aligned
from arrowflow.formats.ipc.metadata import CONTINUATION, Block, locate_message, parse_footer
from arrowflow.workarounds.codes import masked
from tests.formats.ipc_columns import CODE_BENEATH_A_NULL, COLUMNS, ROWS, batches
from tests.formats.reading import KINDS, read_all

COMPRESSIONS = (None, "lz4", "zstd")
NOT_READ = ("runs_of_codes", "dense", "sparse")
"""Columns that `read_ipc` refuses, whoever wrote them."""


def write(path: Path, schema: pa.Schema, given: Sequence[pa.RecordBatch], **arguments: Any) -> Written:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        return write_aligned(partial(os.writev, descriptor), schema, given, **arguments)
    finally:
        os.close(descriptor)


def plain(schema: pa.Schema, given: Sequence[pa.RecordBatch], compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for batch in given:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def blocks(data: bytes) -> list[Block]:
    size = int.from_bytes(data[-10:-6], "little")
    dictionaries, batches = parse_footer(memoryview(data)[-10 - size : -10])
    return [*dictionaries, *batches]


def buffers(data: bytes, block: Block) -> Iterator[tuple[int, int]]:
    """Yields where each buffer of a message starts in the file, and where it ends."""
    start, body = block.offset, block.offset + block.metadata_bytes
    assert int.from_bytes(data[start : start + 4], "little") == CONTINUATION
    message = locate_message(memoryview(data)[start + 8 : body])
    assert message.body_bytes == block.body_bytes
    found = np.frombuffer(data, "<i8", 2 * message.num_buffers, start + 8 + message.buffers)
    for offset, size in found.reshape(-1, 2).tolist():
        yield body + offset, body + offset + size


def check(
    path: Path, schema: pa.Schema, given: Sequence[pa.RecordBatch], compression: str | None = None
) -> None:
    """Writes a file and compares it with what pyarrow writes, message by message, buffer by buffer."""
    written = write(path, schema, given, compression=compression)
    data, usual = path.read_bytes(), plain(schema, given, compression)
    assert written == (len(data), xxhash.xxh3_64_intdigest(data))
    ours, theirs = blocks(data), blocks(usual)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.offset % ALIGNMENT == mine.metadata_bytes % ALIGNMENT == mine.body_bytes % ALIGNMENT == 0
        places = list(buffers(data, mine))
        assert [start % ALIGNMENT for start, _ in places] == [0] * len(places)
        expected = [usual[start:end] for start, end in buffers(usual, other)]
        assert [data[start:end] for start, end in places] == expected
    with pa.ipc.open_file(pa.py_buffer(data)) as mine, pa.ipc.open_file(pa.py_buffer(usual)) as other:
        assert mine.schema.equals(other.schema, check_metadata=True)
        assert mine.num_record_batches == len(given)
        for index in range(len(given)):
            batch = mine.get_batch(index)
            for column in batch.columns:
                masked(column).validate(full=True)
            assert str(batch) == str(other.get_batch(index))  # NaN is not equal to itself


def of(name: str) -> pa.RecordBatch:
    return pa.record_batch({name: COLUMNS[name], "row": COLUMNS["row"]})


@pytest.mark.parametrize("name", COLUMNS)
def test_all_types(tmp_path: Path, name: str) -> None:
    batch = of(name)
    parts = [batch, batch.slice(1, 0), batch.slice(3, 5), batch.slice(9)]
    for compression in COMPRESSIONS:
        check(tmp_path / "x.arrow", batch.schema, parts, compression)
    assert same_file([batch, batch.slice(3), batch.slice(0, 0)]) and same_file([batch])


@given(batches())
@example(CODE_BENEATH_A_NULL)
def test_any_batch(tmp_path_factory: pytest.TempPathFactory, batch: pa.RecordBatch) -> None:
    path = tmp_path_factory.getbasetemp() / "any.arrow"
    check(path, batch.schema, [batch, batch.slice(batch.num_rows // 2)])
    with pa.ipc.open_file(path) as opened:
        assert opened.get_batch(0).equals(batch)


def test_all_columns_together_and_metadata(tmp_path: Path) -> None:
    batch = pa.record_batch(COLUMNS)
    assert batch.num_rows == ROWS
    schema = batch.schema.set(0, batch.schema.field(0).with_metadata({"a": "b"})).with_metadata({"c": "ä"})
    path = tmp_path / "x.arrow"
    check(path, schema, [batch] * 3)
    check(path, schema, [])
    write(path, schema, [batch], metadata={"key": "value"})
    with pa.ipc.open_file(path) as opened:
        assert dict(opened.metadata) == {b"key": b"value"}
        assert opened.schema.equals(schema, check_metadata=True)


def test_many_batches(tmp_path: Path) -> None:
    batch = pa.record_batch({"x": np.arange(300_000), "y": np.arange(300_000) % 7 == 0})
    parts = [batch.slice(start, 1_000) for start in range(0, 300_000, 1_000)]
    check(tmp_path / "x.arrow", batch.schema, [batch, *parts])


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_our_own_reader(tmp_path: Path, compression: str | None) -> None:
    batch = pa.record_batch({name: COLUMNS[name] for name in COLUMNS if name not in NOT_READ})
    path, usual = tmp_path / "x.arrow", tmp_path / "usual.arrow"
    write(path, batch.schema, [batch, batch.slice(4)], compression=compression)
    usual.write_bytes(plain(batch.schema, [batch, batch.slice(4)], compression))
    for kind in KINDS if compression is None else ("mapped", "fsspec"):
        found, expected = (read_all(FORMATS["ipc"], each, kind=kind) for each in (path, usual))
        assert found.schema == decoded_schema(batch.schema)
        assert str(found) == str(expected)


def test_polars(tmp_path: Path) -> None:
    frame = pl.DataFrame({"x": [1, None, 3], "s": ["a", "b" * 40, None], "l": [[1.5], [], None]})
    frame = frame.with_columns(c=pl.col("s").cast(pl.Categorical), st=pl.struct("x", "s"))
    table = frame.to_arrow()
    path = tmp_path / "x.arrow"
    for compression in COMPRESSIONS:
        write(path, table.schema, table.to_batches() * 2, compression=compression)
        assert pl.read_ipc(path).equals(pl.concat([frame, frame]))
        assert pl.scan_ipc(path).select("s").collect().equals(pl.concat([frame, frame]).select("s"))


def test_columns_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    column = np.arange(500_000)
    low, high = column.ctypes.data, column.ctypes.data + column.nbytes
    seen: list[int] = []
    original = os.writev

    def writev(descriptor: int, pieces: Sequence[memoryview]) -> int:
        places = [(np.frombuffer(piece, np.uint8).ctypes.data, piece.nbytes) for piece in pieces]
        seen.extend(size for place, size in places if low <= place < high)
        return original(descriptor, pieces)

    monkeypatch.setattr(os, "writev", writev)
    batch = pa.record_batch({"x": column})
    write(tmp_path / "x.arrow", batch.schema, [batch])
    assert sum(seen) == column.nbytes


@pytest.mark.parametrize("most", [1, 100, 4_099])
def test_a_system_that_takes_a_part_of_what_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    def writev(descriptor: int, pieces: Sequence[memoryview]) -> int:
        return os.write(descriptor, b"".join(pieces)[:most])

    monkeypatch.setattr(os, "writev", writev)
    check(tmp_path / "x.arrow", of("text").schema, [of("text")] * 3)


def test_the_environment_has_no_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARROW_PRE_0_15_IPC_FORMAT", "1")
    monkeypatch.setenv("ARROW_PRE_1_0_METADATA_VERSION", "1")
    check(tmp_path / "x.arrow", of("text").schema, [of("text")])


def test_another_dictionary_is_refused(tmp_path: Path) -> None:
    first, second = (pa.record_batch({"x": pa.array([x]).dictionary_encode()}) for x in "ab")
    with pytest.raises(pa.ArrowInvalid, match="ictionary"):
        write(tmp_path / "x.arrow", first.schema, [first, second])


# ---------------------------------------------------------------- which batches go together


WRAPPED: dict[str, Callable[[pa.Array], pa.Array]] = {
    "plain": lambda codes: codes,
    "list": lambda codes: pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), codes),
    "fixed": lambda codes: pa.FixedSizeListArray.from_arrays(codes, 2),
    "struct": lambda codes: pa.StructArray.from_arrays([pa.nulls(2), codes], ["n", "x"]),
    "map": lambda codes: pa.MapArray.from_arrays(pa.array([0, 2], pa.int32()), pa.array(["a", "b"]), codes),
    "union": lambda codes: pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [codes]),
    "runs": lambda codes: pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), codes),
    "dictionary": lambda codes: pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), codes),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_same_file_says_what_pyarrow_does(tmp_path: Path, kind: str) -> None:
    def made(values: list[str]) -> pa.RecordBatch:
        return pa.record_batch({"x": WRAPPED[kind](pa.array(values).dictionary_encode())})

    first, equal, other = made(["a", "b"]), made(["a", "b"]), made(["b", "a"])
    assert same_file([first, equal]) and same_file([])
    write(tmp_path / "x.arrow", first.schema, [first, equal])
    assert not same_file([first, equal, other])
    with pytest.raises(pa.ArrowInvalid):
        write(tmp_path / "x.arrow", first.schema, [first, other])
