"""What trainings in several processes have in common, such as a loader whose state is that of all of them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import distributed

import arrowflow as af
from tests.forks import together
from tests.neighbours.ranks.rows import SAVED, STEPS, Rows, plan

Batch = Mapping[str, Any]
Train = Callable[[Path, bool], Rows]
"""Trains from the start, or from the checkpoint of a folder on; returns the rows of each step of this process."""


def own_loader() -> Any:
    """Returns the loader of this process, whose state is its own."""
    return plan().split_by_rank().to_torch()


class Together:
    """A loader whose state is that of all processes. They ask for it after the same step."""

    def __init__(self) -> None:
        self._loader = own_loader()

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def state_dict(self) -> dict[str, Any]:
        """Returns a text, since DCP takes dicts apart, and expects the keys that a fresh state has."""
        states: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(states, self._loader.state_dict())
        return {"text": json.dumps(af.merge_states(states))}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._loader.load_state_dict(json.loads(state_dict["text"]))


def steps_of(loader: Any, *, resumes: bool) -> Iterator[tuple[int, Batch]]:
    """Yields the number and the batch of each step, epoch after epoch, up to the last step."""
    step = SAVED if resumes else 0
    while True:
        for batch in loader:
            step += 1
            yield step, batch
            if step == STEPS:
                return


def run(trainings: Mapping[str, Train], size: int, folder: Path, *, resumes: bool) -> None:
    """Trains in so many processes, one way after another; each writes its rows, and what it was warned of."""

    def work(rank: int) -> None:
        torch.set_num_threads(1)
        store = f"file://{folder}/store of {size}"
        distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
        found = {way: _noted(train, folder / way, resumes) for way, train in trainings.items()}
        (folder / f"{rank} of {size}").write_text(json.dumps(found), encoding="utf-8")
        distributed.destroy_process_group()

    together(size, work)


def _noted(train: Train, folder: Path, resumes: bool) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = train(folder, resumes)
    told = [str(each.message) for each in caught]
    return {"rows": rows, "warnings": [text for text in told if "the state of another rank" in text]}
