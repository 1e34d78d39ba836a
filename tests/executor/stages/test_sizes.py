"""`Sizes`: the bytes that calls are expected to take, by what earlier ones made."""

from __future__ import annotations

import pytest

from arrowflow.executor import Ledger
from arrowflow.executor.limits import FIRST_CALL_BYTES, UNTOLD_BYTES
from arrowflow.executor.stages.sizes import Estimate, Sizes
from arrowflow.kernels.items import BorrowedTicket, Item, Origin
from tests.executor.fakes import chunk

ROWS = 1_000
BUDGET = 1 << 20


def item(num_bytes: int) -> Item:
    """Returns rows of a chunk that takes so many bytes by its ticket."""
    return Item(chunk(1, 8 * ROWS), None, BorrowedTicket(num_bytes), Origin(0))


def tight() -> Ledger:
    """Returns a ledger of which nearly all is used."""
    ledger = Ledger(BUDGET)
    ledger.reserve(BUDGET)
    return ledger


def estimate(sizes: Sizes, num_bytes: int = 100, *, free: bool = True) -> Estimate:
    return sizes.of_function(item(num_bytes), tight(), free=free)


def made(sizes: Sizes, num_bytes: int, calls: int = 1) -> Sizes:
    """Notes calls that made so many bytes of 100 each."""
    for _ in range(calls):
        sizes.learn_function(num_bytes, ROWS, estimate(sizes))
    return sizes


def test_a_first_call_takes_all_room_and_each_foreseen_result_halves_it() -> None:
    sizes, rooms = Sizes(), []
    for _ in range(4):
        rooms.append(estimate(sizes).most)
        made(sizes, 10)
    assert rooms == [BUDGET, BUDGET // 2, BUDGET // 4, BUDGET // 8]
    assert sizes.of_function(item(0), Ledger(1 << 40), free=True).most < UNTOLD_BYTES


def test_room_is_left_for_twice_the_largest_result() -> None:
    sizes = made(made(made(Sizes(), 10, calls=20), 3_000), 10, calls=20)
    assert estimate(sizes)[:2] == (3_000, 6_000)


def test_a_result_that_nothing_foretold_makes_the_next_calls_begin_one_by_one() -> None:
    sizes = made(Sizes(), 10, calls=20)
    assert estimate(sizes)[:2] == (10, 20)
    made(sizes, 3_000)
    assert estimate(sizes)[:2] == (3_000, BUDGET)


@pytest.mark.parametrize("factor", [1, 40])
def test_rows_that_are_larger_make_more(factor: int) -> None:
    sizes = made(Sizes(), 300, calls=20)
    assert estimate(sizes, 100 * factor).least == 300 * factor


def test_a_few_large_rows_in_a_small_call_say_little_of_large_calls() -> None:
    sizes = Sizes()
    sizes.learn_function(800, 10, Estimate.known(0))
    assert sizes.foreseen_bytes(ROWS) == 80 * ROWS
    sizes.learn_function(500, ROWS, Estimate.known(0))
    assert [sizes.foreseen_bytes(rows) for rows in (5, 10, ROWS, 2 * ROWS)] == [400, 800, 800, 160 * ROWS]


def test_functions_that_return_their_input_run_beside_each_other() -> None:
    assert estimate(made(Sizes(), 0, calls=21))[:2] == (0, 0)


def test_the_first_call_of_an_operator_is_expected_to_make_little_more_than_it_gets() -> None:
    assert estimate(Sizes(), free=False)[:2] == (0, 200)


def test_calls_whose_kernels_told_too_little_are_expected_to_exceed_it_again() -> None:
    sizes = Sizes()
    assert sizes.of_told(100, 300)[:2] == (100, 300)
    sizes.learn_told(40, sizes.of_told(100, 300))
    assert sizes.of_told(100, 300)[:2] == (100, 300)
    for _ in range(2):  # the excess does not add up
        sizes.learn_told(150, sizes.of_told(100, 300))
        assert sizes.of_told(100, 300)[:2] == (150, 350)


def test_a_kernel_that_tells_nothing_cuts_what_is_there() -> None:
    sizes = Sizes()
    sizes.learn_told(FIRST_CALL_BYTES, sizes.of_told(0, 0))
    assert sizes.of_told(0, 0)[:2] == (0, 0)
