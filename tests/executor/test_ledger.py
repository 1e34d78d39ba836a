"""The ledger: bytes by unique buffer, and tickets that nobody has to release."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from arrowflow.executor import Ledger
from arrowflow.executor.ledger import buffers_of, ticket_bytes
from arrowflow.kernels.items import BorrowedTicket
from tests.executor.fakes import chunk


def used(ledger: Ledger) -> int:
    ledger.drain()
    return ledger.used


def test_each_buffer_is_charged_once() -> None:
    ledger = Ledger(1 << 20)
    batch = chunk(1, 800)
    first, second = ledger.charge(buffers_of(batch)), ledger.charge(buffers_of(batch))
    assert used(ledger) == 800
    assert (first.num_bytes, second.num_bytes) == (800, 0)
    del first
    assert used(ledger) == 800
    del second
    assert used(ledger) == 0


class Payload:
    """Names its buffers."""

    num_rows = 1
    buffers = (pa.py_buffer(b"x" * 100), pa.py_buffer(b""), pa.allocate_buffer(64))


SHARED = chunk(1, 800).column(0)


@pytest.mark.parametrize(
    ("payload", "num_bytes"),
    [
        (pa.record_batch({"a": SHARED, "b": SHARED}), 800),
        (chunk(1, 800).slice(3, 1), 800),
        (Payload(), 164),
        ("a descriptor", 0),
        (pa.record_batch({"x": pa.array([], pa.int64())}), 0),
    ],
    ids=["a buffer of two columns", "a slice", "named buffers", "no buffers", "no rows"],
)
def test_a_payload_is_charged_with_all_that_it_keeps_alive(payload: Any, num_bytes: int) -> None:
    ledger = Ledger(1 << 20)
    ticket = ledger.charge(buffers_of(payload))
    assert used(ledger) == ticket.num_bytes == num_bytes
    assert bool(buffers_of(payload)) == (num_bytes > 0)
    del ticket
    assert used(ledger) == 0


def test_all_buffers_of_a_column_are_charged() -> None:
    column = pa.array([["a", None], None, ["bcd"]], pa.list_(pa.string()))
    sizes = sorted(buffers_of(pa.record_batch({"x": column})).values())
    assert sizes == sorted(buffer.size for buffer in column.buffers() if buffer is not None and buffer.size)
    assert len(sizes) >= 4


def test_reservations_count_and_are_returned() -> None:
    ledger = Ledger(100)
    ledger.reserve(70)
    assert not ledger.fits(31)
    assert ledger.fits(30)
    assert not ledger.fits(0, share=0.5)
    ledger.unreserve(70)
    assert ledger.fits(100)
    assert (ledger.used, ledger.peak) == (0, 70)


def test_room_is_seen_as_soon_as_a_ticket_is_gone() -> None:
    ledger = Ledger(800)
    ticket = ledger.charge(buffers_of(chunk(1, 800)))
    assert not ledger.fits(1)
    del ticket
    assert ledger.fits(800)


def test_an_address_that_is_used_again_is_charged_with_its_new_size() -> None:
    ledger = Ledger(1 << 20)
    memory = np.zeros(1000, np.int64)
    ticket = ledger.charge({memory.ctypes.data: 800})
    del ticket
    ticket = ledger.charge({memory.ctypes.data: 8000})
    assert used(ledger) == ticket.num_bytes == 8000


def test_a_ticket_in_a_reference_cycle_is_released_by_the_collector() -> None:
    ledger = Ledger(1 << 20)
    cycle: list[object] = [ledger.charge(buffers_of(chunk(1, 800)))]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert used(ledger) == 0


def test_tickets_add_up_in_any_collection() -> None:
    ledger = Ledger(1 << 20)
    one, two = ledger.charge(buffers_of(chunk(1, 80))), ledger.charge(buffers_of(chunk(2, 160)))
    assert ticket_bytes(one) == 80
    assert ticket_bytes([one, (two,)]) == 240
    assert ticket_bytes(None) == ticket_bytes(()) == 0


def sizes(*chunks: pa.RecordBatch) -> dict[int, int]:
    return {address: size for chunk in chunks for address, size in buffers_of(chunk).items()}


def test_what_is_kept_counts_once_and_until_its_ticket_is_gone() -> None:
    ledger = Ledger(1 << 20)
    first, second = chunk(100, 800), chunk(50, 400)
    kept = ledger.keep(sizes(first, second))
    assert (ledger.used, kept.num_bytes) == (1200, 1200)
    again = ledger.charge(buffers_of(first.slice(3, 5)))
    other = ledger.keep(sizes(second))
    assert (ledger.used, again.num_bytes, other.num_bytes) == (1200, 0, 0)
    del again, other
    assert used(ledger) == 1200
    del kept
    assert used(ledger) == 0
    assert ledger.peak == 1200


def test_what_was_charged_before_it_was_kept_stays_until_both_are_gone() -> None:
    ledger = Ledger(1 << 20)
    rows = chunk(100, 800)
    for order in (("ticket", "kept"), ("kept", "ticket")):
        held = {"ticket": ledger.charge(buffers_of(rows))}
        held["kept"] = ledger.keep(sizes(rows))
        assert ledger.used == 800
        for name, left in zip(order, (800, 0), strict=True):
            del held[name]
            assert used(ledger) == left


def test_a_share_counts_nothing_by_itself() -> None:
    assert ticket_bytes(BorrowedTicket(7)) == ticket_bytes([BorrowedTicket(3), BorrowedTicket(4)]) == 7
