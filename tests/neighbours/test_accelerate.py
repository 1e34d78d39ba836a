"""`accelerate`: checkpoints have a loader's state; wrapped into a `DataLoader` it is driven by accelerate."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrowflow as af
from tests.neighbours.snippets import run_snippet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.any_version,
]
with warnings.catch_warnings(action="ignore"):
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    accelerate: Any = pytest.importorskip("accelerate", reason="accelerate is not installed")

INPUTS = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)


def dataset() -> af.Dataset:
    rows = af.from_numpy({"x": INPUTS, "y": INPUTS @ np.array([1, -2, 3, 0.5], np.float32)})
    return rows.shuffle(seed=1).batch(100)


def prepared(accelerator: Any, train: af.Dataset) -> dict[str, Any]:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return run_snippet("accelerate", accelerator=accelerator, train=train, model=model, optimizer=optimizer)


@pytest.fixture
def accelerator() -> Iterator[Any]:
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield accelerate.Accelerator(cpu=True)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_a_loader_trains_beside_what_is_prepared(accelerator: Any) -> None:
    found = prepared(accelerator, dataset())
    model, optimizer, loader = (found[name] for name in ("model", "optimizer", "loader"))
    assert len(loader) == 10
    losses = []
    for _ in range(10):
        for batch in loader:
            losses.append(torch.nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"]))
            accelerator.backward(losses[-1])
            optimizer.step()
            optimizer.zero_grad()
    assert losses[-1].item() < 1e-3


def test_a_saved_state_goes_on_with_the_next_batch(accelerator: Any, tmp_path: Path) -> None:
    loader = prepared(accelerator, dataset())["loader"]
    with iter(loader) as batches:
        next(batches), next(batches)
        accelerator.save_state(tmp_path)
        third = next(batches)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    again = accelerate.Accelerator(cpu=True)
    loader = prepared(again, dataset())["loader"]
    again.load_state(tmp_path)
    with iter(loader) as batches:
        assert torch.equal(next(batches)["x"], third["x"])


@pytest.mark.parametrize("stateful", [False, True])
def test_a_data_loader_passes_through_prepare(accelerator: Any, stateful: bool) -> None:
    """accelerate sets the epoch itself, before each."""
    if stateful:
        pytest.importorskip("torchdata", reason="torchdata is not installed")
    loader = torch.utils.data.DataLoader(dataset().to_torch_dataset(), batch_size=None)
    accelerator.dataloader_config.use_stateful_dataloader = stateful
    prepared = accelerator.prepare(loader)
    assert len(prepared) == 10
    here = dataset().to_torch()
    for _ in range(2):
        for found, expected in zip(prepared, here, strict=True):
            assert torch.equal(found["x"], expected["x"])
