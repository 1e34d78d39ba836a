"""The contents of memory caches: items in order, shared by all runs without a lock, and a run's claims on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from arrowflow.caching.store.spill import SpillFiles
from arrowflow.kernels.items import BorrowedTicket, Origin, Ticket
from arrowflow.plan.position import Position

SPILLED: Final = BorrowedTicket(0)
"""The ticket of an item that lies in a file."""


@dataclass(slots=True, eq=False)
class CachedItem:
    """One item of the input, as the cache keeps it.

    Attributes:
        chunk: The rows.
        position: The position after the item.
        origin: The split and piece that the item comes from.
        buffers: The memory that the item keeps alive, without the memory of mapped files.
        total_bytes: Bytes in memory of this entry and all before it, each buffer counted once.
        spilled_bytes: Bytes that the item takes in a file; 0 where the item is in memory.
        share: The bytes that the item adds to the memory of the items before it.
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
"""The mark after the last item of a complete shelf."""


class Prefix:
    """The first items of one plan, by number; and `END` after the last item.

    Any number of runs read the prefix and add to it at the same time, without a lock. Entries are never changed or
    removed. An entry is added by `dict.setdefault`, which is a single step where keys are whole numbers. A run adds
    number n only after it has seen all smaller numbers in the prefix, so there are no gaps. The rows are the same
    whichever run comes first.
    """

    __slots__ = ("_buffers", "entries", "files")

    def __init__(self) -> None:
        self.entries: dict[int, CachedItem] = {}
        self.files = SpillFiles()
        self._buffers: Mapping[int, int] | None = None

    @property
    def complete(self) -> bool:
        """Whether all items are stored."""
        return self.entries.get(len(self.entries) - 1) is END

    @property
    def num_items(self) -> int:
        """How many items are stored."""
        return len(self.entries) - self.complete

    def buffers(self, numbers: Sequence[int]) -> Mapping[int, int]:
        """Returns the bytes of the buffers of some items, by address; the buffers of all items are looked up once."""
        if self._buffers is not None and len(numbers) == self.num_items:
            return self._buffers
        is_all = self.complete and len(numbers) == self.num_items
        found = {each.address: each.size for number in numbers for each in self.entries[number].buffers}
        self._buffers = found if is_all else None
        return found

    def describe(self) -> str:
        """Returns how much is stored, and where."""
        if not self.entries:
            return "holds nothing yet"
        items = [self.entries[number] for number in range(self.num_items)]
        rows = sum(item.chunk.num_rows for item in items)
        memory_bytes = items[-1].total_bytes if items else 0
        spilled_bytes = sum(item.spilled_bytes for item in items)
        spilled = f" and {spilled_bytes:,} bytes spilled" if spilled_bytes else ""
        share = "all" if self.complete else "the first"
        return f"holds {share} {rows:,} rows: {memory_bytes:,} bytes in memory{spilled}"

    def number_after(self, position: Position) -> int | None:
        """Returns the number of the item that follows a position; None if the number is unknown here."""
        if position is None:
            return 0
        for number in range(self.num_items - 1, -1, -1):
            if self.entries[number].position == position:
                return number + 1
        return None


@dataclass(slots=True, eq=False)
class Shelf:
    """The place of the prefix for one way to run the plan. Clearing replaces the prefix; readers keep the old one."""

    key: Any
    sources: Any
    prefix: Prefix = field(default_factory=Prefix)


class MemoryStore:
    """The shelves of one `cache()`. They are left out of pickles: a copy starts empty."""

    __slots__ = ("shelves",)

    def __init__(self) -> None:
        self.shelves: list[Shelf] = []

    def __reduce__(self) -> tuple[type[MemoryStore], tuple[()]]:
        return MemoryStore, ()

    def shelf(self, key: Any, sources: Any) -> Shelf:
        """Returns the shelf of a key: the first one, should two threads have added one at the same time.

        A shelf that was filled before its sources changed is forgotten.
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
        """Forgets the items on all shelves."""
        for shelf in self.shelves:
            shelf.prefix = Prefix()


@dataclass(slots=True, eq=False)
class Claims:
    """A run's claims on cached items.

    The run keeps the claims to its end, as the dataset keeps the memory. A kernel's epoch is over earlier, and an error
    that a caller keeps may lead to the kernel.

    Attributes:
        prefix: The claimed items.
        tickets: The tickets of the items, by number.
        whole: The tickets of all items that were stored when the run came to them.
    """

    prefix: Prefix
    tickets: dict[int, Ticket] = field(default_factory=dict)
    whole: list[Ticket] = field(default_factory=list)
