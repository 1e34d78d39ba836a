"""Random plans through a PyTorch `DataLoader` have the batches of `to_torch()`, in order, for any number of workers."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowflow as af
from tests.effort import scaled
from tests.fuzz import named
from tests.fuzz.drafts import DRAFTS, Draft
from tests.fuzz.watch import kinds
from tests.loaders.frameworks import plain

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.any_version]
ROOT: Final = Path(__file__).resolve().parents[2]
MOST_BATCHES: Final = 12
PLANS_A_PROCESS: Final = 12
DEADLINE_SECONDS: Final = 110


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with warnings.catch_warnings(action="ignore"):
        pytest.importorskip("torch", reason="PyTorch is not installed")
    path = tmp_path_factory.mktemp("loaders")
    named.use_folder(path)
    return path


def batches_of(batches: Any, draft: Draft) -> list[Any]:
    """Returns the batches as lists; the first ones where the plan has no end."""
    return [plain(batch) for batch in itertools.islice(batches, MOST_BATCHES if draft.endless else None)]


def asked(draft: Draft) -> dict[str, Any]:
    """Returns the arguments for columns of lists, and for nulls."""
    return {"null": "mask", "lists": "ragged"}


@settings(max_examples=scaled(300), database=None)
@given(draft=DRAFTS, epoch=st.integers(0, 1), step=st.integers(0, 8))
def test_without_workers_the_batches_are_those_of_to_torch(draft: Draft, epoch: int, step: int) -> None:
    try:
        loader = draft.plain().to_torch(**asked(draft))
        loader.set_epoch(epoch)
        expected = batches_of(loader, draft)
    except af.ArrowflowError:
        kinds["cannot run"] += 1
        return
    kinds["to_torch_dataset"] += 1
    dataset = draft.plain().to_torch_dataset(**asked(draft))
    dataset.set_epoch(epoch)
    assert batches_of(dataset, draft) == expected
    if "stream(" in draft.text:
        return
    stopped = draft.plain().to_torch_dataset(**asked(draft))
    stopped.set_epoch(epoch)
    at = min(step, len(expected))
    begun = [plain(batch) for batch in itertools.islice(stopped, at)]
    if at < len(expected):
        resumed = draft.plain().to_torch_dataset(**asked(draft))
        resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        assert begun + batches_of(resumed, draft)[: len(expected) - at] == expected


# What counts rows runs a pipeline in the process that is to be forked, and then no worker runs any.
FORKABLE: Final = DRAFTS.filter(lambda draft: "counted(" not in draft.text)


@settings(max_examples=scaled(5), database=None)
@given(
    drafts=st.lists(
        st.tuples(FORKABLE, st.sampled_from([1, 2, 2, 3])), min_size=PLANS_A_PROCESS, max_size=PLANS_A_PROCESS
    )
)
def test_workers_have_the_batches_of_to_torch(drafts: list[tuple[Draft, int]], folder: Path) -> None:
    """In a process of its own, since one that has run a pipeline cannot be forked."""
    named.write_all()
    plans = [(draft.text, MOST_BATCHES if draft.endless else None, workers) for draft, workers in drafts]
    told = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.loaded", str(folder)],
        input=json.dumps(plans),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"},
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    kinds["DataLoader with workers"] += len(plans)
