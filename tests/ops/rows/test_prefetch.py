"""`prefetch`: how many batches may be ready before the consumer asks."""

from __future__ import annotations

from typing import Any

import pytest

import arrowflow as af
from arrowflow.testing import Fault, Gate, check_operator, waiting
from tests.ops.tables import NUMBERS, identity, numbers, refused, rows_of

pytestmark = pytest.mark.any_version


@pytest.mark.parametrize("count", [af.AUTOTUNE, 0, 3])
def test_contracts(count: int) -> None:
    check_operator(lambda ds: ds.prefetch(count), NUMBERS, ordered_by="row", in_full=count == 3)


def test_contracts_behind_batches() -> None:
    check_operator(lambda ds: ds.batch(3).prefetch(1).map(identity), NUMBERS, ordered_by="row", in_full=False)


def test_batches_are_made_before_they_are_asked_for() -> None:
    """The consumer has taken one batch; the function is in its fifth call although nobody asked."""
    gate = Gate()
    late = Fault(waiting(gate), when=lambda batch: batch.column("row")[0].as_py() >= 4)
    ds = numbers(*[1] * 8).map(late, num_parallel_calls=1).prefetch(3)
    with iter(ds) as iterator:
        assert next(iterator).column("row").to_pylist() == [0]
        gate.wait_for(1)
        gate.open()
        assert [batch.column("row")[0].as_py() for batch in iterator] == list(range(1, 8))


def test_it_changes_no_row_and_no_state() -> None:
    plain, ahead = numbers(3, 4).batch(2), numbers(3, 4).prefetch(2).batch(2).prefetch(1)
    assert rows_of(plain) == rows_of(ahead)
    assert ahead.num_rows == 7 and len(ahead.to_polars()) == 4


@pytest.mark.parametrize("count", [-2, 1.0, True, "3", None])
def test_bad_arguments(count: Any) -> None:
    refused(af.PlanError, lambda: af.range(3).prefetch(count), "prefetch", "buffer_size")
