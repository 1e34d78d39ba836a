"""Lanes that end in a `shuffle`: gathered straight into batches, they deliver the rows that copied ones deliver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.ops.ranks import lane_kernels
from tests.ops.ranks.pipelines import of, ranks, rest_of, state_after, steps_of

pytestmark = pytest.mark.any_version


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A function after `shuffle`: lanes then run the shuffle themselves."""
    return batch


def both(rows: af.Dataset, size: int, batch: int) -> tuple[af.Dataset, af.Dataset]:
    shuffled = rows.shuffle(size, seed=3)
    return shuffled.batch(batch), shuffled.map(same, keeps_rows=True).batch(batch)


STEP, SOME, ALL = 1, 4096, lane_kernels.PART_BYTES
"""The bytes of a part: of one step, of some steps, and of all rows here."""


@pytest.mark.parametrize(
    ("size", "batch", "part_bytes"),
    [
        *((1600, 1600, part_bytes) for part_bytes in (STEP, ALL)),  # a window is a step
        *((1630, 320, part_bytes) for part_bytes in (STEP, SOME, ALL)),  # windows end within steps
        *((100_000, 640, part_bytes) for part_bytes in (STEP, SOME)),  # one window has all rows
        (2048, 160, SOME),
    ],
)
def test_the_rows_are_those_of_a_shuffle_in_each_lane(
    path: Path, size: int, batch: int, part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arrowflow.ops.ranks.split_by_rank.PART_BYTES", part_bytes)
    straight, copied = both(of(path).with_columns(text=pl.col("id").cast(pl.String)), size, batch)
    expected = steps_of(ranks(lambda: copied, 1))
    assert steps_of(ranks(lambda: straight, 1)) == expected
    assert steps_of(ranks(lambda: straight, 4)) == expected


@pytest.mark.parametrize("size", [1600, 2010])
def test_lanes_of_unequal_length(path: Path, size: int) -> None:
    straight, copied = both(of(path).filter(pl.col("id") % 7 < pl.col("id") // 3000), size, 320)
    options: dict[str, Any] = {"equal_steps": "drop"}
    assert steps_of(ranks(lambda: straight, 1, **options)) == steps_of(ranks(lambda: copied, 1, **options))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1600, 2010])
def test_states_from_within_windows_and_parts(path: Path, size: int) -> None:
    plan, _ = both(of(path), size, 320)
    expected = steps_of(ranks(lambda: plan, 1))
    for step in range(0, len(expected), 5):
        state = state_after(plan.split_by_rank(0, 1), step)
        rest = [batch.to_pylist() for batch in rest_of(plan.split_by_rank(0, 1), state)]
        assert rest == expected[step:], step


def test_no_gather_of_its_own_and_no_copy_after_it(path: Path) -> None:
    plan, _ = both(of(path), 1600, 320)
    shown = plan.split_by_rank(0, 1).explain()
    assert "permute windows of 100 rows of each lane, and gather them into their batches" in shown
    assert "permute and gather, one call a window" not in shown
