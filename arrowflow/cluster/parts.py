"""Record batches on their way through the object store, in parts of bounded size.

A worker cuts the bytes of a large batch into parts, whatever its columns are. The consumer uses batches where they lie in the
store, as long as those that it keeps there take a certain part of it only. The docstring of `arrowflow.cluster` has the sizes.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.executor.processes.wire import pack_apart, unpack_apart
from arrowflow.kernels.kept import copied
from arrowflow.plan.position import Position

Bytes = npt.NDArray[np.uint8]


class BatchPart(NamedTuple):
    """A record batch, or a part of its bytes.

    Attributes:
        head: The batch without its buffers, as bytes of pickle; None where parts of it follow.
        sizes: The bytes of each of the batch's buffers.
        memory: Its buffers; of a batch in several parts the part's bytes.
        position: The lane's position after the batch.
        rows: Rows of the batch that ends here.
    """

    head: bytes | None
    sizes: tuple[int, ...]
    memory: list[Bytes]
    position: Position
    rows: int

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes in the store."""
        return sum(map(len, self.memory))


def parts_of(batch: pa.RecordBatch, position: Position, most_bytes: int) -> Iterator[BatchPart]:
    """Yields a batch as parts of so many bytes at most; as one part if it fits."""
    # A slice pickles with the whole buffers that it is of. To copy its rows pays from twice their bytes on.
    if batch.get_total_buffer_size() > 2 * batch.nbytes:
        batch = copied(batch)
    head, views = pack_apart(batch)
    sizes = tuple(map(len, views))
    groups, num_bytes = [views], sum(sizes)
    if num_bytes > most_bytes:
        cuts = range(most_bytes, num_bytes, most_bytes)
        groups = [[part] for part in np.split(np.concatenate(views), cuts)]
    for number, group in enumerate(groups, 1):
        ends = number == len(groups)
        yield BatchPart(head if ends else None, sizes, group, position, batch.num_rows if ends else 0)


class Kept:
    """The bytes of pieces in the store to which batches of this process refer, and their limit. Any thread."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._lock = threading.RLock()
        self._num_bytes = 0
        # Any thread ends a claim, in the middle of anything: it must take no lock.
        self._gone: deque[int] = deque()

    @property
    def num_bytes(self) -> int:
        """How many there are now."""
        with self._lock:
            while self._gone:
                self._num_bytes -= self._gone.popleft()
            return self._num_bytes

    def claim(self, num_bytes: int) -> _Claim | None:
        """Returns what stands for so many bytes as long as it lives; None if there is no room for them."""
        with self._lock:
            if self.num_bytes + num_bytes > self.most_bytes:
                return None
            self._num_bytes += num_bytes
        claim = _Claim()
        weakref.finalize(claim, self._gone.append, num_bytes).atexit = False
        return claim


class _Claim:
    """Stands for the bytes of a piece in the store."""


@dataclass(slots=True)
class Joined:
    """Makes batches of the parts of one run of a lane, which may be kept in the store."""

    kept: Kept
    _begun: list[Bytes] = field(default_factory=list)  # parts of a batch that goes on

    def add(self, parts: Sequence[BatchPart]) -> list[tuple[pa.RecordBatch, Position]]:
        """Returns the batches that end in a piece, each with its lane's position after it.

        The store keeps a piece whole as long as one of its batches is used.
        """
        claim = self.kept.claim(sum(part.num_bytes for part in parts))
        batches = []
        for part in parts:
            memory: Sequence[Any] = part.memory
            if part.head is None:
                self._begun.extend(each.copy() for each in memory)
                continue
            if self._begun:
                memory = np.split(np.concatenate([*self._begun, *memory]), np.cumsum(part.sizes)[:-1])
            if self._begun or claim is None:
                # Each is copied by itself, so that its memory is aligned.
                memory = [each.copy() for each in memory]
            else:
                buffers = map(pa.py_buffer, memory)
                memory = [pa.foreign_buffer(each.address, each.size, (each, claim)) for each in buffers]
            self._begun = []
            batches.append((unpack_apart(part.head, memory), part.position))
        return batches
