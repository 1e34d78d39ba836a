"""Rows in place: a source with random access hands descriptors of its rows to a global `shuffle` instead of chunks.

`RowAccess.random_access` tells which plans have random access. Their items then travel as `Rows`: descriptors, which hold no
memory of the pipeline and have not been read. `AllRows` holds the descriptors of a whole epoch, and gathers any of its
rows, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa

from arrowflow.kernels.gather import gathered
from arrowflow.lazy import compute as pc
from arrowflow.ops.order.spans import Places, Span, spans

MAX_BUCKETS = 1 << 14
MAX_STEPS = 4
"""Comparisons a row after a look into the table of buckets; from that many on a binary search costs no more."""


class Rows(Protocol):
    """Some rows that can be gathered. Between kernels they take the place of a chunk."""

    @property
    def num_rows(self) -> int:
        """How many rows they are."""

    @property
    def num_bytes(self) -> int:
        """Bytes that the rows take once they are gathered."""

    @property
    def buffers(self) -> tuple[pa.Buffer, ...]:
        """Memory that the pipeline allocated for the rows, which the ledger counts."""

    @property
    def check(self) -> Callable[[], None] | None:
        """Raises an error if the memory no longer holds these rows, as that of a file that was written again."""

    def slice(self, offset: int, length: int | None = None) -> Self:
        """Returns a slice of the rows, without a copy."""

    def gather(self, places: Places) -> pa.RecordBatch:
        """Returns the rows at these places, as new memory. Any worker may call it, several at once."""


@dataclass(frozen=True, slots=True)
class InPlaceRows(Rows):
    """Rows in memory that is not the pipeline's: the user's, or a mapped file's.

    Attributes:
        chunk: The rows.
        copies: The parts of the chunk that the pipeline made nevertheless, such as a decoded dictionary.
        check: See `Rows.check`.
    """

    chunk: pa.RecordBatch
    copies: tuple[pa.Buffer, ...] = ()
    check: Callable[[], None] | None = None

    @property
    def num_rows(self) -> int:
        return int(self.chunk.num_rows)

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows themselves, without the rest of their buffers."""
        return int(self.chunk.nbytes)

    @property
    def buffers(self) -> tuple[pa.Buffer, ...]:
        return self.copies

    def slice(self, offset: int, length: int | None = None) -> InPlaceRows:
        return InPlaceRows(self.chunk.slice(offset, length), self.copies, self.check)

    def gather(self, places: Places) -> pa.RecordBatch:
        return gathered(self.chunk, places)


@dataclass(frozen=True, slots=True)
class PickedRows(Rows):
    """Some of the rows of a source, by their numbers there."""

    rows: Rows
    numbers: range

    @property
    def num_rows(self) -> int:
        return len(self.numbers)

    @property
    def num_bytes(self) -> int:
        """Bytes that the rows will take, by the mean of all rows."""
        return len(self.numbers) * self.rows.num_bytes // max(1, self.rows.num_rows)

    @property
    def buffers(self) -> tuple[pa.Buffer, ...]:
        return self.rows.buffers

    @property
    def check(self) -> Callable[[], None] | None:
        return self.rows.check

    def slice(self, offset: int, length: int | None = None) -> PickedRows:
        return PickedRows(self.rows, self.numbers[offset:][:length])

    def gather(self, places: Places) -> pa.RecordBatch:
        return self.rows.gather(places * self.numbers.step + self.numbers.start)


class AllRows:
    """All rows of an epoch, in parts, numbered from part to part.

    Args:
        parts: The rows; at least one part.
        tickets: The parts' claims on the ledger.
    """

    def __init__(self, parts: Sequence[Rows], tickets: Sequence[Any]) -> None:
        self._parts = parts
        self._tickets = tickets
        self._checks = tuple(dict.fromkeys(part.check for part in parts if part.check is not None))
        self._ends: Places = np.cumsum([part.num_rows for part in parts], dtype=np.int64)
        self._starts: Places = np.append(np.int64(0), self._ends[:-1])
        self.num_rows = int(self._ends[-1])
        self.num_bytes = sum(part.num_bytes for part in parts)
        self._find_spans()
        # Buckets of 2**shift numbers each: which part holds the first number of each bucket? If the parts (but for the
        # last) have a multiple of a power of two rows, as chunks of a cache do, no bucket lies in two parts.
        starts = int(np.bitwise_or.reduce(self._starts))
        least = self.num_rows.bit_length() - MAX_BUCKETS.bit_length() + 1
        self._shift = max(0, least, (starts & -starts).bit_length() - 1)
        firsts = np.arange(0, self.num_rows, 1 << self._shift, dtype=np.int64)
        self._first_parts: Places = np.searchsorted(self._ends, firsts, side="right")
        lasts = np.minimum(firsts + (1 << self._shift), self.num_rows) - 1
        last_parts = np.searchsorted(self._ends, lasts, side="right")
        self._steps = int((last_parts - self._first_parts).max())

    def _find_spans(self) -> None:
        """Separates the columns that are gathered in one call from the rest."""
        chunks = [part.chunk for part in self._parts if isinstance(part, InPlaceRows)]
        self._spans: dict[str, Span] = {}
        self._rest = self._parts
        if len(chunks) == len(self._parts):
            self._schema = chunks[0].schema
            self._spans = spans(chunks, self._starts)
            rest = [name for name in self._schema.names if name not in self._spans]
            self._rest = [InPlaceRows(chunk.select(rest)) for chunk in chunks] if rest else ()

    def gather(self, numbers: Places) -> pa.RecordBatch:
        """Returns the rows with these numbers, in this order. Any worker may call it, several at once."""
        # Before: to read a mapped file that became shorter ends the process. After: the rows may be of two versions.
        for check in self._checks:
            check()
        found = self._gathered(numbers)
        for check in self._checks:
            check()
        return found

    def _gathered(self, numbers: Places) -> pa.RecordBatch:
        owners = self._parts_of(numbers)
        if not self._spans:
            return self._gather_by_part(self._rest, numbers, owners)
        columns = {name: span.gather(numbers, owners) for name, span in self._spans.items()}
        if self._rest:
            rest = self._gather_by_part(self._rest, numbers, owners)
            columns |= dict(zip(rest.schema.names, rest.columns, strict=True))
        schema = self._schema
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _gather_by_part(self, parts: Sequence[Rows], numbers: Places, owners: Places) -> pa.RecordBatch:
        """Gathers from part after part and then puts rows into their order: two copies, one call a part."""
        if len(parts) == 1:
            return parts[0].gather(numbers)
        # A stable sort; with few parts Arrow counts instead of comparing: 4 ns a row.
        order = _sorted_places(owners)
        counts = np.bincount(owners, minlength=len(self._parts))
        places = (numbers - self._starts.take(owners)).take(order)
        found, first = [], 0
        for number in np.flatnonzero(counts).tolist():
            last = first + int(counts[number])
            found.append(parts[number].gather(places[first:last]))
            first = last
        back = np.empty(len(numbers), np.int64)
        back[order] = np.arange(len(numbers))
        return gathered(pa.concat_batches(found), back)

    def _parts_of(self, numbers: Places) -> Places:
        """Returns the part of each number."""
        if self._steps > MAX_STEPS:
            return np.searchsorted(self._ends, numbers, side="right")
        owners = self._first_parts.take(numbers >> self._shift)
        for _ in range(self._steps):
            owners += numbers >= self._ends.take(owners)
        return owners


def _sorted_places(owners: Places) -> Places:
    """Returns the places of the numbers in ascending order of the numbers; equal numbers stay in their order."""
    narrow = owners.astype(np.uint16 if owners.max() < 1 << 16 else np.uint64)
    type = pa.uint16() if narrow.itemsize == 2 else pa.uint64()
    array = pa.Array.from_buffers(type, len(narrow), [None, pa.py_buffer(narrow)])
    return np.frombuffer(pc.array_sort_indices(array).buffers()[1], np.int64, len(narrow))
