"""`rename`: other names for columns, in their places."""

from __future__ import annotations

from typing import Any

import pytest

import arrowflow as af
from arrowflow.testing import check_operator
from tests.ops.tables import NUMBERS, refused

pytestmark = pytest.mark.any_version


def test_contracts() -> None:
    check_operator(lambda ds: ds.rename({"x": "y", "s": "text"}), NUMBERS, ordered_by="row")


def test_names_may_be_swapped() -> None:
    swapped = af.from_arrow(NUMBERS).rename({"x": "n", "n": "x"})
    assert swapped.schema.names == ["row", "n", "x", "s", "b"]
    check_operator(lambda ds: ds.rename({"x": "n", "n": "x"}), NUMBERS, ordered_by="row")


def test_unknown_columns_are_refused_with_the_closest_names() -> None:
    refused(
        af.PlanError, lambda: af.from_arrow(NUMBERS).rename({"roww": "r"}).schema, "rename", "mean 'row'?"
    )


def test_a_name_that_is_taken_is_refused() -> None:
    refused(af.PlanError, lambda: af.from_arrow(NUMBERS).rename({"x": "n"}).schema, "rename", "'n'")


@pytest.mark.parametrize("mapping", [None, "x", ["x"], {"x": 3}, {3: "x"}])
def test_bad_arguments(mapping: Any) -> None:
    refused(af.PlanError, lambda: af.from_arrow(NUMBERS).rename(mapping).schema, "rename")
