from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import arrowflow as af
from tests.cli.conftest import Run

pytestmark = pytest.mark.any_version


def state_after(batches: int) -> dict[str, Any]:
    ds = af.range(1000).filter(pl.col("id") > 3).shuffle(100, seed=7).batch(8)
    with iter(ds) as iterator:
        for _ in range(batches):
            next(iterator)
        return iterator.state_dict()


def test_a_state_says_where_it_goes_on(tmp_path: Path, run: Run) -> None:
    (tmp_path / "state.json").write_text(json.dumps(state_after(3)))
    lines = run("state", "show", tmp_path / "state.json").stdout.splitlines()
    assert lines[0] == "epoch 0, 3 batches delivered"
    assert [line.split()[0] for line in lines[4:]] == ["range", "filter", "shuffle", "batch"]
    assert "size=100, seed=7" in lines[6]


def test_states_within_a_checkpoint_are_found(tmp_path: Path, answer: Run) -> None:
    checkpoint = {"step": 3, "loaders": [state_after(1), {"inner": state_after(2)}]}
    (tmp_path / "all.json").write_text(json.dumps(checkpoint))
    found = answer("state", "show", tmp_path / "all.json")
    assert [(each["place"], each["batches"]) for each in found] == [("loaders.0", 1), ("loaders.1.inner", 2)]


@pytest.mark.parametrize("text", ["[1, 2]", "no JSON", json.dumps({**state_after(2), "batches": 9})])
def test_what_is_no_whole_state_fails(text: str, tmp_path: Path, run: Run) -> None:
    (tmp_path / "state.json").write_text(text)
    assert "state.json" in run("state", "show", tmp_path / "state.json", code=1).stderr
    assert "cannot be read" in run("state", "show", tmp_path / "none.json", code=1).stderr


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    for rows in (100, 200):
        list(af.range(rows).cache(folder))
    return folder


def test_entries_are_those_of_cache_info(cache: Path, run: Run, answer: Run) -> None:
    entries = af.cache_info(cache)
    listed = answer("cache", "ls", cache)
    assert [(each["fingerprint"], each["num_rows"], each["complete"]) for each in listed] == [
        (entry.fingerprint, entry.num_rows, True) for entry in entries
    ]
    assert [line.split()[:2] for line in run("cache", "ls", cache).stdout.splitlines()[2:-1]] == [
        [entry.fingerprint[:12], str(entry.num_rows)] for entry in entries
    ]
    first = entries[0]
    described = run("cache", "info", cache, first.fingerprint[:8]).stdout
    assert first.path in described and entries[1].path not in described and "range(" in described
    assert run("cache", "info", cache, "no", code=2).stderr.startswith("arrowflow: ")


@pytest.mark.parametrize("action", ["ls", "info", "clear"])
def test_a_folder_that_is_not_there_fails(action: str, tmp_path: Path, run: Run) -> None:
    more = ["--yes"] if action == "clear" else []
    assert "no folder" in run("cache", action, tmp_path / "none", *more, code=1).stderr


@pytest.mark.parametrize("action", ["ls", "info"])
def test_a_folder_without_entries_says_so(action: str, tmp_path: Path, run: Run) -> None:
    said = f"no finished entries in {tmp_path}".split()
    assert run("cache", action, tmp_path).stdout.split() == said
    with iter(af.from_generator(lambda: iter([{"x": 1}] * 50)).cache(tmp_path).batch(10)) as filling:
        next(filling)
        assert run("cache", action, tmp_path).stdout.split() == said


def test_a_damaged_description_is_a_finding(cache: Path, run: Run) -> None:
    Path(af.cache_info(cache)[0].path, "entry.json").write_text("{")
    damaged = [entry.problem for entry in af.cache_info(cache) if entry.problem]
    assert len(damaged) == 1 and damaged[0] in run("cache", "info", cache, code=1).stdout


def test_clearing_all_asks_first(cache: Path, run: Run) -> None:
    run("cache", "clear", cache, code=1, input="n\n")
    assert len(af.cache_info(cache)) == 2
    assert "removed: 0 entries" in run("cache", "clear", cache, "--older-than", "7d").stdout
    run("cache", "clear", cache, input="y\n")
    assert af.cache_info(cache) == []
    list(af.range(10).cache(cache))
    run("cache", "clear", cache, "--yes")
    assert af.cache_info(cache) == []


def test_the_lanes_of_a_rank_are_named(tmp_path: Path, answer: Run) -> None:
    with iter(af.range(1000).batch(16).split_by_rank(1, 2, lanes=4)) as iterator:
        next(iterator)
        (tmp_path / "rank.json").write_text(json.dumps(iterator.state_dict()))
    (found,) = answer("state", "show", tmp_path / "rank.json")
    assert found["lanes"] == [2, 3]
