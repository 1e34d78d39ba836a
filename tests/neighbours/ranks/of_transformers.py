"""Checkpoints of transformers, whose trainers count steps, and read the epoch again after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers
from torch import Tensor, nn

from tests.neighbours.ranks.processes import Train
from tests.neighbours.ranks.rows import SAVED, STEPS, Rows, plan
from tests.neighbours.snippets import run_snippet

transformers.Trainer  # noqa: B018  # imports what it needs


class Line(nn.Module):
    """A model that notes the rows of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.found: Rows = []

    def forward(self, x: Tensor, row: Tensor) -> dict[str, Any]:
        self.found.append(row.tolist())
        return {"loss": self.layer(x).square().mean()}


def train(folder: Path, resumes: bool) -> Rows:
    arguments = transformers.TrainingArguments(
        str(folder),
        max_steps=STEPS,
        save_steps=SAVED,
        use_cpu=True,
        ddp_find_unused_parameters=False,
        report_to=[],
        logging_strategy="no",
        disable_tqdm=True,
    )
    trainer = run_snippet("transformers", transformers=transformers, train=plan())["Trainer"]
    model = Line()
    trainer(model=model, args=arguments).train(folder / f"checkpoint-{SAVED}" if resumes else None)
    return model.found


TRAININGS: dict[str, Train] = {"by steps": train}
