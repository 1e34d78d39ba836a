"""Reused memory: one large buffer after another, without a request to the system for each.

Arrow's pool returns large blocks to the system, and the system clears the pages of the next blocks. That takes a tenth
of the CPU time of a pipeline that gathers windows of 40 MiB. Here a block comes back when nobody refers to its buffer
any more, the consumer's arrays included, in any thread. So a block never has two users. Blocks come from Arrow's pool,
and stay in its figures. An operator has a `Recycler` of its own for all epochs of a plan.

A block comes back by the callback of a weak reference. The callback is a method of a `deque` and runs no line of
Python. A `__del__` in Python would lose an interrupt of the consumer that arrives in it.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Final

import numpy as np
import pyarrow as pa

MIN_BYTES: Final = 1 << 20
"""Arrow's pool itself keeps blocks below this size."""
SPARE_SHARE: Final = 16
"""In each operator, at most the byte budget divided by this waits for reuse."""
MAX_SPARE: Final = 3
"""The most waiting blocks of one size: this many chunks make a window, and become free at once."""
MAX_SIZES: Final = 32


class _Loan:
    """A block in use, in NumPy's array interface."""

    __slots__ = ("__array_interface__", "__weakref__", "_back")

    def __init__(self, block: pa.Buffer, spare: deque[_Back]) -> None:
        place = (block.address, False)
        self.__array_interface__ = {"shape": (block.size,), "typestr": "|u1", "data": place, "version": 3}
        self._back = back = _Back(self, spare.append)
        back.block = block


class _Back(weakref.ref[_Loan]):
    """The weak reference that is called when a loan is gone; it holds the loan's block."""

    __slots__ = ("block",)

    block: pa.Buffer


class Recycler:
    """Allocates buffers, and reuses a returned block of the same size if there is one.

    Any thread may call it: each change to the blocks of one size is a single step.

    Args:
        budget_bytes: The byte budget, of which a small share may wait for reuse.
    """

    __slots__ = ("_most", "_spare")

    def __init__(self, budget_bytes: int) -> None:
        self._most = budget_bytes // SPARE_SHARE // MAX_SPARE
        self._spare: dict[int, deque[_Back]] = {}

    @property
    def spare_bytes(self) -> int:
        """Bytes that wait for reuse."""
        return sum(size * len(blocks) for size, blocks in list(self._spare.items()))

    def allocate(self, num_bytes: int) -> pa.Buffer:
        """Returns uninitialised memory that may be written.

        Examples:
            >>> recycler = Recycler(1 << 30)
            >>> address = recycler.allocate(1 << 20).address
            >>> recycler.allocate(1 << 20).address == address
            True
        """
        if not MIN_BYTES <= num_bytes <= self._most:
            return pa.allocate_buffer(num_bytes)
        spare = self._spare.get(num_bytes)
        if spare is None:
            self._make_room(num_bytes)
            spare = self._spare.setdefault(num_bytes, deque(maxlen=MAX_SPARE))
        try:
            block = spare.pop().block
        except IndexError:
            block = pa.allocate_buffer(num_bytes)
        return pa.py_buffer(np.asarray(_Loan(block, spare)))

    def __del__(self) -> None:
        # Loans that are still in use come back to these lists later.
        for spare in self._spare.values():
            spare.clear()

    def _make_room(self, num_bytes: int) -> None:
        """Frees the oldest sizes, if together with one more size they could exceed their share."""
        sizes = list(self._spare)
        room = self._most - num_bytes
        for number, size in enumerate(reversed(sizes), start=2):
            room -= size
            if room < 0 or number > MAX_SIZES:
                self._spare.pop(size, None)
