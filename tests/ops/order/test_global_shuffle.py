"""`shuffle` of all rows: that it is uniform, that rows are gathered from where they lie, and that it resumes."""

from __future__ import annotations

import decimal
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.ops.order import global_shuffle
from arrowflow.ops.order.random_access import AllRows, InPlaceRows
from arrowflow.ops.order.spans import spans
from arrowflow.testing import assert_same_rows, batches_of, check_dataset, check_operator, check_resume, cut
from tests.ops.tables import (
    ALL_TYPES,
    ALL_TYPES_INSIDE,
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

GOLDEN = [2, 17, 9, 14, 3, 15, 10, 0, 8, 4, 19, 6, 11, 13, 1, 7, 5, 12, 18, 16]
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
                columns = [pa.array(rows, pa.int64()), pa.array([number] * size, pa.int32())]
                texts = pa.array([None if row % 3 == 0 else f"text {row}" for row in rows], pa.string())
                writer.write_batch(pa.record_batch([*columns, texts], schema=schema))
                start += size
    return folder


@pytest.fixture
def files(tmp_path: Path) -> af.Dataset:
    return af.read_ipc(write_files(tmp_path, SHARDS))


# ------------------------------------------------------------------------------------------- contracts


def test_contracts_above_a_cache() -> None:
    check_operator(lambda ds: ds.cache().shuffle(seed=3), NUMBERS, epochs_differ=True)


def test_contracts_with_one_order_for_all_epochs() -> None:
    check_operator(lambda ds: ds.cache().shuffle(seed=3, reshuffle_each_iteration=False), NUMBERS)


@pytest.mark.slow
def test_contracts_with_operators_in_between() -> None:
    check_operator(
        lambda ds: (
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
        NUMBERS,
        epochs_differ=True,
    )


SHARDED: dict[str, Callable[[af.Dataset], af.Dataset]] = {
    "a shard": lambda ds: ds.shard(3, 1),
    "a shard of a shard": lambda ds: ds.shard(2, 1).shard(3, 2),
    "a shard of some": lambda ds: ds.skip(2).shard(3, 0).take(4),
    "a shard with another column": lambda ds: ds.with_columns(y=pl.col("row") * 2).shard(4, 3).drop("file"),
    "the last row": lambda ds: ds.shard(NUM_ROWS, NUM_ROWS - 1),
    "no row": lambda ds: ds.shard(NUM_ROWS + 3, NUM_ROWS + 1),
    "all rows": lambda ds: ds.shard(1, 0),
}


@pytest.mark.parametrize("name", SHARDED)
@pytest.mark.parametrize("source", ["files", "memory", "cache", "indices"])
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
    check_resume(lambda: change(sources[source]()).shuffle(seed=5).batch(2))


def test_a_shard_of_a_range_is_shuffled() -> None:
    assert sorted(ids(af.range(100).shard(3, 1).shuffle(seed=1))) == list(range(100))[1::3]
    check_dataset(lambda: af.range(30).shard(2, 0).shuffle(seed=1).batch(4), epochs_differ=True)


def test_a_shard_of_a_file_that_was_written_again_is_an_error(tmp_path: Path) -> None:
    for folder in "before", "after":
        (tmp_path / folder).mkdir()
    before = write_files(tmp_path / "before", [[8] * 200])  # more parts than a run reads ahead
    after = write_files(tmp_path / "after", [[9] * 200])
    ds = af.read_ipc(before).shard(2, 0).shuffle(seed=1).batch(2).with_options(af.Options(cpu_budget=1))
    with iter(ds) as batches:
        next(batches)
        # Renamed into place: a mapped file that is cut short while it is read ends the process (SIGBUS).
        (after / "00.arrow").replace(before / "00.arrow")
        with pytest.raises(af.SourceError, match="changed"):
            list(batches)


def test_contracts_in_memory() -> None:
    batch = NUMBERS.combine_chunks().to_batches()[0]
    chunks = cut(batch, [2, 5])
    check_dataset(lambda: af.from_arrow(chunks).shuffle(seed=1).batch(3), epochs_differ=True)
    check_dataset(lambda: af.from_arrow(batch).shuffle(seed=1), epochs_differ=True)
    check_dataset(lambda: af.range(3, -20, -2).shuffle(seed=1).batch(5), epochs_differ=True)
    check_dataset(
        lambda: af.from_numpy({"x": np.arange(24).reshape(8, 3)}).shuffle(seed=1), epochs_differ=True
    )


@pytest.mark.slow
def test_contracts_of_files(tmp_path: Path) -> None:
    folder = write_files(tmp_path, SHARDS)
    check_dataset(lambda: af.read_ipc(folder).shuffle(seed=1).batch(3), epochs_differ=True)
    check_dataset(
        lambda: af.read_ipc(folder, columns=["text"]).shuffle(seed=1).take(9).repeat(2), epochs_differ=True
    )


@pytest.mark.parametrize("batch_size", [1, 3, 4, 7])
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


def test_orders_are_pinned() -> None:
    """A state says nothing of the permutation: it has to be the same in every release."""
    assert ids(af.range(20).shuffle(seed=7)) == GOLDEN


SOURCES: dict[str, Callable[[Path], af.Dataset]] = {
    "range": lambda folder: af.range(NUM_ROWS).rename({"id": "row"}),
    "one record batch": lambda folder: af.from_arrow(pa.table({"row": range(NUM_ROWS)})),
    "record batches": lambda folder: af.from_arrow(cut(pa.record_batch({"row": range(NUM_ROWS)}), [1, 5, 2])),
    "arrays": lambda folder: af.from_numpy({"row": np.arange(NUM_ROWS)}),
    "files": lambda folder: af.read_ipc(write_files(folder, SHARDS)),
    "one file": lambda folder: af.read_ipc(write_files(folder, [[NUM_ROWS]])),
    "a cache": lambda folder: numbers(*itertools.chain(*SHARDS)).cache(),
    "a cache of a shuffle of a cache": lambda folder: (
        numbers(NUM_ROWS).cache().shuffle(seed=3).filter(pl.col("row") < 0).cache()
    ),
}


@pytest.mark.parametrize("source", list(SOURCES)[:-1])
@pytest.mark.parametrize("calls", [{"autotune": False}, {"cpu_budget": 1}, {"cpu_budget": 4}])
def test_the_order_depends_on_the_number_of_rows_alone(
    tmp_path: Path, source: str, calls: dict[str, Any]
) -> None:
    expected = ids(af.range(NUM_ROWS).shuffle(seed=5), epoch=1)
    ds = SOURCES[source](tmp_path).shuffle(seed=5).with_options(af.Options(**calls))
    assert ds.num_rows == NUM_ROWS
    assert sorted(expected) == list(range(NUM_ROWS)) != expected
    for _ in range(2):
        assert rows_of(ds, epoch=1) == expected


def test_borders_of_parts_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ids(af.range(50).shuffle(seed=5))
    for size in (1, 7, 50, 1000):
        monkeypatch.setattr(global_shuffle, "MAX_PART_ROWS", size)
        assert ids(af.range(50).shuffle(seed=5)) == expected


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    orders = {
        tuple(ids(af.range(30).shuffle(seed=seed), epoch=epoch)) for seed in range(4) for epoch in range(4)
    }
    windows = {tuple(ids(af.range(30).shuffle(30, seed=seed))) for seed in range(4)}
    assert len(orders | windows) == 20


def test_without_a_seed_it_follows_from_the_options_and_the_place() -> None:
    def order(seed: int, *, behind: int = 0) -> list[Any]:
        ds = af.range(30).with_options(af.Options(seed=seed))
        for _ in range(behind):
            ds = ds.prefetch(1)
        return ids(ds.shuffle())

    assert order(1) == order(1)
    assert len({tuple(order(1)), tuple(order(2)), tuple(order(1, behind=1))}) == 3


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
    for ds in (
        af.range(count).rename({"id": "row"}),
        af.from_arrow(pa.table({"row": pa.array(range(count), pa.int64())})),
        af.read_ipc(write_files(tmp_path, [[], [0, 0], [count], [0]])),
        numbers(count).cache(),
    ):
        assert sorted(rows_of(ds.shuffle(seed=1))) == list(range(count))
        assert ds.shuffle().num_rows == count
        check_resume(lambda ds=ds: ds.shuffle(seed=1).batch(1))  # type: ignore[misc]


# ------------------------------------------------------------------------------------------- uniformity


def orders_of(num_rows: int, seeds: Sequence[int], *, epoch: int = 0) -> npt.NDArray[np.int64]:
    """Returns one order a seed, by the operator itself."""
    data = af.range(num_rows)
    return np.array([ids(data.shuffle(seed=seed), epoch=epoch) for seed in seeds])


def chi_square_z(counts: npt.NDArray[np.int64], freedom: int | None = None) -> float:
    """How many standard deviations the counts are less even than expected."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1 if freedom is None else freedom
    return float((((counts - expected) ** 2).sum() / expected - freedom) / (2 * freedom) ** 0.5)


def correlations_z(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Returns Spearman's correlation of each pair of lines, in standard deviations."""
    centre = (first.shape[1] - 1) / 2
    products = ((first - centre) * (second - centre)).sum(axis=1)
    spread = ((np.arange(first.shape[1]) - centre) ** 2).sum()
    return np.asarray(products / spread * (first.shape[1] - 1) ** 0.5)


@pytest.fixture(scope="module")
def thousand() -> npt.NDArray[np.int64]:
    return orders_of(32, range(1000))


@pytest.mark.slow
@pytest.mark.parametrize(("num_rows", "num_seeds"), [(4, 1200)])
def test_all_orders_of_a_few_rows_are_equally_likely(num_rows: int, num_seeds: int) -> None:
    orders = orders_of(num_rows, range(num_seeds))
    counts = np.unique(orders @ num_rows ** np.arange(num_rows), return_counts=True)[1]
    assert len(counts) == math.factorial(num_rows)
    assert abs(chi_square_z(counts)) < 3


@pytest.mark.slow
def test_each_row_comes_to_each_place_equally(thousand: npt.NDArray[np.int64]) -> None:
    cells = np.bincount((thousand * 32 + np.arange(32)).ravel(), minlength=32 * 32)
    assert abs(chi_square_z(cells, freedom=31 * 31)) < 3


def test_neighbours_in_the_input_are_none_in_the_output(thousand: npt.NDArray[np.int64]) -> None:
    steps = (thousand[:, 1:] - thousand[:, :-1]) % 32
    assert abs(chi_square_z(np.bincount(steps.ravel(), minlength=32)[1:])) < 3


def test_places_do_not_correlate_with_rows(thousand: npt.NDArray[np.int64]) -> None:
    for scores in (
        correlations_z(thousand, np.broadcast_to(np.arange(32), thousand.shape)),
        correlations_z(thousand[1:], thousand[:-1]),
    ):
        assert abs(scores.mean()) < 3 / len(scores) ** 0.5
        assert abs(scores.var() - 1) < 3 * (2 / len(scores)) ** 0.5


@pytest.mark.slow
def test_epochs_do_not_correlate(thousand: npt.NDArray[np.int64]) -> None:
    following = orders_of(32, range(300), epoch=1)
    scores = correlations_z(thousand[:300], following)
    assert abs(scores.mean()) < 3 / 300**0.5
    assert abs(scores.var() - 1) < 3 * (2 / 300) ** 0.5


# ------------------------------------------------------------------------------------------- rows


def test_rows_stay_whole() -> None:
    """Every column is gathered alike, nested ones and those with nulls, too."""
    for chunks in ([11], [3, 1]):
        batches = cut(ALL_TYPES.combine_chunks().to_batches()[0], chunks)
        table = af.from_arrow(batches).shuffle(seed=1).to_table()
        places = table.column("row").to_pylist()
        assert repr(table.to_pylist()) == repr([ALL_TYPES_INSIDE.to_pylist()[place] for place in places])


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
    assert [name for name in WIDTHS.column_names if name not in found] == [
        "late null",
        "inner null",
        "empty",
        "flag",
        "text",
    ]


def test_rows_of_files_stay_whole(files: af.Dataset) -> None:
    table = files.shuffle(seed=1).to_table()
    whole = files.to_table().to_pylist()
    assert table.to_pylist() == [whole[row] for row in table.column("row").to_pylist()]


def test_parts_of_very_different_sizes() -> None:
    """Where a table of buckets does not help, it searches."""
    sizes = [1] * 30 + [100_000] + [1] * 30
    batch = pa.record_batch({"row": range(sum(sizes))})
    rows = AllRows([InPlaceRows(part) for part in cut(batch, sizes)], [])
    wanted = np.random.default_rng(1).permutation(sum(sizes))[:1000]
    wanted = np.concatenate([wanted, np.arange(40), sum(sizes) - 1 - np.arange(40)]).astype(np.int64)
    assert rows.gather(wanted).column(0).to_pylist() == wanted.tolist()


def test_many_parts() -> None:
    batch = pa.record_batch({"row": range(70_000)})
    rows = AllRows([InPlaceRows(part) for part in cut(batch, [1])], [])
    wanted = np.array([69_999, 0, 65_536, 3, 65_535], np.int64)
    assert rows.gather(wanted).column(0).to_pylist() == wanted.tolist()


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


def test_large_rows_make_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_shuffle, "PART_BYTES", 100)
    texts = pa.table({"text": ["x" * 40] * 10, "row": range(10)})
    found = batches_of(af.from_arrow(texts).shuffle(seed=1))
    assert [batch.num_rows for batch in found] == [1] * 10
    monkeypatch.setattr(global_shuffle, "PART_BYTES", 1)
    assert [batch.num_rows for batch in batches_of(af.from_arrow(texts).shuffle(seed=1))] == [1] * 10


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
    for ds in (
        files,
        files.cache(),
        af.range(NUM_ROWS).rename({"id": "row"}),
        af.from_arrow(files.to_table()),
    ):
        part = ds.skip(4).take(20).select("row").skip(3).shuffle(seed=2)
        assert part.num_rows == 17
        expected = ids(af.range(7, 24).shuffle(seed=2))
        assert rows_of(part) == expected
        rules = af.Options(disabled_rules=("limit_reads", "prune_columns", "merge_columns"))
        assert rows_of(part.with_options(rules)) == expected


@pytest.mark.parametrize("between", REFUSED)
def test_what_decides_row_numbers_while_it_runs_is_refused(files: af.Dataset, between: str) -> None:
    below = REFUSED[between](files)
    refused(af.PlanError, lambda: below.shuffle().num_rows, "shuffle", "shuffle(buffer_size)", ".cache()")
    assert sorted(rows_of(below.cache().shuffle(seed=1))) == sorted(rows_of(below))


def test_sources_without_random_access_are_refused(tmp_path: Path) -> None:
    folder = write_files(tmp_path, [[3]])
    pq.write_table(pa.table({"row": [1]}), folder / "a.parquet")

    def generate() -> Iterator[dict[str, int]]:
        yield {"x": 1}

    reader = pa.table({"x": [1]}).to_reader()
    for ds, text in (
        (af.read_parquet(folder), "read_parquet"),
        (af.from_generator(generate), "from_generator"),
        (af.from_arrow(reader), "from_arrow"),
        (af.range(3).interleave(lambda row: af.range(3)), "interleave"),
    ):
        refused(af.PlanError, lambda ds=ds: ds.shuffle().num_rows, "shuffle", text, ".cache()")  # type: ignore[misc]


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


def test_explain_tells_where_rows_are_gathered_from(files: af.Dataset) -> None:
    text = files.with_columns(y=pl.col("row") + 1).shuffle(seed=1).explain()
    for part in (
        "mapping of 3 columns, one call a split, no copy",
        "collect all rows where they lie, no copy",
        "permute and gather",
    ):
        assert part in text


def test_a_window_above_all_rows_does_not_touch_the_source(files: af.Dataset) -> None:
    ds = files.shuffle(seed=1)
    assert sorted(rows_of(ds.shuffle(5, seed=2))) == list(range(NUM_ROWS))
    assert rows_of(ds.shuffle(1, seed=2)) == rows_of(ds)


def test_stack_stays_above() -> None:
    table = pa.table({"a": [1.0, 2.0], "c": [3.0, 4.0]})
    text = af.from_arrow(table).shuffle(seed=1).stack(x=["a", "c"]).explain()
    assert "stack_before_shuffle" not in text


@pytest.mark.parametrize("seed", [-1, 1.0, True, "3", 1 << 64])
def test_bad_seeds(seed: Any) -> None:
    refused(af.PlanError, lambda: af.range(3).shuffle(seed=seed), "shuffle", "seed")


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


def test_rules_move_no_border() -> None:
    """Parts are cut by the schema as written, whichever columns are left."""
    source = af.from_numpy({f"column {number}": np.arange(40) for number in range(9)})
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(global_shuffle, "PART_BYTES", 9 * 8 * 3)
        ds = source.shuffle(seed=1).select("column 1")
        assert sizes(ds) == [3] * 13 + [1]
        assert sizes(ds.with_options(af.Options(disabled_rules=("prune_columns",)))) == [3] * 13 + [1]
