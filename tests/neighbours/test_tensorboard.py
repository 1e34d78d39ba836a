"""TensorBoard: the figures of a loader, written by PyTorch's writer as the page says, and read back."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import arrowflow as af
from tests.neighbours.snippets import run_snippet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.any_version,
    pytest.mark.filterwarnings("ignore"),
    *(
        pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")
        for name in ("torch", "tensorboard")
    ),
]


def test_the_snippet_writes_what_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    loader = af.range(2_500).batch(10).to_numpy()
    run_snippet("tensorboard", loader=loader)
    found = EventAccumulator(str(tmp_path / "runs" / "first"))
    found.Reload()
    assert sorted(found.Tags()["scalars"]) == sorted(loader.stats().metrics(prefix="data/"))
    rows = [(event.step, event.value) for event in found.Scalars("data/rows")]
    assert rows == [(0, 10.0), (100, 1_010.0), (200, 2_010.0)]
