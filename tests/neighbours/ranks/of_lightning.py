"""Checkpoints of Lightning, whose trainers take loaders as they are, and keep their states."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import distributed, nn

from tests.neighbours.ranks.processes import Batch, Together, Train, own_loader
from tests.neighbours.ranks.rows import SAVED, STEPS, Rows


class Line(lightning.LightningModule):
    """A model that notes the rows of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.found: Rows = []

    def training_step(self, batch: Batch, number: int) -> Any:
        self.found.append(batch["row"].tolist())
        return self.layer(batch["x"]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


class Data(lightning.LightningDataModule):
    """Makes the loader only when the processes know each other, and so their numbers."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self._make = make

    def train_dataloader(self) -> Any:
        return self._make()


def fit(make: Callable[[], Any], folder: Path, resumes: bool) -> Rows:
    """Trains with Lightning's own checkpoints."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=distributed.get_world_size(),
        max_steps=STEPS,
        callbacks=[ModelCheckpoint(folder, "kept", every_n_train_steps=SAVED)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Line()
    trainer.fit(model, Data(make), ckpt_path=folder / "kept.ckpt" if resumes else None)
    return model.found


TRAININGS: dict[str, Train] = {
    "together": partial(fit, Together),
    "of rank 0": partial(fit, own_loader),  # Lightning writes what rank 0 says
}
