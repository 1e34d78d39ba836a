"""Pruning never changes a result: 500 random predicates of both engines over columns with NaN and null."""

from __future__ import annotations

import operator
import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from tests.effort import scaled

pytestmark = pytest.mark.any_version

PREDICATES = max(20, scaled(200))  # of fewer too few prune to tell
COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
VALUES: dict[str, list[Any]] = {
    "i": [-5, 0, 3, 7, 12, 40],
    "f": [-1.5, -0.0, 0.0, 0.5, 2.0, float("inf"), float("nan")],
    "s": ["", "b", "k", "zz"],
    "t": [True, False],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Row groups of 8 rows in narrow ranges, some of nothing but nulls or NaN."""
    path = tmp_path_factory.mktemp("prune")
    rng = np.random.default_rng(3)
    columns: dict[str, list[Any]] = {"i": [], "f": [], "s": [], "t": []}
    for group in range(40):
        low = int(rng.integers(-6, 40))
        for _ in range(8):
            columns["i"].append(None if group % 7 == 3 else low + int(rng.integers(0, 3)))
            columns["f"].append(
                float("nan") if group % 5 == 2 or rng.random() < 0.1 else low / 10 + rng.random()
            )
            columns["s"].append(None if rng.random() < 0.2 else "abkz"[group % 4] * int(rng.integers(0, 3)))
            columns["t"].append(None if rng.random() < 0.2 else group % 2 == 0)
        if group % 6 == 0:
            columns["f"][-3:] = [None, -0.0, 0.0]
    types = {"i": pa.int64(), "f": pa.float64(), "s": pa.string(), "t": pa.bool_()}
    table = pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
    table = table.append_column("row", pa.array(range(len(table))))
    pq.write_table(table, path / "a.parquet", row_group_size=8)
    return path


def polars_leaf(rng: random.Random, name: str) -> pl.Expr:
    """Returns a simple predicate of one column."""
    column, value = pl.col(name), rng.choice(VALUES[name])
    match rng.randrange(6):
        case 0:
            return column.is_null()
        case 1:
            return column.is_not_null()
        case 2 if name in "if":
            low, high = sorted(rng.sample(VALUES[name][:-1], 2))
            return column.is_between(low, high)
        case 3:
            return column.is_in(rng.sample(VALUES[name], 2))
        case _:
            compared: pl.Expr = rng.choice(COMPARISONS)(column, value)
            return compared


def arrow_leaf(rng: random.Random, name: str) -> pc.Expression:
    """Returns a simple predicate of one column."""
    column, value = pc.field(name), pc.scalar(rng.choice(VALUES[name]))
    match rng.randrange(5):
        case 0:
            return column.is_null()
        case 1:
            return column.is_valid()
        case 2:
            return column.isin(rng.sample(VALUES[name], 2))
        case _:
            return rng.choice(COMPARISONS)(column, value)


def predicate(rng: random.Random, leaf: Any, depth: int = 2) -> Any:
    """Returns a random predicate of and, or, not and leaves."""
    if depth == 0 or rng.random() < 0.35:
        return leaf(rng, rng.choice(list(VALUES)))
    match rng.randrange(3):
        case 0:
            return predicate(rng, leaf, depth - 1) & predicate(rng, leaf, depth - 1)
        case 1:
            return predicate(rng, leaf, depth - 1) | predicate(rng, leaf, depth - 1)
        case _:
            return ~predicate(rng, leaf, depth - 1)


@pytest.mark.parametrize("engine", ["polars", "arrow"])
def test_pruned_rows_are_the_filtered_rows(folder: Path, engine: str) -> None:
    rng = random.Random(f"prune {engine}")
    leaf = polars_leaf if engine == "polars" else arrow_leaf
    everything = af.read_parquet(folder)
    table = everything.to_table()
    pruned = 0
    for _ in range(PREDICATES // 2):
        test = predicate(rng, leaf)
        dataset = everything.filter(test).select("row")
        expected = (
            pl.DataFrame(table).filter(test)["row"].to_list()
            if engine == "polars"
            else table.filter(test)["row"].to_pylist()
        )
        assert dataset.to_table()["row"].to_pylist() == expected, str(test)
        plan = dataset.explain()
        pruned += "statistics prune" in plan and "statistics prune 0 of" not in plan
    # Else the test would hold for a rule that does nothing.
    assert pruned > PREDICATES // 8
