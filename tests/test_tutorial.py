"""The tutorial in `examples/` without its sleeps, and the best schedules that its benchmark works out."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import time
from pathlib import Path

import pytest

from benchmarks.tutorial import TF_DATA_SECONDS, WORK, best_seconds
from examples import tutorial

pytestmark = pytest.mark.any_version

CASES = {case.name: case for cases in tutorial.STORY for case in cases}
MAX_PICTURE_BYTES = 60_000


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was slept, had anybody slept."""
    seconds: list[float] = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


@pytest.mark.parametrize("name", WORK)
def test_a_case_sleeps_for_what_its_schedule_says(name: str, asked: list[float]) -> None:
    work = WORK[name]
    rows = tutorial.train(CASES[name], CASES[name].make().to_numpy())
    assert rows == work.epochs * work.sources * work.samples
    one_thread = dataclasses.replace(work, ahead=False)
    assert sum(asked) == pytest.approx(best_seconds(one_thread, lambda seconds: seconds))


def test_the_best_schedules_are_those_of_the_guide() -> None:
    best = {name: best_seconds(work, lambda seconds: seconds) for name, work in WORK.items()}
    assert best == pytest.approx(
        {
            "naive": 0.210,
            "prefetch": 0.170,
            "interleave-sequential": 0.420,
            "interleave-parallel": 0.210,
            "map-sequential": 0.390,
            "map-parallel": 0.230,
            "cache": 0.315,
            "whole": 5.480,
        }
    )


def test_a_slow_sleep_delays_what_needs_it() -> None:
    work = dataclasses.replace(WORK["prefetch"], epochs=1)
    assert best_seconds(work, lambda seconds: 2 * seconds) == pytest.approx(2 * 0.085)


def test_samples_of_two_data_sets_take_turns(asked: list[float]) -> None:
    for make in (tutorial.interleave_sequential, tutorial.interleave_parallel):
        assert make().to_table()["sample"].to_pylist() == [0, 0, 1, 1, 2, 2]
    rows = tutorial.whole().to_table()["sample"].to_pylist()
    assert rows == [number for number in range(tutorial.MANY) for _ in range(2)]


def test_one_by_one_and_all_at_once_give_the_same() -> None:
    scalar, vectorised = tutorial.scalar().to_table(), tutorial.vectorised().to_table()
    assert scalar["id"].to_pylist() == list(range(1, tutorial.NUMBERS + 1))
    assert vectorised["id"].to_pylist() == scalar["id"].to_pylist()


def test_every_case_is_measured() -> None:
    assert CASES.keys() == TF_DATA_SECONDS.keys()
    assert CASES.keys() - WORK.keys() == {name for name, case in CASES.items() if not case.trains}


def test_the_story_is_told(
    asked: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tutorial, "STORY", tutorial.STORY[:1])
    tutorial.main([])
    told = capsys.readouterr().out
    assert "naive: 0." in told
    assert "x as fast" in told
    assert "pictures" not in told


def test_pictures_are_small_and_share_an_axis(
    asked: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    saved: list[tuple[float, float]] = []
    save = figures.Figure.savefig

    def watched(figure: object, *arguments: object, **options: object) -> None:
        saved.append(figure.axes[0].get_xlim())  # type: ignore[attr-defined]
        save(figure, *arguments, **options)

    monkeypatch.setattr(figures.Figure, "savefig", watched)
    monkeypatch.setattr(tutorial, "TOO_SHORT", math.inf)  # whatever else the machine does
    monkeypatch.setattr(tutorial, "STORY", tutorial.STORY[:1])
    tutorial.main(["--pictures", str(tmp_path / "images")])
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "images").iterdir()}
    assert sizes.keys() == {"tutorial-naive.png", "tutorial-prefetch.png"}
    assert max(sizes.values()) <= MAX_PICTURE_BYTES
    assert saved[0] == pytest.approx(saved[1])


def test_pictures_need_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="needs Matplotlib"):
        tutorial.main(["--pictures", str(tmp_path / "images")])
    assert not (tmp_path / "images").exists()
