"""Checkpoints of Lightning, whose trainers take loaders as they are, and keep their states."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import distributed, nn

from tests.neighbours.ranks.processes import Batch, Together, Train
from tests.neighbours.ranks.rows import SAVED, STEPS, Rows, plan
from tests.neighbours.snippets import run_snippet


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
    """Makes the loader only when the processes know each other, since its state is that of all of them."""

    def train_dataloader(self) -> Any:
        return Together()


def fit(folder: Path, resumes: bool, *, together: bool) -> Rows:
    """Trains with Lightning's own checkpoints: with the loaders of the page, or with one that has the state of all processes."""
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
    model, checkpoint = Line(), folder / "kept.ckpt" if resumes else None
    if together:
        trainer.fit(model, Data(), ckpt_path=checkpoint)
    else:
        run_snippet(
            "lightning", trainer=trainer, model=model, train=plan(), valid=plan(), checkpoint=checkpoint
        )
    return model.found


TRAININGS: dict[str, Train] = {
    "together": partial(fit, together=True),
    "of rank 0": partial(fit, together=False),  # Lightning writes what rank 0 says
}
