"""Budgets through the public API: what fills the ledger waits, and nothing deadlocks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from tests.executor.fakes import Running, hold_all, read_slowly, stepper_of

pytestmark = pytest.mark.any_version

MIB = 1 << 20


def inflate(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Makes rows 50 times as large."""
    return {"x": batch["x"], "wide": np.repeat(batch["x"][:, None], 50, axis=1)}


@pytest.mark.parametrize("cpus", [1, 2])
def test_a_map_that_inflates_rows_fills_the_ledger_and_waits(cpus: int) -> None:
    options = af.Options(ram_budget=8 * MIB, cpu_budget=cpus, max_chunk_rows=4096)
    numbers = af.from_numpy({"x": np.arange(200_000)})
    numbers = numbers.map(inflate, format="numpy", num_parallel_calls=cpus).with_options(options)
    rows, largest = 0, 0
    with iter(numbers) as batches:
        for batch in batches:
            assert batch["wide"].type.list_size == 50
            rows += batch.num_rows
            largest = max(largest, batch.get_total_buffer_size())
        statistics = batches.stats()
    assert rows == 200_000
    # Nothing is known of the first calls but the size of their input.
    assert statistics.ledger_peak_bytes <= 8 * MIB + 4 * largest


class Repeated:
    """Makes several rows of each."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"id": np.repeat(batch["id"], self.times)}


INPUT_BYTES = 8 * 65_536
REPEATED: dict[str, Callable[[af.Dataset, int], af.Dataset]] = {
    "map": lambda dataset, times: dataset.map(Repeated(times), format="numpy"),
    "one call": lambda dataset, times: dataset.map(Repeated(times), format="numpy", num_parallel_calls=1),
    "batch": lambda dataset, times: dataset.map(Repeated(times), format="numpy").batch(65_000),
    "filter": lambda dataset, times: dataset.map(Repeated(times), format="numpy").filter(
        pl.col("id") % 7 != 1
    ),
}


@pytest.mark.parametrize(
    ("times", "cpus", "deterministic"), [(3, 2, False), (8, 8, True), (24, 1, True), (24, 8, False)]
)
@pytest.mark.parametrize("name", REPEATED)
def test_chunks_of_a_function_exceed_the_budget_one_at_a_time(
    name: str, times: int, cpus: int, deterministic: bool
) -> None:
    """Also while the consumer is away, and still holds rows of the chunk before."""
    budget, largest = 4 * MIB, times * INPUT_BYTES
    options = af.Options(ram_budget=budget, cpu_budget=cpus, deterministic=deterministic)
    engine = stepper_of(REPEATED[name](af.range(600_000), times).with_options(options))
    read_slowly(engine, 40)
    made_of = largest if name == "filter" else 0
    assert engine.ledger.peak <= budget + largest + made_of + INPUT_BYTES


class Skewed:
    """Makes many rows of a few."""

    def __init__(self, every: int | None, times: int) -> None:
        self.every, self.times = every, times

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        ids = batch["id"]
        is_large = ids < 1 if self.every is None else ids % self.every == 0
        return {"id": np.repeat(ids, np.where(is_large, self.times, 1))}


@pytest.mark.parametrize("cpus", [1, 8])
@pytest.mark.parametrize(("every", "times"), [(None, 100_000), (50_000, 20_000), (50_000, 500_000)])
def test_a_few_large_rows_in_a_small_call_do_not_count_as_if_all_were_large(
    every: int | None, times: int, cpus: int
) -> None:
    """The first call has 128 rows, later ones 65,536."""
    budget, largest = 16 * MIB, 8 * (times + 65_536)
    options = af.Options(ram_budget=budget, cpu_budget=cpus)
    engine = stepper_of(af.range(600_000).map(Skewed(every, times), format="numpy").with_options(options))
    read_slowly(engine, 40)
    assert engine.ledger.peak <= budget + largest + INPUT_BYTES


def test_a_consumer_that_does_not_come_back_stops_the_pipeline_at_its_budget() -> None:
    calls: list[int] = []

    def count(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        return pa.record_batch({"x": np.zeros(batch.num_rows * 64)})

    options = af.Options(ram_budget=4 * MIB, cpu_budget=2, max_chunk_rows=1024)
    with iter(af.range(10_000_000).map(count, num_parallel_calls=2).with_options(options)) as batches:
        next(batches)
        engine = batches._engine
        assert engine is not None
        with engine.lock:  # nobody can start or end a call
            held = engine.ledger.used
        assert held <= 4 * MIB + 4 * 1024 * 64 * 8
    assert len(calls) < 200


def renew(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Makes the first column anew."""
    return pa.record_batch({"id": batch.column(0).to_numpy().copy()})


def numbers() -> af.Dataset:
    """Many small chunks, in new memory each."""
    return af.range(500).repeat(100)


def lists() -> af.Dataset:
    """Lists of 1 to 50 numbers, in new memory."""
    return numbers().map(
        lambda batch: pa.record_batch(
            {"x": [[number] * (number % 50 + 1) for number in range(batch.num_rows)]}
        )
    )


SLOW: dict[str, Callable[[], af.Dataset]] = {
    "map": lambda: numbers().map(renew),
    "maps": lambda: numbers().map(renew).map(renew, num_parallel_calls=3).map(renew, num_parallel_calls=2),
    "filter": lambda: numbers().filter(pc.field("id") > 100).map(renew),
    "enumerate": lambda: numbers().enumerate().map(renew),
    "batch": lambda: numbers().batch(1000).map(renew),
    "window": lambda: numbers().window(10),
    "shuffle": lambda: numbers().shuffle(4000).map(renew),
    "cache": lambda: af.range(500).repeat(10).cache().repeat(10).map(renew),
    "concatenate": lambda: numbers().map(renew).concatenate(numbers().map(renew)).map(renew),
    "zip": lambda: af.zip(numbers().map(renew), numbers().rename({"id": "other"})).map(renew),
    "interleave": lambda: (
        af.range(20)
        .interleave(lambda row: af.range(5000).map(renew), cycle_length=4, block_length=100)
        .map(renew)
    ),
    "sample": lambda: af.sample_from_datasets([numbers().map(renew)] * 4, seed=1).map(renew),
    "choose": lambda: af.choose_from_datasets(
        [numbers().map(renew)] * 2, af.range(90_000).map(lambda batch: {"c": batch["id"] % 2}, format="numpy")
    ),
    "padded_batch": lambda: lists().padded_batch(64),
    "pack_sequences": lambda: lists().pack_sequences("x", 64, window_rows=512),
    "bucket": lambda: lists().bucket_by_sequence_length("x", [10, 30], [32, 32, 32], max_lag_rows=2000),
    "generator": lambda: af.from_generator(
        lambda: ({"x": np.arange(500)} for _ in range(200)), elements="batches"
    ).map(renew),
}


@pytest.mark.parametrize("budget", [800_000, pytest.param(2_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SLOW)
def test_a_slow_consumer_leaves_a_pipeline_within_its_budget(name: str, budget: int) -> None:
    """The peak is the budget and what one call takes, wherever the pipeline comes to rest."""
    options = af.Options(ram_budget=budget, cpu_budget=2, max_chunk_rows=4096)
    engine = stepper_of(SLOW[name]().with_options(options))
    read_slowly(engine, 60)
    assert engine.ledger.peak <= budget + engine.largest_bytes
    assert engine.statistics().ledger_bytes == 0


def test_a_slow_consumer_leaves_reading_within_its_budget(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(40_000), "y": np.arange(40_000) / 2})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000)
    read = af.read_parquet(tmp_path)
    for dataset in (
        read.map(renew),
        read.shuffle(2000).batch(100).map(renew),
        read.repeat(3).shuffle(2000).batch(100).map(renew),
        af.sample_from_datasets([read, read], seed=1).map(renew),
    ):
        engine = stepper_of(dataset.with_options(af.Options(ram_budget=700_000, cpu_budget=2)))
        read_slowly(engine, 60)
        assert engine.ledger.peak <= 700_000 + engine.largest_bytes


def uncut(rows: int) -> pa.Array:
    """Row groups with such a column are not cut into pieces."""
    return pa.FixedSizeListArray.from_arrays(pa.array(np.arange(rows)), 1)


def test_a_row_group_larger_than_the_budget_is_refused_in_its_turn(tmp_path: Path) -> None:
    """As the largest one of the first file is at the start: what a footer announces is not allocated."""
    small, huge = uncut(1000), uncut(1_000_000)
    pq.write_table(pa.table({"x": small}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": huge}), tmp_path / "b.parquet", row_group_size=len(huge))
    dataset = af.read_parquet(tmp_path).batch(500)
    with iter(dataset.with_options(af.Options(ram_budget=MIB, cpu_budget=2))) as batches:
        found = [next(batches)["x"] for _ in range(2)]
        with pytest.raises(
            af.BudgetError, match=r"take \d+,\d+,\d+ bytes.*ram_budget is 1,048,576 bytes"
        ) as caught:
            next(batches)
        assert batches.stats().ledger_peak_bytes <= MIB
    assert pa.concat_arrays(found).to_pylist() == small.to_pylist()
    assert (caught.value.file, caught.value.row_group) == (str(tmp_path / "b.parquet"), 0)
    enough = dataset.with_options(af.Options(ram_budget=64 * MIB, cpu_budget=2))
    assert sum(batch.num_rows for batch in enough) == 1_001_000


def test_a_budget_that_cannot_do_is_refused_with_the_number(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": uncut(1_000_000)}), tmp_path / "a.parquet", row_group_size=1_000_000)
    dataset = af.read_parquet(tmp_path).with_options(af.Options(ram_budget=MIB))
    with pytest.raises(af.BudgetError, match=r"ram_budget=1,048,576 bytes is under the least"):
        next(iter(dataset))


class Widened:
    """Makes rows of 8 kB of rows of 8 bytes."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = pa.array(np.zeros(1000 * batch.num_rows))
        return pa.record_batch(
            {"id": batch.column(0), "wide": pa.FixedSizeListArray.from_arrays(values, 1000)}
        )


def widened(number: int = 0) -> af.Dataset:
    """Chunks of 800 kB."""
    return af.range(2000).map(Widened()).rename({"id": f"id{number}", "wide": f"wide{number}"})


MANY: dict[str, Callable[[int], af.Dataset]] = {
    "zip": lambda inputs: af.zip(*map(widened, range(inputs))),
    "sample": lambda inputs: af.sample_from_datasets([widened() for _ in range(inputs)], seed=1),
    "choose": lambda inputs: af.choose_from_datasets(
        [widened() for _ in range(inputs)], af.range(4000).select(c=pl.col("id") % inputs)
    ),
    "interleave": lambda inputs: af.range(inputs).interleave(
        lambda row: widened(), cycle_length=inputs, block_length=30
    ),
}


@pytest.mark.parametrize(("inputs", "cpus"), [(12, 8), (24, 2)])
@pytest.mark.parametrize("name", MANY)
def test_inputs_that_inflate_fit_or_the_budget_that_they_need_is_named(
    name: str, cpus: int, inputs: int
) -> None:
    budget, refused = 4 * MIB, 0
    while True:
        options = af.Options(ram_budget=budget, cpu_budget=cpus, max_chunk_rows=100)
        engine = stepper_of(MANY[name](inputs).take(600).with_options(options))
        try:
            read_slowly(engine, 1000)
        except af.BudgetError as error:
            engine.close()
            found = re.search(r"needs, ([\d,]+) bytes", str(error))
            assert found is not None and refused < 4
            named = int(found[1].replace(",", ""))
            assert named > budget
            budget, refused = named, refused + 1
        assert engine.ledger.peak <= options_budget(options) + 4 * 800_000 + engine.largest_bytes
        if engine.root_out.error is None:
            break
    assert refused, "12 chunks of 800 kB do not fit 4 MiB"


def options_budget(options: af.Options) -> int:
    assert isinstance(options.ram_budget, int)
    return options.ram_budget


def test_tables_of_the_user_are_not_what_a_mix_keeps_back() -> None:
    """They are in memory anyway: a budget below them does not end the run."""
    table = pa.table({"x": np.arange(1_000_000)})
    wide = af.zip(af.from_arrow(table), af.range(1_000_000).map(renew))
    options = af.Options(ram_budget=4 * MIB, cpu_budget=2, max_chunk_rows=10_000)
    with iter(wide.with_options(options)) as batches:
        assert sum(batch.num_rows for batch in batches) == 1_000_000


def test_functions_that_nobody_has_measured_start_one_at_a_time_where_little_is_free() -> None:
    options = af.Options(ram_budget=8 * MIB, cpu_budget=4, max_chunk_rows=100)
    engine = stepper_of(af.range(2000).map(Widened()).with_options(options))
    for expected in (1, 1, 3):
        flying = hold_all(engine, "map")
        assert len(flying) == expected
        for running in flying:
            engine.finish(running)
    read_slowly(engine, 100)
    assert engine.ledger.peak <= 8 * MIB + engine.largest_bytes


NESTED: dict[str, Callable[[Callable[[object], af.Dataset]], af.Dataset]] = {
    "flat_map": lambda element: af.range(40).flat_map(element),
    "interleave": lambda element: af.range(40).interleave(element, cycle_length=4),
}


@pytest.mark.parametrize("name", NESTED)
def test_calls_that_outlast_their_input_leave_room_for_those_of_the_inputs_after_it(name: str) -> None:
    options = af.Options(ram_budget=16 * MIB, cpu_budget=4, max_chunk_rows=100)
    nested = NESTED[name](lambda row: af.range(2000).map(Widened()).take(150))
    engine = stepper_of(nested.with_options(options))
    flying: list[Running] = []
    beside: list[int] = []
    while not engine.root_out.ended:
        flying += hold_all(engine, "map")
        beside.append(len(flying))
        if flying:  # the oldest one alone, so that `take` ends the input while the others run
            engine.finish(flying.pop(0))
        while engine.root_out.out:
            engine.next_item()
    for running in flying:
        engine.finish(running)
    assert min(beside[10:-10]) >= 3, "as many at the end as at the beginning"
    assert engine.ledger.spared == 0
    engine.close()


def test_two_pipelines_run_side_by_side_under_one_core() -> None:
    """Neither waits for the other, whoever is asked first."""
    options = af.Options(cpu_budget=1)
    one = iter(af.range(5000).map(lambda batch: batch).batch(100).with_options(options))
    two = iter(af.range(5000).map(lambda batch: batch).batch(100).with_options(options))
    pairs = zip(one, two, strict=True)
    assert sum(left.num_rows + right.num_rows for left, right in pairs) == 10_000


def test_a_pipeline_inside_of_another_one_does_not_wait_for_its_core() -> None:
    def inner(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = sum(part.num_rows for part in af.range(100).batch(10).with_options(af.Options(cpu_budget=1)))
        return pa.record_batch({"rows": [rows]})

    outer = af.range(4).with_options(af.Options(cpu_budget=1, max_chunk_rows=1)).map(inner)
    assert outer.to_table()["rows"].to_pylist() == [100] * 4
