"""`with_options`: settings of the whole pipeline."""

from __future__ import annotations

from typing import Any

import pytest

import arrowflow as af
from arrowflow.testing import check_operator
from tests.ops.tables import NUMBERS, ids, refused, sizes
from tests.ops.tables import identity as same

pytestmark = pytest.mark.any_version


def test_contracts() -> None:
    check_operator(lambda ds: ds.with_options(af.Options(cpu_budget=3)), NUMBERS, ordered_by="row")


def seeded(*seeds: int) -> list[Any]:
    ds = af.range(40)
    for seed in seeds:
        ds = ds.with_options(af.Options(seed=seed))
    return ids(ds.shuffle(40))


def test_of_several_settings_the_last_one_wins() -> None:
    assert seeded(1, 2) == seeded(3, 2) != seeded(2, 1)


def test_settings_of_different_fields_add_up_below_and_above() -> None:
    ds = af.range(5)
    for each in (af.Options(max_chunk_rows=2), af.Options(cpu_budget=1), af.Options(seed=3)):
        ds = ds.with_options(each)
    assert sizes(ds.map(same)) == [2, 2, 1]
    assert sizes(af.range(5).map(same).with_options(af.Options(max_chunk_rows=2))) == [2, 2, 1]


def test_budgets_change_no_row_and_no_state() -> None:
    """A state goes on under other budgets: only what has a say in rows and order is compared."""
    below = af.range(30).shuffle(7, seed=1).batch(4)
    plain = below.with_options(af.Options(cpu_budget=4))
    with iter(plain) as iterator:
        first, state = next(iterator), iterator.state_dict()
    other = below.with_options(af.Options(cpu_budget=1, ram_budget="1MiB"))
    with iter(other) as iterator:
        iterator.load_state_dict(state)
        rest = [value for batch in iterator for value in batch.column("id").to_pylist()]
    assert first.column("id").to_pylist() + rest == ids(plain)


@pytest.mark.parametrize("options", [None, {"seed": 1}, af.Options])
def test_bad_arguments(options: Any) -> None:
    refused(af.PlanError, lambda: af.range(3).with_options(options), "with_options")
