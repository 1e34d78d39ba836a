"""The parts of benchmarks that need neither their data nor minutes: what they compare with, and how they judge."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import benchmarks
from benchmarks import beside, data, harness, torch_wide, wide
from benchmarks.__main__ import NAMES, NEED_TORCH

ROWS = 100


def _measured(rows_per_second: float, **extra: float) -> list[harness.Measurement]:
    return [harness.Measurement(int(10 * rows_per_second), 10.0, 10.0, dict(extra))] * 3


@pytest.mark.torch
def test_datasets_make_the_features_of_the_loops() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    batch = data._wide_table(np.random.default_rng(1), ROWS).to_batches()[0]
    columns = {
        name: torch.from_numpy(batch[name].to_numpy(zero_copy_only=False).copy())
        for name in (*data.DENSE, *data.SPARSE, "label")
    }
    assert batch["dense_0"].null_count > 0  # which `to_numpy` makes NaN of, and so does datasets
    made = torch_wide._stacked(columns)
    for name, expected in wide._features(batch).items():
        np.testing.assert_allclose(
            made[name].numpy(), np.asarray(expected, made[name].numpy().dtype), rtol=1e-6
        )
        assert (wide.BATCH_ROWS, *made[name].shape[1:]) == torch_wide.SHAPES[name]


def test_the_fastest_loop_is_the_one_to_beat() -> None:
    rounds = {
        "arrowflow": _measured(5e6),
        "loader-take-table": _measured(1e6),
        "loader-stack-first": _measured(2e6),
        "datasets-rows": _measured(1e3),
        "datasets-batches": _measured(4e5),
    }
    bars = {bar.name: bar for bar in torch_wide.judge(rounds)}
    loader, rows, batches = bars.values()
    assert (loader.ratio, loader.met) == (2.5, False)
    assert (rows.ratio, rows.met) == (5000.0, True)
    assert (batches.ratio, batches.met) == (12.5, True)


def test_a_share_is_the_time_on_a_core_and_in_the_queue_for_one() -> None:
    window = beside.Window(seconds=0.005, queued_seconds=0.0028, cpu_seconds=0.002, calls_per_second=1.0)
    assert window.times == pytest.approx(1.1)


def test_a_thread_beside_works_until_it_is_ended() -> None:
    worked = threading.Event()
    one = beside.Beside(worked.set)
    one.go()
    worked.wait()
    one.rest()
    one.end()
    assert one.calls > 0


def test_steps_may_take_a_twentieth_longer() -> None:
    figures = dict.fromkeys(
        ("alone_ms", "busy_ms", "ours_ms", "calls_per_second", "unhindered_calls_per_second"), 2.1
    )
    rounds = {
        "lock": _measured(1.0, times=1.2, **figures),
        "wide": _measured(1.0, times=1.04, **figures),
        "tokens": _measured(1.0, times=1.06, **figures),
    }
    assert [bar.met for bar in beside.judge(rounds)] == [True, True, False]


def test_all_benchmarks_are_named() -> None:
    folder = Path(benchmarks.__file__).parent
    assert set(NEED_TORCH) < set(NAMES)
    assert all((folder / f"{name}.py").exists() for name in NAMES)
