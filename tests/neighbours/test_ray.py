"""Ray Data: blocks of a dataset, asked anew in each epoch. One local cluster for the whole module."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import arrowflow as af
from arrowflow.testing import check_epochs
from tests.neighbours.snippets import run_snippet

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
with warnings.catch_warnings(action="ignore"):
    ray: Any = pytest.importorskip("ray", reason="Ray is not installed")
    pytest.importorskip("ray.data", reason="Ray Data is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with warnings.catch_warnings(action="ignore"):
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=100 << 20,
        )
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        yield
        ray.shutdown()


def test_the_snippet_does_what_it_says() -> None:
    found = run_snippet("ray", af=af, ray=ray)
    assert found["blocks"].to_table()["x"].to_pylist() == list(range(0, 2000, 2))
    assert found["back"].count() == 1000


def test_each_epoch_asks_anew() -> None:
    blocks = ray.data.range(100, override_num_blocks=4).materialize()
    assert str(af.from_arrow(blocks).schema) == "id: int64"
    check_epochs(lambda: af.from_arrow(blocks).batch(30), differ=False)


def test_tensors_stay_tensors() -> None:
    tensors = ray.data.from_numpy(np.arange(12, dtype=np.float32).reshape(2, 2, 3))
    (batch,) = af.from_arrow(tensors).batch(2).to_numpy()
    assert batch["data"].dtype == np.float32
    assert batch["data"].tolist() == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]
