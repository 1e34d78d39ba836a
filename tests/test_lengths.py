"""Lengths: `num_rows`, `len`, and `head`; endless, unknown and learned ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

import arrowflow as af
from tests.ops.tables import refused

pytestmark = pytest.mark.any_version


def odd(ds: af.Dataset) -> af.Dataset:
    return ds.filter(pl.col("id") % 2 == 1)


def chosen(*datasets: af.Dataset, by: af.Dataset) -> af.Dataset:
    return af.choose_from_datasets(datasets, by)


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


ROWS: dict[str, tuple[Callable[[], af.Dataset], Any]] = {
    "endless": (lambda: af.range(3).repeat(), math.inf),
    "endless, skipped": (lambda: af.range(3).repeat().skip(7), math.inf),
    "endless, sharded": (lambda: af.range(3).repeat().shard(2, 1), math.inf),
    "endless, in batches": (lambda: af.range(3).repeat().batch(2, drop_remainder=True), math.inf),
    "endless, in windows": (lambda: af.range(3).repeat().window(2), math.inf),
    "endless, again": (lambda: af.range(3).repeat().repeat(2), math.inf),
    "endless, then taken": (lambda: af.range(3).repeat().take(10), 10),
    "endless beside another": (lambda: af.zip(af.range(3).repeat(), af.range(7).select(a="id")), 7),
    "endless after another": (lambda: af.range(3).concatenate(af.range(3).repeat()), math.inf),
    "endless mixed": (
        lambda: af.sample_from_datasets([af.range(3).repeat(), af.range(3).repeat()]),
        math.inf,
    ),
    "chosen": (lambda: chosen(af.range(9), af.range(9), by=af.range(2).repeat(4)), 8),
    "chosen of the endless": (
        lambda: chosen(af.range(3).repeat(), af.range(2).repeat(), by=af.range(2).repeat(40)),
        80,
    ),
    "chosen endlessly": (
        lambda: chosen(af.range(3).repeat(), af.range(2).repeat(), by=af.range(2).repeat()),
        math.inf,
    ),
    "chosen of too few": (lambda: chosen(af.range(9), af.range(3), by=af.range(2).repeat(4)), None),
    "chosen of unknown": (lambda: chosen(af.range(99), odd(af.range(99)), by=af.range(2)), None),
    "chosen by unknown": (lambda: chosen(af.range(99), af.range(99), by=odd(af.range(2))), None),
    "chosen by nothing": (lambda: chosen(af.range(9), af.range(9), by=af.range(0)), 0),
    "chosen of nothing": (lambda: chosen(af.range(0), af.range(0), by=af.range(2)), 0),
    "nothing, endlessly": (lambda: af.range(0).repeat(), 0),
    "unknown": (lambda: odd(af.range(9)), None),
    "unknown, endlessly": (lambda: odd(af.range(9)).repeat(), None),
    "kept": (lambda: af.range(9).map(same, keeps_rows=True), 9),
    "kept, batched": (lambda: af.range(9).batch(4).map(same, keeps_rows=True), 9),
    "not kept": (lambda: af.range(9).map(same), None),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_known_or_endless_or_unknown(name: str) -> None:
    make, expected = ROWS[name]
    ds = make()
    assert ds.num_rows == expected
    assert bool(ds)
    if isinstance(expected, int):
        assert type(ds.num_rows) is int
        assert make().to_table().num_rows == expected
        assert len(ds) == (3 if "batched" in name else expected)


def test_lengths_that_are_none_say_why() -> None:
    for ds, text in ((af.range(3).repeat(), "endless"), (odd(af.range(3)), "run a whole epoch first")):
        for asked in (ds, ds.batch(2), ds.batch(2).to_numpy()):
            with pytest.raises(TypeError, match=text):
                len(asked)
    with pytest.raises(TypeError, match="does not end in batches"):
        len(af.range(3).to_numpy())
    assert len(af.range(10).batch(4)) == len(af.range(10).batch(4).to_numpy()) == 3


def test_python_containers_take_datasets() -> None:
    for ds in (af.range(10), af.range(10).batch(3), odd(af.range(10))):
        assert sum(batch.num_rows for batch in list(ds)) == sum(batch.num_rows for batch in [*ds])


def test_a_function_that_does_not_keep_its_rows_is_an_error() -> None:
    ds = af.range(9).map(lambda batch: batch.slice(1), keeps_rows=True)
    refused(af.FunctionError, lambda: list(ds), "map", "8 rows", "keeps_rows=True", "given 9")


# ---------------------------------------------------------------- after one whole epoch


def test_a_whole_epoch_tells() -> None:
    loader = odd(af.range(100)).shuffle(10, seed=1).batch(7).to_numpy()
    with pytest.raises(TypeError):
        len(loader)
    next(iter(loader))
    with pytest.raises(TypeError):
        len(loader)
    batches = list(loader)
    assert len(loader) == len(batches) == 8
    ds = odd(af.range(100)).batch(7)
    list(ds)
    assert ds.num_rows == 50
    assert len(ds) == 8


def test_an_epoch_tells_what_comes_before_and_after_a_shuffle() -> None:
    short = af.range(99).map(lambda batch: batch.slice(1))
    training, _ = odd(af.range(99)).split([0.5, 0.5])
    for ds in (odd(short.shuffle(9)).batch(2), training.shuffle(9).batch(2)):
        assert ds.num_rows is None
        assert len(list(ds)) == len(ds) == len(list(ds))


def test_a_rest_of_an_epoch_tells_nothing() -> None:
    ds = odd(af.range(100)).batch(7)
    iterator = iter(ds)
    next(iterator)
    rest = iter(ds)
    rest.load_state_dict(iterator.state_dict())
    list(rest)
    assert ds.num_rows is None


def growing() -> Callable[[], Any]:
    """A function whose iterators have a row more each time."""
    calls: list[int] = []

    def fn() -> Any:
        calls.append(0)
        return iter([{"id": number} for number in range(len(calls))])

    return fn


def test_the_last_whole_epoch_of_a_generator_tells() -> None:
    loader = af.from_generator(growing()).batch(2).to_numpy()
    with pytest.raises(TypeError, match="run a whole epoch first"):
        len(loader)
    assert [(len(list(loader)), len(loader)) for _ in range(4)] == [(1, 1), (1, 1), (2, 2), (2, 2)]
    next(iter(loader))
    assert len(loader) == 2  # no whole epoch
    ds = af.from_arrow(pl.LazyFrame({"id": range(5)}))
    assert ds.num_rows is None and len(list(ds.batch(2))) == 3
    assert sum(batch.num_rows for batch in ds) == ds.num_rows == 5


def lists(lengths: list[int]) -> af.Dataset:
    return af.from_arrow(pa.table({"x": [[1] * length for length in lengths]}))


def resampled(ds: af.Dataset) -> af.Dataset:
    return ds.rejection_resample(pl.col("id") % 2, [0.5, 0.5], [0.9, 0.1])


UNSURE: dict[str, Callable[[], af.Dataset]] = {
    "a seeded map": lambda: af.range(9).map(lambda batch, rng: batch.slice(int(rng.integers(9))), seed=1),
    "a resampling": lambda: resampled(af.range(99)),
    "a mixture": lambda: af.sample_from_datasets([odd(af.range(300)), odd(af.range(90))]),
    "sources of a function": lambda: af.range(3).flat_map(lambda batch: af.from_generator(growing())),
    "draws in sources of a function": lambda: af.range(3).interleave(lambda batch: resampled(af.range(50))),
    "a map after a shuffle": lambda: af.range(99).shuffle(50, seed=1).map(lambda batch: batch.slice(1)),
    "the first rows after a shuffle": lambda: af.range(99).shuffle(99).take_while(pl.col("id") != 50),
    "one row a key after a shuffle": lambda: af.range(99).shuffle(9).unique(["id"]),
    "one row a key in any order": lambda: (
        af.range(99).unique(["id"]).with_options(af.Options(deterministic=False))
    ),
    "a sample": lambda: odd(af.range(99).sample(9, weights="id", seed=1)),
}


@pytest.mark.parametrize("name", UNSURE)
def test_epochs_that_may_differ_tell_nothing(name: str) -> None:
    for ds in (UNSURE[name](), UNSURE[name]().batch(2)):
        for _ in ds:
            pass
        assert ds.num_rows is None
        with pytest.raises(TypeError, match="may differ in length"):
            len(ds)


def test_buckets_tell_their_batches_unless_shuffled() -> None:
    ds = lists([1, 2, 3, 4, 5]).bucket_by_sequence_length("x", [3], [2, 2])
    with pytest.raises(TypeError, match="run a whole epoch first"):
        len(ds)
    assert len(list(ds)) == len(ds) == 3
    ds = lists(list(range(9))).shuffle(9).bucket_by_sequence_length("x", [3], [2, 2])
    list(ds)
    with pytest.raises(TypeError, match="may differ in length"):
        len(ds)


def test_another_file_is_another_length(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": np.arange(10)}), path)
    ds = odd(af.read_parquet(path))
    found = []
    for rows in (10, 30):
        pq.write_table(pa.table({"id": np.arange(rows)}), path)
        found.append(ds.num_rows)
        list(ds)
        found.append(ds.num_rows)
    assert found == [None, 5, None, 15]


# ---------------------------------------------------------------- head


@pytest.mark.parametrize("n", [0, 1, 5, 12, 40])
def test_head_is_the_first_rows_and_no_epoch(n: int) -> None:
    shuffled = af.range(12).shuffle(4, seed=1)
    for ds in (af.range(12), af.range(12).batch(5), shuffled, odd(af.range(24)).repeat(2)):
        assert_frame_equal(ds.head(n), pl.DataFrame(ds.to_table()).head(n))
    first = [batch.to_pydict() for batch in af.range(12).shuffle(4, seed=1)]
    assert [batch.to_pydict() for batch in shuffled] == first


def test_head_of_odd_columns() -> None:
    assert af.range(5).select([]).head(3).shape == (0, 0)  # a data frame without columns has no rows
    table = pa.table({"": [1], "d": pa.array(["a"]).dictionary_encode(), "m": [{"k": None}]})
    assert af.from_arrow(table).head()[""].to_list() == [1]
    assert af.from_arrow(table.slice(0, 0)).head().columns == ["", "d", "m"]
    empty_lists = af.from_arrow(pa.table({"x": pa.array([[]], pa.list_(pa.int32(), 0))}))
    with suppress(af.SchemaError):  # some versions of Polars panic
        assert empty_lists.head().height == 1


def test_head_reads_no_more_than_it_needs() -> None:
    calls: list[int] = []

    def count(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        return batch

    ds = af.range(10_000_000).map(count, num_parallel_calls=1).batch(100)
    assert ds.head(3)["id"].to_list() == [0, 1, 2]
    assert sum(calls) < 5_000_000
    assert af.range(3).repeat().head(7).height == 7
    for bad in (-1, 1.5, None):
        refused(af.PlanError, lambda bad=bad: af.range(3).batch(2).head(bad), "head", "n is")  # type: ignore[misc]
