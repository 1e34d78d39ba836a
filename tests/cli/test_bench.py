from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

import arrowflow as af
from arrowflow.cli import bench
from tests.cli.conftest import Run

pytestmark = pytest.mark.any_version

JOB = """
import polars as pl
import arrowflow as af

dataset = af.read_parquet("data").select("id").batch(100)
loader = dataset.to_numpy()
empty = af.range(10).filter(pl.col("id") < 0)
number = 3


def made():
    return dataset.repeat()


def fails():
    raise af.PlanError("its own")


def sized(size):
    return dataset
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    af.range(1000).write_parquet(tmp_path / "data")
    (tmp_path / "job_of_bench.py").write_text(JOB)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "job_of_bench", raising=False)
    return "job_of_bench"


def test_whole_epochs_and_bare_decoding(job: str, answer: Run) -> None:
    found = answer("bench", f"{job}:dataset", "--seconds", "0.1")
    assert found["epochs"] >= 1
    assert found["epochs"] * 1000 <= found["rows"] <= (found["epochs"] + 1) * 1000
    assert found["rows_per_second"] == pytest.approx(found["rows"] / found["seconds"])
    assert 0 < found["bare_decode_seconds"] < 60 and 0 < found["epoch_seconds"] <= found["seconds"]
    assert "read_parquet" in found["stages"][0]["operators"] and found["bottleneck"]


def test_an_endless_pipeline_ends_with_the_time(job: str, run: Run) -> None:
    text = run("bench", f"{job}:made", "--seconds", "0.1").stdout
    assert "0 whole epochs" in text and "no epoch ended in that time" in text


def test_a_loader_is_measured_as_it_is(job: str, run: Run) -> None:
    lines = run("bench", f"{job}:loader", "--seconds", "0.1", "--live", "--verbose").stdout.splitlines()
    assert lines[0].split()[1] == "rows/s:"
    assert any(line.startswith("1. ") for line in lines)


@pytest.mark.parametrize(("name", "rows"), [("loader", 1000), ("empty", 0)])
def test_a_report_is_of_one_more_epoch(name: str, rows: int, job: str, run: Run, tmp_path: Path) -> None:
    text = run("bench", f"{job}:{name}", "--seconds", "0.1", "--report", "run.html").stdout
    assert text.endswith("\none more epoch is in the report run.html\n")
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert f'<data class="rows" value="{rows:.1f}">' in page
    assert ("<h2>Timeline</h2>" in page) == (rows > 0)


def test_a_report_without_a_folder_is_refused_before_anything_runs(job: str, run: Run) -> None:
    error = run("bench", f"{job}:fails", "--report", "none/run.html", code=1).stderr
    assert error == "arrowflow: bench: there is no folder 'none' for the report; make it first\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job_of_bench:datase", "did you mean 'dataset'?"),
        ("job_of_bench:number", "but int"),
        ("job_of_bench:fails", "its own"),
        ("job_of_bench:sized", "raised TypeError: sized() missing 1 required"),
        ("no_such_module:x", "cannot be imported"),
        ("job_of_bench.py", "module:name"),
    ],
)
def test_other_names_are_explained(name: str, text: str, job: str, run: Run) -> None:
    assert text in run("bench", name, code=2).stderr


class Endless:
    """A pipeline whose first run ends just before the time is over, so that a sliver of another one follows."""

    def __init__(self) -> None:
        self.rows = iter([900, 5])

    def __iter__(self) -> Any:
        rows = next(self.rows)
        figures = SimpleNamespace(rows=rows, batches=1, seconds=rows / 901, waited_seconds=0.0)
        run = MagicMock()
        run.__enter__.return_value = run
        run.__iter__.return_value = iter(())
        run.stats.return_value, run.explain.return_value = figures, f"of {rows} rows"
        return run


def test_the_report_of_an_endless_pipeline_is_of_its_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_drain", lambda iterator, seconds, draw: False)
    found = bench.measure(Endless(), 1.0, None)  # type: ignore[arg-type]
    assert found.explained == "of 900 rows" and found.latest.rows == 900 and found.rows == 905
