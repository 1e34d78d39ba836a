"""Random plans yield what a naive reference yields, and so does what is resumed from any step.

Each plan runs at a random CPU budget, at a roomy or the least byte budget, with some rules off, over random chunks; then
it is resumed from random steps, each time under other budgets.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.optimizer import RULES
from tests.effort import scaled
from tests.oracles import plans
from tests.oracles.plans import CACHING, PLANS, Plan, Row

pytestmark = pytest.mark.any_version


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    plans.use_folder(tmp_path_factory.mktemp("random"))


def least_budget(plan: Plan, options: af.Options) -> int:
    """Returns the budget that `BudgetError` names, or 1 byte where it names none."""
    try:
        with iter(plan.dataset(replace(options, ram_budget=1))) as iterator:
            next(iterator, None)
    except af.BudgetError as error:
        found = re.search(r"needs, ([\d,]+) bytes", str(error))
        return 1 if found is None else int(found[1].replace(",", ""))
    return 1


Run = tuple[int, bool]
"""CPU budget, and whether the byte budget is the least that the plan needs."""
RUNS: st.SearchStrategy[Run] = st.tuples(st.sampled_from([1, 2, 4]), st.booleans())


def options_for(plan: Plan, run: Run, disabled: tuple[str, ...]) -> af.Options:
    options = af.Options(cpu_budget=run[0], disabled_rules=disabled)
    if not run[1]:
        return options
    # A cache has to fit, whatever else is there.
    cached = 1 << 20 if any(op.name in CACHING for op in plan.ops) else 0
    return replace(options, ram_budget=cached + least_budget(plan, options))


def deliver(dataset: af.Dataset, epoch: int) -> tuple[list[list[Row]], list[str]]:
    """Returns the rows of each batch, and the states before the first one and after each."""
    with iter(dataset) as iterator:
        iterator.set_epoch(epoch)
        found, states = [], [json.dumps(iterator.state_dict())]
        for batch in iterator:
            assert batch.num_rows, "a batch without rows reached the consumer"
            found.append(batch.to_pylist())
            states.append(json.dumps(iterator.state_dict()))
    return found, states


def resume(dataset: af.Dataset, state: str, more: int) -> tuple[list[list[Row]], list[list[Row]], str]:
    """Returns the next batches after a state, those that follow to the end, and the state in between."""
    with iter(dataset) as iterator:
        iterator.load_state_dict(json.loads(state))
        ahead = []
        middle = state
        for batch in itertools.islice(iterator, more):
            ahead.append(batch.to_pylist())
            middle = json.dumps(iterator.state_dict())
        return ahead, [batch.to_pylist() for batch in iterator], middle


def compare(plan: Plan, found: list[list[Row]], expected: list[list[Row]]) -> None:
    if not plan.batched:
        found, expected = ([list(itertools.chain(*part))] for part in (found, expected))
    assert found == expected
    assert [[list(row) for row in part] for part in found] == [
        [list(row) for row in part] for part in expected
    ]


@pytest.mark.slow
@settings(max_examples=scaled(80), database=None)
@given(
    plan=PLANS,
    epoch=st.integers(0, 2),
    run=RUNS,
    disabled=st.lists(st.sampled_from([rule.name for rule in RULES]), unique=True, max_size=2).map(tuple),
    resumes=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2), RUNS), min_size=3, max_size=5),
)
def test_plans_yield_what_the_reference_yields(
    plan: Plan, epoch: int, run: Run, disabled: tuple[str, ...], resumes: list[tuple[int, int, Run]]
) -> None:
    expected = [rows for _, rows in plan.segments(len(plan.ops), epoch, None) if rows]
    dataset = plan.dataset(options_for(plan, run, disabled))
    found, states = deliver(dataset, epoch)
    compare(plan, found, expected)
    assert dataset.num_rows in {None, sum(map(len, expected))}
    if any(op.name in CACHING for op in plan.ops):
        assert deliver(dataset, epoch) == (found, states), "what is cached differs from what was not"
    for step, more, other in resumes:
        at = step % len(states)
        ahead, rest, state = resume(plan.dataset(options_for(plan, other, disabled)), states[at], more)
        assert ahead + rest == found[at:]
        again, rest, _ = resume(plan.dataset(options_for(plan, run, disabled)), state, 0)
        assert again + rest == found[at + len(ahead) :]
