"""Lightning's trainer takes loaders as they are, and its checkpoints hold their states."""

from __future__ import annotations

import functools
import importlib.util
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import arrowflow as af
from tests.neighbours.snippets import run_snippet

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="Lightning is not installed"),
]

INPUTS = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
WEIGHTS = np.array([1, -2, 3, 0.5], np.float32)


def dataset(**options: Any) -> af.Dataset:
    return af.from_numpy({"x": INPUTS, "y": INPUTS @ WEIGHTS, "row": np.arange(1000)}).shuffle(
        seed=1, **options
    )


@functools.cache
def imported() -> Any:
    """Returns Lightning. It takes 4 s to import: only the process that runs these tests waits for it."""
    with warnings.catch_warnings(action="ignore"):
        import lightning
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return lightning


@functools.cache
def model_class() -> Any:
    import torch

    module: Any = imported().LightningModule

    class Line(module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.rows: list[list[int]] = []

        def training_step(self, batch: dict[str, Any], number: int) -> Any:
            self.rows.append(batch["row"].tolist())
            return self.loss(batch)

        def validation_step(self, batch: dict[str, Any], number: int) -> None:
            self.log("error", self.loss(batch), batch_size=len(batch["y"]))

        def loss(self, batch: dict[str, Any]) -> Any:
            return torch.nn.functional.mse_loss(self.layer(batch["x"])[:, 0], batch["y"])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    return Line


def line() -> Any:
    """Returns a model that learns the weights of a line, and keeps the rows of its steps."""
    return model_class()()


def trainer(folder: Path, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return imported().Trainer(
        accelerator="cpu", enable_checkpointing=False, default_root_dir=folder, **quiet, **options
    )


def test_a_trainer_takes_loaders(tmp_path: Path) -> None:
    model, running = line(), trainer(tmp_path, max_epochs=3, val_check_interval=0.5)
    names = {"train": dataset().batch(64), "valid": dataset().batch(100), "trainer": running, "model": model}
    run_snippet("lightning", **names)
    assert (running.num_training_batches, running.num_val_batches, running.global_step) == (16, [10], 48)
    assert running.callback_metrics["error"] < 1e-3
    epochs = [[row for rows in model.rows[first : first + 16] for row in rows] for first in (0, 16, 32)]
    assert [sorted(rows) for rows in epochs] == [list(range(1000))] * 3
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_length_that_nobody_knows_is_none(tmp_path: Path) -> None:
    for ds in (dataset().filter(pl.col("row") >= 500).batch(64), dataset().repeat().batch(64)):
        running = trainer(tmp_path, max_epochs=2, max_steps=16)
        running.fit(line(), ds.to_torch())
        assert (running.num_training_batches, running.global_step) == (float("inf"), 16)


@pytest.mark.parametrize("steps", [16, 20])
def test_a_checkpoint_goes_on_with_the_next_batch(steps: int, tmp_path: Path) -> None:
    def fit(steps: int, checkpoint: Path | None = None) -> Any:
        model, running = line(), trainer(tmp_path, max_steps=steps)
        running.fit(model, dataset().batch(64).to_torch(), ckpt_path=checkpoint, weights_only=False)
        running.save_checkpoint(tmp_path / f"{steps}.ckpt")
        return model.rows

    whole = fit(40)
    assert fit(steps) == whole[:steps]
    assert fit(40, tmp_path / f"{steps}.ckpt") == whole[steps:]


def test_a_data_loader_of_a_dataset_is_one_of_its_own(tmp_path: Path) -> None:
    running, model = trainer(tmp_path, max_epochs=2), line()
    from torch.utils.data import DataLoader

    loader = DataLoader(dataset().batch(64).to_torch_dataset(), batch_size=None)
    running.fit(model, loader)
    assert (running.num_training_batches, running.global_step) == (16, 32)
    here = dataset().batch(64).to_torch()
    assert model.rows == [batch["row"].tolist() for _ in range(2) for batch in here]
