"""Selectors of Polars wherever columns are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.testing import check_operator
from tests.ops.tables import NUMBERS, Apply, refused

pytestmark = pytest.mark.any_version

TABLE = pa.table({"f1": [1.0, 2.0], "s": ["a", None], "f2": [3.0, None], "i": [1, 1]})

CASES: dict[str, tuple[Callable[[af.Dataset], af.Dataset], Callable[[af.Dataset], af.Dataset]]] = {
    "drop": (lambda ds: ds.drop(cs.string(), "i"), lambda ds: ds.drop("s", "i")),
    "drop nothing": (lambda ds: ds.drop(cs.date()), lambda ds: ds),
    "stack": (
        lambda ds: ds.fill_null(0).stack(x=cs.starts_with("f")),
        lambda ds: ds.fill_null(0).stack(x=["f1", "f2"]),
    ),
    "stack a list": (
        lambda ds: ds.fill_null(0).stack(x=["f2", cs.float()]),
        lambda ds: ds.fill_null(0).stack(x=["f2", "f1"]),
    ),
    "cast": (
        lambda ds: ds.cast({cs.float(): pl.Float32, "i": pl.Int8}),
        lambda ds: ds.cast({"f1": pl.Float32, "f2": pl.Float32, "i": pl.Int8}),
    ),
    "fill_null": (
        lambda ds: ds.fill_null({cs.float(): 0, cs.string(): "?"}),
        lambda ds: ds.fill_null({"f1": 0, "f2": 0, "s": "?"}),
    ),
    "unique": (lambda ds: ds.unique(cs.integer()), lambda ds: ds.unique("i")),
    "map": (lambda ds: ds.map(same, columns=cs.float()), lambda ds: ds.map(same, columns=["f1", "f2"])),
    "map_rows": (
        lambda ds: ds.map_rows(same, columns=[cs.last()]),
        lambda ds: ds.map_rows(same, columns=["i"]),
    ),
    "scan": (
        lambda ds: ds.scan(0, beside, columns=~cs.float()),
        lambda ds: ds.scan(0, beside, columns=["s", "i"]),
    ),
    "filter": (
        lambda ds: ds.filter(first_is_one, columns=cs.by_index(3)),
        lambda ds: ds.filter(first_is_one, columns=["i"]),
    ),
}


def same(value: Any) -> Any:
    return value


def beside(state: int, batch: Any) -> Any:
    return state + 1, batch


def first_is_one(batch: pa.RecordBatch) -> Any:
    assert batch.num_columns == 1
    return batch.column(0).to_numpy() == 1


@pytest.mark.parametrize("case", CASES)
def test_a_selector_means_the_columns_that_it_picks(case: str) -> None:
    selected, named = CASES[case]
    assert selected(af.from_arrow(TABLE)).to_table() == named(af.from_arrow(TABLE)).to_table()


@pytest.mark.parametrize(
    "apply",
    [
        lambda ds: ds.drop(cs.string()),
        lambda ds: ds.cast({cs.by_name("n"): pl.Float32}),
        lambda ds: ds.fill_null({cs.float(): 0.5}),
        lambda ds: ds.unique(cs.by_name("s")),
    ],
)
def test_contracts(apply: Apply) -> None:
    check_operator(apply, NUMBERS, in_full=False)


def test_a_selector_sees_the_columns_that_a_function_made() -> None:
    assert af.from_arrow(TABLE).map(same).drop(cs.float()).to_table().column_names == ["s", "i"]
    made = af.from_arrow(TABLE).map(same)
    refused(af.PlanError, lambda: made.map(same, columns=cs.float()).to_table(), "map", "pass schema=")


def test_a_report_names_some_of_many_columns() -> None:
    text = af.from_numpy({f"c{i}": np.zeros(1) for i in range(3_000)}).filter(pl.col("c0") > 0).explain()
    assert "pass-through: c0, c1," in text
    assert "c15 and 2,984 more" in text
    assert "c16" not in text.rpartition("physical plan")[2]


def test_loaders_and_sources_take_selectors(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    ds = af.read_parquet(tmp_path)
    assert list(next(iter(ds.to_numpy(columns=["i", cs.by_index(0)])))) == ["i", "f1"]
    assert next(iter(ds.to_polars(columns=cs.by_index(3, 1)))).columns == ["i", "s"]
    assert af.read_parquet(tmp_path, columns=cs.float()).schema.names == ["f1", "f2"]
    assert ds.reduce(0, lambda state, batch: state + batch.num_columns, columns=cs.float()) == 2
    assert "columns 1 of 4: i" in ds.select(cs.integer()).explain()
    with iter(ds.batch(1).to_numpy(columns=cs.integer())) as batches:
        next(batches)
        state = batches.state_dict()
    with iter(ds.batch(1).to_numpy(columns=cs.integer())) as batches:
        batches.load_state_dict(state)
        assert [batch["i"].tolist() for batch in batches] == [[1]]


@pytest.mark.parametrize(
    ("apply", "texts"),
    [
        (lambda ds: ds.stack(x=cs.starts_with("z")), ["stack", "picks no column", "f1, s, f2, i"]),
        (lambda ds: ds.map(same, columns=cs.date()), ["map", "picks no column"]),
        (lambda ds: ds.drop(pl.col("f3")), ["drop", "unknown column 'f3'"]),
        (lambda ds: ds.drop(pl.col("f1") + 1), ["drop", "expected names of columns"]),
        (lambda ds: ds.cast({cs.float(): pl.Float32, "f1": pl.Int8}), ["cast", "two for 'f1'"]),
        (lambda ds: ds.pack_sequences(cs.float(), 8), ["pack_sequences", "expected names of columns"]),
    ],
)
def test_bad_choices_are_refused(apply: Any, texts: list[str]) -> None:
    refused(
        af.PlanError,
        lambda: apply(af.from_arrow(TABLE)).schema or apply(af.from_arrow(TABLE)).to_table(),
        *texts,
    )
