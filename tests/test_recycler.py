"""Blocks that are used again: never by two at a time, never too many of them, and gone with who hands them out."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pyarrow as pa
import pytest

from arrowflow.recycler import MAX_SIZES, MAX_SPARE, MIN_BYTES, SPARE_SHARE, Recycler

SIZE = MIN_BYTES + 64


def budget(sizes: float) -> int:
    """Returns a budget of which all spare blocks of so many sizes may wait."""
    return int(SPARE_SHARE * MAX_SPARE * SIZE * sizes)


def test_a_block_comes_back_when_its_last_reference_is_gone() -> None:
    recycler = Recycler(budget(4))
    buffer = recycler.allocate(SIZE)
    assert (buffer.size, buffer.is_mutable) == (SIZE, True)
    address = buffer.address
    array = np.frombuffer(buffer, np.uint8)[7:9]
    column = pa.Array.from_buffers(pa.uint8(), SIZE, [None, buffer]).slice(5, 3)
    del buffer
    assert recycler.spare_bytes == 0
    del array
    assert recycler.spare_bytes == 0
    del column
    assert recycler.spare_bytes == SIZE
    assert recycler.allocate(SIZE).address == address


def test_small_ones_and_those_over_the_share_are_arrows_own() -> None:
    recycler = Recycler(budget(2))
    for num_bytes in (0, 64, MIN_BYTES - 1, 2 * SIZE + 1):
        buffer = recycler.allocate(num_bytes)
        assert buffer.size == num_bytes
        del buffer
    assert recycler.spare_bytes == 0


def test_no_more_waits_than_its_share_of_the_budget() -> None:
    recycler = Recycler(budget(1.5))
    held = [recycler.allocate(SIZE) for _ in range(MAX_SPARE + 2)]
    before = pa.total_allocated_bytes()
    assert len({buffer.address for buffer in held}) == MAX_SPARE + 2
    held.clear()
    assert recycler.spare_bytes == MAX_SPARE * SIZE
    assert pa.total_allocated_bytes() == before - 2 * SIZE


def test_sizes_that_came_first_make_room() -> None:
    recycler = Recycler(budget(2.5))
    for number in range(9):
        recycler.allocate(SIZE + 64 * number)
    assert recycler.spare_bytes == 2 * SIZE + 64 * (7 + 8)


def test_chunks_of_many_sizes_cost_no_more_than_those_of_few() -> None:
    recycler = Recycler(1 << 50)
    for number in range(3 * MAX_SIZES):
        recycler.allocate(SIZE + 64 * number)
    assert recycler.spare_bytes <= MAX_SIZES * (SIZE + 64 * 3 * MAX_SIZES)


def test_no_line_of_python_runs_when_a_block_comes_back() -> None:
    """An interrupt would be raised in it, and be lost."""
    recycler = Recycler(budget(2))
    buffer = recycler.allocate(SIZE)
    called: list[str] = []
    sys.setprofile(lambda frame, event, argument: called.append(event))
    del buffer
    sys.setprofile(None)
    assert called == ["c_call"]  # of `setprofile` itself
    assert recycler.spare_bytes == SIZE


def test_it_leaves_nothing_behind() -> None:
    before = pa.total_allocated_bytes()
    recycler = Recycler(budget(4))
    kept = recycler.allocate(SIZE)
    recycler.allocate(SIZE)
    del recycler
    assert pa.total_allocated_bytes() == before + SIZE
    np.frombuffer(kept, np.uint8)[:] = 1  # what is still in use stays usable
    del kept
    assert pa.total_allocated_bytes() == before


def test_no_block_is_in_two_hands() -> None:
    recycler = Recycler(budget(3))
    wrong: list[int] = []

    def work(own: int) -> None:
        held: list[np.ndarray] = []
        for turn in range(300):
            array = np.frombuffer(recycler.allocate(SIZE + 64 * (turn % 2)), np.uint8)
            array[::4096] = own
            held.append(array)
            if len(held) > turn % 3:
                first = held.pop(0)
                if (first[::4096] != own).any():
                    wrong.append(turn)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert recycler.spare_bytes <= 2 * MAX_SPARE * (SIZE + 64)


@pytest.mark.parametrize("num_bytes", [MIN_BYTES, SIZE])
def test_what_is_written_is_what_is_read(num_bytes: int) -> None:
    recycler = Recycler(1 << 40)
    for value in range(3):
        buffer = recycler.allocate(num_bytes)
        np.frombuffer(buffer, np.uint8)[:] = value
        assert buffer.equals(pa.py_buffer(bytes([value]) * num_bytes))
