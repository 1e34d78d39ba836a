"""Ranks that agree where to end: threads in place of processes, and a barrier in place of a network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from tests.ops.ranks.pipelines import (
    BATCH,
    UNCOUNTED,
    Make,
    documents,
    doubled,
    joined,
    of,
    ranks,
    rest_of,
    state_after,
    steps_of,
)

pytestmark = pytest.mark.any_version

COUNTED = ("filter", "an uneven filter", "mix", "pack", "interleave", "explode")


class Meeting:
    """A place where threads, one a rank, find the least of their numbers."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=240)  # a machine may do much else
        self._numbers: list[Sequence[int]] = []
        self.rounds = 0

    def all_min(self, numbers: Sequence[int]) -> Sequence[int]:
        """See `Coordinator.all_min`."""
        self._numbers.append(numbers)
        self._barrier.wait()
        least = [min(values) for values in zip(*self._numbers, strict=True)]
        if self._barrier.wait() == 0:
            self._numbers = []
            self.rounds += 1
        self._barrier.wait()
        return least

    def abort(self) -> None:
        """Ends the waiting of all ranks, as the end of a process does."""
        self._barrier.abort()


def together(
    datasets: Sequence[af.Dataset], consume: Callable[[af.Dataset], Any] = list
) -> list[Future[Any]]:
    """Consumes the datasets of all ranks at the same time."""
    with ThreadPoolExecutor(len(datasets)) as pool:
        return [pool.submit(consume, dataset) for dataset in datasets]


def agreed(
    plan: af.Dataset, size: int, consume: Callable[[af.Dataset], Any] = list, meeting: Meeting | None = None
) -> list[Any]:
    """Returns what ranks make that agree where to end."""
    datasets = ranks(lambda: plan, size, equal_steps="drop", coordinator=meeting or Meeting(size))
    return [future.result() for future in together(datasets, consume)]


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTED)
def test_all_ranks_make_the_steps_of_one_process(path: Path, name: str) -> None:
    plan = UNCOUNTED[name](path)
    expected = steps_of(ranks(lambda: plan, 1, equal_steps="drop"))
    for size in (2, 8):
        meeting = Meeting(size)
        assert joined(zip(*agreed(plan, size, meeting=meeting), strict=True)) == expected
        # 1, 4 and 16 steps, then 64 at a time, and one that finds none.
        assert meeting.rounds <= 5 + len(expected) // 64


def bucketed(path: Path) -> af.Dataset:
    ds = documents(of(path)).filter(pl.col("id") % 100 > 30 + pl.col("id") // 400)  # lanes of unequal length
    return ds.bucket_by_sequence_length("tokens", [3, 6], [8, 6, 4]).with_columns(x=pl.col("id") + 1)


def called(path: Path) -> af.Dataset:
    ds = of(path).filter(pl.col("id") % 100 > 30 + pl.col("id") // 400)
    return ds.batch(BATCH).map(doubled, keeps_rows=True).with_columns(y=pl.col("x") + 1)


@pytest.mark.slow
@pytest.mark.parametrize("make", [bucketed, called])
def test_ranks_agree_on_batches_that_lanes_make(path: Path, make: Callable[[Path], af.Dataset]) -> None:
    """In turn, and joined: as many on each rank, and those of one process as far as they go."""
    counts = {}
    for size in (1, 2, 8):
        found = agreed(make(path), size)
        (steps,) = {len(batches) for batches in found}
        counts[size] = steps * (size if make is bucketed else 1)
        ids = [row for batches in found for batch in batches for row in batch["id"].to_pylist()]
        assert len(set(ids)) == len(ids)
    assert min(counts.values()) > 8
    if make is called:
        assert len(set(counts.values())) == 1


@pytest.mark.parametrize("kept", [0.01, 0.3, 0.99])
def test_a_filter_that_drops_unevenly(kept: float) -> None:
    rows = 16_000
    # The later a row, the more probable it is to be dropped; the first half is kept whole.
    share = 1 - (1 - kept) * (pl.col("id") - rows / 2).clip(0, None) / (rows / 2)
    plan = af.range(rows).filter((pl.col("id") * 7919 % 1009) / 1009 < share).shuffle(512, seed=1).batch(64)
    (steps,) = {len(batches) for batches in agreed(plan, 8)}
    assert steps > 0


@pytest.mark.parametrize(
    ("make", "step", "after"),
    [(UNCOUNTED["filter"], 9, 4), (called, 7, 2)],
    ids=["filter", "batches that lanes make"],
)
def test_states_of_ranks_that_agreed(path: Path, make: Make, step: int, after: int) -> None:
    plan = make(path)
    expected = steps_of(ranks(lambda: plan, 1, equal_steps="drop"))
    state = af.merge_states(agreed(plan, 2, lambda dataset: state_after(dataset, step)))
    found = agreed(plan, after, lambda dataset: rest_of(dataset, state))
    assert joined(zip(*found, strict=True)) == expected[step:]


def test_the_failure_of_a_rank_ends_the_others(path: Path) -> None:
    meeting = Meeting(2)

    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("no")

    plans = [of(path), of(path).map(fails, schema=pa.schema({"id": pa.int64()}))]
    datasets = [
        plan.filter(pl.col("id") >= 0)
        .batch(BATCH)
        .split_by_rank(rank, 2, equal_steps="drop", coordinator=meeting)
        for rank, plan in enumerate(plans)
    ]

    def consume(dataset: af.Dataset) -> None:
        try:
            list(dataset)
        except af.FunctionError:
            meeting.abort()  # its process ends
            raise

    first, second = together(datasets, consume)
    assert isinstance(first.exception(), af.RankError)
    assert "another rank failed" in str(first.exception())
    assert isinstance(second.exception(), af.FunctionError)


def test_ranks_at_different_steps_notice_it(path: Path) -> None:
    plan = UNCOUNTED["filter"](path)
    datasets = ranks(lambda: plan, 2, equal_steps="drop", coordinator=Meeting(2))
    state = state_after(plan.split_by_rank(0, 1, equal_steps="drop"), 3)

    def late(dataset: af.Dataset) -> None:
        rest_of(dataset, state) if dataset is datasets[1] else list(dataset)

    texts = [str(future.exception()) for future in together(datasets, late)]
    assert "this rank is in epoch 0 at step 0, another one in epoch 0 at step 3" in texts[0]
    assert "this rank is in epoch 0 at step 3, another one in epoch 0 at step 0" in texts[1]


def test_other_objects_are_refused() -> None:
    with pytest.raises(
        af.PlanError, match=r"a process group of torch\.distributed, or an object with a method"
    ):
        af.range(9).batch(1).split_by_rank(0, 1, coordinator="gloo")
