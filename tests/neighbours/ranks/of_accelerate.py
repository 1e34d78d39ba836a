"""Checkpoints of accelerate, which hold the state that rank 0 gives of each registered object."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import accelerate
from torch import nn

from tests.neighbours.ranks.processes import Together, Train, own_loader, steps_of
from tests.neighbours.ranks.rows import SAVED, Rows


def train(make: Callable[[], Any], folder: Path, resumes: bool) -> Rows:
    """Trains with a loader that is registered."""
    accelerator = accelerate.Accelerator(cpu=True)
    loader, model, found = make(), accelerator.prepare(nn.Linear(1, 1)), []
    accelerator.register_for_checkpointing(loader)
    if resumes:
        accelerator.load_state(folder)
    for step, batch in steps_of(loader, resumes=resumes):
        found.append(batch["row"].tolist())
        accelerator.backward(model(batch["x"]).square().mean())
        if step == SAVED and not resumes:
            accelerator.save_state(folder)
    return found


TRAININGS: dict[str, Train] = {
    "together": partial(train, Together),
    "of rank 0": partial(train, own_loader),
}
