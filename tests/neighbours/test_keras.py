"""Keras 3 takes generators of pairs, and with PyTorch below it a `DataLoader`."""

from __future__ import annotations

import importlib.util
import os
import warnings
from typing import Any

import polars as pl
import pytest

import arrowflow as af
from tests.neighbours.snippets import run_snippet

BACKEND = os.environ.get("KERAS_BACKEND")  # see `tests/conftest.py`
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed"),
    pytest.mark.skipif(
        BACKEND is None, reason="neither PyTorch nor JAX is installed, one of which Keras needs"
    ),
    pytest.mark.any_version,
]


@pytest.fixture(scope="module")
def keras(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns Keras, which would look for TensorFlow, and would write a file into the home folder."""
    os.environ.setdefault("KERAS_HOME", str(tmp_path_factory.mktemp("keras")))
    with warnings.catch_warnings(action="ignore"):
        return importlib.import_module("keras")


@pytest.fixture
def seen() -> list[list[list[float]]]:
    return []


@pytest.fixture
def model(keras: Any, seen: list[list[list[float]]]) -> Any:
    def loss(label: Any, output: Any) -> Any:
        seen.append(label.tolist())
        return keras.ops.mean(keras.ops.square(label - output))

    found = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    found.compile("sgd", loss, run_eagerly=True)
    return found


def train() -> af.Dataset:
    rows = af.range(6).with_columns(x=pl.col("id").cast(pl.Float32) / 6, label=pl.col("id").cast(pl.Float32))
    return rows.stack(x=["x"]).stack(label=["label"]).shuffle(6).batch(4)


def test_the_snippet_does_what_it_says(model: Any, seen: list[list[list[float]]]) -> None:
    run_snippet("keras", train=train(), model=model)
    steps = seen[-6:]  # Keras builds the model before, with numbers of its own
    assert [len(step) for step in steps] == [4, 2] * 3
    epochs = [[label for step in steps[first : first + 2] for (label,) in step] for first in (0, 2, 4)]
    assert [sorted(labels) for labels in epochs] == [list(range(6))] * 3
    assert epochs[0] != epochs[1]


def test_a_loader_without_the_generator_is_refused_as_the_page_says(model: Any) -> None:
    with pytest.raises(AttributeError, match="'Loader' object has no attribute 'shape'"):
        model.fit(train().to_numpy(collate=lambda batch: (batch["x"], batch["label"])), verbose=0)


@pytest.mark.torch
@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch is not installed")
def test_a_data_loader_of_a_dataset(model: Any, seen: list[list[list[float]]]) -> None:
    import torch

    ds = train().to_torch_dataset(collate=lambda batch: (batch["x"], batch["label"]))
    model.fit(torch.utils.data.DataLoader(ds, batch_size=None), epochs=2, verbose=0)
    here = train().to_torch()
    assert seen[-4:] == [batch["label"].tolist() for _ in range(2) for batch in here]
