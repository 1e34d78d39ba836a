"""`locate`: the rows of any batch, found where they lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.errors import PlanError
from arrowflow.plan.access import position_at
from tests.ops.ranks.pipelines import documents, doubled

pytestmark = pytest.mark.any_version

Make = Callable[[Path], af.Dataset]


def of(path: Path) -> af.Dataset:
    return af.read_parquet(path)


def counted(path: Path) -> af.Dataset:
    rows = of(path).filter(pl.col("id") % 3 == 1)
    return rows.assert_cardinality(af.count_rows(rows))


def half(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
    return batch.filter(pa.array(rng.random(batch.num_rows) < 0.5))


PLANS: dict[str, Make] = {
    "plain": lambda path: of(path).batch(32),
    "select": lambda path: (
        of(path).select("id", x=pl.col("id") * 2).batch(32).with_columns(y=pl.col("x") + 1)
    ),
    "selectors": lambda path: (
        of(path).with_columns(s=pl.sum_horizontal(pl.selectors.all())).filter(pl.col("s") % 2 == 0).batch(9)
    ),
    "shuffle": lambda path: of(path).shuffle(60, seed=3).batch(32),
    "global shuffle of a part": lambda path: of(path).skip(100).take(600).shuffle(50, seed=1).batch(7),
    "filter": lambda path: of(path).filter(pl.col("id") % 7 == 3).shuffle(100, seed=1).batch(8),
    "counted": lambda path: counted(path).shuffle(100, seed=1).batch(8, drop_remainder=True),
    "random function": lambda path: of(path).map(half, seed=1).batch(16),
    "repeat": lambda path: of(path).shuffle(100, seed=1).repeat(2).batch(64),
    "mix": lambda path: af.sample_from_datasets([of(path).shuffle(90), of(path)], seed=4).batch(32),
    "bucket": lambda path: documents(of(path).select("id")).bucket_by_sequence_length(
        "tokens", [3, 6], [8, 6, 4]
    ),
    "lanes": lambda path: of(path).shuffle(1600, seed=1).batch(32).split_by_rank(1, 4),
    "counted lanes": lambda path: counted(path).shuffle(1600, seed=1).batch(16).split_by_rank(0, 2),
    "filled up": lambda path: of(path).batch(100, pad_remainder=True),
}
KEEPS_COLUMNS = PLANS.keys() - {"bucket"}
SEEKS = {
    *("plain", "select", "shuffle", "global shuffle of a part", "counted", "lanes", "counted lanes"),
    "filled up",
}


def ids(path: Path, rows: pa.Table) -> list[int]:
    """Returns what stands where rows say."""
    files = {str(file): pq.ParquetFile(file) for file in path.iterdir()}
    return [
        files[row["file"]].read_row_group(row["row_group"])["id"][row["row"]].as_py()
        for row in rows.to_pylist()
    ]


@pytest.mark.parametrize("name", sorted(KEEPS_COLUMNS))
@pytest.mark.parametrize("epoch", [0, 2])
def test_the_rows_of_a_batch_are_found(path: Path, name: str, epoch: int) -> None:
    run = iter(PLANS[name](path))
    run.set_epoch(epoch)
    batches = list(run)
    for step in (0, len(batches) // 2, len(batches) - 1):
        rows = af.locate(PLANS[name](path), epoch, step)
        assert rows.column_names == ["file", "row_group", "row"]
        assert ids(path, rows) == batches[step]["id"].to_pylist()
    with pytest.raises(PlanError, match=f"epoch {epoch} has no step {len(batches):,}"):
        af.locate(PLANS[name](path), epoch, len(batches))


@pytest.mark.parametrize("name", sorted(SEEKS))
def test_nothing_is_run_up_to_the_batch(path: Path, name: str) -> None:
    prepared = PLANS[name](path)._ready()
    assert position_at(prepared.optimised, 10, 1) is not None


def test_steps_that_are_left_out_are_found_too(path: Path) -> None:
    ds = PLANS["shuffle"](path)
    skipping = ds.with_options(af.Options(skip_steps={0: [3]}))
    assert af.locate(skipping, 0, 3) == af.locate(ds, 0, 3)
    assert af.locate(skipping, 0, 4) == af.locate(ds, 0, 4)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: of(path), "does not end in batches"),
        (lambda path: af.range(9).batch(2), "right after a source of files"),
        (
            lambda path: (
                of(path).map(doubled, schema=pa.schema({"id": pa.int64(), "x": pa.int64()})).batch(4)
            ),
            "__arrowflow_file",
        ),
        (lambda path: of(path).map(doubled).batch(4), "__arrowflow_file"),
        (lambda path: of(path).concatenate(af.range(3)).batch(4), "right after a source of files"),
    ],
)
def test_what_cannot_be_located_is_said(path: Path, make: Make, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        af.locate(make(path), 0, 0)


@pytest.mark.parametrize(("epoch", "step"), [(-1, 0), (0, -1), (True, 0), (0, "a")])
def test_other_numbers_are_refused(path: Path, epoch: Any, step: Any) -> None:
    with pytest.raises(PlanError, match=r"locate: (epoch|step) is"):
        af.locate(PLANS["plain"](path), epoch, step)
