"""IPC: every column and file system gives what pyarrow reads, rows are counted without decoding, the rest raises."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather

import arrowflow as af
from arrowflow.errors import SchemaError, SourceError
from arrowflow.formats import FORMATS, decoded_schema, match
from arrowflow.formats.ipc import ipc, private_map
from arrowflow.formats.ipc.metadata import _Table, parse_batch, parse_footer
from arrowflow.formats.types import check_arrays
from arrowflow.storage import Fetched, Mapped
from tests.formats.parquet.test_parquet import table as columns
from tests.formats.reading import KINDS, count_fetched, open_footer, read_all, read_split, write_table

IPC = FORMATS["ipc"]


def table(rows: int = 10) -> pa.Table:
    if rows == 0:
        return columns(0)
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), pa.array(["x"]))
    return columns(rows).append_column("runs", runs)


def write(path: Path, data: pa.Table, *, rows: int = 4, compression: str | None = None) -> Path:
    return write_table(path, data, rows=rows, compression=compression)


def as_lists(data: pa.Table) -> dict[str, list[Any]]:
    return {name: data.column(name).to_pylist() for name in data.column_names}


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_all_columns_on_all_file_systems(tmp_path: Path, compression: str | None) -> None:
    path = write(tmp_path / "x.arrow", table(), compression=compression)
    for kind in KINDS:
        found = read_all(IPC, path, kind=kind)
        assert found.schema == decoded_schema(table().schema)
        assert as_lists(found) == as_lists(table())


def test_batches_are_read_where_there_is_no_room_for_more_maps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As there is not for whoever keeps 65,530 of them, or a file that is larger than what may be committed."""
    monkeypatch.setattr(private_map, "MAX_MAPS", len(private_map._maps) + 2)
    path = write(tmp_path / "x.arrow", pa.table({"x": np.arange(20)}), rows=4)
    one_at_a_time = af.Options(cpu_budget=1, autotune=False)  # each call that looks at once may make one more
    kept = list(af.read_ipc(path).with_options(one_at_a_time).to_numpy())
    assert len(private_map._maps) <= private_map.MAX_MAPS
    for batch in kept:
        batch["x"] += 1
    assert np.concatenate([batch["x"] for batch in kept]).tolist() == list(range(1, 21))


def test_what_is_only_mapped_is_known(tmp_path: Path) -> None:
    mapped, footer = open_footer(IPC, write(tmp_path / "x.arrow", table()))
    mapped_only = {name for name in footer.schema.names if ipc.IpcFormat().only_maps(mapped, footer, [name])}
    assert mapped_only == {"a", "a.b", "price", "null", "day", "time", "fixed", "flag"}
    assert not ipc.IpcFormat().only_maps(mapped, footer, footer.schema.names)
    for kind, compression in [("fsspec", None), ("mapped", "zstd")]:
        path = write(tmp_path / "y.arrow", pa.table({"x": [1.5]}), compression=compression)
        store, footer = open_footer(IPC, path, kind)
        assert not ipc.IpcFormat().only_maps(store, footer, ["x"])


def test_one_column_whatever_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "x.arrow", table())
    for name in table().column_names:
        schema = decoded_schema(table().select([name]).schema)
        for kind in ("mapped", "fsspec"):
            found = read_all(IPC, path, kind=kind, schema=schema)
            assert found.column(0).to_pylist() == table().column(name).to_pylist()


def test_mapped_columns_are_views(tmp_path: Path) -> None:
    path = write(tmp_path / "x.arrow", pa.table({"a": np.arange(1000)}), rows=1000)
    store, footer = open_footer(IPC, path)
    before = pa.total_allocated_bytes()
    [batch] = IPC.read(store, footer, footer.splits[0], footer.schema)
    assert pa.total_allocated_bytes() == before
    assert batch.column(0).to_pylist() == list(range(1000))


def test_order_widening_absent_columns_and_offsets(tmp_path: Path) -> None:
    path = write(tmp_path / "x.arrow", table())
    schema = pa.schema({"text": pa.large_string(), "new": pa.int8(), "a": pa.int64()})
    store, footer = open_footer(IPC, path)
    match(schema, footer, widen=True)
    assert [split.num_rows for split in footer.splits] == [4, 4, 2]
    assert not IPC.prune(footer, footer.splits[0], lambda *_: False)
    for offset in range(5):
        found = read_split(IPC, store, footer, footer.splits[1], schema, offset)
        assert found.column("a").to_pylist() == [4, 5, 6, 7][offset:]
        assert found.column("new").null_count == 4 - offset
    found = read_split(IPC, store, footer, footer.splits[1], pa.schema({"new": pa.int8()}))
    assert found.num_rows == 4


def test_without_rows(tmp_path: Path) -> None:
    assert read_all(IPC, write(tmp_path / "none.arrow", table(0))).num_rows == 0
    [some] = columns(3).to_batches()
    none = some.slice(0, 0)
    with pa.ipc.new_file(tmp_path / "groups.arrow", none.schema) as writer:
        for batch in (none, none, some, none):
            writer.write_batch(batch)
    _, footer = open_footer(IPC, tmp_path / "groups.arrow")
    assert [split.num_rows for split in footer.splits] == [0, 0, 3, 0]
    assert read_all(IPC, tmp_path / "groups.arrow").num_rows == 3


def test_many_batches_are_counted_without_their_bodies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "x.arrow", pa.table({"a": np.arange(40_000)}), rows=20)
    fetched = count_fetched(monkeypatch)
    _, footer = open_footer(IPC, path)
    assert len(footer.splits) == 2000
    assert sum(fetched) < path.stat().st_size * 0.8, "a page of metadata a batch, no body"


def test_long_footers_are_fetched_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc, "_TAIL_BYTES", 64)
    path = write(tmp_path / "x.arrow", table())
    assert read_all(IPC, path).num_rows == 10


def test_delta_dictionaries(tmp_path: Path) -> None:
    batches = [
        pa.record_batch({"a": pa.array(values).dictionary_encode()})
        for values in (["a", "b"], ["a", "b", "c"])
    ]
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    path = tmp_path / "x.arrow"
    with pa.ipc.new_file(path, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    assert read_all(IPC, path).column(0).to_pylist() == ["a", "b", "a", "b", "c"]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_sizes_are_near_the_truth(tmp_path: Path, compression: str | None) -> None:
    whole = table(2_000)
    for names in ([each] if each else whole.column_names for each in (*whole.column_names, None)):
        path = write(tmp_path / "x.arrow", whole.select(names), rows=2_000, compression=compression)
        store, footer = open_footer(IPC, path)
        [split] = footer.splits
        found = read_split(IPC, store, footer, split, footer.schema)
        guess = IPC.column_bytes(footer, split, names)
        assert guess == split.num_bytes
        assert IPC.scratch_bytes(footer, split, names) >= 0
        assert IPC.column_bytes(footer, split, ["absent"]) == 0
        if names[0] not in {"runs", "code", "null"}:
            assert found.nbytes / 4 <= guess <= found.nbytes * 6 + 2_000, names


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_only_the_wanted_columns_are_fetched(tmp_path: Path, compression: str | None) -> None:
    """Whatever else the body holds: the rest of it is neither fetched nor looked at."""
    data = columns(3_000).drop(["view", "raw"])  # whose layout the data decide
    path = write(tmp_path / "x.arrow", data, rows=3_000, compression=compression)
    store, footer = open_footer(IPC, path, "fsspec")
    [split] = footer.splits
    everything = sum(end - start for start, end in IPC.ranges(footer, split, data.column_names))
    assert 0.5 * path.stat().st_size < everything < path.stat().st_size
    assert IPC.ranges(footer, split, []) == IPC.ranges(footer, split, ["absent"]) == []
    total = 0
    for name in data.column_names:
        ranges = IPC.ranges(footer, split, [name])
        total += sum(end - start for start, end in ranges)
        held = {(start, end): store.fetch(footer.file, [(start, end)])[0] for start, end in ranges}
        source = Fetched(store.filesystem, file=footer.file, held=held)
        schema = pa.schema([footer.schema.field(name)])
        [batch] = IPC.read(source, footer, split, schema)
        batch.validate(full=True)
        assert batch.column(0).to_pylist() == data.column(name).to_pylist()
    shared = sum(end - start for start, end in IPC.ranges(footer, split, ["null"]))
    assert total == everything + shared * (len(data.column_names) - 1), "metadata and dictionaries each time"


def test_what_cannot_be_told_apart_is_fetched_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "x.arrow", columns(4).select(["a", "view"]))
    for kind in ("fsspec", "mapped"):
        _, footer = open_footer(IPC, path, kind)
        [split] = footer.splits
        [(start, end)] = IPC.ranges(footer, split, ["a"])
        assert end - start > IPC.scratch_bytes(footer, split, ["a"]), "the body and its metadata"
    with pa.OSFile(str(path)) as file:
        content = file.read()
    length = struct.unpack("<i", content[-10:-6])[0]
    [block] = parse_footer(memoryview(content)[-10 - length : -10])[1]
    message = memoryview(content)[block.offset : block.offset + block.metadata_bytes]
    assert parse_batch(message, block.body_bytes, 1).fills_block
    assert not parse_batch(memoryview(bytes(message) + bytes(8)), block.body_bytes, 1).fills_block


# --- bad input -------------------------------------------------------------------------------------------


def refuse(path: Path, text: str, *, row_group: int | None = None) -> None:
    for kind in ("mapped", "fsspec"):
        with pytest.raises(SourceError, match=text) as caught:
            read_all(IPC, path, kind=kind)
        assert caught.value.operator == "read_ipc"
        assert path.name in str(caught.value.file)
        assert caught.value.row_group == row_group


def test_other_formats(tmp_path: Path) -> None:
    data = pa.table({"a": [1]})
    path = tmp_path / "x.arrow"
    path.write_bytes(b"FEA1" + b"x" * 100 + b"FEA1")
    refuse(path, "Feather V1")
    feather.write_feather(data, path, compression="lz4")
    assert read_all(IPC, path).equals(data)
    for content in (b"", b"ab", b"x" * 1000):
        path.write_bytes(content)
        refuse(path, f"found {len(content)} bytes")


def test_truncated(tmp_path: Path) -> None:
    path = write(tmp_path / "x.arrow", table())
    content = path.read_bytes()
    for keep in (len(content) - 1, len(content) // 2, 20):
        path.write_bytes(content[:keep])
        refuse(path, "it is truncated")


def test_broken_footers(tmp_path: Path) -> None:
    path = write(tmp_path / "x.arrow", table())
    content = path.read_bytes()
    [length] = struct.unpack("<i", content[-10:-6])
    for broken in (-5, 0, 2**31 - 1):
        path.write_bytes(content[:-10] + struct.pack("<i", broken) + b"ARROW1")
        refuse(path, "does not fit a file of")
    path.write_bytes(content[: -10 - length] + bytes(length) + content[-10:])
    refuse(path, "cannot read it")
    dictionaries, batches = parse_footer(memoryview(content)[-10 - length : -10])
    assert len(dictionaries) == 1
    block = struct.pack("<qi4xq", *batches[1])
    assert content.count(block) == 1
    path.write_bytes(content.replace(block, struct.pack("<qi4xq", 10**9, *batches[1][1:])))
    refuse(path, "outside of the file")
    path.write_bytes(content.replace(block, struct.pack("<qi4xq", *dictionaries[0])))
    refuse(path, "found another message")


def test_broken_body(tmp_path: Path) -> None:
    path = write(tmp_path / "x.arrow", pa.table({"a": ["one", "two"]}))
    content = path.read_bytes()
    offsets = np.array([0, 3, 6], np.int32).tobytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, np.array([0, 10**6, 6], np.int32).tobytes()))
    refuse(path, "cannot read it", row_group=0)
    path.write_bytes(content.replace(b"onetwo", b"\xff\xfe\xfd\xfc\xfb\xfa"))
    refuse(path, r"UTF8|UTF-8", row_group=0)


def test_every_byte_may_be_wrong(tmp_path: Path) -> None:
    """Whatever byte of the metadata is flipped: rows or a typed error, and the parser never leaves its buffer."""
    data = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]})
    path = write(tmp_path / "x.arrow", data, rows=2)
    content = path.read_bytes()
    [length] = struct.unpack("<i", content[-10:-6])
    footer = content[-10 - length : -10]
    _, batches = parse_footer(memoryview(footer))
    block = batches[0]
    message = content[block.offset : block.offset + block.metadata_bytes]
    for part, parse in (
        (footer, parse_footer),
        (message, lambda data: parse_batch(data, block.body_bytes, 2)),
    ):
        for position in range(len(part)):
            for value in (0, 0x7F, 0xFF):
                broken = bytearray(part)
                broken[position] = value
                try:
                    parse(memoryview(bytes(broken)))
                except ValueError:
                    pass


@pytest.mark.parametrize(
    "type",
    [
        pa.list_(pa.int64(), 0),
        pa.struct([]),
        pa.struct([("a", pa.list_(pa.int8(), 0)), ("b", pa.struct([])), ("c", pa.bool_())]),
        pa.struct([("a", pa.struct([("b", pa.struct([("c", pa.struct([("d", pa.bool_())]))]))]))]),
        pa.list_(pa.list_(pa.bool_(), 3), 2),
        pa.binary(0),
    ],
    ids=str,
)
def test_types_of_which_nothing_or_little_is_stored(tmp_path: Path, type: pa.DataType) -> None:
    """Validity bits are not stored where nothing is null."""

    def value(type: pa.DataType) -> Any:
        if pa.types.is_fixed_size_list(type):
            return [value(type.value_type)] * type.list_size
        if pa.types.is_struct(type):
            return {field.name: value(field.type) for field in type.fields}
        return b"" if pa.types.is_fixed_size_binary(type) else True

    table = pa.table({"x": pa.array([value(type)] * 1000, type)})
    for make in (pa.ipc.new_stream, pa.ipc.new_file):
        with make(str(tmp_path / "a.arrow"), table.schema) as sink:
            sink.write_table(table)
        assert af.read_ipc(tmp_path / "a.arrow").to_table()["x"].to_pylist() == table["x"].to_pylist()


def test_rows_that_disagree_with_the_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def three(*_: Any) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"a": [1, 2, 3]})

    path = write(tmp_path / "x.arrow", pa.table({"a": [1]}))
    monkeypatch.setattr(ipc, "_read_local", three)
    monkeypatch.setattr(ipc, "_read_fetched", three)
    refuse(path, "expected 1 rows", row_group=0)


def patched(path: Path, *, kind: int | None = None, unit: int | None = None) -> Path:
    """Changes the type of a file's first column in its metadata: the number of the type, or the unit of an interval."""
    data = bytearray(path.read_bytes())
    view = memoryview(data)
    footer = len(data) - 10 - struct.unpack_from("<i", data, len(data) - 10)[0]
    for place, slot in ((16, 2), (footer, 1)):  # the schema is said twice
        schema = _Table.root(view[place:]).table(slot)
        assert schema is not None
        first = schema.vector_range(1, 4)[0]
        field = _Table(schema.data, first + struct.unpack_from("<I", schema.data, first)[0])
        type = field.table(3)
        assert type is not None
        if kind is not None:
            struct.pack_into("<B", schema.data, field.field(2) or 0, kind)
        if unit is not None:
            struct.pack_into("<h", schema.data, type.field(0) or 0, unit)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("unit", [0, 1], ids=["months", "days and milliseconds"])
def test_intervals_without_arrays_are_left_out_or_refused(tmp_path: Path, unit: int) -> None:
    intervals = pa.array([pa.MonthDayNano((1, 2, 3)), None])
    path = write(tmp_path / "a.arrow", pa.table({"i": intervals, "x": [1, 2]}))
    assert af.read_ipc(path).to_table()["i"].to_pylist() == intervals.to_pylist()
    ds = af.read_ipc(patched(path, unit=unit))
    assert ds.select("x").to_table().to_pydict() == {"x": [1, 2]}
    for refused in (ds, ds.shuffle(seed=1), ds.batch(1)):
        with pytest.raises(SchemaError, match=r"column 'i' has type .*_interval.*a\.arrow"):
            refused.to_table()
    batch = pa.ipc.open_file(path).get_batch(0)
    with pytest.raises(SchemaError, match=r"from_arrow: column 'i'.*`drop`"):
        af.from_arrow(batch)
    nested = pa.schema({"n": pa.list_(pa.struct([("i", batch.schema.field("i").type)]))})
    with pytest.raises(SchemaError, match="column 'n'"):
        check_arrays(nested)


def test_each_type_of_the_metadata_is_read_or_refused(tmp_path: Path) -> None:
    ways: list[Callable[[af.Dataset], Any]] = [
        lambda ds: ds.to_table(),
        lambda ds: ds.select("x").to_table(),
        lambda ds: list(ds.shuffle(2, seed=1).to_numpy()),
    ]
    for kind in range(32):
        path = write(tmp_path / "a.arrow", pa.table({"v": pa.array([1, 2], pa.int64()), "x": [1, 2]}))
        ds = af.read_ipc(patched(path, kind=kind))
        for read in ways:
            with suppress(af.SourceError, SchemaError):
                read(ds)


def test_messages_of_other_kinds() -> None:
    with pytest.raises(ValueError, match="points to byte"):
        parse_batch(memoryview(b""), 0, 1)


def test_only_what_is_decoded_or_cast_is_a_copy_of_rows_in_place(tmp_path: Path) -> None:
    """Copies are charged to the pipeline, and the mapped file is not."""
    codes = pa.array(["b", None, "a", "b"]).dictionary_encode()
    table = pa.table({"plain": [1, None, 3, 4], "full": [1.0, 2.0, 3.0, 4.0], "codes": codes})
    store, footer = open_footer(ipc.IpcFormat(), write_table(tmp_path / "a.arrow", table))
    mapped = Mapped(store, footer.file)
    for offset in (0, 1):
        (chunk,) = ipc.IpcFormat().read(mapped, footer, footer.splits[0], footer.schema, offset)
        assert pa.Table.from_batches([chunk]).equals(table.slice(offset).cast(footer.schema))
        for name in table.column_names:
            views = {mapped.has(buffer) for buffer in chunk[name].buffers() if buffer is not None}
            assert views == {name != "codes"}
