"""The parts of benchmarks that need neither their data nor minutes: what they compare with, and how they judge."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import benchmarks
from benchmarks import beside, compare, data, harness, report, torch_wide, wide
from benchmarks.__main__ import NAMES, NEEDS
from benchmarks.peers import environments, epochs, packing

pytestmark = pytest.mark.any_version

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
    for name, expected in wide.features(batch).items():
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
    assert set(NEEDS) < set(NAMES)
    assert all((folder / f"{name}.py").exists() for name in NAMES)


def test_each_library_of_the_comparison_is_a_module() -> None:
    folder = Path(benchmarks.__file__).parent / "peers"
    assert all((folder / f"{peer}.py").exists() for peer in environments.REQUIREMENTS)


def _contender(peer: str, variant: str, *rates: float) -> compare.Contender:
    one = compare.Contender(peer, variant, Path("python"), version="1.0")
    for rate in rates:
        epoch = {"cpu_seconds": 1.0, "seconds": 1.0, "whole": True}
        one.rounds.append([{**epoch, "rows_per_second": rate / 2}, {**epoch, "rows_per_second": rate}])
    return one


def test_the_fastest_variant_counts_and_ratios_are_within_rounds() -> None:
    contenders = [
        _contender("arrowflow", "w", 4e6, 6e6, 8e6),
        _contender("loops", "w:slow", 1e6, 1e6, 1e6),
        _contender("loops", "w:fast", 2e6, 2e6, 2e6),
        _contender("arrowflow_kept", "w", 9e6, 9e6, 9e6),
        compare.Contender("broken", "w", Path("python"), error="no such function"),
    ]
    figures = compare._figures(contenders)
    assert figures["loops"]["variant"] == "w:fast"
    assert (figures["loops"]["ours_warm"], figures["loops"]["ours_cold"]) == (3.0, 3.0)
    machine = {"cpus": 2, "cpu": "some CPU", "python": "3.11"}
    lines = list(report.table({"machine": machine, "rounds": 3, "workloads": {"w": figures}}))
    assert "| **arrowflow** | 6 M | 3 M |  |  |" in lines
    assert "| loops 1.0 | 2 M | 1 M | 3.00 x | 3.00 x |" in lines
    assert "| **arrowflow**, rows kept in memory | 9 M |  |  |  |" in lines
    assert "| broken | cannot: no such function | | | |" in lines


def test_who_is_far_slower_runs_once() -> None:
    contenders = [_contender("arrowflow", "w", 8e6), _contender("arrowflow_kept", "w", 99e6)]
    contenders += [_contender("near", "w", 3e6), _contender("far", "w", 1e6), _contender("new", "w")]
    assert [one.peer for one in contenders if compare._is_far(one, contenders)] == ["far"]


def test_the_page_has_the_bars_of_other_benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bar = {"name": "2 ranks", "got": "3 against 2 M rows/s", "ratio": 1.5}
    kept = {"machine": {"cpus": 2, "cpu": "some CPU"}, "contenders": {"1 rank": [{}, {}]}, "bars": [bar]}
    for name in report.OTHERS:
        (tmp_path / f"{name}.json").write_text(json.dumps(kept), encoding="utf-8")
    monkeypatch.setattr("benchmarks.harness.RESULTS", tmp_path)
    lines = list(report.others())
    assert lines.count("| 2 ranks | 3 against 2 M rows/s | 1.50 x |") == len(report.OTHERS)
    assert f"{report.OTHERS['ranks']}; 2 rounds on 2 cores of some CPU.\n" in lines


def test_other_columns_or_sums_are_no_contender() -> None:
    expected = {"shapes": {"x": "int32 []"}, "sums": {"x": 1000.0}, "whole": True}
    assert not list(compare._differences(expected, {**expected, "sums": {"x": 1001.0}}))
    assert list(compare._differences(expected, {**expected, "sums": {"x": 1100.0}}))
    assert list(compare._differences(expected, {**expected, "shapes": {"y": "int32 []"}}))


def test_a_contender_of_other_sums_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(one: compare.Contender, **_: Any) -> list[dict[str, Any]]:
        made = [{"rows_per_second": 1.0, "rows": 1, "seconds": 1.0, "cpu_seconds": 1.0, "whole": True}]
        one.rounds.append(made)
        one.checked = {
            "shapes": {"x": "int32 []"},
            "sums": {"x": 7.0 if one.peer == "b" else 1.0},
            "whole": True,
        }
        return made

    monkeypatch.setattr(compare.Contender, "run", run)
    monkeypatch.setattr("benchmarks.harness.wait_until_idle", lambda: None)
    measured = compare._measured(
        "x", [compare.Contender(peer, "x", Path()) for peer in (compare.OURS, "a", "b")], 3, 1, 1.0
    )
    assert [(one.peer, len(one.rounds), one.error) for one in measured] == [
        (compare.OURS, 3, ""),
        ("a", 3, ""),
        ("b", 1, "the sum of x is 7.0, not 1.0"),
    ]
    assert compare._figures(measured)["b"] == {"error": "the sum of x is 7.0, not 1.0"}


def test_an_epoch_that_is_cut_is_counted_from_its_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(
        [0.0, 10.0, 10.0, 11.0, 12.0, 12.0]
    )  # the first batch takes 10 seconds, each other one a second
    monkeypatch.setattr("benchmarks.peers.epochs.time.perf_counter", lambda: next(now))
    found = epochs._one(lambda: ({"x": np.zeros(5)} for _ in range(9)), epochs._rows, 1.5, check=False)
    assert (found["rows"], found["whole"], found["rows_per_second"]) == (15, False, 5.0)


def test_packing_by_hand_keeps_documents_whole() -> None:
    documents = [np.full(size, size, np.int32) for size in [1_500] * 8 + [500, 600, 1_400, 1_400]]
    batches = list(packing.packed(documents))
    assert [int(np.count_nonzero(batch["segment_ids"])) for batch in batches] == [8 * 1_500 + 500]
    assert batches[0]["positions"][0, :2_001].tolist() == [*range(1_500), *range(500), 0]
