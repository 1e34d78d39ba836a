"""`cache`: its input's rows of epoch 0, computed once and kept in memory by the dataset.

The node holds a `MemoryStore`, which all datasets derived from it share. The store has one `Shelf` for each way in
which the plan before the cache is run (a `shuffle` after the cache may order the source). On the shelf lies a `Prefix`
of the input's items, each with its position. A run serves that prefix, computes the rest from the end of the prefix,
and adds it there.

With `spill=` a chunk is kept in memory as long as all cached chunks stay within half of `ram_budget`. The other half
is for the rest of the pipeline. A chunk that does not fit is written to a file, and the mapped file takes its place.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from arrowflow.errors import ArrowflowError, BudgetError, PlanError
from arrowflow.kernels.context import Context, StreamHandle
from arrowflow.kernels.items import BorrowedTicket, Item, Ticket
from arrowflow.kernels.kinds import BoundaryKernel
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.ops.cache.memory_store import (
    END,
    NO_ROWS,
    SPILLED,
    CachedItem,
    Claims,
    MemoryStore,
    Prefix,
    Shelf,
)
from arrowflow.ops.combine.interleave import in_order
from arrowflow.options import ResolvedOptions
from arrowflow.plan.access import RowAccess, SourceOrder, with_source_order
from arrowflow.plan.lane import MIN_WINDOW_ROWS, InLanes, Obstacle, obstacle_of
from arrowflow.plan.node import BindContext, Columns, Count, Node
from arrowflow.plan.position import Position
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Traits
from arrowflow.plan.walk import fold, post_order, repeatable, rows_in_lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepsRows(RowOperator, InLanes, RowAccess):
    """An operator that keeps its input's rows of epoch 0: the base of all caches."""

    name: ClassVar[str] = "cache"

    def arguments(self) -> Mapping[str, Any]:
        """Returns nothing: a cache does not change the rows that come."""
        return {}

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        """Returns all columns: other epochs and other datasets may want others."""
        return (None,)

    def obstacle(self, lanes: int, times: Count) -> Obstacle | None:
        """See `obstacle_of`.

        A lane keeps its rows of epoch 0, so their remainder never goes to another lane, and finite repetitions add it up.
        """
        plan = self.inputs[0]
        return adds_up(rows_in_lanes(plan), lanes, times) or obstacle_of(plan, lanes, 1)

    def rows_wanted(self, rows: int | None) -> None:
        """Returns None: what it keeps does not depend on what comes after it."""

    def rows_again(self, rows: int) -> int | None:
        """Returns none, if none are asked for: rows that are stored come again, whatever its input has become."""
        return None if rows else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache(KeepsRows):
    """Its input as it is in epoch 0, in every epoch; computed once, and kept in memory by the dataset.

    Row order: as its input, also with `deterministic=False`. Memory: all of its input, charged to the budget of each
    run; with `spill` up to half of the budget. Deterministic. Resume: its input's position; cached items are served
    from there, and the others are computed.

    Attributes:
        spill: Folder of the files for chunks that do not fit into memory; None makes such a chunk an error.
        store: The items cached so far.
    """

    traits: ClassVar[Traits] = Traits(one_to_one=True, opaque=True, once=True)

    spill: str | None = field(default=None, compare=False)
    store: MemoryStore = field(default_factory=MemoryStore, compare=False, repr=False)

    def describe(self) -> str:
        return "cache(memory)" if self.spill is None else f"cache(memory, spill={self.spill!r})"

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Puts the operators before the cache into one exact order."""
        # Its inner name "." can be reached only if it is a folder.
        if self.spill is not None and not os.access(f"{self.spill}/.", os.W_OK | os.X_OK):
            raise PlanError(
                f"spill={self.spill!r} is no folder that can be written; make it first, or name another one"
            )
        return self.on(in_order(inputs[0]))

    def with_source_order(self, order: SourceOrder) -> Node:
        """Orders the source, by the order of epoch 0."""
        return dataclasses.replace(self, inputs=(with_source_order(self.inputs[0], order),))

    def random_access(self) -> Node:
        """All rows stay in memory, or in mapped files."""
        return self

    def copies(self) -> tuple[str, ...]:
        return (
            () if self.spill is None else ("cache: what does not fit in memory is copied once, into a file",)
        )

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        shelf = self.store.shelf(_key(self.inputs[0], options), _sources(self.inputs[0]))
        return KernelSpec(
            "boundary",
            lambda context: CacheKernel(self, shelf, options.ram_budget, context),
            sees_borders=True,  # it keeps them, for other plans too
            position=Shape(Position),
            pins_order=True,
            facts=lambda: (*facts_before(self.inputs[0]), shelf.prefix.describe()),
        )


def adds_up(rows: Count, lanes: int, times: Count) -> Obstacle | None:
    """Returns the obstacle of so many kept rows that are repeated; of many rows an endless repetition hardly shows it."""
    if not isinstance(rows, int) or rows % lanes == 0 or times == 1:
        return None
    if times == math.inf and rows >= MIN_WINDOW_ROWS * lanes:
        return None
    why = f"keeps {rows:,} rows, of which {lanes} lanes have unequal numbers, and repetitions add the difference up"
    return Obstacle(Cache.name, why)


def dealt_caches(plan: Node) -> bool:
    """Returns whether a plan has a cache of which each lane keeps a part: not one that an operator reads as a whole."""
    if plan.traits.collects:
        return False
    return plan.name == Cache.name or any(map(dealt_caches, plan.inputs))


def _key(plan: Node, options: ResolvedOptions) -> tuple[Any, ...]:
    """Returns the facts that decide the items of a bound plan, their positions and their borders."""
    nodes = list(post_order(plan))
    # Places are keys of random values.
    places = [getattr(node, "place", None) for node in nodes if node.arguments().get("seed", 0) is not None]
    return plan, places, options.max_chunk_rows, options.max_chunk_bytes


def _sources(plan: Node) -> list[Any]:
    """Returns the facts by which a changed source of a bound plan differs from the source before the change."""
    sources = [node for node in post_order(plan) if not node.inputs]
    times = [file.mtime_ns for node in sources for file in getattr(node, "files", ())]
    return [[node.arguments() for node in sources], times]


def facts_before(plan: Node) -> tuple[str, ...]:
    """Returns the facts that a cache shows about the bound plan before it."""
    random = [node.name for node in post_order(plan) if node.arguments().get("seed") is not None]
    frozen = f"; {', '.join(dict.fromkeys(random))} frozen with it" if random else ""
    once = f"what is before it runs as epoch 0, once{frozen}"
    whole = "what is before it cannot be repeated from its middle: only a complete pass counts"
    return (once,) if repeatable(plan) else (once, whole)


def _known_rows(plan: Node) -> int | None:
    """Returns the rows of a plan if these are known in no time: without asking another machine."""
    stores = [getattr(node, "store", None) for node in post_order(plan)]
    with suppress(ArrowflowError):
        if all(getattr(store, "is_local", True) for store in stores):
            rows: Count = fold(plan, lambda node, inputs: node.count_rows(inputs))
            return rows if isinstance(rows, int) else None
    return None


class CacheKernel(BoundaryKernel):
    """Serves the cached prefix, then opens its input at the end of the prefix and adds the items that come."""

    reads_runs = True

    def __init__(self, node: Cache, shelf: Shelf, budget_bytes: int, context: Context) -> None:
        self._shelf = shelf
        # Rows of two runs of an input that is not repeatable do not fit together: such a pass fills its own prefix.
        self._is_private = not (repeatable(node.inputs[0]) or shelf.prefix.complete)
        self._prefix = Prefix() if self._is_private else shelf.prefix
        self._owner = self._prefix if self._is_private else shelf  # of this run's claims
        self._budget_bytes = budget_bytes
        self._spill = node.spill
        self._input = node.inputs[0]
        self._context = context
        self._position: Position = None
        # Of the next item; None where the number is unknown, and nothing is added.
        self._number: int | None = 0
        self._stream: StreamHandle | None = None
        self._addresses: set[int] | None = None  # of all buffers before the next item
        self._total_bytes = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Notes the position and charges the cached items to this run; `next_input` opens the input."""
        self._position = position
        entries, num_items = self._prefix.entries, self._prefix.num_items
        claims = self._context.run_storage.get(self._owner)
        if claims is None or claims.prefix is not self._prefix:
            claims = self._context.run_storage[self._owner] = Claims(self._prefix)
        if len(claims.tickets) < num_items:
            numbers = [number for number in range(num_items) if number not in claims.tickets]
            claims.whole.append(self._context.keep(self._prefix.buffers(numbers)))
            claims.tickets.update((number, entries[number].share) for number in numbers)
        self._total_bytes = entries[num_items - 1].total_bytes if num_items else 0
        return None

    @property
    def _tickets(self) -> dict[int, Ticket]:
        claims = self._context.run_storage.get(self._owner)
        return claims.tickets if claims is not None and claims.prefix is self._prefix else {}

    def begin(self) -> Iterator[Item]:
        """Yields the cached items after the position."""
        entries = self._prefix.entries
        self._check_budget(self._total_bytes, self._prefix.num_items)
        number = self._number = self._prefix.number_after(self._position)
        if number is None:
            return
        tickets = self._tickets
        while (entry := entries.get(number)) is not None:
            if entry is END:
                self.done = True
                return
            ticket = SPILLED if entry.spilled_bytes else tickets.get(number)
            number += 1
            self._number, self._position = number, entry.position
            yield Item(entry.chunk, entry.position, ticket, entry.origin)

    def _check_budget(self, total_bytes: int, num_items: int, *more: pa.RecordBatch) -> None:
        """Raises `BudgetError` if the first items, with the batches that come next, take more than the budget."""
        over_bytes = total_bytes - self._budget_bytes
        if over_bytes <= 0:
            return
        text = f"the cached rows take {total_bytes:,} bytes, {over_bytes:,} more than ram_budget allows"
        text += f" ({self._budget_bytes:,})"
        if self._spill is not None:
            text += "; raise ram_budget, or free them by cache_clear() and let them be spilled"
            raise BudgetError(text)
        chunks = [*(self._prefix.entries[number].chunk for number in range(num_items)), *more]
        rows, all_rows = sum(chunk.num_rows for chunk in chunks), _known_rows(self._input)
        if all_rows is not None and all_rows > rows > 0:
            # A buffer that the chunks share, or a slice's buffer, exists once for any number of rows. So for the rows that
            # are still to come, only bytes that belong to the rows themselves count.
            of_rows = min(sum(int(chunk.nbytes) for chunk in chunks), total_bytes)
            whole = max(total_bytes, of_rows * all_rows // rows)
            more_bytes = whole - self._budget_bytes
            text += f"; all {all_rows:,} rows would take some {whole:,}, {more_bytes:,} more than it allows"
        raise BudgetError(
            f"{text}; raise ram_budget, cache fewer rows or columns, keep them in files with cache(path), or let what "
            "does not fit be spilled with cache(spill=folder)"
        )

    def next_input(self) -> StreamHandle | None:
        """Returns its input, as epoch 0, from where the prefix ends."""
        if self._stream is None and not self.done:
            self._stream = self._context.open(0, 0, self._position)
        return self._stream

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        if self._number is not None:
            item = self._add(self._number, item)
            self._number += 1
        yield item

    def _add(self, number: int, item: Item) -> Item:
        """Adds an item, unless another run was faster, and returns the item as the cache now holds it."""
        entries = self._prefix.entries
        if self._addresses is None:
            before = [buffer for index in range(number) for buffer in entries[index].buffers]
            self._addresses = {buffer.address for buffer in before}
        entry = entries.get(number)
        if entry is None:
            mine = self._entry(number, item, self._addresses)
            entry = entries.setdefault(number, mine)
            if entry is mine:
                self._tickets[number] = SPILLED if mine.spilled_bytes else item.ticket
        else:
            self._check_budget(entry.total_bytes, number, item.chunk)
        self._addresses.update(buffer.address for buffer in entry.buffers)
        return item._replace(chunk=entry.chunk, ticket=SPILLED) if entry.spilled_bytes else item

    def _entry(self, number: int, item: Item, addresses: set[int]) -> CachedItem:
        # Without rows only the position matters, and the chunk may be of any kind.
        chunk = item.chunk if item.chunk.num_rows else NO_ROWS
        found = [buffer for column in chunk.columns for buffer in column.buffers()]
        buffers = tuple(buffer for buffer in found if buffer is not None and buffer.size)
        new = {buffer.address: buffer.size for buffer in buffers if buffer.address not in addresses}
        before_bytes = self._prefix.entries[number - 1].total_bytes if number else 0
        total_bytes = before_bytes + sum(new.values())
        if self._spill is not None and new and total_bytes > self._budget_bytes // 2:
            moved = self._prefix.files.move(chunk, self._spill)
            return CachedItem(moved.chunk, item.position, item.origin, (), before_bytes, moved.num_bytes)
        self._check_budget(total_bytes, number, chunk)
        share = BorrowedTicket(total_bytes - before_bytes)
        return CachedItem(chunk, item.position, item.origin, buffers, total_bytes, share=share)

    def ended(self, stream: StreamHandle) -> None:
        self._stream = None
        self.done = True
        if self._number is not None:
            self._prefix.entries.setdefault(self._number, END)
            if self._is_private and not self._shelf.prefix.complete:
                self._shelf.prefix = self._prefix

    @property
    def exhausted(self) -> bool:
        """Whether the next epoch would find all items; or, where no item is added, whether the input is open."""
        if self._number is None:
            return self._stream is not None or self.done
        return self._prefix.complete
