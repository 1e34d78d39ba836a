"""Random plans in lanes: the same global batches for any number of processes, also where that number changes.

A plan is run by one process to the end. Then it is run by some number of processes, stopped after some step, and gone on
with by another number, from the merged states as a file keeps them. Plans that cannot run in lanes are refused.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.optimizer import RULES
from tests.effort import scaled
from tests.oracles import plans
from tests.oracles.plans import PLANS, Plan, Row

REFUSED = (
    "rows of the whole stream",
    "cannot be found by their numbers",
    "known to have as many rows",
    "cannot be filled up",
)
"""What the errors of plans say that cannot run in lanes."""

WHOLE_STREAM = frozenset(
    ("take_while", "take_while_fn", "shard", "split", "enumerate", "scan", "unique", "draw")
)
"""Operators that are always refused; rows of `draw` are drawn by the weights of all rows."""

seen: Counter[str] = Counter()


def in_lanes(plan: Plan) -> Plan:
    """Returns a plan without operators that are always refused, on a source whose rows have numbers."""
    source = plans.memory_source([7, 5, 20]) if plan.source.what == "generator" else plan.source
    ops = [op for op in plan.ops if op.name not in WHOLE_STREAM]
    endless = any(op.name == "repeat" and op.arguments == (None,) for op in ops)
    return Plan(source, tuple(op for op in ops if not (endless and op.name in ("repeat", "take"))))


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    plans.use_folder(tmp_path_factory.mktemp("ranks"))
    yield
    assert seen["ran"] >= seen["refused"], seen


UNSHARED = ("wait for each other", "cannot share")
"""What they say where only one process can run them."""

Split = Callable[[int, int], af.Dataset]


def runs_of(split: Split, size: int, epoch: int, refused: tuple[str, ...]) -> list[Any] | None:
    """Returns a run of each rank, at the beginning of an epoch.

    None if so many processes cannot run the plan, whose error has to say one of these things.
    """
    try:
        datasets = [split(rank, size) for rank in range(size)]
        datasets[0].explain()
    except af.PlanError as error:
        if not any(text in str(error) for text in refused):
            raise
        return None
    runs = [iter(dataset) for dataset in datasets]
    for run in runs:
        run.set_epoch(epoch)
    return runs


def together(runs: list[Any], steps: int | None = None) -> list[list[Row]]:
    """Returns the global batches of the next steps."""
    found = [[batch.to_pylist() for batch in itertools.islice(run, steps)] for run in runs]
    assert len({len(batches) for batches in found}) == 1, "ranks made different numbers of steps"
    return [list(itertools.chain(*parts)) for parts in zip(*found, strict=True)]


@settings(max_examples=scaled(1_000), database=None)
@given(
    plan=PLANS.map(in_lanes),
    size=st.sampled_from([8, 12, 16]),
    drop=st.booleans(),
    epoch=st.integers(0, 1),
    disabled=st.lists(st.sampled_from([rule.name for rule in RULES]), unique=True, max_size=1).map(tuple),
    before=st.sampled_from([1, 2, 4]),
    after=st.sampled_from([1, 2, 4]),
    step=st.integers(0, 12),
)
def test_other_numbers_of_processes_go_on(
    plan: Plan,
    size: int,
    drop: bool,
    epoch: int,
    disabled: tuple[str, ...],
    before: int,
    after: int,
    step: int,
) -> None:
    def split(rank: int, count: int) -> af.Dataset:
        ds = plan.dataset(af.Options(cpu_budget=2, disabled_rules=disabled))
        if plan.batched:
            return ds.split_by_rank(rank, count, equal_steps="drop")
        return ds.batch(size, drop_remainder=drop).split_by_rank(rank, count, lanes=4, equal_steps="drop")

    alone = runs_of(split, 1, epoch, REFUSED)
    if alone is None:
        seen["refused"] += 1
        return
    seen["ran"] += 1
    expected = together(alone)
    at = min(step, len(expected))
    runs, others = (runs_of(split, size, epoch, UNSHARED) for size in (before, after))
    if runs is None or others is None:
        runs, others = (runs_of(split, 1, epoch, ()) for _ in range(2))
    assert runs is not None and others is not None
    assert together(runs, at) == expected[:at]
    merged = json.loads(json.dumps(af.merge_states([run.state_dict() for run in runs])))
    for run in others:
        run.load_state_dict(merged)
    assert together(others) == expected[at:]
    for run in runs:
        run.close()
