"""`shuffle` of all rows: its order, that rows are gathered from where they lie, and that it resumes."""

from __future__ import annotations

import decimal
import itertools
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.ops.order import global_shuffle
from arrowflow.ops.order.global_shuffle import LaneOrder
from arrowflow.ops.order.random_access import AllRows, InPlaceRows, PickedRows
from arrowflow.ops.order.spans import spans
from arrowflow.plan.lane import Lane
from arrowflow.random import GLOBAL_ORDER, Permutation
from arrowflow.testing import assert_same_rows, batches_of, check_dataset, check_operator, check_resume, cut
from tests.ops.tables import (
    ALL_TYPES,
    NUMBERS,
    Apply,
    identity,
    ids,
    numbers,
    refused,
    rows_of,
    sizes,
)

pytestmark = pytest.mark.any_version

SHARDS = [[3, 3], [2, 4, 1], [5], [0], [], [1, 1, 1], [6], [2, 0, 2], [3]]
NUM_ROWS = sum(map(sum, SHARDS))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some rows each, so that a few dozen rows are several parts."""
    monkeypatch.setattr(global_shuffle, "MAX_PART_ROWS", 4)


def write_files(folder: Path, shards: Sequence[Sequence[int]], **options: Any) -> Path:
    """Writes one IPC file a shard, with record batches of the given sizes; `row` counts through all of them."""
    schema, start = pa.schema([("row", pa.int64()), ("file", pa.int32()), ("text", pa.string())]), 0
    for number, groups in enumerate(shards):
        path = folder / f"{number:02}.arrow"
        with pa.ipc.new_file(path, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            for size in groups:
                rows = range(start, start + size)
                texts = [None if row % 3 == 0 else f"text {row}" for row in rows]
                writer.write_batch(pa.record_batch([rows, [number] * size, texts], schema=schema))
                start += size
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> af.Dataset:
    return af.read_ipc(write_files(tmp_path_factory.mktemp("files"), SHARDS))


# ------------------------------------------------------------------------------------------- contracts


CASES: dict[str, Apply] = {
    "above a cache": lambda ds: ds.cache().shuffle(seed=3),
    "one order": lambda ds: ds.cache().shuffle(seed=3, reshuffle_each_iteration=False),
    "operators in between": lambda ds: (
        ds.filter(pl.col("row") % 5 != 1)
        .cache()
        .with_columns(y=pl.col("row") * 2)
        .skip(1)
        .rename({"n": "m"})
        .take(11)
        .prefetch(1)
        .shuffle(seed=3)
        .repeat(2)
        .batch(5)
    ),
}


BETWEEN = pytest.param("operators in between", marks=pytest.mark.slow)


@pytest.mark.parametrize("case", ["above a cache", "one order", BETWEEN])
def test_contracts(case: str) -> None:
    check_operator(CASES[case], NUMBERS, epochs_differ=case != "one order")


SHARDED: dict[str, Callable[[af.Dataset], af.Dataset]] = {
    "a shard": lambda ds: ds.shard(3, 1),
    "a shard of a shard": lambda ds: ds.shard(2, 1).shard(3, 2),
    "a shard of some": lambda ds: ds.skip(2).shard(3, 0).take(4),
    "a shard with another column": lambda ds: ds.with_columns(y=pl.col("row") * 2).shard(4, 3).drop("file"),
    "the last row": lambda ds: ds.shard(NUM_ROWS, NUM_ROWS - 1),
    "no row": lambda ds: ds.shard(NUM_ROWS + 3, NUM_ROWS + 1),
    "all rows": lambda ds: ds.shard(1, 0),
}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        *((name, "files") for name in SHARDED),
        *(("a shard of a shard", name) for name in ("memory", "cache", "indices")),
    ],
)
def test_a_shard_is_shuffled_like_its_rows_alone(name: str, source: str, files: af.Dataset) -> None:
    table = files.to_table()
    sources: dict[str, Callable[[], af.Dataset]] = {
        "files": lambda: files,
        "memory": lambda: af.from_arrow(table),
        "cache": lambda: files.cache(),
        "indices": lambda: af.from_arrow(
            pytest.importorskip("datasets").Dataset(table).select(range(NUM_ROWS))
        ),
    }
    change = SHARDED[name]
    alone = af.from_arrow(change(files).to_table()).shuffle(seed=5)
    shuffled = change(sources[source]()).shuffle(seed=5)
    for _ in range(2):
        assert_same_rows(batches_of(shuffled), batches_of(alone))
    if name == "a shard of a shard":
        check_resume(lambda: change(sources[source]()).shuffle(seed=5).batch(2))


def test_a_shard_of_a_range_is_shuffled() -> None:
    assert sorted(ids(af.range(100).shard(3, 1).shuffle(seed=1))) == list(range(100))[1::3]
    check_dataset(lambda: af.range(30).shard(2, 0).shuffle(seed=1).batch(4), epochs_differ=True)


def test_a_shard_of_a_file_that_was_written_again_is_an_error(tmp_path: Path) -> None:
    write_files(tmp_path, [[8] * 200])  # more parts than a run reads ahead
    ds = af.read_ipc(tmp_path).shard(2, 0).shuffle(seed=1).batch(2).with_options(af.Options(cpu_budget=1))
    with iter(ds) as batches:
        next(batches)
        # Renamed into place: a mapped file that is cut short while it is read ends the process (SIGBUS).
        (tmp_path / "after").mkdir()
        (write_files(tmp_path / "after", [[9] * 200]) / "00.arrow").replace(tmp_path / "00.arrow")
        refused(af.SourceError, lambda: list(batches), "changed")


IN_MEMORY: dict[str, Callable[[], af.Dataset]] = {
    "chunks": lambda: af.from_arrow(cut(NUMBERS.combine_chunks().to_batches()[0], [2, 5])),
    "one chunk": lambda: af.from_arrow(NUMBERS),
    "numbers": lambda: af.range(3, -20, -2),
    "arrays": lambda: af.from_numpy({"x": np.arange(24).reshape(8, 3)}),
}


@pytest.mark.parametrize("name", IN_MEMORY)
def test_contracts_in_memory(name: str) -> None:
    check_dataset(lambda: IN_MEMORY[name]().shuffle(seed=1).batch(3), epochs_differ=True)


@pytest.mark.slow
def test_contracts_of_files(files: af.Dataset) -> None:
    check_dataset(lambda: files.shuffle(seed=1).batch(3), epochs_differ=True)
    check_dataset(lambda: files.select("text").shuffle(seed=1).take(9).repeat(2), epochs_differ=True)


@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_it_resumes_inside_a_part(batch_size: int) -> None:
    check_resume(lambda: af.range(30).shuffle(seed=1).batch(batch_size), epoch=2)


def test_a_random_map_above_sees_one_split() -> None:
    """Cut every `max_chunk_rows` rows, however many a part has."""

    def noise(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
        return batch.append_column("noise", pa.array(rng.random(batch.num_rows)))

    ds = af.range(30).shuffle(seed=1).map(noise, seed=2).with_options(af.Options(max_chunk_rows=7))
    found = batches_of(ds)
    assert [batch.num_rows for batch in found] == [7, 7, 7, 7, 2]
    check_resume(lambda: ds)


# ------------------------------------------------------------------------------------------- the order


SOURCES: dict[str, Callable[[Path], af.Dataset]] = {
    "range": lambda folder: af.range(NUM_ROWS).rename({"id": "row"}),
    "one record batch": lambda folder: af.from_arrow(pa.table({"row": range(NUM_ROWS)})),
    "record batches": lambda folder: af.from_arrow(cut(pa.record_batch({"row": range(NUM_ROWS)}), [1, 5, 2])),
    "arrays": lambda folder: af.from_numpy({"row": np.arange(NUM_ROWS)}),
    "files": lambda folder: af.read_ipc(write_files(folder, SHARDS)),
    "one file": lambda folder: af.read_ipc(write_files(folder, [[NUM_ROWS]])),
    "a cache": lambda folder: numbers(*itertools.chain(*SHARDS)).cache(),
}


@pytest.mark.parametrize("source", SOURCES)
def test_the_order_depends_on_the_number_of_rows_alone(tmp_path: Path, source: str) -> None:
    expected = ids(af.range(NUM_ROWS).shuffle(seed=5), epoch=1)
    assert sorted(expected) == list(range(NUM_ROWS)) != expected
    ds = SOURCES[source](tmp_path).shuffle(seed=5)
    assert ds.num_rows == NUM_ROWS
    for options in (af.Options(autotune=False), af.Options(cpu_budget=1), af.Options(cpu_budget=4)):
        assert rows_of(ds.with_options(options), epoch=1) == expected


def test_borders_of_parts_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ids(af.range(50).shuffle(seed=5))
    for size in (1, 7, 50, 1000):
        monkeypatch.setattr(global_shuffle, "MAX_PART_ROWS", size)
        assert ids(af.range(50).shuffle(seed=5)) == expected


@pytest.mark.parametrize("num_rows", [32, 300])
def test_the_order_is_the_permutation_of_seed_and_epoch(num_rows: int) -> None:
    """`tests/test_random.py` has that those are uniform, and neither neighbours nor keys correlate."""
    for seed, epoch in itertools.product(range(3), range(2)):
        order = Permutation(num_rows, (seed, GLOBAL_ORDER, epoch)).part(0, num_rows)
        assert ids(af.range(num_rows).shuffle(seed=seed), epoch=epoch) == order.tolist()
        assert ids(af.range(num_rows).shuffle(num_rows, seed=seed), epoch=epoch) != order.tolist()


def test_more_rows_than_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_shuffle, "MAX_PART_ROWS", 1 << 16)
    ds = af.range(270_000).shuffle(seed=1).batch(100_000).to_numpy()
    found = [batch["id"] for batch in ds]
    assert np.array_equal(np.sort(np.concatenate(found)), np.arange(270_000))
    with iter(ds) as iterator:
        iterator.set_epoch(0)
        next(iterator)
        state = iterator.state_dict()
    with iter(ds) as iterator:
        iterator.load_state_dict(state)
        assert np.array_equal(next(iterator)["id"], found[1])


def test_without_order_the_rows_are_the_same(files: af.Dataset) -> None:
    ds = files.shuffle(seed=1).with_options(af.Options(deterministic=False, cpu_budget=4))
    assert sorted(rows_of(ds)) == list(range(NUM_ROWS))


def test_each_repetition_is_another_permutation_of_all_rows() -> None:
    found = ids(af.range(20).shuffle(seed=1).repeat(3))
    epochs = [tuple(found[start : start + 20]) for start in range(0, 60, 20)]
    assert len(set(epochs)) == 3
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    same = ids(af.range(20).shuffle(seed=1, reshuffle_each_iteration=False).repeat(2), epoch=4)
    assert same == list(epochs[0]) * 2


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_rows(tmp_path: Path, count: int) -> None:
    read = af.read_ipc(write_files(tmp_path, [[], [0, 0], [count], [0]]))
    in_memory = af.from_arrow(pa.table({"row": pa.array(range(count), pa.int64())}))
    for ds in (read, in_memory, af.range(count).rename({"id": "row"}), numbers(count).cache()):
        assert sorted(rows_of(ds.shuffle(seed=1))) == list(range(count))
        assert ds.shuffle().num_rows == count
        check_resume(lambda ds=ds: ds.shuffle(seed=1).batch(1))  # type: ignore[misc]


# ------------------------------------------------------------------------------------------- rows


def test_rows_stay_whole(files: af.Dataset) -> None:
    """Every column is gathered alike, nested ones and those with nulls, too."""
    chunked = [cut(ALL_TYPES.combine_chunks().to_batches()[0], chunks) for chunks in ([11], [3, 1])]
    for ds in (files, *map(af.from_arrow, chunked)):
        found, whole = ds.shuffle(seed=1).to_table(), ds.to_table().to_pylist()
        assert repr(found.to_pylist()) == repr([whole[place] for place in found["row"].to_pylist()])


WIDTHS = pa.table(
    {
        "row": pa.array(range(13), pa.int64()),
        "byte": pa.array(range(13), pa.uint8()),
        "half": pa.array(range(13), pa.float16()),
        "date": pa.array(range(13), pa.date32()),
        "odd": pa.array([bytes([i, 7, i]) for i in range(13)], pa.binary(3)),
        "decimal": pa.array([decimal.Decimal(i) for i in range(13)], pa.decimal128(9, 2)),
        "triple": pa.array([[i, i + 1, i + 2] for i in range(13)], pa.list_(pa.float32(), 3)),
        "nested": pa.array([[[i], [i + 1]] for i in range(13)], pa.list_(pa.list_(pa.int16(), 1), 2)),
        "tensor": pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int32(), (1, 2)),
            pa.array([[i, -i] for i in range(13)], pa.list_(pa.int32(), 2)),
        ),
        "late null": pa.array([None if i == 11 else i for i in range(13)], pa.int32()),
        "inner null": pa.array([[None if i == 11 else i] for i in range(13)], pa.list_(pa.int32(), 1)),
        "empty": pa.array([[]] * 13, pa.list_(pa.int32(), 0)),
        "flag": pa.array([i % 3 == 0 for i in range(13)]),
        "text": pa.array([str(i) for i in range(13)]),
    }
)


@pytest.mark.parametrize("sizes", [[13], [4, 1, 2], [1]])
def test_columns_of_all_widths(sizes: list[int]) -> None:
    """In slices of one table, and in memory of their own, which lies anywhere."""
    slices = cut(WIDTHS.combine_chunks().to_batches()[0], sizes)
    copies = [pa.ipc.read_record_batch(part.serialize(), part.schema) for part in slices]
    for batches in (slices, copies):
        rows = AllRows([InPlaceRows(batch) for batch in batches], [])
        wanted = np.array([12, 0, 11, 3, 3, 7], np.int64)
        found = rows.gather(wanted)
        found.validate(full=True)
        assert found.schema == WIDTHS.schema
        assert found.to_pylist() == [WIDTHS.slice(row, 1).to_pylist()[0] for row in wanted]


def test_columns_of_fixed_width_have_a_span() -> None:
    batches = cut(WIDTHS.combine_chunks().to_batches()[0], [4, 2])
    found = spans(batches, np.array([0, 4, 6, 10, 12], np.int64))
    without = {"late null", "inner null", "empty", "flag", "text"}
    assert set(WIDTHS.column_names) - set(found) == without


def test_parts_of_very_different_sizes() -> None:
    """Where a table of buckets does not help, it searches."""
    sizes = [1] * 30 + [100_000] + [1] * 30
    batch = pa.record_batch({"row": range(sum(sizes))})
    rows = AllRows([InPlaceRows(part) for part in cut(batch, sizes)], [])
    wanted = np.random.default_rng(1).permutation(sum(sizes))[:1000]
    wanted = np.concatenate([wanted, np.arange(40), sum(sizes) - 1 - np.arange(40)]).astype(np.int64)
    assert rows.gather(wanted).column(0).to_pylist() == wanted.tolist()


def test_a_table_of_buckets_takes_the_place_of_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where a bucket may hold many parts it searches, once for all rows."""
    one = InPlaceRows(pa.record_batch({"row": [1]}))
    searched: list[int] = []
    search = np.searchsorted

    def searching(ends: Any, numbers: Any, **options: Any) -> Any:
        searched.append(len(numbers))
        return search(ends, numbers, **options)

    for parts, searches in [([8] * 20 + [3], 0), ([1, 2, 70_000, 1, 1], 0), ([1] * 30 + [100_000], 1)]:
        rows = AllRows([PickedRows(one, range(size)) for size in parts], [])
        searched.clear()
        with monkeypatch.context() as patched:
            patched.setattr(np, "searchsorted", searching)
            owners = rows._parts_of(np.arange(sum(parts)))
        assert np.array_equal(owners, np.repeat(np.arange(len(parts)), parts))
        assert searched == [sum(parts)] * searches


def test_what_finds_parts_is_small_however_many_rows_there_are() -> None:
    one = InPlaceRows(pa.record_batch({"row": [1]}))
    parts = [PickedRows(one, range(3)), PickedRows(one, range(2_000_000))]
    tracemalloc.start()
    try:
        AllRows(parts, [])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2 << 20


def test_picked_rows_are_sliced_as_a_range_is() -> None:
    whole = InPlaceRows(pa.record_batch({"row": range(40)}))
    picked = PickedRows(whole, range(3, 40, 4))
    for offset, length in [(0, None), (2, 3), (4, 100), (5, 0)]:
        part = picked.slice(offset, length)
        wanted = list(range(3, 40, 4))[offset:][:length]
        assert part.num_rows == len(wanted)
        assert part.num_bytes == len(wanted) * 8
        assert part.gather(np.arange(len(wanted), dtype=np.int64))["row"].to_pylist() == wanted


class Places:
    """The order that changes nothing."""

    buffers = ()

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def part(self, start: int, stop: int) -> Any:
        return np.arange(start, stop, dtype=np.int64)

    def at(self, places: Any) -> Any:
        return places


@pytest.mark.parametrize("step_rows", [0, 1, 3])
@pytest.mark.parametrize("num_rows", [0, 2, 5, 9, 18, 20, 25])
def test_lanes_together_have_the_batches_of_one(num_rows: int, step_rows: int) -> None:
    """The last one may be short; then lanes have equally many rows of it, up to one."""
    count, part = 3, step_rows or 1
    lanes = [LaneOrder(Places(num_rows), Lane(number, count, step_rows), 0) for number in range(count)]
    assert sum(lane.num_rows for lane in lanes) == num_rows
    for step in range(num_rows // (part * count) + 1):
        stops = [min((step + 1) * part, lane.num_rows) for lane in lanes]
        rows = [lane.part(step * part, stop) for lane, stop in zip(lanes, stops, strict=True)]
        first = step * part * count
        assert np.concatenate(rows).tolist() == list(range(first, min(first + part * count, num_rows)))
        assert max(map(len, rows)) - min(map(len, rows)) <= 1


def test_many_parts() -> None:
    """More than 16 bits count."""
    one, *few = (InPlaceRows(pa.record_batch({"row": [row]})) for row in (7, 0, 65_535, 65_536))
    rows = AllRows([few[0], *[one] * 65_534, *few[1:]], [])
    wanted = np.array([65_536, 0, 3, 65_535], np.int64)
    assert rows.gather(wanted).column(0).to_pylist() == [65_536, 0, 7, 65_535]


def test_only_the_wanted_columns_are_gathered(files: af.Dataset) -> None:
    for ds in (files, files.cache(), af.from_arrow(files.to_table())):
        wanted = ds.shuffle(seed=1).select("row")
        assert wanted.to_table().column_names == ["row"]
        assert rows_of(wanted) == rows_of(ds.shuffle(seed=1))


def test_columns_that_are_decoded_are_copied_and_counted(tmp_path: Path) -> None:
    texts = pa.array([f"text {row % 5}" for row in range(40)])
    table = pa.table({"row": range(40), "code": texts.dictionary_encode()})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    ds = af.read_ipc(tmp_path / "a.arrow").shuffle(seed=1)
    found = ds.to_table().to_pylist()
    assert found == [{"row": row["row"], "code": f"text {row['row'] % 5}"} for row in found]
    with iter(ds) as iterator:
        next(iterator)
        assert iterator.stats().ledger_peak_bytes > 0
    small = ds.with_options(af.Options(ram_budget=100))
    refused(af.BudgetError, lambda: list(small), "shuffle", "ram_budget")


def test_what_lies_in_files_is_not_counted(tmp_path: Path) -> None:
    batch = pa.record_batch({"x": np.arange(100_000)})
    with pa.ipc.new_file(tmp_path / "a.arrow", batch.schema) as writer:
        for _ in range(20):
            writer.write_batch(batch)
    ds = af.read_ipc(tmp_path / "a.arrow").shuffle(seed=1).with_options(af.Options(ram_budget="1MiB"))
    with iter(ds.take(2000)) as iterator:
        assert sum(batch.num_rows for batch in iterator) == 2000
        assert iterator.stats().ledger_peak_bytes < 1 << 20
    assert iterator.stats().ledger_bytes == 0


@pytest.mark.parametrize("part_bytes", [100, 1])
def test_large_rows_make_small_parts(part_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_shuffle, "PART_BYTES", part_bytes)
    texts = pa.table({"text": ["x" * 40] * 10, "row": range(10)})
    assert sizes(af.from_arrow(texts).shuffle(seed=1)) == [1] * 10


def test_a_cache_is_filled_once() -> None:
    calls: list[int] = []

    def count(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        return batch

    ds = numbers(3, 4, 5).map(count).cache().shuffle(seed=1)
    with iter(ds) as iterator:
        next(iterator)
    assert sorted(calls) == [3, 4, 5]
    assert sorted(rows_of(ds, epoch=1)) == list(range(12))
    assert len(calls) == 3


# ------------------------------------------------------------------------------------------- what is below

ALLOWED: dict[str, Apply] = {
    "column operators": lambda ds: ds.with_columns(y=pl.col("row") + 1).rename({"y": "z"}).select("row", "z"),
    "cast and fill_null": lambda ds: ds.cast({"row": pa.int32()}).fill_null(0),
    "stack": lambda ds: ds.with_columns(y=pl.col("row")).stack(pair=["y"]),
    "options and prefetch": lambda ds: ds.with_options(af.Options(cpu_budget=2)).prefetch(2),
}
REFUSED: dict[str, Apply] = {
    "filter": lambda ds: ds.filter(pl.col("row") > 3),
    "map": lambda ds: ds.map(identity),
    "repeat": lambda ds: ds.repeat(2),
    "shuffle": lambda ds: ds.shuffle(3),
    "filter below columns": lambda ds: ds.filter(pl.col("row") > 3).select("row"),
}


@pytest.mark.parametrize("between", ALLOWED)
def test_column_operators_may_lie_in_between(files: af.Dataset, between: str) -> None:
    """They work on what was gathered, and the order is the same."""
    below = ALLOWED[between](files).shuffle(seed=2)
    above = ALLOWED[between](files.shuffle(seed=2))
    assert_same_rows(batches_of(below), batches_of(above), between)
    assert rows_of(below) == rows_of(af.range(NUM_ROWS).rename({"id": "row"}).shuffle(seed=2))


def test_take_and_skip_leave_rows_out_before(files: af.Dataset) -> None:
    expected = ids(af.range(7, 24).shuffle(seed=2))
    rules = af.Options(disabled_rules=("limit_reads", "prune_columns", "merge_columns"))
    by_number = af.range(NUM_ROWS).rename({"id": "row"})
    for ds in (files, files.cache(), by_number, af.from_arrow(files.to_table())):
        part = ds.skip(4).take(20).select("row").skip(3).shuffle(seed=2)
        assert part.num_rows == 17
        assert rows_of(part) == rows_of(part.with_options(rules)) == expected


@pytest.mark.parametrize("between", REFUSED)
def test_what_decides_row_numbers_while_it_runs_is_refused(files: af.Dataset, between: str) -> None:
    below = REFUSED[between](files)
    refused(af.PlanError, lambda: below.shuffle().num_rows, "shuffle", "shuffle(buffer_size)", ".cache()")
    assert sorted(rows_of(below.cache().shuffle(seed=1))) == sorted(rows_of(below))


NO_ACCESS: dict[str, Callable[[Path], af.Dataset]] = {
    "read_parquet": lambda folder: af.read_parquet(folder),
    "from_generator": lambda folder: af.from_generator(lambda: iter([{"x": 1}])),
    "from_arrow": lambda folder: af.from_arrow(pa.table({"x": [1]}).to_reader()),
    "interleave": lambda folder: af.range(3).interleave(lambda row: af.range(3)),
}


@pytest.mark.parametrize("name", NO_ACCESS)
def test_sources_without_random_access_are_refused(tmp_path: Path, name: str) -> None:
    pq.write_table(pa.table({"row": [1]}), tmp_path / "a.parquet")
    ds = NO_ACCESS[name](tmp_path)
    refused(af.PlanError, lambda: ds.shuffle().num_rows, "shuffle", name, ".cache()")


def test_compressed_and_remote_files_are_refused(tmp_path: Path) -> None:
    folder = write_files(tmp_path, [[3]], compression="lz4")
    refused(af.PlanError, lambda: af.read_ipc(folder).shuffle().schema, "shuffle", "compressed", "00.arrow")
    remote = af.read_ipc("00.arrow", filesystem=pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem()))
    refused(af.PlanError, lambda: remote.shuffle().schema, "shuffle", "local", ".cache()")
    assert sorted(rows_of(remote.cache().shuffle())) == [0, 1, 2]


def test_a_later_file_that_is_compressed_is_refused_when_it_comes(tmp_path: Path) -> None:
    write_files(tmp_path, [[3]])
    write_files(tmp_path, [[], [3]], compression="zstd")
    (tmp_path / "00.arrow").rename(tmp_path / "02.arrow")
    write_files(tmp_path, [[3]])
    ds = af.read_ipc(tmp_path).shuffle()
    refused(af.PlanError, lambda: list(ds), "compressed", "01.arrow")


def test_above_batches_it_is_refused() -> None:
    refused(af.PlanError, lambda: af.range(9).batch(2).shuffle(), "shuffle", "write .shuffle(…).batch(2)")


def test_nothing_orders_all_rows_anew(files: af.Dataset) -> None:
    ds = files.shuffle(seed=1)
    assert sorted(rows_of(ds.shuffle(5, seed=2))) == list(range(NUM_ROWS))
    assert rows_of(ds.shuffle(1, seed=2)) == rows_of(ds)
    numbers = af.from_arrow(pa.table({"a": [1.0, 2.0], "c": [3.0, 4.0]}))
    assert "stack_before_shuffle" not in numbers.shuffle(seed=1).stack(x=["a", "c"]).explain()


def test_explain_tells_where_rows_are_gathered_from(files: af.Dataset) -> None:
    text = files.with_columns(y=pl.col("row") + 1).shuffle(seed=1).explain()
    assert "mapping of 3 columns, one call a split, no copy" in text
    assert "collect all rows where they lie, no copy" in text
    assert "permute and gather" in text


@pytest.mark.parametrize("shift", [1, 4])
def test_memory_that_is_not_aligned(shift: int) -> None:
    """What lies between two chunks is not the column's: to copy all of it would take as long as the memory lasts."""

    def column(first: int, count: int) -> pa.Array:
        raw = np.zeros(8 * count + shift, np.uint8)
        raw[shift:] = np.arange(first, first + count).view(np.uint8)
        return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(raw).slice(shift)])

    # The second one is so large that it is mapped on its own, far away from the first one.
    batches = [pa.record_batch({"row": column(0, 10)}), pa.record_batch({"row": column(10, 3_000_000)})]
    rows = AllRows([InPlaceRows(batch) for batch in batches], [])
    wanted = np.array([3_000_009, 0, 9, 10, 77], np.int64)
    assert rows.gather(wanted).column(0).to_pylist() == wanted.tolist()


def test_rules_move_no_border(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are cut by the schema as written, whichever columns are left."""
    monkeypatch.setattr(global_shuffle, "PART_BYTES", 9 * 8 * 3)
    source = af.from_numpy({f"column {number}": np.arange(40) for number in range(9)})
    ds = source.shuffle(seed=1).select("column 1")
    for options in (af.Options(), af.Options(disabled_rules=("prune_columns",))):
        assert sizes(ds.with_options(options)) == [3] * 13 + [1]
