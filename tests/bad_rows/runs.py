"""The rows of runs, also of those that stop and go on from a state."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

import arrowflow as af


def values(batches: Iterable[pa.RecordBatch]) -> list[Any]:
    """Returns the values of the column `row`."""
    return [value for batch in batches for value in batch["row"].to_pylist()]


def in_two_parts(
    make: Callable[[], af.Dataset], steps: int
) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """Returns the first batches of a run, and those of another run that goes on from its state."""
    with iter(make()) as run:
        first = list(itertools.islice(run, steps))
        state = json.loads(json.dumps(run.state_dict()))
    with iter(make()) as run:
        run.load_state_dict(state)
        return first, list(run)
