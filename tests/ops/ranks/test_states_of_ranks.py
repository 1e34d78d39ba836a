"""States of ranks: merged, loaded by another number of processes, and altered ones."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.ops.sources.files import split_readers
from arrowflow.testing import assert_same_batches
from tests.ops.ranks.pipelines import (
    PIPELINES,
    UNCOUNTED,
    joined,
    ranks,
    rest_of,
    state_after,
    steps_of,
)
from tests.ops.tables import refused

pytestmark = pytest.mark.any_version

ALL = {**PIPELINES, **UNCOUNTED}


def stopped(datasets: list[af.Dataset], step: int) -> list[dict[str, Any]]:
    """Returns the state of each rank after so many steps."""
    return [state_after(dataset, step) for dataset in datasets]


def resumed(datasets: list[af.Dataset], state: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Returns the global batches from a state on."""
    return joined(zip(*(rest_of(dataset, state) for dataset in datasets), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_another_number_of_processes_goes_on(path: Path, name: str) -> None:
    plan = PIPELINES[name](path)
    expected = steps_of(ranks(lambda: plan, 1))
    for before, after, step in [(4, 1, 7), (2, 8, len(expected) - 1)]:  # others: tests/fuzz/test_ranks.py
        merged = af.merge_states(stopped(ranks(lambda: plan, before), step))
        assert resumed(ranks(lambda: plan, after), merged) == expected[step:], (before, after)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_one_process_goes_on_at_every_step(path: Path, name: str) -> None:
    options: dict[str, Any] = {} if name in PIPELINES else {"equal_steps": "drop"}

    def alone() -> list[af.Dataset]:
        return ranks(lambda: ALL[name](path), 1, **options)

    expected = steps_of(alone())
    for step in sorted({len(expected) // 2, max(0, len(expected) - 1), len(expected)}):
        (state,) = stopped(alone(), step)
        assert resumed(alone(), state) == expected[step:], step


@pytest.mark.parametrize("name", ["plain", "shuffle", "a range of rows"])
def test_large_chunks_of_lanes_come_in_halves(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = steps_of(ranks(lambda: PIPELINES[name](path), 1))
    monkeypatch.setattr(split_readers, "LARGE_BYTES", 64)
    merged = af.merge_states(stopped(ranks(lambda: PIPELINES[name](path), 2), 5))
    assert resumed(ranks(lambda: PIPELINES[name](path), 4), merged) == expected[5:]


@pytest.mark.parametrize(
    ("rows", "size", "windows"),
    [
        (217, 8, False),
        (217, 16, True),
        (16 * 11 + 1, 16, False),
        (32 * 5 + 7, 32, False),
        (32 * 5 + 17, 32, True),
    ],
)
def test_filled_up_lanes_go_on_near_their_ends(rows: int, size: int, windows: bool) -> None:
    """Also those of another rank, whose fillers repeat the very rows that they would have repeated."""
    source = af.range(rows).shuffle(1600, seed=1) if windows else af.range(rows)
    plan = source.batch(size, pad_remainder=True)
    expected = steps_of(ranks(lambda: plan, 1))
    for step in {0, len(expected) // 2, *range(len(expected) - 3, len(expected) + 1)}:
        states = stopped(ranks(lambda: plan, 2), step)
        for state in (*states, af.merge_states(states)):
            assert resumed(ranks(lambda: plan, 1), state) == expected[step:], step


NEAR = {
    "plain",
    "repeat above",
    "columns",
    "shuffle",
    "global shuffle",
    "memory",
    "a range of rows",
    "remainder filled",
}
"""Pipelines whose lanes begin near the step of a state that lacks them."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PIPELINES.keys() - {"function behind"}))
def test_the_state_of_another_rank_costs_time_at_most(path: Path, name: str) -> None:
    plan = PIPELINES[name](path)
    expected = steps_of(ranks(lambda: plan, 1))
    for step in (1, len(expected) - 1):
        states = stopped(ranks(lambda: plan, 2), step)
        with warnings.catch_warnings(record=True, action="always") as given:
            found = resumed(ranks(lambda: plan, 2), states[0])
        assert found == expected[step:]
        texts = [str(warning.message) for warning in given]
        assert bool(texts) != (name in NEAR)
        assert all(
            f"lanes 8, 9, 10, 11, 12, 13, 14, 15; they run from the start of the epoch up to step {step},"
            in text
            for text in texts
        )


def test_lanes_that_begin_near_their_step_read_little(path: Path) -> None:
    """In a later epoch, whose order is another one."""
    first, second = ranks(lambda: PIPELINES["shuffle"](path), 2)
    with iter(first) as run:
        run.set_epoch(3)
        for _ in range(40):
            next(run)
        state = run.state_dict()
    with iter(second) as run:
        run.set_epoch(3)
        expected = list(run)[40:]
        whole = rows_read(run)
        run.load_state_dict(state)
        assert_same_batches(list(run), expected)
        assert 2 * rows_read(run) < whole


def rows_read(run: af.Iterator[Any]) -> int:
    return sum(stage.rows for stage in run.stats().stages if "read_parquet" in stage.operators)


def test_batches_of_lanes_need_their_places(path: Path) -> None:
    first, second = ranks(lambda: PIPELINES["function behind"](path), 2)
    (state,) = stopped([first], 2)
    with pytest.raises(af.StateError, match=r"no places for the lanes 8, .* merge the states of all ranks"):
        iter(second).load_state_dict(state)


def test_states_that_do_not_belong_together(path: Path) -> None:
    plan, other = PIPELINES["shuffle"](path), PIPELINES["plain"](path)
    first, second = ranks(lambda: plan, 2)
    early = state_after(first, 3)
    for states, text in (
        ([early, state_after(second, 4)], "batches 4 in place of 3"),
        ([early, state_after(other.split_by_rank(0, 2), 3)], "another pipeline"),
        ([{**early, "batches": 5}], "altered or cut"),
        ([], "got none"),
    ):
        refused(af.StateError, lambda states=states: af.merge_states(states), text)  # type: ignore[misc]
    lanes = iter(plan.split_by_rank(0, 1, lanes=8))
    refused(af.StateError, lambda: lanes.load_state_dict(early), "belongs to another pipeline")


def test_a_turn_goes_on_with_caches_that_nobody_has_filled() -> None:
    """Whichever lane is next fills them."""
    lists = pa.array([list(range(row % 9)) for row in range(400)])
    rows = af.from_arrow(pa.table({"id": range(400), "tokens": lists})).filter(pl.col("id") >= 0)
    plan = rows.cache().shuffle(seed=1).bucket_by_sequence_length("tokens", [3, 6], [8, 8, 8])
    split = plan.split_by_rank(0, 1, lanes=4, how="parts", equal_steps="drop")._plan
    with iter(af.Dataset(split)) as run:
        states = [(batch, run.state_dict()) for batch in run]
    for step in (1, 2, 3, 7):
        with iter(af.Dataset(split)) as again:
            again.load_state_dict(states[step - 1][1])
            assert list(again) == [batch for batch, _ in states[step:]]
