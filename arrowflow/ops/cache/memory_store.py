"""What memory caches hold: items in their order, shared by all runs without a lock, and a run's claims on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from arrowflow.caching.store.spill import SpillFiles
from arrowflow.kernels.items import BorrowedTicket, Origin, Ticket
from arrowflow.plan.position import Position

SPILLED: Final = BorrowedTicket(0)
"""The ticket of what lies in a file."""


@dataclass(slots=True, eq=False)
class CachedItem:
    """One item of the input, as it is kept.

    Attributes:
        chunk: The rows.
        position: The position after it.
        origin: Where it comes from.
        buffers: The memory that it keeps alive; none of a mapped file's.
        total_bytes: Bytes in memory of this entry and all before it, each buffer counted once.
        spilled_bytes: Bytes that it takes in a file; 0 where it is in memory.
        share: What it adds to the memory of those before it.
    """

    chunk: pa.RecordBatch
    position: Position
    origin: Origin
    buffers: tuple[pa.Buffer, ...]
    total_bytes: int
    spilled_bytes: int = 0
    share: BorrowedTicket = SPILLED


NO_ROWS: Final = pa.RecordBatch.from_arrays([], names=[])
END: Final = CachedItem(NO_ROWS, None, Origin(0), (), 0)
"""Stands behind the last item of a shelf that is complete."""


class Prefix:
    """The first items of one plan, by number; and `END` behind the last one.

    Any number of runs read it and add to it at the same time, without a lock: entries are never changed or removed,
    and one is added by `dict.setdefault`, which is a single step where keys are whole numbers. Whoever adds number n
    has seen all below n in it, so there are no gaps; and whoever comes first, the rows are the same.
    """

    __slots__ = ("_buffers", "entries", "files")

    def __init__(self) -> None:
        self.entries: dict[int, CachedItem] = {}
        self.files = SpillFiles()
        self._buffers: Mapping[int, int] | None = None

    @property
    def complete(self) -> bool:
        """Whether all items are there."""
        return self.entries.get(len(self.entries) - 1) is END

    @property
    def num_items(self) -> int:
        """How many items are there."""
        return len(self.entries) - self.complete

    def buffers(self, numbers: Sequence[int]) -> Mapping[int, int]:
        """Returns the bytes of the buffers of some items, by address; those of all items are looked up once."""
        if self._buffers is not None and len(numbers) == self.num_items:
            return self._buffers
        is_all = self.complete and len(numbers) == self.num_items
        found = {each.address: each.size for number in numbers for each in self.entries[number].buffers}
        self._buffers = found if is_all else None
        return found

    def rows_before(self, number: int) -> int:
        """Returns the rows of the items in front of one."""
        return sum(self.entries[before].chunk.num_rows for before in range(number))

    def describe(self) -> str:
        """Returns how much is there, and where."""
        num_items = self.num_items
        memory_bytes = self.entries[num_items - 1].total_bytes if num_items else 0
        spilled_bytes = sum(self.entries[number].spilled_bytes for number in range(num_items))
        spilled = f" and {spilled_bytes:,} bytes spilled" if spilled_bytes else ""
        rows = f"{'all' if self.complete else 'the first'} {self.rows_before(num_items):,} rows"
        return (
            f"holds {rows}: {memory_bytes:,} bytes in memory{spilled}"
            if self.entries
            else "holds nothing yet"
        )

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

    __slots__ = ("key", "prefix", "sources")

    def __init__(self, key: Any, sources: Any) -> None:
        self.key = key
        self.sources = sources
        self.prefix = Prefix()


class MemoryStore:
    """The shelves of one `cache()`. They are left out of pickles: a copy starts empty."""

    __slots__ = ("shelves",)

    def __init__(self) -> None:
        self.shelves: list[Shelf] = []

    def __reduce__(self) -> tuple[type[MemoryStore], tuple[()]]:
        return MemoryStore, ()

    def shelf(self, key: Any, sources: Any) -> Shelf:
        """Returns the shelf of a key: the first one, should two threads have added one at the same time.

        One that was filled from what its sources were before is forgotten.
        """
        while True:
            for shelf in self.shelves.copy():
                if shelf.key == key and shelf.sources == sources:
                    return shelf
                if shelf.key == key:
                    with suppress(ValueError):  # another thread did
                        self.shelves.remove(shelf)
            self.shelves.append(Shelf(key, sources))

    def clear(self) -> None:
        """Forgets what is on all shelves."""
        for shelf in self.shelves:
            shelf.prefix = Prefix()


class Claims:
    """A run's claims on what is cached.

    The run keeps them to its end, as the dataset does the memory: a kernel's epoch is over before, and an error that
    somebody keeps may lead to the kernel.

    Attributes:
        prefix: What is claimed.
        tickets: Those of the items, by number.
        whole: Those of all that was there when the run came to it.
    """

    __slots__ = ("prefix", "tickets", "whole")

    def __init__(self, prefix: Prefix) -> None:
        self.prefix = prefix
        self.tickets: dict[int, Ticket] = {}
        self.whole: list[Ticket] = []
