"""`rename`: other names for columns, in their places."""

from __future__ import annotations

from typing import Any

import pytest

import arrowflow as af
from arrowflow.testing import check_operator
from tests.ops.tables import NUMBERS, refused

pytestmark = pytest.mark.any_version


def test_contracts() -> None:
    """Names may be swapped, too."""
    check_operator(lambda ds: ds.rename({"x": "y", "s": "text"}), NUMBERS, ordered_by="row")
    check_operator(lambda ds: ds.rename({"x": "n", "n": "x"}), NUMBERS, ordered_by="row")
    assert af.from_arrow(NUMBERS).rename({"x": "n", "n": "x"}).schema.names == ["row", "n", "x", "s", "b"]


@pytest.mark.parametrize(
    ("mapping", "texts"),
    [
        ({"roww": "r"}, ["rename", "mean 'row'?"]),
        ({"x": "n"}, ["rename", "'n'"]),  # which is taken
        *[(mapping, ["rename"]) for mapping in (None, "x", ["x"], {"x": 3}, {3: "x"})],
    ],
)
def test_bad_arguments(mapping: Any, texts: list[str]) -> None:
    refused(af.PlanError, lambda: af.from_arrow(NUMBERS).rename(mapping).schema, *texts)
