"""How many bytes a call takes: the kernel's own figure, corrected by what earlier calls of the same stage made."""

from __future__ import annotations

from typing import NamedTuple

from arrowflow.executor.ledger import Ledger, ticket_bytes
from arrowflow.executor.limits import FIRST_CALL_BYTES, SURPRISE_GROWTH, UNTOLD_BYTES, UNTOLD_GROWTH
from arrowflow.kernels.items import Item
from arrowflow.physical.tuning import FIRST_CALLS


class Estimate(NamedTuple):
    """The bytes that a call takes.

    Attributes:
        least: Bytes that it takes as far as anybody knows, scratch included.
        most: Bytes that have to be free before it may start ahead of need.
        given_bytes: Bytes that it is estimated from: those of its input, or those that its kernel tells.
    """

    least: int
    most: int
    given_bytes: int = 0

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
        chunk_bytes: The most bytes of new buffers in one chunk of a source that yields chunks for long, or in all chunks
            of a call of a serial stage.
        excess_bytes: The most bytes that a call made beyond those that its kernel told.
        agreed: Calls in a row of which none made more than had to be free for it.
    """

    def __init__(self) -> None:
        self.made_bytes = 0
        self.bytes_per_row = 0.0
        self.chunk_bytes: int | None = None
        self.excess_bytes = self.agreed = 0
        self._given_bytes = self._made_of_given_bytes = 0  # of the calls whose input's bytes are known
        self._most_bytes = self._most_rows = 0  # that a call made, and that the input of one had

    def learn_function(self, num_bytes: int, input_rows: int, estimate: Estimate) -> None:
        """Notes what a chunk took; buffers that the input has too are charged already, and no call allocates them."""
        if num_bytes > self.bytes_per_row * input_rows:
            self.bytes_per_row = num_bytes / input_rows
        self._most_bytes = max(self._most_bytes, num_bytes)
        self._most_rows = max(self._most_rows, input_rows)
        self.agreed = self.agreed + 1 if num_bytes <= estimate.most else 0
        if estimate.given_bytes:
            self._given_bytes += estimate.given_bytes
            self._made_of_given_bytes += num_bytes

    def learn_stream(self, num_bytes: int) -> None:
        """Notes what the chunk of a generator, or the call of a serial stage, took."""
        self.chunk_bytes = max(self.chunk_bytes or 0, num_bytes)

    def learn_told(self, num_bytes: int, estimate: Estimate) -> None:
        """Notes what a call took whose kernel told its bytes, if that told any."""
        if estimate.given_bytes:
            self.excess_bytes = max(self.excess_bytes, num_bytes - estimate.given_bytes)

    def foreseen_bytes(self, rows: int) -> int:
        """Returns the bytes that a call on so many rows makes, by the rows of earlier calls.

        One small call with a few large rows says little of a large call, once there was one.
        """
        num_bytes = int(self.bytes_per_row * rows)
        return num_bytes if rows > self._most_rows else min(num_bytes, self._most_bytes)

    def of_stream(self) -> Estimate:
        """Returns the bytes that the next chunk of a generator takes."""
        if self.chunk_bytes is None:
            return Estimate(0, UNTOLD_BYTES)
        return Estimate.known(self.chunk_bytes)

    def of_told(self, least: int, most: int) -> Estimate:
        """Returns the bytes of a call whose kernel tells them."""
        return Estimate(least + self.excess_bytes, most + self.excess_bytes, least)

    def of_function(self, item: Item, ledger: Ledger, *, free: bool) -> Estimate:
        """Returns the bytes of a call that makes a chunk from a chunk.

        Nothing else starts while the first call runs, unless much is free. The more results were foreseen, the more calls
        run beside each other.

        Args:
            item: Its input.
            ledger: The bytes that the run holds.
            free: Whether it may make anything, however small its input.
        """
        if self.agreed >= FIRST_CALLS and not self.bytes_per_row:
            return NO_BYTES
        least = self.foreseen_bytes(item.chunk.num_rows)
        if self.agreed >= FIRST_CALLS and ledger.fits(UNTOLD_GROWTH * least):
            # the bytes of a slice of 40 columns take 100 µs to count
            return Estimate(least, SURPRISE_GROWTH * least)
        given = _input_bytes(item)
        untold = max(UNTOLD_BYTES, UNTOLD_GROWTH * given) if free else SURPRISE_GROWTH * given
        if self._given_bytes:
            least = max(least, self._made_of_given_bytes * given // self._given_bytes)
        foreseen = SURPRISE_GROWTH * least if self.bytes_per_row or self.agreed else given
        most = max(foreseen, min(ledger.budget, untold) >> self.agreed)
        return Estimate(least, most, given)


def _input_bytes(item: Item) -> int:
    """Returns the bytes of the rows that a function gets: the ticket of a slice is for all that it pins."""
    num_bytes = ticket_bytes(item.ticket)
    if num_bytes <= FIRST_CALL_BYTES:
        return num_bytes  # `nbytes` takes 2 µs and more
    own_bytes = getattr(item.chunk, "nbytes", None)  # of record batches, and of descriptors that know
    return num_bytes if own_bytes is None else min(num_bytes, own_bytes)
