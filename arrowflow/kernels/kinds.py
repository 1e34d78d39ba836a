"""The kinds of kernel. Each method says when the executor calls it, and from which thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar

from arrowflow.bad_rows import NO_BAD_ROWS, LeftOut
from arrowflow.kernels.context import StreamHandle
from arrowflow.kernels.held import Held
from arrowflow.kernels.items import Item, Made, Origin, Payload, Task
from arrowflow.kernels.kept import KeptChunk
from arrowflow.plan.position import Counted, Position


class SourceKernel(ABC):
    """Yields work and does it."""

    lends: bool = False
    """Whether its chunks are memory that was there before, like a table of the user's: reading them takes none."""

    @abstractmethod
    def tasks(self, position: Position) -> Iterator[Task]:
        """Yields the tasks from `position` on, in order. Called under the executor's lock: cheap, no I/O."""

    @abstractmethod
    def read(self, task: Task) -> Iterator[Made]:
        """Yields the chunks of a task. Any worker, several tasks at once.

        The iterator is never used by two threads at the same time, but may move between threads.
        """


class ReaderKernel(ABC):
    """Makes any number of chunks of one item, like the row group that a split descriptor names."""

    passes: bool = False
    """Whether items that are record batches already pass it as they are."""

    @abstractmethod
    def num_bytes(self, payload: Any) -> int:
        """Returns the bytes to reserve for reading it. Under the executor's lock: cheap."""

    def most_bytes(self, payload: Any) -> int:
        """Returns the bytes that have to be free before it is read ahead of need; more where `num_bytes` may be too few.

        Under the executor's lock: cheap.
        """
        return self.num_bytes(payload)

    def holding(self, payload: Any) -> tuple[Any, Sequence[KeptChunk]]:
        """Returns the payload with what is kept of it, and that alone: the call holds it to its end.

        Under the executor's lock: cheap. Called right before the call starts, if `KernelSpec.keeps` is set.
        """
        return payload, ()

    def splits(self, payload: Any) -> Collection[int]:
        """Returns the splits of what it makes, where other payloads may have rows of them, too; else none.

        Under the executor's lock: cheap.
        """
        return ()

    @abstractmethod
    def read(self, payload: Any) -> Iterator[Made]:
        """As `SourceKernel.read`."""


class StatelessKernel(ABC):
    """Makes one chunk of one chunk, from that chunk and its origin alone."""

    @abstractmethod
    def apply(self, chunk: Any, origin: Origin) -> Payload:
        """Any worker, several chunks at once. Never called for a chunk without rows.

        If it raises, all chunks before this one are delivered, and no row of this one. With a serial kernel of the same
        operator right after it, it may return an `Outcome`. Where it keeps what it makes, it may return it as `Recalled`.
        """


class SerialKernel(ABC):
    """Sees all items in order, one call at a time, so its work is done by one worker, however many cores there are.

    Work that needs no state therefore belongs into a `StatelessKernel` before or after it. A chunk that only passes, or
    is sliced, keeps its item's ticket. A chunk with any new memory goes out with the ticket None: the stage then charges
    its buffers, and the ledger counts a buffer that it knows only once.
    """

    left_out: LeftOut = NO_BAD_ROWS
    """The bad rows that it has left out so far."""

    done: bool = False
    """Set by the kernel when it will yield nothing more, so that everything before it can stop."""

    lazy: bool = False
    """Set by the executor on the kernel right in front of the consumer: it may yield `Slices` for record batches."""

    @abstractmethod
    def open(self, position: Position, epoch: int) -> Position:
        """Returns the position that its input starts from. Called once, first, under the executor's lock."""

    @abstractmethod
    def push(self, item: Item) -> Iterator[Item]:
        """Takes one item, also one without rows, and yields what is ready. One call at a time, any thread.

        The iterator may be left unfinished when the run stops. An error comes after the items that were yielded before
        it; no other row of the pushed item is delivered. A kernel that can tell good rows from bad ones may yield the
        good ones first.
        """

    def finish(self) -> Iterator[Item]:
        """Yields what is left after the last item; not called after an error or once `done`."""
        return iter(())


class StateKernel(SerialKernel):
    """A serial kernel that passes chunks on with a small state: its position is its input's, and the state.

    The base of operators that see rows in order and keep none back; `CuttingKernel` is that of operators that do.
    `docs/positions.md` says what a state may be.
    """

    position: ClassVar[Any] = Counted
    """The type of its position, a `NamedTuple` of two parts; by default the state is a number of rows."""

    makes_memory: ClassVar[bool] = False
    """Whether `step` returns a chunk with new memory, and neither its chunk nor a slice of it."""

    state: Any = 0
    """The state after all rows so far; its first value is that of an epoch's start."""

    @abstractmethod
    def step(self, chunk: Any) -> Payload:
        """Moves the state over the rows of a chunk, at least one, and returns what goes on. As `push`."""

    def open(self, position: Position, epoch: int) -> Position:
        """Restores the state."""
        if position is None:
            return None
        before, self.state = position
        return before

    def push(self, item: Item) -> Iterator[Item]:
        """Passes a chunk on; one without rows as it is, with the schema of the input, at which nobody looks."""
        chunk = self.step(item.chunk) if item.chunk.num_rows else item.chunk
        # Without a ticket the stage makes a claim on all of its buffers. The ledger counts those of the input only once.
        ticket = None if self.makes_memory and chunk is not item.chunk else item.ticket
        yield Item(chunk, self.position(item.position, self.state), ticket, item.origin)


class BoundaryKernel(SerialKernel):
    """A serial kernel that opens its inputs itself, any number of times, and says which one it pulls from."""

    reads_runs: bool = False
    """Whether it wants one stream until that stream has ended, so that several items may be taken at once."""

    chunks_held: int = 0
    """Chunks of each input that it may keep back while it takes some of another one."""

    any_ready: bool = False
    """Whether it may want another stream as soon as that one is ready, so that it has to be asked each time."""

    def begin(self) -> Iterator[Item]:
        """Yields what there is before any input, like what a cache holds. Once, first, as `push`."""
        return iter(())

    @abstractmethod
    def next_input(self) -> StreamHandle | None:
        """Returns the stream to take the next item from; None ends it. Under the executor's lock: opens, no I/O."""

    @abstractmethod
    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        """Takes one item of one of its streams. As `push`."""

    @abstractmethod
    def ended(self, stream: StreamHandle) -> Iterator[Item] | None:
        """Is told that a stream has delivered its last item. Under the executor's lock.

        The executor iterates over the returned items as over those of `push`, before it asks `next_input` again.
        """

    def failed(self, stream: StreamHandle) -> Iterator[Item] | None:
        """Is told that a stream ended with an error, behind its last item. Under the executor's lock.

        The returned items come before the error, as does all else until the kernel wants that stream again. None: the
        error comes at once.
        """
        return None

    def held(self) -> Sequence[Held]:
        """Returns the rows that it keeps back of each of its inputs. Under the executor's lock: cheap."""
        return ()

    def following_bytes(self) -> int:
        """Returns what is made of them at a time, as far as they tell. Under the executor's lock; for an error."""
        return 0

    def ahead(self) -> None:
        """Is told that the wanted stream has started all its work, or all that waits: the time to open the next one.

        Called under the executor's lock.
        """

    @property
    def exhausted(self) -> bool:
        """Whether it will open no further stream. Under the executor's lock."""
        return True

    def push(self, item: Item) -> Iterator[Item]:
        """Not used: a boundary is pushed to by stream."""
        raise NotImplementedError


Kernel = SourceKernel | ReaderKernel | StatelessKernel | SerialKernel
