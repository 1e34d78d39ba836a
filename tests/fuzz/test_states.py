"""Forged states: parts of a state have other values, and its digests fit them.

Loading one is a `StateError`, or a run that ends. It may end where the plan, from there on, refuses the rows that come, or a
user's function does. Plans of all operators are tried, split and not, in order and in any order.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.testing.forgery import VALUES, forged, load, paths_in
from tests.effort import scaled
from tests.fuzz import named
from tests.fuzz.drafts import DRAFTS
from tests.fuzz.watch import kinds
from tests.oracles import plans
from tests.oracles.plans import PLANS

pytestmark = pytest.mark.any_version

FORGERIES: Final = 8
"""Forged states of each state."""

ONE_CORE: Final = af.Options(cpu_budget=1)
KEPT: Final = ("digest", "plan")


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    plans.use_folder(tmp_path_factory.mktemp("plans"))
    named.use_folder(tmp_path_factory.mktemp("drafts"))


Make = Callable[[], af.Dataset]
IN_ORDER: st.SearchStrategy[Make] = PLANS.map(lambda plan: lambda: plan.dataset(ONE_CORE))
IN_ANY_ORDER: st.SearchStrategy[Make] = PLANS.map(
    lambda plan: lambda: plan.dataset(af.Options(deterministic=False))
)
SPLIT: st.SearchStrategy[Make] = DRAFTS.map(
    lambda draft: lambda: draft.plain().with_options(ONE_CORE).split_by_rank(0, 2, lanes=4)
)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("makes", [IN_ORDER, IN_ANY_ORDER, SPLIT], ids=["in order", "any order", "split"])
@settings(max_examples=scaled(60), database=None)
@given(data=st.data())
def test_forged_states_are_refused_or_end(makes: st.SearchStrategy[Make], data: st.DataObject) -> None:
    make = data.draw(makes)
    state = _state(make, data.draw(st.integers(0, 6)))
    paths = [path for path in paths_in(state) if path and path[0] not in KEPT]
    # A state says little more than its position, of which most parts lie deep.
    paths += [path for path in paths if path[0] == "position"]
    for _ in range(FORGERIES):
        # Numbers, and not parts: in any order a state has other parts when Hypothesis draws again.
        path = paths[data.draw(st.integers(0, 1 << 16)) % len(paths)]
        value = data.draw(st.sampled_from(VALUES))
        try:
            load(make(), forged(state, path, value))
        except af.StateError:
            kinds["refused"] += 1
        except (af.DataError, af.FunctionError):
            kinds["ended by its rows"] += 1
        else:
            kinds["ran"] += 1


def _state(make: Make, steps: int) -> dict[str, Any]:
    """Returns the state after some steps, if the plan runs and has states."""
    try:
        with iter(make()) as iterator:
            for _ in itertools.islice(iterator, steps):
                pass
            found: dict[str, Any] = json.loads(json.dumps(iterator.state_dict()))
    except af.ArrowflowError:
        assume(condition=False)
        raise
    return found
