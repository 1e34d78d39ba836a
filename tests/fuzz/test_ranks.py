"""Random plans on ranks deliver the rows of the plain plan, in parts and whole, also after their number changes.

In parts, the rows of all ranks together are those of the plain plan. Whole, each rank has its rows of each of its batches.
A typed error is right, too; how often plans are refused is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowflow as af
from tests.effort import scaled
from tests.fuzz import named
from tests.fuzz.drafts import DRAFTS
from tests.fuzz.ranks import HAS_HOW, Case, Refused, Split, Unrunnable, Way, check_parts, check_whole

SIZES: Final = st.sampled_from([1, 2, 4, 8])
HOWS: Final[list[Way | None]] = ["parts", "whole", None] if HAS_HOW else [None]


def cases(how: Way | None) -> st.SearchStrategy[Case]:
    """Draws plans that run in one way."""
    return st.builds(
        Case,
        draft=DRAFTS,
        how=st.just(how),
        most_lanes=st.sampled_from([8, 8, 4, 16]),
        before=SIZES,
        after=SIZES,
        step=st.integers(0, 12),
        epoch=st.integers(0, 1),
        merged=st.sampled_from([True, True, False]),
    )


seen: Counter[str] = Counter()


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    named.use_folder(tmp_path_factory.mktemp("ranks"))
    yield
    assert seen["ran"] >= seen["Refused"] + 4 * seen["Unrunnable"], seen


def way_of(case: Case) -> Way:
    """Returns how a plan runs where the library chooses: in parts, if it can."""
    if case.how is not None or not HAS_HOW:
        return case.how or "parts"
    try:
        Split(case, "parts", "drop").dataset(0, 1, None).explain()
    except af.PlanError:
        return "whole"
    return "parts"


def check(case: Case) -> None:
    """Compares what ranks deliver with the plain plan."""
    (check_parts if way_of(case) == "parts" else check_whole)(case, case.how)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=scaled(600), database=None)
@given(data=st.data())
def test_ranks_deliver_the_rows_of_the_plain_plan(how: Way | None, data: st.DataObject) -> None:
    try:
        check(data.draw(cases(how)))
    except (Refused, Unrunnable) as error:
        seen[type(error).__name__] += 1
    else:
        seen["ran"] += 1
