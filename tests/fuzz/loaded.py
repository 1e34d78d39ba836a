"""Reads plans through a `DataLoader` with forked workers, then as they are: `python -m tests.fuzz.loaded FOLDER`.

The plans, each with a limit of batches and a number of workers, come as JSON on standard input. It exits with 1 and prints the plans whose batches differ.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import arrowflow as af
from tests.fuzz import named
from tests.fuzz.drafts import made
from tests.loaders.frameworks import plain


def loaded(text: str, workers: int, most: int | None) -> list[Any] | str:
    """Returns the batches that the workers deliver, or the error."""
    from torch.utils.data import DataLoader

    try:
        dataset = made(text).to_torch_dataset(null="mask", lists="ragged")
        loader = DataLoader(dataset, batch_size=None, num_workers=workers)
        return [plain(batch) for batch in itertools.islice(loader, most)]
    except af.ArrowflowError as error:
        return type(error).__name__


def alone(text: str, most: int | None) -> list[Any] | str:
    """Returns the batches of `to_torch()`, or the error."""
    try:
        return [
            plain(batch) for batch in itertools.islice(made(text).to_torch(null="mask", lists="ragged"), most)
        ]
    except af.ArrowflowError as error:
        return type(error).__name__


def main() -> int:
    """Compares the batches; returns 1 where some differ."""
    named.use_folder(Path(sys.argv[1]))
    plans = json.load(sys.stdin)
    multiprocessing.set_start_method("fork")
    found = [loaded(text, workers, most) for text, most, workers in plans]  # while no pipeline has run here
    is_same = True
    for (text, most, workers), have in zip(plans, found, strict=True):
        want = alone(text, most)
        if have != want:
            print(f"{text}\n  {workers} workers: {shown(have)}\n  to_torch: {shown(want)}")
            is_same = False
    return 0 if is_same else 1


def shown(found: list[Any] | str) -> str:
    return found if isinstance(found, str) else f"{len(found)} batches, {str(found)[:300]}"


if __name__ == "__main__":
    sys.exit(main())
