"""Items: the chunks that travel between kernels, each with its position, its ticket and its origin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from arrowflow.bad_rows import NO_BAD_ROWS, BadRow, LeftOut
from arrowflow.kernels.kept import KeptGroup, Key
from arrowflow.plan.position import Position


class Payload(Protocol):
    """A chunk of an item: a `pyarrow.RecordBatch`, or any object with rows between two kernels of one operator.

    A payload that holds memory names it in `buffers`, a tuple of `pyarrow.Buffer`, which the ledger counts.
    """

    @property
    def num_rows(self) -> int:
        """Its rows."""


@dataclass(slots=True)
class Noted(Payload):
    """A chunk, a record batch or a payload, with what a kernel noted about its rows: subclasses have fields for that."""

    chunk: Any

    @property
    def num_rows(self) -> int:
        return int(self.chunk.num_rows)

    @property
    def buffers(self) -> tuple[pa.Buffer | None, ...]:
        """The buffers of the chunk and of arrays, which the ledger counts."""
        chunk, values = self.chunk, [getattr(self, each.name) for each in fields(self)]
        arrays = (value for value in values if isinstance(value, np.ndarray))
        if isinstance(chunk, pa.RecordBatch):
            found = [buffer for column in chunk.columns for buffer in column.buffers()]
        else:
            found = chunk.buffers
        return (*map(pa.py_buffer, arrays), *found)


class Claim(Protocol):
    """A claim on the ledger. Its bytes are released when the last item that holds it is gone."""

    @property
    def num_bytes(self) -> int:
        """Bytes that nobody else had claimed before."""


Ticket = Claim | Sequence["Ticket"] | None
"""The claims of an item: a claim, several of them, or None for a new chunk that is not charged yet."""


class BorrowedTicket:
    """The ticket of an item whose memory another ticket claims, which outlives it.

    Attributes:
        num_bytes: Its bytes.
    """

    __slots__ = ("num_bytes",)

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes


class Origin(NamedTuple):
    """Where a chunk comes from: the key of everything random.

    Attributes:
        split: Number of the split (row group, window, batch); never changed by parallelism or by rules.
        piece: Number of the piece within the split, where an operator sees borders; else 0.
        last: Whether this chunk ends its split. False does not promise that another one follows.
    """

    split: int
    piece: int = 0
    last: bool = True


class Item(NamedTuple):
    """A chunk on its way.

    Attributes:
        chunk: The rows, a `Payload`; its class is known to the kernel that takes it. May have none: then only the
            position matters.
        position: The position after it.
        ticket: Its claim on the ledger, or None for a new chunk that is not charged yet.
        origin: Where it comes from.
    """

    chunk: Any
    position: Position
    ticket: Ticket
    origin: Origin


PAUSE: Final = Item(None, None, (), Origin(0))
"""A kernel yields this before it waits for something outside, so that its earlier results are put out first."""


class Slices(NamedTuple):
    """Batches of one size that lie in a chunk one behind the other, and that nobody has sliced yet.

    So a chunk that holds many batches is passed on once for all of them. And a loader converts the chunk once and
    slices the result, which takes 1 µs a batch. To slice a record batch and convert the slice takes 14 µs for 6 columns.

    Attributes:
        chunk: The chunk.
        start: The first row of the first batch.
        size: Rows of a batch.
        batches: How many they are.
        before: The position before the chunk.
        number: Batches that were made before the first one.
    """

    chunk: pa.RecordBatch
    start: int
    size: int
    batches: int
    before: Position
    number: int

    @property
    def num_rows(self) -> int:
        """Rows of all of them."""
        return self.size * self.batches


class Task(NamedTuple):
    """One piece of work of a source: what `SourceKernel.read` can do on its own.

    Attributes:
        payload: The thing to read, in the kernel's own form.
        origin: Origin of its chunks.
        num_bytes: Bytes to reserve while it runs: output and scratch, estimated.
        streams: Whether it yields chunks for long, like a generator, rather than one or two.
    """

    payload: Any
    origin: Origin
    num_bytes: int = 0
    streams: bool = False


class Made(NamedTuple):
    """The result of a source or reader.

    Attributes:
        chunk: The rows, a `Payload`, as in an item.
        position: The position after them.
        last: Whether they end their split.
        split: Number of their split, or None for the task's.
        more: Whether the next result is there already, so that the same call takes it.
        left_out: The bad rows that were left out on the way to it.
        key: The key by which later epochs find what its call makes of it; None where nothing is kept.
        is_kept: Whether it is that, from an earlier epoch: the other kernels of the call leave it as it is.
    """

    chunk: Any
    position: Position
    last: bool = True
    split: int | None = None
    more: bool = False
    left_out: LeftOut = NO_BAD_ROWS
    key: Key | None = None
    is_kept: bool = False


class Recalled(NamedTuple):
    """The result of a stateless kernel that keeps what it makes for later epochs, see `KernelSpec.keeps`.

    Attributes:
        chunk: The result.
        group: What to keep of it, if anything.
        images: Images of it that were kept already.
    """

    chunk: Payload
    group: KeptGroup | None
    images: int

    @property
    def num_rows(self) -> int:
        """Rows of the result."""
        return self.chunk.num_rows


class Outcome(NamedTuple):
    """The result of a stateless kernel for a chunk with bad rows: a payload for the serial kernel of the same operator.

    Attributes:
        chunk: The results for the good rows.
        bad: The bad rows, which are left out.
        given: Those rows, where they are kept.
        error: The fault of the row after them, if that ends the run.
        is_whole: Whether all rows of the chunk are bad since the function sees them together.
    """

    chunk: pa.RecordBatch
    bad: tuple[BadRow, ...] = ()
    given: pa.RecordBatch | None = None
    error: BaseException | None = None
    is_whole: bool = False

    @property
    def num_rows(self) -> int:
        """Rows of the results."""
        return self.chunk.num_rows

    @property
    def buffers(self) -> tuple[pa.Buffer, ...]:
        """The memory of the results."""
        found = (buffer for column in self.chunk.columns for buffer in column.buffers())
        return tuple(buffer for buffer in found if buffer is not None)

    def slice(self, offset: int = 0, length: int | None = None) -> Outcome:
        """Returns a part of it: the bad rows go with its first row, and the error with its last one."""
        chunk = self.chunk.slice(offset, length)
        part = self._replace(chunk=chunk)
        if offset:
            part = part._replace(bad=(), given=None)
        return part if offset + chunk.num_rows == self.num_rows else part._replace(error=None)
