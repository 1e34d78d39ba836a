"""Memory that is used again: one large buffer after another, without asking the system for each.

Arrow's pool returns large blocks to the system, which clears the pages of the next ones: a tenth of the CPU time of a
pipeline that gathers windows of 40 MiB. Here a block comes back when nobody refers to its buffer any more, the
consumer's arrays included, in whatever thread that happens; so it is never in two hands. Blocks are those of Arrow's
pool, and stay in its figures. A kernel has a `Recycler` of its own, whose blocks are gone with it.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Final

import numpy as np
import pyarrow as pa

MIN_BYTES: Final = 1 << 20
"""Smaller ones Arrow's pool keeps by itself."""
SPARE_SHARE: Final = 32
"""At most one part in so many of the byte budget waits to be used again, in each kernel."""


class _Loan:
    """A block in use, as NumPy sees memory."""

    __slots__ = ("__array_interface__", "_block", "_home")

    def __init__(self, block: pa.Buffer, home: weakref.ref[Recycler]) -> None:
        place = (block.address, False)
        self.__array_interface__ = {"shape": (block.size,), "typestr": "|u1", "data": place, "version": 3}
        self._block = block
        self._home = home

    def __del__(self) -> None:
        home = self._home()
        if home is not None:
            home.take_back(self._block)


class Recycler:
    """Allocates buffers, of blocks that it has back where one has the size.

    Any thread may call it, also in the middle of a call, as finalizers do: it takes no lock, and all that is done to a
    list of blocks is one step.

    Args:
        budget_bytes: The byte budget, of which a small share may wait to be used again.
    """

    __slots__ = ("__weakref__", "_most", "_spare")

    def __init__(self, budget_bytes: int) -> None:
        self._most = budget_bytes // SPARE_SHARE
        self._spare: dict[int, deque[pa.Buffer]] = {}

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
        try:
            block = self._spare[num_bytes].pop()
        except (KeyError, IndexError):
            block = pa.allocate_buffer(num_bytes)
        return pa.py_buffer(np.asarray(_Loan(block, weakref.ref(self))))

    def take_back(self, block: pa.Buffer) -> None:
        """Keeps a block for the next one who wants its size; blocks of other sizes, which nobody wants now, make room."""
        for size in list(self._spare):
            if size != block.size and self.spare_bytes + block.size > self._most:
                self._spare.pop(size, None)
        if self.spare_bytes + block.size <= self._most:
            self._spare.setdefault(block.size, deque()).append(block)
