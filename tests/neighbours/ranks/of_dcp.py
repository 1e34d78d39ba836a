"""Checkpoints of `torch.distributed.checkpoint`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch import distributed, nn

import arrowflow as af
from tests.neighbours.ranks.processes import Together, Train, own_loader, steps_of
from tests.neighbours.ranks.rows import SAVED, Rows


def together(folder: Path, resumes: bool) -> Rows:
    """Saves one state, made of those of all processes."""
    model, loader, found = nn.Linear(1, 1), Together(), []
    if resumes:
        dcp.load({"model": model, "loader": loader}, checkpoint_id=folder)
    for step, batch in steps_of(loader, resumes=resumes):
        found.append(batch["row"].tolist())
        if step == SAVED and not resumes:
            dcp.save({"model": model, "loader": loader}, checkpoint_id=folder)
    return found


def by_rank(folder: Path, resumes: bool) -> Rows:
    """Saves the own state of each process under its number. They are merged where they are loaded."""
    model, loader, found = nn.Linear(1, 1), own_loader(), []
    if resumes:
        saved: dict[str, Any] = {"model": model, "processes": 0}
        dcp.load(saved, checkpoint_id=folder)
        states = dict.fromkeys(map(str, range(saved["processes"])), "")
        dcp.load({"states": states}, checkpoint_id=folder)
        loader.load_state_dict(af.merge_states(map(json.loads, states.values())))
    for step, batch in steps_of(loader, resumes=resumes):
        found.append(batch["row"].tolist())
        if step == SAVED and not resumes:
            own = {str(distributed.get_rank()): json.dumps(loader.state_dict())}
            saved = {"model": model, "processes": distributed.get_world_size(), "states": own}
            dcp.save(saved, checkpoint_id=folder)
    return found


TRAININGS: dict[str, Train] = {"together": together, "by rank": by_rank}
