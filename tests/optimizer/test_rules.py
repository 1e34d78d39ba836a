"""What each rule does to a plan, what it leaves alone, and that it never changes a row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow import run
from arrowflow.ops.sources.files.read import Read
from arrowflow.ops.sources.from_memory import FromMemory
from arrowflow.optimizer import RULES, lengthen_chunks
from arrowflow.plan.node import Node
from arrowflow.plan.walk import post_order

pytestmark = pytest.mark.any_version

ALL_RULES = tuple(rule.name for rule in RULES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files of four row groups of 100 rows; `a` counts through all of them."""
    path = tmp_path_factory.mktemp("rules")
    for number in range(3):
        first = number * 400
        rows = np.arange(first, first + 400)
        table = pa.table(
            {"a": rows, "b": rows * 0.5, "c": (rows % 7).astype("f4"), "d": (rows % 5).astype("f4")}
        )
        pq.write_table(table, path / f"{number}.parquet", row_group_size=100)
    return path


def optimised(dataset: af.Dataset, *only: str) -> Node:
    """Returns the plan after the rules that are named, or after all."""
    off = tuple(name for name in ALL_RULES if only and name not in (*only, "remove_noops"))
    return run.prepare(dataset.with_options(af.Options(disabled_rules=off))._plan).optimised


def names(plan: Node) -> list[str]:
    """Returns the operators of a plan, the source's first."""
    return [node.name for node in post_order(plan)]


def source(plan: Node) -> Read:
    """Returns the file source of a plan."""
    (read,) = (node for node in post_order(plan) if isinstance(node, Read))
    return read


def same_rows(dataset: af.Dataset, rules: tuple[str, ...] = ALL_RULES) -> bool:
    """Whether a dataset yields the same batches with and without these rules."""
    off = dataset.with_options(af.Options(disabled_rules=rules))
    return list(dataset) == list(off)


def test_remove_noops(folder: Path) -> None:
    plain = af.read_parquet(folder)
    dataset = plain.with_options(af.Options(seed=1)).skip(0).repeat(1).shard(1, 0).prefetch(0).take(50)
    assert names(optimised(dataset, "remove_noops")) == ["read", "take"]
    assert same_rows(dataset)


def test_merge_columns_makes_one_program_of_a_run(folder: Path) -> None:
    dataset = (
        af.read_parquet(folder).filter(pl.col("a") > 10).drop("d").rename({"b": "x"}).take(90).select("x")
    )
    plan = optimised(dataset, "merge_columns")
    assert names(plan) == ["read", "columns", "take", "columns"]
    assert plan.inputs[0].inputs[0].describe() == "columns[filter · drop · rename]"
    assert same_rows(dataset)


def test_stack_moves_below_shuffle_and_batch(folder: Path) -> None:
    dataset = af.read_parquet(folder).shuffle(300, seed=1).batch(64).stack(dense=["c", "d"])
    plan = optimised(dataset, "merge_columns", "stack_before_shuffle")
    assert names(plan) == ["read", "columns", "shuffle", "batch"]
    assert same_rows(dataset)


Build = Callable[[af.Dataset], af.Dataset]
STAYS: dict[str, Build] = {
    "across take": lambda ds: ds.take(50).stack(x=["c", "d"]),
    "without a stack": lambda ds: ds.with_columns(x=pl.col("c") + 1),
    "across a function": lambda ds: ds.map(lambda batch: batch, schema=ds.schema).stack(x=["c", "d"]),
    "more columns": lambda ds: ds.with_columns(y=pl.col("a"), z=pl.col("a")).stack(x=["c", "d"]),
}


@pytest.mark.parametrize("name", [*STAYS, "without a shuffle"])
def test_stack_stays(folder: Path, name: str) -> None:
    source = af.read_parquet(folder)
    dataset = (
        STAYS[name](source.shuffle(300, seed=1)) if name in STAYS else source.batch(50).stack(x=["c", "d"])
    )
    plain = names(optimised(dataset, "remove_noops"))
    assert names(optimised(dataset, "stack_before_shuffle")) == plain
    assert same_rows(dataset)


def test_prune_columns_reaches_the_source(folder: Path) -> None:
    dataset = (
        af.read_parquet(folder)
        .filter(pl.col("a") > 5)
        .with_columns(x=pl.col("b") * 2)
        .shuffle(99)
        .select("x")
    )
    plan = optimised(dataset)
    assert source(plan).columns == ("a", "b")
    assert [child.schema.names for child in plan.inputs if child.schema] == [["x"]]
    assert same_rows(dataset)


def test_prune_columns_keeps_the_rows_when_no_column_is_needed(folder: Path) -> None:
    dataset = af.read_parquet(folder).with_columns(one=pl.lit(1)).select("one")
    assert source(optimised(dataset)).columns == ("c",)
    assert dataset.to_table().num_rows == 1200
    assert same_rows(dataset)


def test_prune_columns_stops_at_a_user_function_that_names_none(folder: Path) -> None:
    ds = af.read_parquet(folder)
    whole = ds.map(lambda batch: batch, schema=ds.schema).select("a")
    part = ds.map(lambda batch: batch, columns=["a", "c"]).select("a")
    assert source(optimised(whole)).columns is None
    assert source(optimised(part)).columns == ("a", "c")
    assert same_rows(whole)
    assert same_rows(part)


def test_prune_columns_narrows_what_is_in_memory() -> None:
    """Otherwise a shuffle would gather columns that are dropped right after it."""
    table = pa.table({"a": range(10), "b": range(10)})
    dataset = af.from_arrow(table).shuffle(4, seed=1).select("b")
    assert names(optimised(dataset)) == ["from_arrow", "columns", "shuffle", "columns"]
    assert same_rows(dataset)


WIDE = pa.table(
    {
        "a": range(6),
        "b": [float(n) for n in range(6)],
        "text": [str(n) for n in range(6)],
        "list": [[n] for n in range(6)],
    }
)
TABLE = pa.table({"a": range(6), "found": range(6), "other": range(6)})
READ: dict[str, tuple[Callable[[af.Dataset], af.Dataset], str]] = {
    "cache": (lambda ds: ds.cache().select("b"), "a b text list"),
    "sample": (lambda ds: ds.sample(4, weights="a", replacement=True).select("b"), "a b"),
    "explode": (lambda ds: ds.explode("list").select("b"), "b list"),
    "unique": (lambda ds: ds.unique("a").select("b"), "a b"),
    "unique in all": (lambda ds: ds.unique().select("b"), "a b text list"),
    "enumerate": (lambda ds: ds.enumerate(name="number").select("number", "b"), "b"),
    "take_while": (lambda ds: ds.take_while(pl.col("a") < 3).select("b"), "a b"),
    "rejection_resample": (lambda ds: ds.rejection_resample(pl.col("a") % 2, [1, 1]).select("b"), "a b"),
    "group_by_window": (lambda ds: ds.group_by_window(pl.col("a") % 2, 2).select("b"), "a b"),
    "window": (lambda ds: ds.window(2).select("b"), "b"),
    "window of series": (lambda ds: ds.window(2, by="a").select("b"), "a b"),
    "batch": (lambda ds: ds.batch(4, pad_remainder=True, mask="real").select("real", "b"), "b"),
    "padded_batch": (
        lambda ds: ds.padded_batch(2, lengths={"list": "length"}).select("length", "b"),
        "b list",
    ),
    "bucket_by_sequence_length": (
        lambda ds: ds.bucket_by_sequence_length("text", [2], [2, 2]).select("b"),
        "b text",
    ),
    "pack_sequences": (lambda ds: ds.select("list", "b").pack_sequences("list", 4).select("list"), "list"),
    "join": (lambda ds: ds.join(TABLE, "a").select("found", "b"), "a b"),
    "zip": (lambda ds: af.zip(ds, af.range(9)).select("id", "b"), "b"),
    "concatenate": (lambda ds: ds.concatenate(ds.filter(pl.col("a") > 1)).select("b"), "b"),
    "map": (lambda ds: ds.map(lambda batch: batch, columns=["a", "b"]).select("b"), "a b"),
    "filter": (lambda ds: ds.filter(lambda batch: batch["a"], columns=["a"]).select("b"), "a b"),
}


@pytest.mark.parametrize("name", READ)
def test_operators_read_the_columns_that_they_need(name: str) -> None:
    apply, expected = READ[name]
    plan = optimised(apply(af.from_arrow(WIDE)))
    sources = [node for node in post_order(plan) if isinstance(node, FromMemory)]
    readers = [node for node in post_order(plan) if sources[0] in node.inputs]
    first = readers[0] if readers[0].name == "columns" else sources[0]
    assert first.schema is not None and first.schema.names == expected.split(), plan


def test_prune_row_groups_pushes_the_predicates_of_the_source_s_own_columns(folder: Path) -> None:
    dataset = (
        af.read_parquet(folder)
        .with_columns(c=pl.col("c") + 1)
        .filter(pl.col("a") >= 1000)
        .filter(pl.col("c") > 100)  # another c than the file's
    )
    read = source(optimised(dataset))
    assert [predicate.columns for predicate in read.predicates] == [("a",)]
    assert "statistics prune 4 of 4 splits of the first file" in dataset.explain()
    assert same_rows(dataset)


ACROSS: dict[str, Build] = {
    "shuffle": lambda ds: ds.shuffle(300, seed=1),
    "map": lambda ds: ds.map(lambda batch: batch),
    "repeat": lambda ds: ds.repeat(2),
    "filter": lambda ds: ds.filter(pl.col("a") > 3),
}


@pytest.mark.parametrize("name", ACROSS)
def test_filters_and_limits_stay_behind(folder: Path, name: str) -> None:
    before = ACROSS[name](af.read_parquet(folder))
    filtered, limited = before.filter(pl.col("a") > 1000), before.take(10)
    assert (source(optimised(filtered)).predicates == ()) == (name != "filter")
    assert source(optimised(limited)).rows == (0, None)
    assert same_rows(filtered) and same_rows(limited)


@pytest.mark.parametrize(("skip", "take"), [(0, 5), (150, 900), (399, 2), (400, 400), (1190, 50), (2000, 1)])
def test_limit_reads_counts_by_footers(folder: Path, skip: int, take: int) -> None:
    dataset = af.read_parquet(folder).select("a").skip(skip).take(take).filter(pl.col("a") % 2 == 0)
    read = source(optimised(dataset))
    assert read.rows == (skip, skip + take)
    assert dataset.to_table()["a"].to_pylist() == [
        a for a in range(skip, min(skip + take, 1200)) if a % 2 == 0
    ]
    assert same_rows(dataset)


def test_limits_combine(folder: Path) -> None:
    dataset = af.read_parquet(folder).take(500).skip(90).take(1000).skip(10)
    assert source(optimised(dataset)).rows == (100, 500)
    assert dataset.to_table()["a"].to_pylist() == list(range(100, 500))


@pytest.mark.parametrize("rule", ALL_RULES)
def test_each_rule_can_be_switched_off_alone(folder: Path, rule: str) -> None:
    dataset = (
        af.read_parquet(folder)
        .skip(30)
        .with_columns(x=pl.col("c") + 1)
        .filter(pl.col("a") > 450)
        .shuffle(128, seed=3)
        .batch(50)
        .stack(y=["c", "d", "x"])
    )
    kept = run.prepare(dataset.with_options(af.Options(disabled_rules=(rule,)))._plan)
    assert rule not in kept.applied
    assert same_rows(dataset, (rule,))


def test_lengthen_chunks_leaves_rows_alone_that_a_shuffle_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arrowflow.optimizer.lengthen_chunks.MANY_ROWS", 10)
    dataset = af.from_arrow(pa.table({"x": range(10)})).batch(5)
    plan = optimised(dataset, "lengthen_chunks")
    assert isinstance(plan.inputs[0], FromMemory) and plan.inputs[0].long_chunks
    assert lengthen_chunks.lengthen_chunks(plan) is plan, "nothing is left to do"
    shuffled = af.from_arrow(pa.table({"x": range(10)})).shuffle(4).batch(5)
    for each, applied in ((dataset, ("lengthen_chunks",)), (shuffled, ())):
        assert run.prepare(each._plan).applied == applied


def test_rules_find_nothing_to_do_a_second_time(folder: Path) -> None:
    dataset = (
        af.read_parquet(folder).filter(pl.col("a") > 450).shuffle(128, seed=3).batch(50).stack(y=["c", "d"])
    )
    plan = optimised(dataset)
    for rule in RULES:
        if rule.name != "prune_row_groups":
            assert rule.apply(plan) == plan, rule.name


def test_an_unknown_rule_is_named(folder: Path) -> None:
    with pytest.raises(af.PlanError, match=r"no rule 'prune'.*prune_columns"):
        af.range(3).with_options(af.Options(disabled_rules=("prune",))).to_table()


def test_rules_have_names_and_reasons() -> None:
    assert len(set(ALL_RULES)) == len(RULES)
    assert all(rule.reason for rule in RULES)
