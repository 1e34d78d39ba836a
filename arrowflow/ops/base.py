"""The protocol between operators and the executor: `Operator`, items, positions and the kinds of kernel.

**Positions.** Every chunk travels with the state from which its producer would make the *next* chunk. A
position is a nested tuple of JSON values; None is the start. A kernel that passes rows on one to one passes the
position on. A kernel that keeps rows back emits (the position before the oldest row it still holds, how many
rows of it are gone, its own counters), which is what `Held.mark` computes. The state of an iterator is the
position of the last batch that it delivered; so readahead needs no care at all.

**Kernels know nothing of threads.** The executor calls them as written at each method; a kernel is made anew
for each stream, that is for each pass over a sub-plan.

| kind | order of calls | example |
|---|---|---|
| `SourceKernel` | `tasks` once, then `read` per task, several tasks at once | range, footers of files |
| `ReaderKernel` | `read` per item, several items at once | row groups |
| `StatelessKernel` | `apply` per chunk, several chunks at once | filter, gather of a shuffle window |
| `SerialKernel` | `open`, then `push` per item in order, then `finish`; one call at a time | batch, take |
| `BoundaryKernel` | like a serial kernel, but it opens and pulls streams of its own | repeat |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import pyarrow as pa

from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import Columns, Node
from arrowflow.plan.position import Position as Position  # noqa: PLC0414, a part of the protocol
from arrowflow.records import dataclass

Payload = Any
"""What travels in an item: a `pyarrow.RecordBatch`, or, between two kernels of one operator, anything else that
has `num_rows`. One that holds memory names it in `buffers`, a tuple of `pyarrow.Buffer`, which the ledger counts."""


class Slices(NamedTuple):
    """Batches of one size that lie in a chunk one behind the other, and that nobody has sliced yet.

    So a chunk that holds many batches is passed on once for all of them. And a loader converts it once and slices what
    it made: 1 µs a batch, where slicing a record batch and converting the slice takes 14 µs for 6 columns.

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


SubPlan = Any
"""What `Context.plan` makes of a node, and `Context.open` takes."""

Ticket = Any
"""A claim on the ledger: the bytes are released when the last item that holds the ticket is gone."""


class Share:
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
        chunk: The rows. May have none: then only the position matters.
        position: The position after it.
        ticket: Its claim on the ledger, or None for a new chunk that is not charged yet.
        origin: Where it comes from.
    """

    chunk: Payload
    position: Position
    ticket: Ticket
    origin: Origin


PAUSE: Final = Item(None, None, (), Origin(0))
"""What a kernel yields before it waits for something outside: what it yielded before is put out first."""


class Task(NamedTuple):
    """One piece of work of a source: what `SourceKernel.read` can do on its own.

    Attributes:
        payload: What to read; the kernel's own.
        origin: Origin of its chunks.
        num_bytes: Bytes to reserve while it runs: output and scratch, estimated.
        streams: Whether it yields chunks for long, like a generator, rather than one or two.
    """

    payload: Any
    origin: Origin
    num_bytes: int = 0
    streams: bool = False


class Made(NamedTuple):
    """What a source or reader makes.

    Attributes:
        chunk: The rows.
        position: The position after them.
        last: Whether they end their split.
        split: Number of their split, or None for the task's.
    """

    chunk: Payload
    position: Position
    last: bool = True
    split: int | None = None


class StreamHandle(Protocol):
    """An opened sub-plan, as a boundary kernel sees it: something to name in `wants`."""

    @property
    def exhausted(self) -> bool:
        """Whether all its work has been started, so that opening the next stream costs it nothing."""

    @property
    def ready(self) -> bool:
        """Whether it has an item, or has ended."""

    @property
    def sound(self) -> bool:
        """Whether it has an item, or has ended without an error: asking it ahead of its turn brings no error forward."""


class Context(Protocol):
    """What the executor gives a kernel when it makes it."""

    @property
    def epoch(self) -> int:
        """The epoch of the stream that the kernel belongs to."""

    def plan(self, node: Node, first_place: int) -> SubPlan:
        """Makes a plan that was only known now ready to be opened. Does I/O: from `apply` or `read`.

        Its operators' places, which are part of the keys of everything random, are counted from `first_place`.
        """

    def open(self, child: int | SubPlan, epoch: int, position: Position) -> StreamHandle:
        """Starts the sub-plan of input number `child`, or one that `plan` made, in the same executor and ledger.

        Under the executor's lock; no I/O.
        """

    def keep(self, buffers: Mapping[int, int]) -> Ticket:
        """Counts memory that outlives its items, like that of a cache, as long as the ticket is held.

        Takes no time for each buffer. The items stand on a `Share` each.

        Args:
            buffers: The bytes of each buffer, by address. Must not change any more.
        """

    @property
    def kept(self) -> dict[Any, Any]:
        """What kernels keep until the run ends, such as tickets for what outlives their stream; by owner. Any thread."""

    def close(self, stream: StreamHandle) -> None:
        """Stops a stream and drops what it holds. Under the executor's lock."""

    def now(self) -> float:
        """Returns the time in seconds, by the clock of the run. Any thread."""

    def wait(self, seconds: float) -> bool:
        """Waits at most so long, and returns whether the run goes on. For what another process does. No lock held."""


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
    def num_bytes(self, payload: Payload) -> int:
        """Returns the bytes to reserve for reading it. Under the executor's lock: cheap."""

    def most_bytes(self, payload: Payload) -> int:
        """Returns the bytes that have to be free before it is read ahead of need; more where `num_bytes` may be too few.

        Under the executor's lock: cheap.
        """
        return self.num_bytes(payload)

    @abstractmethod
    def read(self, payload: Payload) -> Iterator[Made]:
        """As `SourceKernel.read`."""


class StatelessKernel(ABC):
    """Makes one chunk of one chunk, from that chunk and its origin alone."""

    @abstractmethod
    def apply(self, chunk: Payload, origin: Origin) -> Payload:
        """Any worker, several chunks at once. Never called for a chunk without rows."""


class SerialKernel(ABC):
    """Sees all items in order. Retains and slices; what allocates belongs into a `StatelessKernel`."""

    done: bool = False
    """Set by the kernel when it will yield nothing more, so that everything below can stop."""

    lazy: bool = False
    """Set by the executor on the kernel right in front of the consumer: it may yield `Slices` for record batches."""

    @abstractmethod
    def open(self, position: Position, epoch: int) -> Position:
        """Returns the position that its input starts from. Called once, first, under the executor's lock."""

    @abstractmethod
    def push(self, item: Item) -> Iterator[Item]:
        """Takes one item, also one without rows, and yields what is ready. One call at a time, any thread.

        The iterator may be left unfinished when the run stops.
        """

    def finish(self) -> Iterator[Item]:
        """Yields what is left after the last item; not called after an error or once `done`."""
        return iter(())


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
    def wants(self) -> StreamHandle | None:
        """Returns the stream to take the next item from; None ends it. Under the executor's lock: opens, no I/O."""

    @abstractmethod
    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        """Takes one item of one of its streams. As `push`."""

    @abstractmethod
    def ended(self, stream: StreamHandle) -> Iterator[Item] | None:
        """Is told that a stream has delivered its last item. Under the executor's lock.

        What it returns is then iterated over as what `push` returns, before `wants` is asked again.
        """

    def failed(self, stream: StreamHandle) -> Iterator[Item] | None:
        """Is told that a stream ended with an error, behind its last item. Under the executor's lock.

        What it returns comes before the error, as does all else until the kernel wants that stream again. None: the
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
        """Is told that the wanted stream has started all its work: the time to open the next one.

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
Kind = Literal["source", "reader", "stateless", "serial", "boundary", "buffer"]
Cost = Literal["computes", "waits", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec:
    """How the planner learns of a kernel without making one.

    Attributes:
        operator: Name of the operator, for errors and statistics.
        kind: The kind of kernel; `buffer` has none and only sets how far the stage below may run ahead.
        make: Makes the kernel of one stream.
        phase: What its calls are named in a timeline ("open", "read", "decode"); empty for the operator's name.
        engine: Where its work runs, for `explain`: "arrow", "numpy", "polars", "python" or mixtures.
        max_calls: Calls at the same time that the user asked for, or None for the CPU budget.
        cost: What its calls take: `computes` one core each, `waits` hardly any (I/O); `unknown`, as with user
            functions, is found out while it runs.
        buffer_items: How many chunks its stage (for `buffer`: the stage below) may hold ready, or None.
        pins_order: Whether the inputs of a boundary run in order even where `deterministic=False`.
        floor_bytes: The least bytes that it needs to make progress, as far as the plan tells.
        where: Returns file and row group of what has this origin, for errors; None where that is not known.
        random: Whether what it yields is drawn from a seed, so that a cache above it freezes one draw.
        splits: Whether what it yields are splits of its own (windows, batches), which lie in no one file.
        facts: Returns lines for `explain`, one per fact; called for nothing else.
        holds_lock: Whether its calls hold the interpreter lock nearly all of their time: another thread would make them in
            place of this one, not beside it.
        process: Whether its calls, of a stateless kernel that computes, run in worker processes. `make` is then pickled
            and called there, where of the context there are `epoch` and `kept`, and one call at a time.
        title: What `explain`, statistics and timelines call it; empty for the operator's name. For the planner to set.
    """

    operator: str
    kind: Kind
    make: Callable[[Context], Kernel] | None = None
    phase: str = ""
    engine: str = "python"
    max_calls: int | None = None
    cost: Cost = "computes"
    buffer_items: int | None = None
    pins_order: bool = False
    floor_bytes: int = 0
    where: Callable[[Origin], tuple[str, int]] | None = None
    random: bool = False
    splits: bool = False
    facts: Callable[[], tuple[str, ...]] = tuple
    holds_lock: bool = False
    process: bool = False
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator(Node):
    """A node that says which kernels run it: the base of everything in `arrowflow.ops`."""

    @property
    def title(self) -> str:
        """What tells it apart from others of its name, such as `map(decode)`; empty where nothing does."""
        return ""

    @abstractmethod
    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        """Returns its kernels, from its input to its output. Called by the planner, on bound nodes only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOperator(Operator):
    """An operator on whole rows of one input: it reads no column, changes none, and copies none."""

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema | None:
        """Returns its input's schema."""
        return inputs[0]

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        """Returns the wanted columns: it reads none itself."""
        return (wanted,)

    def owns_buffers(self, inputs: Sequence[bool]) -> bool:
        """Rows go to one chunk each, so what its input owns stays owned."""
        return inputs[0]


class Held:
    """The rows that an operator keeps back, with the position to come back to. Used by all that do.

    Args:
        before: Position that the input was opened at.
        skip: Rows after `before` that were delivered already and are dropped.
    """

    __slots__ = ("_after", "_entries", "_skip", "rows")

    def __init__(self, before: Position = None, skip: int = 0) -> None:
        self.rows = 0
        self._after = before
        self._skip = skip
        # [chunk, position before it, first row still held, ticket]
        self._entries: deque[list[Any]] = deque()

    def add(self, item: Item) -> None:
        """Keeps an item's rows."""
        rows = item.chunk.num_rows
        if self._skip >= rows:
            # `_after` moves on only when the chunk is skipped whole: a position lies between chunks.
            self._skip -= rows
        else:
            self._entries.append([item.chunk, self._after, self._skip, item.ticket])
            self.rows += rows - self._skip
            self._skip = 0
        self._after = item.position

    def pop(self, rows: int) -> tuple[list[pa.RecordBatch], list[Ticket]]:
        """Removes the oldest `rows` rows and returns them as zero-copy slices with the tickets they stand on."""
        chunks, tickets = [], []
        self.rows -= rows
        while rows:
            entry = self._entries[0]
            chunk, _, start, ticket = entry
            here = min(rows, chunk.num_rows - start)
            chunks.append(chunk if here == chunk.num_rows else chunk.slice(start, here))
            tickets.append(ticket)
            rows -= here
            if start + here == chunk.num_rows:
                self._entries.popleft()
            else:
                entry[2] = start + here
        return chunks, tickets

    def pop_slices(self, size: int, number: int) -> tuple[Slices, Ticket] | None:
        """Removes all batches of `size` rows that the oldest chunk holds whole; None if it holds none.

        Args:
            size: Rows of a batch.
            number: Batches that were made before.
        """
        entry = self._entries[0]
        chunk, before, start, ticket = entry
        count, left = divmod(chunk.num_rows - start, size)
        if not count:
            return None
        self.rows -= count * size
        if left:
            entry[2] = chunk.num_rows - left
        else:
            self._entries.popleft()
        return Slices(chunk, start, size, count, before, number), ticket

    def tickets(self) -> list[Ticket]:
        """Returns what its rows stand on."""
        return [ticket for *_, ticket in self._entries]

    def row_bytes(self) -> float:
        """Returns the bytes of a row, of the chunk with the widest ones."""
        return max((chunk.nbytes / chunk.num_rows for chunk, *_ in self._entries), default=0.0)

    def mark(self) -> tuple[Position, int]:
        """Returns the position before the oldest held row, and how many rows from there on are gone."""
        if self._entries:
            return self._entries[0][1], self._entries[0][2]
        return self._after, self._skip


def join(chunks: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Returns the chunks as one record batch; a single one is returned as it is."""
    return chunks[0] if len(chunks) == 1 else pa.concat_batches(chunks)
