"""`on_error` of readers: rows, row groups and files that are left out, at any budget, resumed anywhere, in lanes."""

from __future__ import annotations

import gzip
import itertools
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

import arrowflow as af
from arrowflow.formats.capabilities import Hints
from arrowflow.formats.csv.csv import CsvFormat
from arrowflow.formats.text.sifting import Records, good_rows
from arrowflow.storage.requests import Requests
from arrowflow.testing import assert_same_batches, assert_same_rows, batches_of, check_dataset
from tests.bad_rows.runs import in_two_parts, values
from tests.formats.tfrecords import encoded, framed
from tests.ops.tables import refused, rows_of

pytestmark = pytest.mark.any_version

ROWS = 300
BAD = {0, 7, 8, 100, 101, 102, 250, 299}
GOOD = [number for number in range(ROWS) if number not in BAD]
SCHEMA = {"row": pa.int64(), "half": pa.float32(), "name": pa.binary()}
BLOCK = "1KB"


def csv(number: int) -> bytes:
    kinds = [b"x%d,1.5,n", b"%d,1.5", b"%d,one,n", b'%d,1.5,"n"x', b"%d,1.5,n,4"]
    return kinds[number % 5] % number if number in BAD else b"%d,%.1f,n%d" % (number, number / 2, number)


def line(number: int) -> bytes:
    kinds = [
        b'{"row": %d, "half',
        b'{"row": "%d", "half": 1.5}',
        b'{"row": %d.5, "half": 1.5}',
        b"[%d]",
        b'{"row": %d, "row": 1}',
    ]
    good = b'{"row": %d, "half": %.1f, "name": "n%d"}' % (number, number / 2, number)
    return kinds[number % 5] % number if number in BAD else good


def element(number: int) -> bytes:
    kinds = [b'{"row": "%d"}', b'{"row": %d, "half": "one"}', b'{"row": %d.5}']
    good = b'{"row": %d, "half": %.1f, "name": "n%d"}' % (number, number / 2, number)
    return kinds[number % 3] % number if number in BAD else good


def record(number: int) -> bytes:
    kinds: list[dict[str, Any]] = [
        {"row": [number + 0.5]},
        {"row": [number, 2]},
        {"row": [number], "half": [b"one"]},
    ]
    if number in BAD:
        return b"garbage%d" % number if number % 4 == 3 else encoded(kinds[number % 3])
    return encoded({"row": [number], "half": [number / 2], "name": [b"n%d" % number]})


def damaged(data: bytes) -> bytes:
    """Returns a file of records with another byte in one that is bad anyway, so that its CRC is wrong."""
    at = data.find(b"garbage")
    return data if at < 0 else data[:at] + b"G" + data[at + 1 :]


def zipped(make: Callable[[], bytes]) -> bytes:
    return gzip.compress(make())


KINDS: dict[str, tuple[Callable[[], bytes], str, dict[str, Any]]] = {
    "csv": (lambda: b"row,half,name\n" + b"\n".join(map(csv, range(ROWS))) + b"\n", "csv", {}),
    "json": (lambda: b"\n".join(map(line, range(ROWS))), "json", {}),
    "array": (lambda: b"[" + b", ".join(map(element, range(ROWS))) + b"]", "json", {}),
    "tfrecord": (lambda: damaged(framed(map(record, range(ROWS)))), "tfrecord", {}),
}
KINDS |= {
    f"{name}.gz": (partial(zipped, make), format, options) for name, (make, format, options) in KINDS.items()
}


def read(folder: Path, kind: str, on_error: Any = "skip", **more: Any) -> af.Dataset:
    """Returns the rows of two files: one that holds bad rows, and one that holds none."""
    make, format, options = KINDS[kind]
    schema = SCHEMA if format == "tfrecord" else SCHEMA | {"name": pa.string()}
    block: dict[str, Any] = {} if format == "tfrecord" else {"block_bytes": BLOCK}
    path = folder / f"a.{kind.replace('array', 'json')}"
    if not path.exists():
        path.write_bytes(make())
    return af.read([path], format=format, schema=schema, on_error=on_error, **block, **options, **more)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arrowflow.formats.tfrecord.framing.SPLIT_BYTES", 1000)
    monkeypatch.setattr("arrowflow.formats.tfrecord.framing.SPLIT_ROWS", 30)


@pytest.mark.parametrize("kind", KINDS)
def test_good_rows_are_read_and_bad_ones_counted(tmp_path: Path, kind: str) -> None:
    ds = read(tmp_path, kind)
    assert ds.num_rows is None
    with iter(ds) as batches:
        found = pa.Table.from_batches(list(batches))
        assert batches.stats().skipped_rows == len(BAD)
        assert batches.stats().skipped_parts == 0
        assert f"bad rows left out: read_{KINDS[kind][1]} {len(BAD)}" in batches.explain()
    assert found["row"].to_pylist() == GOOD
    assert found["half"].to_pylist() == [number / 2 for number in GOOD]
    names = [value if isinstance(value, str) else value.decode() for value in found["name"].to_pylist()]
    assert names == [f"n{number}" for number in GOOD]


@pytest.mark.parametrize("kind", KINDS)
def test_raising_delivers_the_rows_in_front(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.bad_rows.test_files.BAD", {250, 251, 299})
    found = []
    iterator = iter(read(tmp_path, kind, "raise"))
    state: Any = None
    with pytest.raises(af.ArrowflowError) as caught:  # noqa: PT012  (each batch is looked at)
        for batch in iterator:
            found += batch["row"].to_pylist()
            state = iterator.state_dict()
    assert found == list(range(250))
    place = "record 250" if KINDS[kind][1] == "tfrecord" else "row 251"
    assert place in str(caught.value) and caught.value.file is not None
    again = iter(read(tmp_path, kind, "raise"))
    again.load_state_dict(state)
    with pytest.raises(af.ArrowflowError, match=place):
        next(again)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_resume_is_exact(tmp_path: Path, kind: str) -> None:
    check_dataset(lambda: read(tmp_path, kind).batch(13), in_full=False)
    check_dataset(lambda: read(tmp_path, kind), in_full=False)
    if not kind.endswith(".gz"):
        check_dataset(
            lambda: read(tmp_path, kind).shuffle(50, seed=1).batch(13), epochs_differ=True, in_full=False
        )


@pytest.mark.parametrize("kind", ["csv", "json", "json.gz", "tfrecord"])
def test_rows_and_order_are_the_same_at_any_budget(tmp_path: Path, kind: str) -> None:
    def make(**options: Any) -> list[pa.RecordBatch]:
        ds = read(tmp_path, kind).shuffle(40, seed=3).batch(16).with_options(af.Options(**options))
        return batches_of(ds, epoch=2)

    expected = make()
    for options in ({"cpu_budget": 1}, {"ram_budget": "64KiB"}, {"autotune": False}, {"cpu_budget": 4}):
        assert_same_batches(make(**options), expected)
    assert_same_batches(make(disabled_rules=["limit_reads", "merge_columns"]), expected)


@pytest.mark.parametrize("kind", ["csv", "json", "tfrecord.gz"])
def test_take_and_skip_count_good_rows(tmp_path: Path, kind: str) -> None:
    assert rows_of(read(tmp_path, kind).skip(5).take(100)) == GOOD[5:105]
    assert (
        rows_of(read(tmp_path, kind).with_provenance(file="f", row_group="g", row="r").take(120))
        == GOOD[:120]
    )


def test_provenance_counts_bad_rows(tmp_path: Path) -> None:
    for kind in ("csv.gz", "json.gz"):
        table = read(tmp_path, kind).with_provenance(file="f", row_group="g", row="r").to_table()
        assert table["r"].to_pylist() == table["row"].to_pylist() == GOOD


@pytest.mark.parametrize("kind", ["csv", "json", "tfrecord"])
def test_lanes_read_the_same_on_any_number_of_ranks(tmp_path: Path, kind: str) -> None:
    def batches(world: int) -> list[list[int]]:
        ds = counted.shuffle(48, seed=2).batch(8, drop_remainder=True)
        ranks = [list(ds.split_by_rank(rank, world, lanes=4)) for rank in range(world)]
        return [values(step) for step in zip(*ranks, strict=True)]

    rows = read(tmp_path, kind)
    counted = rows.assert_cardinality(af.count_rows(rows))
    assert counted.num_rows == len(GOOD)
    expected = batches(1)
    found = list(itertools.chain(*expected))
    assert len(found) == len(set(found)) == len(GOOD) // 8 * 8 and set(found) <= set(GOOD)
    assert batches(2) == batches(4) == expected
    refused(af.PlanError, lambda: list(rows.batch(8).split_by_rank(0, 2)), "how many rows")


def test_rows_in_any_order_go_on(tmp_path: Path) -> None:
    ds = read(tmp_path, "csv").with_options(af.Options(deterministic=False, cpu_budget=3))
    for stop in range(1, 5):
        first, rest = in_two_parts(lambda: ds, stop)
        assert sorted(values(first + rest)) == GOOD


@pytest.mark.parametrize("kind", KINDS)
def test_a_quarantine_keeps_bytes_place_and_error_once(tmp_path: Path, kind: str) -> None:
    def make() -> af.Dataset:
        return read(tmp_path, kind, "quarantine", quarantine=tmp_path / "kept").batch(20)

    whole = batches_of(make())
    for step in (1, 5, len(whole) - 1):
        assert_same_batches(in_two_parts(make, step)[1], whole[step:])
    kept = af.read_quarantine(tmp_path / "kept").to_table()
    stored: Any = {"csv": csv, "json": line, "array": element, "tfrecord": record}[
        kind.split(".", maxsplit=1)[0]
    ]
    expected = [stored(number) for number in sorted(BAD)]
    found = [data.replace(b"Garbage", b"garbage") for data in kept["data"].to_pylist()]
    assert sorted(found) == sorted(expected)
    assert set(kept["_rows"].to_pylist()) == {1}
    number = {data: number for number, data in zip(sorted(BAD), expected, strict=True)}
    for data, error in zip(found, kept["_error"].to_pylist(), strict=True):
        row = number[data]
        place = f"record {row}" if kind.startswith("tfrecord") else f"row {row + 1}:"
        assert place in error or f"row {row + 1};" in error or f"in row {row + 1}" in error, (error, row)


# ------------------------------------------------------------------------------------ row groups and files


def shards(folder: Path, format: str = "parquet") -> Path:
    """Writes three files of ten row groups of ten rows; the second has two that cannot be read, the third no footer."""
    folder.mkdir()
    for number in range(3):
        table = pa.table({"row": range(100 * number, 100 * number + 100)})
        path = folder / f"{number}.{format}"
        if format == "parquet":
            pq.write_table(table, path, row_group_size=10, compression="none", use_dictionary=False)
        else:
            with ipc.new_file(path, table.schema, options=ipc.IpcWriteOptions(compression="lz4")) as writer:
                writer.write_table(table, max_chunksize=10)
    path = folder / f"1.{format}"
    data = bytearray(path.read_bytes())
    frames = [place for place in range(len(data)) if data[place : place + 4] == b"\x04\x22\x4d\x18"]
    for group in (3, 4):
        if format == "parquet":
            at = pq.ParquetFile(folder / "0.parquet").metadata.row_group(group).column(0).data_page_offset
            data[at : at + 3] = b"\xff\xff\xff"
        else:
            data[frames[group] : frames[group] + 4] = b"none"
    path.write_bytes(data)
    cut = folder / f"2.{format}"
    cut.write_bytes(cut.read_bytes()[:500])
    return folder


LEFT = [*range(130), *range(150, 200)]


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_row_groups_and_files_are_left_out_whole(tmp_path: Path, format: str) -> None:
    name: Any = "ipc" if format == "arrow" else "parquet"
    folder = shards(tmp_path / "data", format)

    def make(**more: Any) -> af.Dataset:
        return af.read(folder, format=name, **({"on_error": "skip"} | more))

    with iter(make()) as batches:
        assert values(batches) == LEFT
        assert (batches.stats().skipped_rows, batches.stats().skipped_parts) == (20, 3)
    assert rows_of(make(on_error="raise").take(130)) == LEFT[:130]
    refused(af.SourceError, lambda: batches_of(make(on_error="raise")), f"1.{format}")
    check_dataset(lambda: make().batch(7), in_full=False)
    check_dataset(lambda: make().shuffle(30, seed=1).batch(7), epochs_differ=True, in_full=False)
    expected = batches_of(make().shuffle(30, seed=1).batch(7))
    for options in (af.Options(cpu_budget=1), af.Options(ram_budget="32KiB"), af.Options(autotune=False)):
        assert_same_batches(batches_of(make().shuffle(30, seed=1).batch(7).with_options(options)), expected)
    ds = make(on_error="quarantine", quarantine=tmp_path / "kept")
    for _ in range(2):
        assert_same_rows(list(ds), batches_of(make()))
    kept = af.read_quarantine(tmp_path / "kept").to_table().sort_by("_part")
    assert kept["_part"].to_pylist() == [3, 4, None] and kept["_rows"].to_pylist() == [10, 10, None]
    assert [Path(path).name for path in kept["_file"].to_pylist()] == [f"{n}.{format}" for n in (1, 1, 2)]
    assert kept["data"].null_count == 3


def test_lanes_of_row_groups(tmp_path: Path) -> None:
    folder = shards(tmp_path / "data")
    ds = af.read_parquet(folder, on_error="skip")
    ds = ds.assert_cardinality(af.count_rows(ds)).batch(8, drop_remainder=True)
    steps = [list(ds.split_by_rank(rank, 2, lanes=4)) for rank in (0, 1)]
    rows = values(itertools.chain(*steps))
    assert len(set(rows)) == len(rows) == len(LEFT) // 8 * 8 and set(rows) <= set(LEFT)


def test_a_shuffle_of_all_rows_says_why_it_cannot(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    with ipc.new_file(path, pa.schema({"x": pa.int64()})) as writer:
        writer.write_table(pa.table({"x": [1, 2]}))
    refused(
        af.PlanError,
        lambda: batches_of(af.read_ipc(path, on_error="skip").shuffle()),
        "which rows are bad is not known",
    )


def test_failures_of_storage_always_raise(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(2):
        pq.write_table(pa.table({"row": range(10)}), folder / f"{number}.parquet")
    ds = af.read_parquet(folder, on_error="skip")
    with iter(ds) as batches:
        (folder / "1.parquet").unlink()
        refused(af.SourceError, lambda: list(batches), "1.parquet")


def test_a_store_that_delivers_nothing_always_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    store = fsspec.filesystem("memory")
    for number in range(2):
        with store.open(f"/of_a_store/{number}.parquet", "wb") as file:
            pq.write_table(pa.table({"row": range(10)}), file)
    fetch = Requests.fetch

    def failing(self: Requests, filesystem: Any, path: str, ranges: Any) -> list[pa.Buffer]:
        if path.endswith("1.parquet"):
            raise PermissionError(13, "no more")
        return fetch(self, filesystem, path, ranges)

    monkeypatch.setattr(Requests, "fetch", failing)
    ds = af.read_parquet("memory://of_a_store/*.parquet", on_error="skip")
    refused(af.SourceError, lambda: batches_of(ds), "the storage did not deliver it")


def test_a_file_that_is_gone_from_a_store_always_raises() -> None:
    """Its error has no number there, and so looks like one of the data."""
    store = fsspec.filesystem("memory")
    for number in range(3):
        with store.open(f"/gone/{number}.parquet", "wb") as file:
            pq.write_table(pa.table({"row": range(10)}), file)
    ds = af.read_parquet("memory://gone/*.parquet", on_error="skip")
    assert ds.schema is not None
    store.rm("/gone/1.parquet")
    refused(af.SourceError, lambda: batches_of(ds), "removed after it was listed")


def test_a_quarantine_whose_client_fails_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients have errors of their own, and none of them makes good rows bad."""

    def fails(*_: object) -> None:
        raise type("HttpError", (Exception,), {})("503")

    (tmp_path / "a.csv").write_text("row\n1\nx\n")
    ds = af.read_csv(
        tmp_path / "a.csv", schema={"row": pa.int64()}, on_error="quarantine", quarantine=tmp_path / "q"
    )
    with monkeypatch.context() as patch:
        patch.setattr("arrowflow.bad_rows.quarantine._put", fails)
        refused(af.WriteError, lambda: batches_of(ds), "cannot write bad rows", "HttpError: 503")
    assert rows_of(ds) == [1]


def test_quotes_over_lines_where_the_quick_look_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f'{number},"line\n{number}"' for number in range(100)]
    rows[3] = '3,"x"y'
    for head_bytes in range(60, 72):
        monkeypatch.setattr("arrowflow.formats.csv.csv._HEAD_BYTES", head_bytes)
        path = tmp_path / f"{head_bytes}.csv"
        path.write_text("row,text\n" + "\n".join(rows))
        ds = af.read_csv(path, schema={"row": pa.int64(), "text": pa.string()}, on_error="skip")
        for _ in range(2):
            assert rows_of(ds) == [number for number in range(100) if number != 3], head_bytes


def test_objects_over_lines_are_judged_alike_in_each_epoch(tmp_path: Path) -> None:
    """A block whose objects are as many as its lines is good as a whole, whatever is known of other blocks."""
    first = '{"row": 1}\n' * 20 + '{"row": "x"}\n{"row": 1, "oops\n'
    first += '{"row": 1}\n' * 100
    (tmp_path / "a.json").write_text(first + '{"row":2}{"row":\n3}\n{"row":4}\n')
    for block_bytes in range(1_300, len(first), 11):
        ds = af.read_json(
            tmp_path / "a.json", schema={"row": pa.int64()}, block_bytes=block_bytes, on_error="skip"
        )
        found = [rows_of(ds) for _ in range(3)]
        assert found[0] == found[1] == found[2]


def test_damage_in_row_groups_that_a_filter_leaves_out_counts_alike(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    groups, size = 60, 50
    row = [2 * (number * 7_919 % 1_000) + (number % size == 0) for number in range(groups * size)]
    for number in range(0, groups, 5):
        row[number * size] -= 1  # none of these rows passes, and bounds do not tell
    text = [f"{number * 7_919 % 1_000}" * 9 for number in range(groups * size)]
    pq.write_table(pa.table({"row": row, "text": text}), path, row_group_size=size, use_dictionary=False)
    data = bytearray(path.read_bytes())
    for number in range(0, groups, 10):
        at = pq.read_metadata(path).row_group(number).column(1).data_page_offset
        data[at : at + 20] = b"\xff" * 20
    path.write_bytes(data)
    ds = af.read_parquet(path, on_error="skip").filter(pl.col("row") % 2 == 1)
    for cpu_budget in (1, 2):
        iterator = iter(ds.with_options(af.Options(cpu_budget=cpu_budget)))
        assert sum(batch.num_rows for batch in iterator) == groups - groups // 5
        assert iterator.stats().skipped_rows == groups // 10 * size


def test_later_epochs_know_what_the_first_one_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("x,y\n" + "1,2\n3\nnone,4\n" * 100)
    ds = af.read_csv(
        tmp_path / "a.csv", schema={"x": pa.int64(), "y": pa.int64()}, block_bytes=BLOCK, on_error="skip"
    )
    expected = rows_of(ds, "x")
    decoded: list[str] = []
    monkeypatch.setattr(CsvFormat, "decode", lambda *_: decoded.append("a block as a whole"))
    assert (rows_of(ds, "x"), decoded) == (expected, [])


def test_hints_are_of_the_columns_read_and_stay_in_their_process() -> None:
    hints, columns = Hints(), pa.schema(SCHEMA)
    hints.setdefault(columns, set()).add("half")
    assert hints[pa.schema(SCHEMA)] == {"half"}
    assert columns.remove(0) not in hints
    copy = pickle.loads(pickle.dumps(hints))
    assert isinstance(copy, Hints) and not copy


def test_files_of_other_columns_always_raise(tmp_path: Path) -> None:
    pq.write_table(pa.table({"row": range(10)}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"other": range(10)}), tmp_path / "1.parquet")
    refused(af.SchemaError, lambda: batches_of(af.read_parquet(tmp_path, on_error="skip")), "'row'")


def test_types_come_from_the_rows_in_front_of_the_first_bad_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3\n5,6\n")
    (tmp_path / "a.json").write_text('{"x": 1}\n{"x": "one"}\n{"x": 3}\n')
    assert rows_of(af.read_csv(tmp_path / "a.csv", on_error="skip"), "x") == [1, 5]
    assert rows_of(af.read_json(tmp_path / "a.json", on_error="skip"), "x") == [1, 3]


def test_the_rest_of_a_file_behind_a_damaged_length_is_left_out(tmp_path: Path) -> None:
    data = bytearray(framed(encoded({"row": [number]}) for number in range(100)))
    size = len(data) // 100
    data[size * 60] ^= 255
    (tmp_path / "a.tfrecord").write_bytes(data)
    ds = af.read_tfrecord(tmp_path / "a.tfrecord", on_error="skip")
    with iter(ds) as batches:
        assert sum(batch.num_rows for batch in batches) <= 62
        assert batches.stats().skipped_parts == 1


def test_rows_that_are_good_alone_and_not_together() -> None:
    ends = np.arange(2, 2001, 2)
    records = Records.of(np.frombuffer(b"x\n" * 1000, np.uint8), ends, np.ones(1000, np.bool_), 0)

    def decode(data: pa.Buffer, rows: int, before: int) -> pa.RecordBatch:
        if rows > 600:
            raise af.SourceError("too many")
        return pa.record_batch({"row": pl.Series(range(rows)).to_arrow()})

    refused(af.SourceError, lambda: good_rows(records, decode, {}), "cannot be decoded together: too many")
