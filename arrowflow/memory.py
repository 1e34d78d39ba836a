"""Memory that is used again: one large buffer after another, without asking the system for each.

Arrow's pool returns large blocks to the system, which clears the pages of the next ones: a tenth of the CPU time of a
pipeline that gathers windows of 40 MiB. Here a block comes back when nobody refers to its buffer any more, the
consumer's arrays included, in whatever thread that happens; so it is never in two hands. Blocks are those of Arrow's
pool, and stay in its figures. An operator has a `Recycler` of its own for all epochs of a plan.

A block comes back by the callback of a weak reference, which is a method of a `deque`: no line of Python runs in it, in
which an interrupt of the consumer would be lost, as those are that hit a `__del__`.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Final

import numpy as np
import pyarrow as pa

MIN_BYTES: Final = 1 << 20
"""Smaller ones Arrow's pool keeps by itself."""
SPARE_SHARE: Final = 16
"""At most one part in so many of the byte budget waits to be used again, in each operator."""
MAX_SPARE: Final = 3
"""Blocks of one size that wait, at most: as many chunks make a window, and are free at once."""
MAX_SIZES: Final = 32


class _Loan:
    """A block in use, as NumPy sees memory."""

    __slots__ = ("__array_interface__", "__weakref__", "_back")

    def __init__(self, block: pa.Buffer, spare: deque[_Back]) -> None:
        place = (block.address, False)
        self.__array_interface__ = {"shape": (block.size,), "typestr": "|u1", "data": place, "version": 3}
        self._back = back = _Back(self, spare.append)
        back.block = block


class _Back(weakref.ref[_Loan]):
    """What is called when a loan is gone, and holds its block."""

    __slots__ = ("block",)

    block: pa.Buffer


class Recycler:
    """Allocates buffers, of blocks that it has back where one has the size.

    Any thread may call it: all that is done to the blocks of one size is one step.

    Args:
        budget_bytes: The byte budget, of which a small share may wait to be used again.
    """

    __slots__ = ("_most", "_spare")

    def __init__(self, budget_bytes: int) -> None:
        self._most = budget_bytes // SPARE_SHARE // MAX_SPARE
        self._spare: dict[int, deque[_Back]] = {}

    @property
    def spare_bytes(self) -> int:
        """Bytes that wait to be used again."""
        return sum(size * len(blocks) for size, blocks in list(self._spare.items()))

    def allocate(self, num_bytes: int) -> pa.Buffer:
        """Returns uninitialised memory that may be written.

        Example:
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
        # Loans that live on still know where they would have come back to.
        for spare in self._spare.values():
            spare.clear()

    def _make_room(self, num_bytes: int) -> None:
        """Lets go of the sizes that came first, where with one more they could take more than their share."""
        sizes = list(self._spare)
        room = self._most - num_bytes
        for number, size in enumerate(reversed(sizes), start=2):
            room -= size
            if room < 0 or number > MAX_SIZES:
                self._spare.pop(size, None)
