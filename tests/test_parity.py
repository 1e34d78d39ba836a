"""Parity: what a plan yields does not depend on rules, workers or budgets; nor, but for its order, on `deterministic`.

The matrix is rules on and off, 1 and 4 calls at once, the least byte budget and a roomy one, ordered and
unordered, for plans that between them use every rule and every operator.
"""

from __future__ import annotations

import dataclasses
import decimal
import itertools
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.ops.sources import from_memory
from arrowflow.optimizer import RULES, lengthen_chunks
from arrowflow.testing import assert_same_batches, assert_same_rows, batches_of

pytestmark = [pytest.mark.slow, pytest.mark.any_version]

ALL_RULES = tuple(rule.name for rule in RULES)
NUM_ROWS = 360
Apply = Callable[[af.Dataset], af.Dataset]


def features() -> pa.Table:
    """Numbers with nulls and NaN, texts and lists; sorted by `day`, so that statistics prune row groups."""
    rng = np.random.Generator(np.random.Philox(5))
    x = rng.random(NUM_ROWS)
    x[::17] = np.nan
    return pa.table(
        {
            "day": pa.array(np.arange(NUM_ROWS) // 10, pa.int32()),
            "x": pa.array(x, mask=rng.random(NUM_ROWS) < 0.1),
            "y": pa.array(rng.random(NUM_ROWS).astype(np.float32)),
            "text": pa.array([None if i % 11 == 0 else f"row {i}" for i in range(NUM_ROWS)]),
            "price": pa.array(
                [None if i % 13 == 0 else decimal.Decimal(i) / 4 for i in range(NUM_ROWS)],
                pa.decimal128(9, 2),
            ).cast(pa.decimal128(15, 2)),
            "list": pa.array([list(range(i % 4)) for i in range(NUM_ROWS)], pa.list_(pa.int32())),
            "pair": pa.array([None if i % 7 == 0 else {"a": i, "b": f"{i}"} for i in range(NUM_ROWS)]),
        }
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three files of four row groups each, as Parquet and as IPC."""
    table = features()
    folders = {format: tmp_path_factory.mktemp(format) for format in ("parquet", "ipc")}
    for number in range(3):
        part = table.slice(number * 120, 120)
        pq.write_table(
            part, folders["parquet"] / f"{number}.parquet", row_group_size=30, store_decimal_as_integer=True
        )
        with pyarrow.ipc.new_file(folders["ipc"] / f"{number}.arrow", part.schema) as writer:
            writer.write_table(part, max_chunksize=30)
    return folders


@pytest.fixture(scope="module", autouse=True)
def _few_rows_are_many() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lengthen_chunks, "MANY_ROWS", NUM_ROWS)
        patch.setattr(from_memory, "MAX_CHUNK_ROWS", 16)
        yield


def jitter(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
    return pa.record_batch({"day": batch.column("day"), "noise": pa.array(rng.random(batch.num_rows))})


def per_day(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows per piece: depends on what the function sees."""
    return frame.group_by("day", maintain_order=True).agg(pl.len().alias("n"), pl.col("y").sum().alias("sum"))


def some_days(row: dict[str, object]) -> af.Dataset:
    """A dataset for a row, random and of another size for each."""
    day = int(str(row["day"]))
    return af.range(day % 9).select(day=pl.col("id") + day).map(jitter, seed=8)


PLANS: dict[str, Apply] = {
    "pruned columns and row groups": lambda ds: (
        ds.filter(pc.field("day") > 20).with_columns(z=pl.col("x") * 2).select("z", "day").batch(32)
    ),
    "limited reads": lambda ds: ds.skip(40).take(200).skip(5).with_columns(z=pl.col("day") + 1).batch(16),
    "a filter below a limit": lambda ds: ds.filter(pl.col("x") > 0.5).skip(7).take(50).drop("list").batch(8),
    "merged columns": lambda ds: (
        ds.rename({"x": "was"})
        .fill_null({"was": 0.0})
        .cast({"was": pa.float32()})
        .with_columns(a=pl.col("was") + pl.col("y"))
        .filter(pl.col("a") > 0.3, pc.field("day") != 7)
        .drop("was")
        .stack(dense=["a", "y"])
        .batch(20)
    ),
    "stored decimals": lambda ds: (
        ds.filter(pl.col("price").is_not_null())
        .select("day", revenue=pl.col("price").cast(pl.Float32) * 2)
        .batch(25)
    ),
    "a field of a struct": lambda ds: (
        ds.filter(pl.col("pair").struct.field("a") % 3 > 0)
        .select("day", a=pl.col("pair").struct.field("a"))
        .batch(25)
    ),
    "shuffled": lambda ds: ds.filter(pl.col("day") >= 3).select("day", "text").shuffle(50, seed=1).batch(16),
    "stacked behind a shuffle": lambda ds: (
        ds.fill_null({"x": 0.5})
        .shuffle(64, seed=2)
        .cast({"x": pa.float32()})
        .stack(dense=["x", "y"])
        .batch(24, drop_remainder=True)
    ),
    "random behind a pruned filter": lambda ds: (
        ds.filter(pc.field("day") > 15).map(jitter, seed=4).filter(pl.col("noise") < 0.9).repeat(2).batch(16)
    ),
    "pieces": lambda ds: (
        ds.filter(pl.col("day") % 3 > 0)
        .with_options(af.Options(max_chunk_rows=7))
        .map(per_day, format="polars", columns=["day", "y"])
        .batch(5)
    ),
    "everything twice": lambda ds: (
        ds.shard(2, 1)
        .shuffle(33, seed=6)
        .repeat(3)
        .prefetch(2)
        .batch(10)
        .map(lambda batch: batch.slice(0, batch.num_rows - 1))
        .batch(7)
    ),
    "interleaved": lambda ds: (
        ds.filter(pl.col("day") % 3 == 0)
        .select("day", "x")
        .interleave(some_days, cycle_length=5, block_length=3)
        .filter(pl.col("noise") < 0.8)
        .map(jitter, seed=9)
        .batch(12)
    ),
    "cached": lambda ds: (
        ds.filter(pc.field("day") > 9)
        .map(jitter, seed=4)
        .cache()
        .with_columns(z=pl.col("noise") * 2)
        .repeat(2)
        .batch(20)
        .cache()
    ),
    "long chunks of rows in memory": lambda ds: (
        ds.select("day", "y")
        .concatenate(af.from_arrow(features().select(["day", "y"]).combine_chunks()))
        .with_columns(z=pl.col("y") * 2)
        .batch(15)
    ),
    "nothing to do": lambda ds: ds.skip(0).select(*ds.schema.names).prefetch(0).batch(50),
    "no rows": lambda ds: ds.filter(pl.col("day") < 0).shuffle(5).batch(3),
}


def build(folders: dict[str, Path], format: str, name: str, options: af.Options) -> af.Dataset:
    read = af.read_parquet if format == "parquet" else af.read_ipc
    return PLANS[name](read(folders[format])).with_options(options)


@cache
def expected_for(folder: Path, format: str, name: str) -> list[pa.RecordBatch]:
    return batches_of(build({format: folder}, format, name, af.Options(cpu_budget=2)), epoch=1)


def least(ds: af.Dataset) -> int:
    """Returns the byte budget that the plan needs at least, or one byte; a cache says what it needs bit by bit."""
    budget = 1
    while True:
        try:
            batches_of(ds.with_options(af.Options(ram_budget=budget)))
        except af.BudgetError as error:
            found = re.search(r"(?:needs,|take) ([\d,]+) bytes", str(error))
            assert found is not None
            budget = int(found[1].replace(",", ""))
        else:
            return budget


UNORDERED = [
    "pruned columns and row groups",
    "merged columns",
    "shuffled",
    "random behind a pruned filter",
    "pieces",
    "cached",
    "nothing to do",
    "no rows",
]
"""Plans whose rows do not depend on their order."""

RULES_ON_AND_OFF = pytest.mark.parametrize("disabled", [(), ALL_RULES], ids=["rules on", "rules off"])


def runs(
    folders: dict[str, Path], name: str, options: af.Options
) -> Iterator[tuple[str, list[pa.RecordBatch]]]:
    """Yields what the plan yields with 1 and 4 calls at once, under the least and under a roomy byte budget.

    One call at a time has the least alone: in a roomy budget it does nothing that four calls do not.
    """
    floor = least(build(folders, "parquet", name, options))
    for cpu_budget, ram_budget in ((1, floor), (4, floor), (4, 1 << 30)):
        run = dataclasses.replace(options, cpu_budget=cpu_budget, ram_budget=ram_budget)
        yield str(run), batches_of(build(folders, "parquet", name, run), epoch=1)


@RULES_ON_AND_OFF
@pytest.mark.parametrize("name", PLANS)
def test_budgets_and_rules_change_nothing(
    folders: dict[str, Path], name: str, disabled: tuple[str, ...]
) -> None:
    expected = expected_for(folders["parquet"], "parquet", name)
    for run, found in runs(folders, name, af.Options(disabled_rules=disabled)):
        assert_same_batches(found, expected, run)


@RULES_ON_AND_OFF
@pytest.mark.parametrize("name", UNORDERED)
def test_without_an_order_the_rows_are_the_same(
    folders: dict[str, Path], name: str, disabled: tuple[str, ...]
) -> None:
    expected = expected_for(folders["parquet"], "parquet", name)
    for run, found in runs(folders, name, af.Options(disabled_rules=disabled, deterministic=False)):
        assert_same_rows(found, expected, run, ordered=False)


def used_rules(folders: dict[str, Path], name: str) -> list[str]:
    """Returns the rules that change a plan."""
    lines = build(folders, "parquet", name, af.Options()).explain().splitlines()
    title = next(line for line in lines if "rules:" in line)
    return [rule for rule in ALL_RULES if rule in title]


@pytest.mark.parametrize("name", PLANS)
def test_each_rule_alone_changes_nothing(folders: dict[str, Path], name: str) -> None:
    expected = expected_for(folders["parquet"], "parquet", name)
    for rule in used_rules(folders, name):
        others = tuple(other for other in ALL_RULES if other != rule)
        for disabled in ((rule,), others):
            found = batches_of(build(folders, "parquet", name, af.Options(disabled_rules=disabled)), epoch=1)
            assert_same_batches(found, expected, f"without {disabled}")


def test_every_rule_is_used_by_some_plan(folders: dict[str, Path]) -> None:
    """Otherwise the matrix would say nothing about it."""
    assert {rule for name in PLANS for rule in used_rules(folders, name)} == set(ALL_RULES)


@pytest.mark.parametrize("name", PLANS)
def test_formats_yield_the_same(folders: dict[str, Path], name: str) -> None:
    """Splits are the same, so even random numbers and pieces are."""
    expected = expected_for(folders["parquet"], "parquet", name)
    assert_same_batches(expected_for(folders["ipc"], "ipc", name), expected)


@pytest.mark.parametrize("name", PLANS)
def test_states_go_on_under_other_budgets(folders: dict[str, Path], name: str) -> None:
    """In the middle of the run; with rules off, too, where they do not change the way of a position."""
    expected = expected_for(folders["parquet"], "parquet", name)
    small = af.Options(cpu_budget=1)
    large = af.Options(cpu_budget=4, ram_budget=1 << 30)
    middle = len(expected) // 2
    with iter(build(folders, "parquet", name, small)) as iterator:
        iterator.set_epoch(1)
        first = list(itertools.islice(iterator, middle))
        state = iterator.state_dict()
    with iter(build(folders, "parquet", name, large)) as iterator:
        iterator.load_state_dict(state)
        assert_same_batches(first + list(iterator), expected)
