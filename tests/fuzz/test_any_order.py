"""Random plans with `deterministic=False`: what is stopped and gone on with yields each row as often as the whole run.

Only plans are tried whose rows, taken together, do not depend on their order. Each part of a run has budgets of its own.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.optimizer import RULES
from tests.effort import scaled
from tests.oracles import plans
from tests.oracles.plans import PLANS, Plan

FREE = frozenset(
    (
        *("select", "with_columns", "drop", "rename", "cast", "fill_null", "stack", "filter", "explode"),
        *("shuffle", "batch", "prefetch", "with_options", "cache", "spilling_cache", "disk_cache"),
        *("map_rows", "filter_fn", "unique", "zip", "sample", "choose", "global"),
    )
)
"""Operators whose rows, taken together, do not depend on the order of their input's; `batch` where it drops none."""

seen: Counter[str] = Counter()


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    plans.use_folder(tmp_path_factory.mktemp("any"))
    yield
    assert seen["ran"] >= seen["refused"], seen


def without_order(plan: Plan) -> Plan:
    """Returns a plan without the other operators."""
    ops = [op for op in plan.ops if op.name in FREE and not (op.name == "batch" and op.arguments[1])]
    return dataclasses.replace(plan, ops=tuple(ops))


def counted(rows: Iterator[dict[str, Any]]) -> Counter[str]:
    """Returns how often each row comes."""
    return Counter(json.dumps(row, default=str) for row in rows)


@settings(max_examples=scaled(200), database=None)
@given(
    plan=PLANS.map(without_order),
    epoch=st.integers(0, 1),
    disabled=st.lists(st.sampled_from([rule.name for rule in RULES]), unique=True, max_size=1).map(tuple),
    piece=st.sampled_from([3, 7, 65_536]),
    parts=st.lists(st.tuples(st.integers(0, 6), st.sampled_from([1, 2, 4])), min_size=2, max_size=5),
)
def test_each_row_comes_as_often_as_in_order(
    plan: Plan, epoch: int, disabled: tuple[str, ...], piece: int, parts: list[tuple[int, int]]
) -> None:
    with iter(plan.dataset(af.Options(disabled_rules=disabled))) as whole:
        whole.set_epoch(epoch)
        expected = counted(row for batch in whole for row in batch.to_pylist())
    found: Counter[str] = Counter()
    state = None
    for number, (most, cpus) in enumerate(parts):
        options = af.Options(
            disabled_rules=disabled, deterministic=False, cpu_budget=cpus, max_chunk_rows=piece
        )
        with iter(plan.dataset(options)) as run:
            run.set_epoch(epoch)
            if state is not None:
                run.load_state_dict(json.loads(state))
            last = number == len(parts) - 1
            batches = list(run if last else itertools.islice(run, most))
            found += counted(row for batch in batches for row in batch.to_pylist())
            if last or len(batches) < most:
                break
            try:
                state = json.dumps(run.state_dict())
            except af.StateError as error:
                if "deterministic=False" not in str(error):
                    raise
                seen["refused"] += 1
                return
    seen["ran"] += 1
    assert found == expected
