"""`drop`: all columns but these."""

from __future__ import annotations

import pytest

import arrowflow as af
from arrowflow.testing import check_operator
from tests.ops.tables import NUMBERS, refused

pytestmark = pytest.mark.any_version


def test_contracts() -> None:
    check_operator(lambda ds: ds.drop("x", ["s"]), NUMBERS, ordered_by="row")


def test_the_others_stay_in_order() -> None:
    assert af.from_arrow(NUMBERS).drop("n", "row").schema.names == ["x", "s", "b"]


@pytest.mark.parametrize("columns", [(), (3,), ([],), (None,)])
def test_bad_arguments(columns: tuple[str, ...]) -> None:
    ds = af.from_arrow(NUMBERS)
    refused(af.PlanError, lambda: ds.drop(*columns), "drop")
    refused(af.PlanError, lambda: ds.drop("roww").schema, "drop", "did you mean 'row'?")


def test_no_column_left_is_refused() -> None:
    """A record batch without columns cannot say how many rows it has: they would be gone, silently."""
    refused(af.PlanError, lambda: af.range(3).drop("id").schema, "drop", "no column")
