"""`Dataset`: immutable, lazy, comparable, picklable; epochs; what it tells without running."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.plan.walk import render_plan
from arrowflow.testing import Fault, assert_same_batches, batches_of, check_dataset, raising
from tests.ops.tables import ALL_TYPES, NUMBERS, OPERATORS, identity, ids, numbers, refused, write_shards


def chain(source: af.Dataset) -> af.Dataset:
    return (
        source.filter(pl.col("row") > 2, pc.field("n") < 30)
        .with_columns(y=pl.col("x") * 2)
        .fill_null(0)
        .stack(dense=["x", "y"])
        .map(identity, columns=["row", "dense"])
        .shuffle(5, seed=1)
        .repeat(2)
        .batch(4)
        .prefetch(2)
        .with_options(af.Options(cpu_budget=2))
    )


@pytest.mark.slow
def test_a_long_chain_keeps_the_contracts() -> None:
    check_dataset(lambda: chain(af.from_arrow(NUMBERS)), epochs_differ=True)


# ---------------------------------------------------------------------------- laziness, immutability


def test_nothing_is_read_before_it_is_asked_for(tmp_path: Path) -> None:
    ds = af.read_parquet(tmp_path / "later").filter(pl.col("row") > 3).batch(2)
    (tmp_path / "later").mkdir()
    write_shards(tmp_path / "later", [[6]])
    assert [batch.num_rows for batch in ds] == [2]


def test_nothing_runs_before_the_first_batch_is_asked_for() -> None:
    fault = Fault(raising(ValueError("ran")), at=0)
    before = threading.active_count()
    ds = numbers(3).map(fault)
    iterator = iter(ds)
    loader = ds.to_numpy()
    assert (fault.calls, threading.active_count()) == (0, before)
    iterator.close()
    loader.close()


@pytest.mark.parametrize("name", OPERATORS)
def test_methods_change_nothing_and_return_another_dataset(name: str) -> None:
    ds = af.from_arrow(ALL_TYPES)
    assert ds.schema.names  # bound, as it will be by an operator that asks for it
    shown = repr(ds)
    assert OPERATORS[name](ds) is not ds
    assert repr(ds) == shown
    assert ds == af.from_arrow(ALL_TYPES)
    if name != "apply":
        assert OPERATORS[name](ds) != ds


def test_attributes_cannot_be_set() -> None:
    ds: Any = af.range(3)
    with pytest.raises(AttributeError):
        ds.other = 1


# ------------------------------------------------------------------------------ equality and pickles


@pytest.mark.parametrize("name", OPERATORS)
def test_equal_plans_are_equal_and_pickle(name: str) -> None:
    ds = OPERATORS[name](af.from_arrow(ALL_TYPES))
    same = OPERATORS[name](af.from_arrow(ALL_TYPES))
    again = pickle.loads(pickle.dumps(ds))
    assert ds == same == again
    assert hash(ds) == hash(same) == hash(again)
    assert_same_batches(batches_of(again), batches_of(ds))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (af.range(3), af.range(4)),
        (af.range(3).take(1), af.range(3).skip(1)),
        (af.range(3).shuffle(2, seed=1), af.range(3).shuffle(2, seed=2)),
        (af.range(3).filter(pl.col("id") > 1), af.range(3).filter(pl.col("id") > 2)),
        (af.range(3).filter(pc.field("id") > 1), af.range(3).filter(pl.col("id") > 1)),
        (af.from_arrow(pa.table({"x": [1]})), af.from_arrow(pa.table({"x": [2]}))),
        (af.from_arrow(pa.table({"x": [1]})), af.from_arrow(pa.table({"y": [1]}))),
        (af.from_arrow(pa.table({"x": [1, 2]})), af.from_arrow(pa.table({"x": [1]}))),
        (af.range(3).map(identity), af.range(3).map(identity, seed=1)),
    ],
)
def test_other_plans_are_not_equal(one: af.Dataset, other: af.Dataset) -> None:
    assert one != other


def test_a_dataset_is_equal_to_nothing_else() -> None:
    assert af.range(3) != 3
    assert len({af.range(3), af.range(3), af.range(4)}) == 2


def test_epochs_are_no_part_of_equality_and_pickles() -> None:
    ds = af.range(9).shuffle(9, seed=1)
    list(ds)
    fresh = pickle.loads(pickle.dumps(ds))
    assert fresh == ds == af.range(9).shuffle(9, seed=1)
    assert_same_batches(list(fresh), batches_of(ds))


def test_a_dataset_can_be_collected() -> None:
    ds = af.range(9).batch(2)
    list(ds)
    gone = weakref.ref(ds)
    del ds
    gc.collect()
    assert gone() is None


# --------------------------------------------------------------------------------------------- epochs


def test_each_iteration_is_the_next_epoch() -> None:
    ds = af.range(20).shuffle(20, seed=1)
    expected = [ids(ds, epoch=epoch) for epoch in range(4)]
    fresh = af.range(20).shuffle(20, seed=1)
    found = [[value for batch in fresh for value in batch.column("id").to_pylist()] for _ in range(2)]
    found.append([value for batch in fresh.to_numpy() for value in batch["id"].tolist()])
    found += [[value for frame in fresh.to_polars() for value in frame["id"]]]
    assert found == expected


def test_what_runs_epoch_0_does_not_count() -> None:
    ds = af.range(20).shuffle(20, seed=1)
    first = ds.to_table()
    ds.to_reader().read_all()
    assert ds.schema.names == ["id"] and ds.num_rows == 20 and ds.explain()
    assert pl.DataFrame(ds)["id"].to_list() == first.column("id").to_pylist() == ids(ds)
    assert_same_batches(list(af.range(20).shuffle(20, seed=1)), batches_of(ds))


@pytest.mark.parametrize("epoch", [-1, 1.0, True, None, "1"])
def test_epochs_are_whole_numbers(epoch: Any) -> None:
    with iter(af.range(3)) as iterator:
        refused(af.PlanError, lambda: iterator.set_epoch(epoch), "epoch")
    refused(af.PlanError, lambda: af.range(3).to_numpy().set_epoch(epoch), "epoch")


# ------------------------------------------------------------------------------------------ iterators


def test_an_iterator_ends_once_and_stays_at_its_end() -> None:
    iterator = iter(af.range(3))
    assert len(list(iterator)) == 1
    assert not list(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_a_closed_iterator_says_so() -> None:
    with iter(af.range(3)) as iterator:
        next(iterator)
    iterator.close()
    for call in (lambda: next(iterator), lambda: iterator.set_epoch(0)):
        refused(af.ClosedError, call, "closed")


def test_batches_outlive_their_iterator() -> None:
    with iter(af.range(100_000).with_columns(y=pl.col("id") * 2).batch(1_000)) as iterator:
        kept = [next(iterator) for _ in range(3)]
    gc.collect()
    assert [batch.column("y")[0].as_py() for batch in kept] == [0, 2_000, 4_000]


# ------------------------------------------------------------------------------------------ looking


def test_num_rows_is_exact_or_none(tmp_path: Path) -> None:
    files = af.read_parquet(write_shards(tmp_path, [[3, 4], [5]]))
    known = {
        12: files.with_columns(y=pl.col("row")).shuffle(5).prefetch(2).batch(5),
        10: files.batch(5, drop_remainder=True),
        3: files.skip(9).take(5),
        8: files.take(4).repeat(2),
        6: files.shard(2, 1),
        0: files.take(0).filter(pl.col("row") > 3).repeat(),
    }
    for expected, ds in known.items():
        assert ds.num_rows == expected
        assert ds.to_table().num_rows == expected
    for ds in (files.filter(pl.col("row") > 3), files.map(identity)):
        assert ds.num_rows is None


def test_schema_is_unknown_where_only_running_tells() -> None:
    for ds in (numbers(3).map(identity), af.from_generator(lambda: iter([{"x": 1}])).batch(2)):
        refused(af.PlanError, partial(getattr, ds, "schema"), "schema=")
        assert ds.to_table().num_rows
    refused(af.PlanError, lambda: numbers(0).map(identity).to_table(), "schema=")


def test_a_repr_reads_from_the_source_down() -> None:
    ds = af.range(10).filter(pl.col("id") > 3).batch(2)
    lines = repr(ds).splitlines()
    assert [line.strip().split("(")[0] for line in lines[:4]] == ["Dataset", "range", "filter", "batch"]
    assert lines[4:] == ["columns", "  id: int64"]
    list(ds)
    assert repr(ds).splitlines()[4:] == ["rows", "  6 in 3 batches", "columns", "  id: int64"]


def test_a_repr_says_what_is_known_without_reading(tmp_path: Path) -> None:
    def known(ds: af.Dataset) -> list[str]:
        text = repr(ds)
        return text[text.index("\n") + 1 :].split("\n")[len(render_plan(ds._plan)) :]

    assert known(af.range(12_000)) == ["rows", "  12,000", "columns", "  id: int64"]
    assert known(af.range(7).batch(2)) == ["rows", "  7 in 4 batches", "columns", "  id: int64"]
    assert known(af.range(7).repeat()) == ["rows", "  without end", "columns", "  id: int64"]
    assert known(numbers(9).map(identity)) == []  # the function tells no columns
    wrong = numbers(9).cast({"row": pa.list_(pa.int8())})  # an error, which is told where it is used
    assert known(wrong) == ["columns", "  row"]
    path = tmp_path / "a.csv"  # is not there
    assert known(af.read_csv(path)) == []
    ds = af.read_csv(path, schema={"x": pa.int64(), "s": pa.string()})
    assert known(ds) == ["columns", "  x", "  s"]
    path.write_text("x,s\n1,a\n")
    assert ds.schema.names == ["x", "s"]
    assert known(ds) == ["columns", "  x: int64", "  s: string"]  # the rows have not been counted
    assert ds.num_rows == 1
    assert known(ds) == ["rows", "  1", "columns", "  x: int64", "  s: string"]
    assert known(af.range(9).cache(tmp_path / "cache")) == ["columns", "  id"]


def test_a_repr_reads_footers_of_local_files_and_nothing_else(tmp_path: Path) -> None:
    for number in range(65):
        pq.write_table(pa.table({"x": [number]}), tmp_path / f"{number:02}.parquet")
    ds = af.read_parquet(tmp_path)
    assert repr(ds).splitlines()[2:] == ["columns", "  x: int64"]  # 65 files are too many to count
    few = [tmp_path / f"{number:02}.parquet" for number in range(64)]
    assert repr(af.read_parquet(few).batch(10)).splitlines()[-4:] == [
        "rows",
        "  64 in 7 batches",
        "columns",
        "  x: int64",
    ]
    assert repr(af.read_parquet(few).filter(pl.col("x") > 3)).splitlines()[3:] == ["columns", "  x: int64"]
    for not_now in (af.read_parquet(few, missing_columns="null"), ds.batch(2).split_by_rank(0, 2)):
        assert "x: int64" not in repr(not_now), "all footers would be read"
    pq.write_table(pa.table({"y": [1.5] * 7}), few[0])
    alone = af.read_parquet(few[:1])
    assert repr(alone).splitlines()[2:] == ["rows", "  7", "columns", "  y: double"]
    pq.write_table(pa.table({"x": [3]}), few[0])
    assert repr(alone).splitlines()[2:] == ["rows", "  1", "columns", "  x: int64"]
    (tmp_path / "00.parquet").write_bytes(b"no footer")  # told where the dataset is used
    assert len(repr(af.read_parquet(tmp_path)).splitlines()) == 2
    assert "rows" not in repr(af.list_files(tmp_path))  # a folder may have any number of folders
    assert repr(af.read_parquet(3)).splitlines()[1] == "  read_parquet(3)"  # type: ignore[arg-type]
    assert repr(af.range(5).select([]).take(3)).splitlines()[-2:] == ["rows", "  3"]
    for read in (af.read_parquet, af.list_files, af.read_images, af.read_delta, af.read_iceberg):
        assert "rows" not in repr(read("s3://bucket/x.parquet"))  # no request, and no client


@pytest.mark.parametrize("name", OPERATORS)
def test_explain_names_every_operator(name: str) -> None:
    ds = OPERATORS[name](af.from_arrow(ALL_TYPES))
    text = ds.explain()
    assert text.index("logical plan") < text.index("optimised plan") < text.index("physical plan")
    assert {"apply": "skip"}.get(name, name) in text.split("optimised plan")[0]
