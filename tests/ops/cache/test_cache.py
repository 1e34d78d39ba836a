"""`cache`: hit and miss are the same, everything is computed once, and the memory is counted."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.testing import (
    Fault,
    Gate,
    assert_same_batches,
    batches_of,
    check_dataset,
    check_resume,
    raising,
    waiting,
)
from tests.ops.cache.cases import SMALL, Counted, noise
from tests.ops.tables import NUMBERS, ids, numbers, refused, rows_of, write_shards

pytestmark = pytest.mark.any_version

# ------------------------------------------------------------------------------------------- once


@pytest.mark.parametrize("budget", [1, 4])
def test_it_is_computed_once_over_many_epochs(budget: int) -> None:
    """Within a `repeat`, the second epoch begins early, but not before the first one is all there."""
    counted = Counted()
    ds = numbers(*[2] * 30).map(counted).cache().with_options(af.Options(cpu_budget=budget))
    assert rows_of(ds.repeat(4)) == list(range(60)) * 4
    assert [rows_of(ds, epoch=epoch) for epoch in range(3)] == [list(range(60))] * 3
    assert counted.calls == 30


def test_another_one_of_the_same_plan_does_not() -> None:
    counted = Counted()
    below = numbers(4, 4).map(counted)
    assert below.cache() == below.cache()
    rows_of(below.cache()), rows_of(below.cache())
    assert counted.calls == 4


def test_columns_are_cached_that_only_others_want() -> None:
    ds = af.from_arrow(NUMBERS).cache()
    assert rows_of(ds.select("row")) == list(range(17))
    assert ds.select("s").to_table()["s"].to_pylist() == NUMBERS["s"].to_pylist()


def test_what_is_below_runs_as_epoch_0() -> None:
    below = af.range(20).shuffle(20, seed=1).map(noise, seed=2)
    expected = batches_of(below)
    ds = below.cache()
    for epoch in (3, 0, 1):
        assert_same_batches(batches_of(ds, epoch=epoch), expected, f"epoch {epoch}")
    above = af.range(20).cache().shuffle(20, seed=1)
    assert ids(above) != ids(above, epoch=1)


def test_a_shuffle_above_orders_the_source_as_in_epoch_0(tmp_path: Path) -> None:
    folder = write_shards(tmp_path, [[3, 3], [3, 3], [3, 3], [3]])
    counted = Counted()
    ds = af.read_parquet(folder).cache()
    shuffled = ds.shuffle(1, seed=1)
    uncached = af.read_parquet(folder).shuffle(1, seed=1)
    assert rows_of(shuffled) == rows_of(shuffled, epoch=1) == rows_of(uncached) != rows_of(uncached, epoch=1)
    # Each order has a shelf of its own, and the plain one is as it was.
    assert rows_of(ds) == list(range(21))
    assert rows_of(ds.shuffle(1, seed=2)) != rows_of(shuffled)
    assert rows_of(shuffled) == rows_of(uncached)
    assert counted.calls == 0


def test_options_that_change_what_is_below_have_a_shelf_of_their_own() -> None:
    def heads(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(0, 1)

    ds = numbers(6).map(heads).cache()
    assert rows_of(ds) == [0]
    assert rows_of(ds.with_options(SMALL)) == [0, 3]
    assert rows_of(ds) == [0]
    shuffled = af.range(30).shuffle(30).cache()
    assert ids(shuffled) != ids(shuffled.with_options(af.Options(seed=1)))


def test_files_that_changed_are_read_again(tmp_path: Path) -> None:
    folder = write_shards(tmp_path, [[3]])
    ds = af.read_parquet(folder).cache()
    assert rows_of(ds) == [0, 1, 2]
    write_shards(tmp_path, [[3], [2]])
    assert rows_of(ds) == [0, 1, 2, 3, 4]
    shelves = ds._plan.store.shelves  # type: ignore[attr-defined]
    assert len(shelves) == 1, "what was cached before is forgotten"
    assert rows_of(ds.skip(0)) == [0, 1, 2, 3, 4]


# ------------------------------------------------------------------------------------------- prefixes


def test_only_the_prefix_is_asked_for() -> None:
    """But for what was on its way: up to 64 chunks as small as these in each queue."""
    counted = Counted()
    ds = numbers(*[2] * 1000).map(counted, num_parallel_calls=1).cache()
    assert rows_of(ds.take(4)) == [0, 1, 2, 3]
    assert counted.calls < 1000
    assert ds.to_table()["row"].to_pylist() == list(range(2000))
    # What was passed on is not computed anew; what was on its way may be.
    assert [counted.rows.count(row) for row in (0, 2)] == [1, 1]
    assert max(map(counted.rows.count, range(0, 2000, 2))) <= 2


def test_a_resume_into_the_middle_of_nothing_stores_nothing() -> None:
    counted = Counted()

    def make() -> af.Dataset:
        return numbers(*[2] * 8).map(counted).cache()

    with iter(make()) as iterator:
        next(iterator), next(iterator), next(iterator)
        state = iterator.state_dict()
    ds = make()
    with iter(ds) as iterator:
        iterator.load_state_dict(state)
        assert [value for batch in iterator for value in batch["row"].to_pylist()] == list(range(6, 16))
    counted.rows.clear()
    assert rows_of(ds) == rows_of(ds) == list(range(16))
    assert counted.calls == 8


def test_a_resume_into_a_prefix_goes_on_with_it() -> None:
    counted = Counted()
    ds = numbers(*[2] * 8).map(counted).cache()
    with iter(ds) as iterator:
        next(iterator)
        state = iterator.state_dict()
        next(iterator)
    with iter(ds) as iterator:
        iterator.load_state_dict(state)
        assert [batch["row"][0].as_py() for batch in iterator] == list(range(2, 16, 2))
    calls = counted.calls
    assert rows_of(ds) == list(range(16))
    assert counted.calls == calls, "the rest of the epoch was added to the prefix"


def test_an_error_leaves_what_came_before() -> None:
    broken = Fault(raising(ValueError("third piece")), at=2)
    ds = numbers(*[2] * 5).map(broken, num_parallel_calls=1).cache()
    with iter(ds) as iterator:
        assert [next(iterator)["row"][0].as_py() for _ in range(2)] == [0, 2]
        refused(af.FunctionError, lambda: next(iterator), "map", "third piece")
    assert rows_of(ds) == list(range(10))
    assert broken.calls <= 3 + 3 + 2


# ------------------------------------------------------------------------------------------- several at once


def test_many_threads_use_it_at_once() -> None:
    ds = numbers(*[1] * 40).map(Counted()).cache()
    gate = Gate()
    found: list[list[int]] = []

    def run() -> None:
        gate.pass_through()
        found.append(rows_of(ds.with_options(af.Options(cpu_budget=2))))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    gate.wait_for(6)
    gate.open()
    for thread in threads:
        thread.join()
    assert found == [list(range(40))] * 6
    assert rows_of(ds) == list(range(40))


def test_the_faster_one_serves_the_slower_one() -> None:
    """Who comes second begins with the prefix, while the first one waits in the middle."""
    gate = Gate()
    fault = Fault(waiting(gate), at=3)
    ds = numbers(*[2] * 6).map(fault, num_parallel_calls=1).cache()
    with iter(ds) as slow:
        assert [next(slow)["row"][0].as_py() for _ in range(3)] == [0, 2, 4]
        gate.wait_for(1)
        assert rows_of(ds) == list(range(12))
        assert fault.calls == 4 + 3
        gate.open()
        assert [batch["row"][0].as_py() for batch in slow] == [6, 8, 10]
    calls = fault.calls
    assert rows_of(ds) == list(range(12))
    assert fault.calls == calls


# ------------------------------------------------------------------------------------------- memory

MEGABYTE = 1 << 20


def wide() -> af.Dataset:
    """Eight splits, each of which becomes 128 KiB of new memory."""
    return numbers(*[16] * 8).map(
        lambda rows: pa.record_batch({"row": np.repeat(rows["row"].to_numpy(), 1024)})
    )


def test_the_ledger_counts_what_is_cached_while_it_runs() -> None:
    ds = wide().cache()
    with iter(ds) as iterator:
        list(itertools.islice(iterator, 7))
        assert iterator.stats().ledger_bytes >= 7 << 17
        list(iterator)
    assert iterator.stats().ledger_bytes == 0
    with iter(ds) as iterator:
        next(iterator)
        stats = iterator.stats()
        assert MEGABYTE <= stats.ledger_bytes == stats.ledger_peak_bytes < MEGABYTE + (1 << 16)
        list(iterator)
    assert iterator.stats().ledger_bytes == 0


def test_buffers_count_once() -> None:
    """Batches are slices of chunks, and are charged with the chunk."""
    ds = wide().batch(1000).cache().repeat(3)
    with iter(ds) as iterator:
        list(iterator)
    assert iterator.stats().ledger_peak_bytes < 2 * MEGABYTE


def test_the_memory_lives_as_long_as_the_dataset() -> None:
    gc.collect()
    before = pa.total_allocated_bytes()
    ds = af.range(100_000).with_columns(x=pl.col("id") * 2).cache()
    derived = ds.batch(1000)
    assert sum(batch.num_rows for batch in derived) == 100_000
    held = pa.total_allocated_bytes() - before
    del derived
    gc.collect()
    rows_of(ds, "x")
    gc.collect()
    assert pa.total_allocated_bytes() - before <= held
    prefix = ds._plan.store.shelves[0].prefix  # type: ignore[attr-defined]
    assert prefix.complete
    assert sum(entry.chunk.num_rows for entry in prefix.entries.values()) == 100_000
    ds.cache_clear()
    gc.collect()
    assert not ds._plan.store.shelves[0].prefix.entries  # type: ignore[attr-defined]
    del prefix, ds
    gc.collect()
    assert pa.total_allocated_bytes() <= before + 1024


@pytest.mark.parametrize("above", ["nothing", "repeat", "batch"])
def test_more_than_the_budget_is_an_error(above: str) -> None:
    cached = wide().cache()
    ds = {"nothing": cached, "repeat": cached.repeat(), "batch": cached.batch(100)}[above]
    iterator = iter(ds.with_options(af.Options(ram_budget=MEGABYTE // 2)))
    texts = (
        "655,360 bytes, 131,072 more",
        "524,288",
        "raise ram_budget",
        "fewer rows or columns",
        "cache(path)",
        "cache(spill=folder)",
    )
    refused(af.BudgetError, lambda: list(iterator), "cache", *texts)
    # What is left is the chunk that was one too many: the error's traceback leads to it.
    assert iterator.stats().ledger_bytes <= MEGABYTE // 8


def test_a_smaller_budget_than_what_is_there_is_an_error() -> None:
    ds = wide().cache()
    rows_of(ds)
    small = ds.with_options(af.Options(ram_budget=MEGABYTE // 2))
    refused(af.BudgetError, lambda: rows_of(small), "cache", "1,048,576 bytes", "524,288")
    assert rows_of(ds.with_options(af.Options(ram_budget=2 * MEGABYTE))) == rows_of(ds)


def test_what_fits_is_served_under_a_tight_budget() -> None:
    ds = wide().cache().with_options(af.Options(ram_budget=MEGABYTE + (1 << 18), cpu_budget=4))
    for _ in range(3):
        with iter(ds.shuffle(5000, seed=1).batch(100)) as iterator:
            assert sum(batch.num_rows for batch in iterator) == 8 * 16 * 1024
        assert iterator.stats().ledger_peak_bytes < 2 * MEGABYTE


# ------------------------------------------------------------------------------------------- clearing


def test_cleared_it_is_computed_anew() -> None:
    """All caches of a dataset are."""
    counted = Counted()
    ds = numbers(4, 4).map(counted).cache().filter(pl.col("row") > 1).cache()
    rows_of(ds)
    ds.batch(2).cache_clear()
    assert rows_of(ds) == rows_of(ds) == list(range(2, 8))
    assert counted.calls == 4


def test_without_a_cache_there_is_nothing_to_clear() -> None:
    refused(af.PlanError, af.range(3).cache_clear, "cache_clear")


def test_all_caches_of_a_dataset_are_cleared() -> None:
    counted = Counted()
    ds = numbers(4, 4).map(counted).cache().filter(pl.col("row") > 1).cache()
    rows_of(ds)
    ds.cache_clear()
    rows_of(ds)
    assert counted.calls == 4


# ------------------------------------------------------------------------------------------- what it says


def test_counts_are_those_of_its_input() -> None:
    ds = numbers(4, 5).cache()
    assert ds.num_rows == 9
    assert len(ds.batch(2).cache().to_polars()) == 5
    assert numbers(4).filter(pl.col("row") > 0).cache().num_rows is None


def test_above_batch_rows_stay_out_of_reach() -> None:
    refused(af.PlanError, lambda: af.range(9).batch(2).cache().take(1), "take", "batch")


def test_explain_says_what_is_frozen() -> None:
    text = af.range(9).shuffle(3, seed=1).map(noise, seed=2).cache().explain()
    assert "cache(memory)" in text
    assert "what is before it runs as epoch 0, once; shuffle, map frozen with it" in text
    plain = af.range(9).map(noise).cache().explain()
    assert "what is before it runs as epoch 0, once" in plain
    assert "frozen" not in plain


def test_rows_come_in_order_below_it_in_any_case() -> None:
    ds = numbers(*[1] * 50).map(Counted()).cache().with_options(af.Options(deterministic=False, cpu_budget=4))
    expected = sorted(rows_of(ds))
    entries = ds._plan.inputs[0].store.shelves[0].prefix.entries  # type: ignore[attr-defined]
    assert (
        [entry.chunk["row"][0].as_py() for entry in list(entries.values())[:-1]]
        == expected
        == list(range(50))
    )


def test_a_one_shot_stream_has_no_state_but_a_second_epoch() -> None:
    table = pa.table({"x": range(10)})
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(4))
    ds = af.from_arrow(reader).cache()
    assert rows_of(ds, "x") == rows_of(ds, "x") == list(range(10))
    refused(af.StateError, iter(ds).state_dict, "one-shot")


def test_generators_run_once() -> None:
    runs = []

    def rows() -> Iterator[dict[str, int]]:
        runs.append(1)
        yield from ({"x": i} for i in range(5))

    ds = af.from_generator(rows).cache()
    assert rows_of(ds, "x") == rows_of(ds, "x") == list(range(5))
    assert len(runs) == 1
    check_resume(lambda: af.from_generator(rows).cache().batch(2))


def test_parquet_with_everything(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(NUMBERS.slice(number * 5, 5), tmp_path / f"{number}.parquet", row_group_size=2)

    def make() -> af.Dataset:
        cached = af.read_parquet(tmp_path).filter(pl.col("row") % 4 != 1).cache()
        return cached.shuffle(4, seed=2).repeat(2).batch(3)

    check_dataset(make, epochs_differ=True)


def test_the_same_cache_in_elements_of_an_interleave_is_filled_once() -> None:
    counted = Counted()
    base = numbers(3, 3).map(counted).cache()
    ds = af.range(4).interleave(lambda row: base.skip(row["id"]), cycle_length=1, num_parallel_calls=1)
    assert rows_of(ds) == [*range(6), *range(1, 6), *range(2, 6), *range(3, 6)]
    assert counted.calls == 2
