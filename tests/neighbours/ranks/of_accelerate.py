"""Checkpoints of accelerate, which hold the state that rank 0 gives of each registered object."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import accelerate
from torch import nn, optim

from tests.neighbours.ranks.processes import Together, Train, steps_of
from tests.neighbours.ranks.rows import SAVED, Rows, plan
from tests.neighbours.snippets import run_snippet


def train(folder: Path, resumes: bool, *, together: bool) -> Rows:
    """Trains with a loader that is registered: as the page says it, or with one that has the state of all processes."""
    accelerator, model = accelerate.Accelerator(cpu=True), nn.Linear(1, 1)
    optimizer: Any = optim.SGD(model.parameters())
    if together:
        loader: Any = Together()
        model, optimizer = accelerator.prepare(model, optimizer)
        accelerator.register_for_checkpointing(loader)
    else:
        found = run_snippet(
            "accelerate", accelerator=accelerator, train=plan(), model=model, optimizer=optimizer
        )
        model, optimizer, loader = (found[name] for name in ("model", "optimizer", "loader"))
    if resumes:
        accelerator.load_state(folder)
    rows = []
    for step, batch in steps_of(loader, resumes=resumes):
        rows.append(batch["row"].tolist())
        accelerator.backward(model(batch["x"]).square().mean())
        optimizer.step()
        if step == SAVED and not resumes:
            accelerator.save_state(folder)
    return rows


TRAININGS: dict[str, Train] = {
    "together": partial(train, together=True),
    "of rank 0": partial(train, together=False),
}
