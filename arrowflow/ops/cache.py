"""`cache`: what its input yields in epoch 0, computed once and kept in memory by the dataset.

The node holds a `Store`, which all datasets derived from it share. It has one `Shelf` for each way in which the plan
below is run (a `shuffle` above may order the source). On it lies a `Prefix` of the input's items, each with its
position. Who runs the cache serves that prefix, computes the rest from where it ends, and adds to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, Final

import pyarrow as pa

from arrowflow.errors import BudgetError
from arrowflow.ops.base import (
    BoundaryKernel,
    Context,
    Item,
    KernelSpec,
    Origin,
    Position,
    RowOperator,
    StreamHandle,
    Ticket,
)
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import BindContext, Columns, Node, SourceOrder
from arrowflow.plan.traits import Traits
from arrowflow.plan.walk import post_order
from arrowflow.records import dataclass


@dataclass(slots=True, eq=False)
class Entry:
    """One item of the input, as it is kept.

    Attributes:
        chunk: The rows.
        position: The position after it.
        origin: Where it comes from.
        buffers: The memory that it keeps alive.
        total_bytes: Bytes of this entry and all before it, each buffer counted once.
    """

    chunk: pa.RecordBatch
    position: Position
    origin: Origin
    buffers: tuple[pa.Buffer, ...]
    total_bytes: int


NO_ROWS: Final = pa.RecordBatch.from_arrays([], names=[])
END: Final = Entry(NO_ROWS, None, Origin(0), (), 0)
"""Stands behind the last item of a shelf that is complete."""


class Prefix:
    """The first items of one plan, by number; and `END` behind the last one.

    Any number of runs read it and add to it at the same time, without a lock: entries are never changed or removed,
    and one is added by `dict.setdefault`, which is a single step where keys are whole numbers. Whoever adds number n
    has seen all below n in it, so there are no gaps; and whoever comes first, the rows are the same.
    """

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}

    @property
    def complete(self) -> bool:
        """Whether all items are there."""
        return self.entries.get(len(self.entries) - 1) is END

    @property
    def num_items(self) -> int:
        """How many items are there."""
        return len(self.entries) - self.complete

    def number_after(self, position: Position) -> int | None:
        """Returns the number of the item that follows a position; None if that is not known here."""
        if position is None:
            return 0
        for number in range(self.num_items - 1, -1, -1):
            if self.entries[number].position == position:
                return number + 1
        return None


class Shelf:
    """Where the prefix of one way to run the plan lies. Cleared, it gets another one; who reads the old one keeps it."""

    __slots__ = ("key", "prefix")

    def __init__(self, key: Any) -> None:
        self.key = key
        self.prefix = Prefix()


class Store:
    """The shelves of one `cache()`. They are left out of pickles: a copy starts empty."""

    __slots__ = ("shelves",)

    def __init__(self) -> None:
        self.shelves: list[Shelf] = []

    def __reduce__(self) -> tuple[type[Store], tuple[()]]:
        return Store, ()

    def shelf(self, key: Any) -> Shelf:
        """Returns the shelf of a key: the first one, should two threads have added one at the same time."""
        while True:
            for shelf in self.shelves:
                if shelf.key == key:
                    return shelf
            self.shelves.append(Shelf(key))

    def clear(self) -> None:
        """Forgets what is on all shelves."""
        for shelf in self.shelves:
            shelf.prefix = Prefix()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache(RowOperator):
    """Its input as it is in epoch 0, in every epoch; computed once, and kept in memory by the dataset.

    Row order: as its input, also with `deterministic=False`. Memory: all of its input, charged to the budget of each
    run. Deterministic. Resume: its input's position; what is cached is served from there, what is not is computed.

    Attributes:
        store: What was cached so far.
    """

    name: ClassVar[str] = "cache"
    traits: ClassVar[Traits] = Traits(one_to_one=True, opaque=True)

    store: Store = field(default_factory=Store, compare=False, repr=False)

    def arguments(self) -> Mapping[str, Any]:
        """Returns nothing: what is cached does not change what comes."""
        return {}

    def describe(self) -> str:
        """Returns the operator as one line."""
        return "cache(memory)"

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Puts what is below into one exact order."""
        return self.on(inputs[0].in_order())

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        """Returns all columns: other epochs and other datasets may want others."""
        return (None,)

    def with_source_order(self, order: SourceOrder) -> Node:
        """Orders the source, by the order of epoch 0."""
        return dataclasses.replace(self, inputs=(self.inputs[0].with_source_order(order),))

    def random_access(self) -> Node:
        """All rows stay in memory."""
        return self

    def owns_buffers(self, inputs: Sequence[bool]) -> bool:
        """What is cached is shared by all epochs."""
        return False

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        """Returns one boundary kernel."""
        shelf = self.store.shelf(_key(self.inputs[0], options))
        return (
            KernelSpec(
                operator=self.name,
                kind="boundary",
                make=lambda context: CacheKernel(shelf, options.ram_budget, context),
                pins_order=True,
                facts=lambda: _facts(self.inputs[0]),
            ),
        )


def _key(plan: Node, options: ResolvedOptions) -> tuple[Any, ...]:
    """Returns what decides the items of a bound plan, their positions and their borders."""
    nodes = list(post_order(plan))
    sources = [node.arguments() for node in nodes if not node.inputs]
    # Places are keys of random values.
    places = [getattr(node, "place", None) for node in nodes if node.arguments().get("seed", 0) is not None]
    return plan, sources, places, options.max_chunk_rows


def _facts(plan: Node) -> tuple[str, ...]:
    random = [node.name for node in post_order(plan) if node.arguments().get("seed") is not None]
    frozen = f"; {', '.join(dict.fromkeys(random))} frozen with it" if random else ""
    return (f"below it runs as epoch 0, once{frozen}",)


class CacheKernel(BoundaryKernel):
    """Serves the prefix that is there, then opens its input behind that and adds what comes."""

    reads_runs = True

    def __init__(self, shelf: Shelf, budget_bytes: int, context: Context) -> None:
        self._shelf = shelf
        self._prefix = shelf.prefix
        self._budget_bytes = budget_bytes
        self._context = context
        self._position: Position = None
        self._number: int | None = 0  # of the next item; None where that is not known, and nothing is added
        self._stream: StreamHandle | None = None
        self._addresses: set[int] = set()  # of all buffers before the next item
        self._total_bytes = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Notes the position and charges what is cached to this run; the input is opened by `wants`."""
        self._position = position
        entries, num_items = self._prefix.entries, self._prefix.num_items
        kept = self._context.kept
        if kept.get(self._shelf, (None,))[0] is not self._prefix:
            kept[self._shelf] = self._prefix, {}
        tickets = self._tickets
        if len(tickets) < num_items:
            for number in range(num_items):
                if number not in tickets:
                    tickets[number] = self._context.charge(entries[number])
        self._total_bytes = entries[num_items - 1].total_bytes if num_items else 0
        return None

    @property
    def _tickets(self) -> dict[int, Ticket]:
        """This run's claims on what is cached, by number.

        The run keeps them to its end, as the dataset does the memory: this kernel's epoch is over before, and an error
        that somebody keeps may lead to this kernel.
        """
        prefix, tickets = self._context.kept.get(self._shelf, (None, {}))
        return tickets if prefix is self._prefix else {}

    def begin(self) -> Iterator[Item]:
        """Yields what is cached behind the position."""
        entries = self._prefix.entries
        self._check_budget(self._total_bytes)
        number = self._number = self._prefix.number_after(self._position)
        if number is None:
            return
        tickets = self._tickets
        while (entry := entries.get(number)) is not None:
            if entry is END:
                self.done = True
                return
            ticket = tickets.get(number)
            number += 1
            self._number, self._position = number, entry.position
            yield Item(entry.chunk, entry.position, ticket, entry.origin)

    def _check_budget(self, total_bytes: int) -> None:
        if total_bytes > self._budget_bytes:
            raise BudgetError(
                f"the cached rows take {total_bytes:,} bytes, and ram_budget allows {self._budget_bytes:,}; raise "
                "ram_budget, cache fewer rows or columns, or write the rows to Parquet once and read that"
            )

    def wants(self) -> StreamHandle | None:
        """Returns its input, as epoch 0, from where the prefix ends."""
        if self._stream is None and not self.done:
            self._stream = self._context.open(0, 0, self._position)
        return self._stream

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        """Passes the item on, and adds it to the prefix."""
        if self._number is not None:
            self._add(self._number, item)
            self._number += 1
        yield item

    def _add(self, number: int, item: Item) -> None:
        entries = self._prefix.entries
        if number and not self._addresses:
            for before in range(number):
                self._addresses.update(buffer.address for buffer in entries[before].buffers)
        # Without rows only the position matters, and the chunk may be of any kind.
        chunk = item.chunk if item.chunk.num_rows else NO_ROWS
        found = [buffer for column in chunk.columns for buffer in column.buffers()]
        buffers = tuple(buffer for buffer in found if buffer is not None and buffer.size)
        new = {buffer.address: buffer.size for buffer in buffers if buffer.address not in self._addresses}
        total_bytes = sum(new.values()) + (entries[number - 1].total_bytes if number else 0)
        self._check_budget(total_bytes)
        mine = Entry(chunk, item.position, item.origin, buffers, total_bytes)
        entry = entries.setdefault(number, mine)
        if entry is mine:
            self._tickets[number] = item.ticket
        self._addresses.update(buffer.address for buffer in entry.buffers)

    def ended(self, stream: StreamHandle) -> None:
        """Marks that nothing else comes."""
        self._stream = None
        self.done = True
        if self._number is not None:
            self._prefix.entries.setdefault(self._number, END)

    @property
    def exhausted(self) -> bool:
        """Whether the next epoch would find everything; or, where nothing is added, whether the input is open."""
        if self._number is None:
            return self._stream is not None or self.done
        return self._prefix.complete
