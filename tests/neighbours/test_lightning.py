"""Lightning's trainer takes loaders as they are, and its checkpoints hold their states."""

from __future__ import annotations

import functools
import importlib.util
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import arrowflow as af
from tests.neighbours.snippets import run_snippet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="Lightning is not installed"),
    pytest.mark.any_version,
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
    names = {"train": dataset().batch(50), "valid": dataset().batch(100), "trainer": running, "model": model}
    run_snippet("lightning", **names, checkpoint=None)
    assert (running.num_training_batches, running.num_val_batches, running.global_step) == (20, [10], 60)
    assert running.callback_metrics["error"] < 1e-3
    epochs = [[row for rows in model.rows[first : first + 20] for row in rows] for first in (0, 20, 40)]
    assert [sorted(rows) for rows in epochs] == [list(range(1000))] * 3
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_length_that_nobody_knows_is_none(tmp_path: Path) -> None:
    for ds in (dataset().filter(pl.col("row") >= 500).batch(64), dataset().repeat().batch(64)):
        running = trainer(tmp_path, max_epochs=2, max_steps=16)
        running.fit(line(), ds.to_torch())
        assert (running.num_training_batches, running.global_step) == (float("inf"), 16)


def test_the_number_of_a_process_is_known_before_processes_are_started(tmp_path: Path) -> None:
    running = trainer(tmp_path, strategy="ddp", devices=2)
    assert (running.global_rank, running.world_size) == (0, 2)


def resumed(loader: Callable[[], Any], steps: int, folder: Path) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the rows of 40 steps, and those after a restart in between."""

    def fit(steps: int, checkpoint: Path | None = None) -> Any:
        model, running = line(), trainer(folder, max_steps=steps)
        model.on_train_end = lambda: running.save_checkpoint(folder / f"{steps}.ckpt")
        running.fit(model, loader(), ckpt_path=checkpoint)
        return model.rows

    whole = fit(40)
    assert fit(steps) == whole[:steps]
    return whole, fit(40, folder / f"{steps}.ckpt")


@pytest.mark.parametrize("steps", [16, 20])
def test_a_checkpoint_goes_on_with_the_next_batch(steps: int, tmp_path: Path) -> None:
    whole, found = resumed(lambda: dataset().batch(64).to_torch(), steps, tmp_path)
    assert found == whole[steps:]


def test_a_length_that_nobody_knows_costs_a_batch_of_each_restart(tmp_path: Path) -> None:
    kept = dataset().filter(pl.col("row") >= 100)
    whole, found = resumed(lambda: kept.batch(45).to_torch(), 7, tmp_path)
    assert found[:32] == whole[8:]
    whole, found = resumed(lambda: kept.assert_cardinality(900).batch(45).to_torch(), 7, tmp_path)
    assert found == whole[7:]


def test_only_some_data_loaders_have_a_state(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader

    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    whole, found = resumed(lambda: data_loader(stateful.StatefulDataLoader), 7, tmp_path)
    assert found == whole[7:]
    whole, found = resumed(lambda: data_loader(DataLoader), 7, tmp_path)
    assert found[:9] == whole[:9]


def data_loader(kind: Callable[..., Any]) -> Any:
    return kind(dataset().batch(64).to_torch_dataset(), batch_size=None)


def test_a_data_loader_of_a_dataset_is_one_of_its_own(tmp_path: Path) -> None:
    running, model = trainer(tmp_path, max_epochs=2), line()
    from torch.utils.data import DataLoader

    running.fit(model, data_loader(DataLoader))
    assert (running.num_training_batches, running.global_step) == (16, 32)
    here = dataset().batch(64).to_torch()
    assert model.rows == [batch["row"].tolist() for _ in range(2) for batch in here]
