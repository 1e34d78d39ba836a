"""The rows of trainings in several processes, as one process delivers them that is never stopped."""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np

import arrowflow as af

NUM_ROWS: Final = 320
BATCH_ROWS: Final = 32  # of all processes together
EPOCHS: Final = 3
SAVED: Final = 13  # the step after which there is a checkpoint: the third of the second epoch
STEPS: Final = 25

Rows = list[list[int]]


def plan() -> af.Dataset:
    rows = np.arange(NUM_ROWS)
    columns = {"row": rows, "x": (rows / NUM_ROWS).astype(np.float32).reshape(-1, 1)}
    return af.from_numpy(columns).shuffle(100, seed=1).batch(BATCH_ROWS, drop_remainder=True)


def expected() -> Rows:
    loader = plan().split_by_rank(0, 1).to_numpy()
    batches = itertools.chain.from_iterable(loader for _ in range(EPOCHS))
    return [batch["row"].tolist() for batch in itertools.islice(batches, STEPS)]
