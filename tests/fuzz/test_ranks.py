"""Random plans on ranks deliver the rows of the plain plan, in parts and whole, also after their number changes.

In parts, the rows of all ranks together are those of the plain plan. Whole, each rank has its rows of each of its batches.
A typed error is right, too; how often plans are refused is counted.
"""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowflow as af
from tests.effort import scaled
from tests.fuzz import named
from tests.fuzz.drafts import DRAFTS, LOCAL_DRAFTS
from tests.fuzz.ranks import Case, Refused, Split, Unrunnable, Way, check_parts, check_whole
from tests.fuzz.watch import kinds

pytestmark = [pytest.mark.slow, pytest.mark.any_version]

SIZES: Final = st.sampled_from([1, 2, 4, 8])
MANY: Final = 100
"""Of fewer plans most may be refused by chance. About two in five are, so two in three of so many are no chance."""


def cases(how: Way | None) -> st.SearchStrategy[Case]:
    """Draws plans that run in one way."""
    return st.builds(
        Case,
        draft=LOCAL_DRAFTS if how == "parts" else DRAFTS,
        how=st.just(how),
        most_lanes=st.sampled_from([8, 8, 4, 16]),
        before=SIZES,
        after=SIZES,
        step=st.integers(0, 12),
        epoch=st.integers(0, 1),
        merged=st.sampled_from([True, True, False]),
    )


def way_of(case: Case) -> Way:
    """Returns how a plan runs: in parts, if the library chooses and can."""
    if case.how is not None:
        return case.how
    try:
        shown = Split(case, None, "drop").dataset(0, 1, None).explain()
    except af.PlanError as error:
        raise Refused(str(error)) from error
    return "whole" if ": whole)" in shown else "parts"


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    named.use_folder(tmp_path_factory.mktemp("ranks"))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("how", ["parts", "whole", None])
@settings(max_examples=scaled(300), database=None)
@given(data=st.data())
def test_ranks_deliver_the_rows_of_the_plain_plan(how: Way | None, data: st.DataObject) -> None:
    case = data.draw(cases(how))
    try:
        way = way_of(case)
        (check_parts if way == "parts" else check_whole)(case, case.how)
    except (Refused, Unrunnable) as error:
        kinds["refused" if isinstance(error, Refused) else "cannot run"] += 1
    else:
        kinds[way] += 1
    refused = kinds["refused"] + kinds["cannot run"]
    assert kinds.total() < MANY or 3 * refused < 2 * kinds.total(), f"too many plans are refused: {kinds}"
