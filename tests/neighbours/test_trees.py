"""XGBoost and LightGBM read batches in several passes; their trees are those of the whole matrix."""

from __future__ import annotations

import importlib.util
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import arrowflow as af
from arrowflow.errors import FunctionError
from tests.neighbours.snippets import run_snippet

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.any_version]

ROWS = 20_000
INPUTS = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
LABELS = INPUTS @ np.array([1, -2, 3, 0.5], np.float32)


def imported(name: str) -> Any:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    with warnings.catch_warnings(action="ignore"):
        return importlib.import_module(name)


@pytest.fixture
def train(tmp_path: Path) -> af.Dataset:
    """Rows of several files and row groups."""
    rows = af.from_numpy({"x": INPUTS, "label": LABELS})
    rows.write_parquet(tmp_path / "rows", shard_rows=7_000)
    return af.read_parquet(tmp_path / "rows")


@pytest.mark.parametrize("shuffles", [False, True])
def test_xgboost_has_the_rows_of_the_first_epoch(train: af.Dataset, shuffles: bool) -> None:
    xgboost = imported("xgboost")
    train = train.shuffle(5_000, seed=1) if shuffles else train
    (whole,) = train.batch(ROWS).to_numpy()
    matrix = run_snippet("xgboost", xgboost=xgboost, train=train)["matrix"]
    assert np.array_equal(matrix.get_label(), whole["label"])
    settings = {"max_depth": 4, "nthread": 1}
    found = xgboost.train(settings, matrix, 5)
    expected = xgboost.train(settings, xgboost.QuantileDMatrix(whole["x"], whole["label"]), 5)
    rows = xgboost.DMatrix(INPUTS)
    assert np.array_equal(found.predict(rows), expected.predict(rows))


def test_an_error_of_the_pipeline_comes_through_xgboost(train: af.Dataset) -> None:
    def fails(batch: Any) -> Any:
        raise ValueError("no luck")

    with pytest.raises(FunctionError, match="no luck"):
        run_snippet("xgboost", xgboost=imported("xgboost"), train=train.map(fails, schema=train.schema))


@pytest.mark.parametrize("shuffles", [False, True])
@pytest.mark.parametrize("samples", [500, 200_000])
def test_lightgbm_has_the_rows_of_the_first_epoch(train: af.Dataset, samples: int, shuffles: bool) -> None:
    lightgbm = imported("lightgbm")
    train = train.shuffle(5_000, seed=1) if shuffles else train
    (whole,) = train.batch(ROWS).to_numpy()
    settings = {"bin_construct_sample_cnt": samples, "num_threads": 1, "verbose": -1}
    matrix = run_snippet("lightgbm", lightgbm=lightgbm, math=math, train=train)["matrix"]
    matrix.params = settings
    found = lightgbm.train(settings, matrix, 5)
    expected = lightgbm.train(settings, lightgbm.Dataset(whole["x"], whole["label"], params=settings), 5)
    assert np.array_equal(matrix.get_label(), whole["label"])
    assert np.array_equal(found.predict(INPUTS), expected.predict(INPUTS))


def test_rows_of_a_filter_are_counted_first(train: af.Dataset) -> None:
    kept = train.filter(pl.col("label") > 0)
    names = {"lightgbm": imported("lightgbm"), "math": math}
    matrix = run_snippet("lightgbm", train=kept.assert_cardinality(af.count_rows(kept)), **names)["matrix"]
    assert matrix.construct().num_data() == (LABELS > 0).sum()
