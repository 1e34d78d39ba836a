"""Ray Data: blocks of a dataset, asked anew in each epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import arrowflow as af
from arrowflow.testing import check_epochs
from tests.neighbours.snippets import run_snippet
from tests.ray_cluster import cluster

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.any_version]


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    for found in cluster():
        context = found.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        yield found


def test_the_snippet_does_what_it_says(ray: Any) -> None:
    found = run_snippet("ray", af=af, ray=ray)
    assert found["blocks"].to_table()["x"].to_pylist() == list(range(0, 2000, 2))
    assert found["back"].count() == 1000


def test_each_epoch_asks_anew(ray: Any) -> None:
    blocks = ray.data.range(100, override_num_blocks=4).materialize()
    assert str(af.from_arrow(blocks).schema) == "id: int64"
    check_epochs(lambda: af.from_arrow(blocks).batch(30), differ=False)


def test_tensors_stay_tensors(ray: Any) -> None:
    tensors = ray.data.from_numpy(np.arange(12, dtype=np.float32).reshape(2, 2, 3))
    (batch,) = af.from_arrow(tensors).batch(2).to_numpy()
    assert batch["data"].dtype == np.float32
    assert batch["data"].tolist() == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]


def test_a_dataset_as_blocks(ray: Any) -> None:
    """In order, there and back."""
    ds = af.range(100).shuffle(50, seed=1).batch(30)
    blocks = ds.to_ray()
    expected = [row for batch in ds for row in batch.column("id").to_pylist()]
    assert blocks.count() == 100
    assert [row["id"] for row in blocks.iter_rows()] == expected
    assert af.from_arrow(blocks).to_table()["id"].to_pylist() == expected
