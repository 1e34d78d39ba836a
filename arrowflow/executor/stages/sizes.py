"""How many bytes a call takes: the kernel's own figure, or the most that earlier calls of the same stage took."""

from __future__ import annotations

from typing import NamedTuple

from arrowflow.executor.ledger import ticket_bytes
from arrowflow.executor.limits import FIRST_CALL_BYTES, UNTOLD_BYTES, UNTOLD_GROWTH
from arrowflow.kernels.items import Item


class Estimate(NamedTuple):
    """The bytes that a call takes, scratch included.

    Attributes:
        least: Bytes that it takes as far as anybody knows.
        most: Bytes that have to be free before it may start ahead of need.
    """

    least: int
    most: int

    @classmethod
    def known(cls, num_bytes: int) -> Estimate:
        """Returns the estimate of a call whose bytes are known."""
        return cls(num_bytes, num_bytes)

    @property
    def spared(self) -> int:
        """Bytes that it may take besides, which nobody else takes meanwhile."""
        return self.most - self.least


NO_BYTES = Estimate(0, 0)


class Sizes:
    """The bytes that calls of the stages of one key have made: of all epochs, and of all elements of an `interleave`.

    Attributes:
        made_bytes: Bytes of new buffers so far.
        bytes_per_row: The most bytes of new buffers for each row of the input of a call.
        chunk_bytes: The most bytes of new buffers in one chunk of a source that yields chunks for long.
    """

    __slots__ = ("bytes_per_row", "chunk_bytes", "made_bytes")

    def __init__(self) -> None:
        self.made_bytes = 0
        self.bytes_per_row = 0.0
        self.chunk_bytes: int | None = None

    def learn_function(self, num_bytes: int, input_rows: int) -> None:
        """Notes what a chunk took; buffers that the input has too are charged already, and no call allocates them."""
        self.bytes_per_row = max(self.bytes_per_row, num_bytes / input_rows)

    def learn_stream(self, num_bytes: int) -> None:
        """Notes what the chunk of a generator took."""
        self.chunk_bytes = max(self.chunk_bytes or 0, num_bytes)

    def of_stream(self) -> Estimate:
        """Returns the bytes that the next chunk of a generator takes."""
        if self.chunk_bytes is None:
            return Estimate(0, UNTOLD_BYTES)
        return Estimate.known(self.chunk_bytes)

    def of_function(self, item: Item, *, free: bool) -> Estimate:
        """Returns the bytes of a call that makes a chunk from a chunk.

        Args:
            item: Its input.
            free: Whether it may make anything, however small its input.
        """
        if self.bytes_per_row:
            return Estimate.known(int(2 * self.bytes_per_row * item.chunk.num_rows))
        input_bytes = _input_bytes(item)
        most = max(UNTOLD_BYTES, UNTOLD_GROWTH * input_bytes) if free else input_bytes
        return Estimate(input_bytes, most)


def _input_bytes(item: Item) -> int:
    """Returns the bytes of the rows that a function gets: the ticket of a slice is for all that it pins."""
    num_bytes = ticket_bytes(item.ticket)
    if num_bytes <= FIRST_CALL_BYTES:
        return num_bytes  # `nbytes` takes 2 µs and more
    own_bytes = getattr(item.chunk, "nbytes", None)  # of record batches, and of descriptors that know
    return num_bytes if own_bytes is None else min(num_bytes, own_bytes)
