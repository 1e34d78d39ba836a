"""The kernels of `read.py`: footers, the order of splits, fetching and decoding them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from arrowflow.formats.format import Footer, MayMatch, Split, match, reading
from arrowflow.ops.base import (
    Context,
    Item,
    Made,
    Origin,
    Position,
    ReaderKernel,
    SerialKernel,
    SourceKernel,
    Task,
)
from arrowflow.plan.node import SourceOrder
from arrowflow.random import permutation
from arrowflow.storage import Range, Store, coalesce

if TYPE_CHECKING:
    from arrowflow.ops.read import Read

OPEN_FILES = 4
"""Files whose splits are mixed when a `shuffle` orders the source."""

MAX_SPLITS_PER_FILE = 1 << 24
FOOTER_BYTES = 1 << 16
FILE_ORDER, SPLIT_ORDER = 1, 2
"""Tell the two permutations of one seed and epoch apart."""


class FooterSource(SourceKernel):
    """Reads footers in the order in which the files are wanted; the position is (block of files,)."""

    def __init__(self, node: Read, context: Context) -> None:
        self._node = node
        self._block_files = 1 if node.order is None else OPEN_FILES
        self._order = node.order
        self._context = context

    def tasks(self, position: Position) -> Iterator[Task]:
        """Yields one task a file, from the first one of a block on."""
        files = len(self._node.files)
        order = (
            range(files)
            if self._order is None
            else permuted(files, self._order, FILE_ORDER, self._context.epoch)
        )
        first = 0 if position is None else position[0] * self._block_files
        for place in range(first, files):
            yield Task(int(order[place]), Origin(place), FOOTER_BYTES)

    def read(self, task: Task) -> Iterator[Made]:
        """Yields the footer, once it is found to have the pipeline's schema."""
        node = self._node
        assert node.store is not None
        footer = node.file_format.footer(node.store, node.files[task.payload])
        match(node.all_columns(), footer, widen=node.target is not None, operator=node.operator)
        yield Made(OpenFile(task.payload, footer), None)


class OpenFile(NamedTuple):
    """A file whose footer is known."""

    number: int
    footer: Footer

    @property
    def num_rows(self) -> int:
        """Never 0, so that it counts as a chunk even without rows."""
        return 1


class SplitTask(NamedTuple):
    """A split to read.

    Attributes:
        store: Where to read: the file system, and once its bytes are fetched, these.
        ranges: The bytes of the file to fetch; none of a local file.
        footer: Its file's.
        split: The split.
        start: First row to deliver.
        stop: Row to stop before.
        base: Position at the split's start: (block, splits of it done, 0, rows counted before).
    """

    store: Store
    ranges: tuple[Range, ...]
    footer: Footer
    split: Split
    start: int
    stop: int
    base: tuple[int, int, int, int]

    @property
    def num_rows(self) -> int:
        """Rows that it will deliver."""
        return self.stop - self.start

    @property
    def buffers(self) -> tuple[pa.Buffer, ...]:
        """Fetched bytes, which count as this chunk's memory."""
        return self.store.buffers

    def position(self, row: int) -> Position:
        """Returns the position after `row` rows of the split."""
        block, done, _, counted = self.base
        if row < self.stop:
            return (block, done, row, counted)
        return (block, done + 1, 0, counted + self.split.num_rows)


class SplitPlanner(SerialKernel):
    """Decides which splits are read, in which order."""

    def __init__(self, node: Read, may_match: MayMatch | None, context: Context) -> None:
        self._node = node
        self._may_match = may_match
        self._context = context
        self._block_files = 1 if node.order is None else OPEN_FILES
        self._format = node.file_format
        self._files: list[OpenFile] = []
        self._block = self._first_split = self._first_row = self._counted = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Restores the block of files; splits of it that are done are counted again but not read."""
        if position is None:
            return None
        self._block, self._first_split, self._first_row, self._counted = position
        return (self._block,)

    def push(self, item: Item) -> Iterator[Item]:
        """Yields the splits of a block once all its footers are there."""
        self._files.append(item.chunk)
        seen = self._block * self._block_files + len(self._files)
        if len(self._files) == self._block_files or seen == len(self._node.files):
            files, self._files = self._files, []
            yield from self._plan(files)
            self._block += 1

    def _plan(self, files: list[OpenFile]) -> Iterator[Item]:
        start, stop = self._node.rows
        splits = self._ordered(files)
        first_split, first_row = self._first_split, self._first_row
        self._first_split = self._first_row = 0
        for done in range(first_split, len(splits)):
            number, footer, split = splits[done]
            if stop is not None and self._counted >= stop:
                break
            base = (self._block, done, 0, self._counted)
            begin = max(start - self._counted, first_row if done == first_split else 0, 0)
            end = split.num_rows if stop is None else min(split.num_rows, stop - self._counted)
            self._counted += split.num_rows
            pruned = self._may_match is not None and self._format.prune(footer, split, self._may_match)
            if begin < end and not pruned:
                origin = Origin(number * MAX_SPLITS_PER_FILE + split.index)
                yield Item(self._task(footer, split, begin, end, base), None, (), origin)
        self.done = stop is not None and self._counted >= stop

    def _task(
        self, footer: Footer, split: Split, start: int, stop: int, base: tuple[int, int, int, int]
    ) -> SplitTask:
        node = self._node
        assert node.store is not None and node.schema is not None
        ranges: list[Range] = []
        if not node.store.is_local:
            with reading(node.operator, footer.file, split.index):
                ranges = coalesce(self._format.ranges(footer, split, node.schema.names))
        return SplitTask(node.store, tuple(ranges), footer, split, start, stop, base)

    def _ordered(self, files: list[OpenFile]) -> list[tuple[int, Footer, Split]]:
        order = self._node.order
        if order is None:
            return [(file.number, file.footer, split) for file in files for split in file.footer.splits]
        queues = []
        for file in files:
            splits = file.footer.splits
            places = permuted(len(splits), order, SPLIT_ORDER, self._context.epoch, file.number)
            queues.append([(file.number, file.footer, splits[place]) for place in places])
        return [
            queue[turn]
            for turn in range(max(map(len, queues), default=0))
            for queue in queues
            if turn < len(queue)
        ]


class SplitFetcher(ReaderKernel):
    """Fetches what decoding a split needs, so that decoding waits for nothing. The bytes are gone with the task."""

    def __init__(self, node: Read) -> None:
        self._operator = node.operator

    def num_bytes(self, payload: SplitTask) -> int:
        """Returns the bytes to fetch."""
        return total_bytes(payload.footer, payload.ranges)

    def read(self, payload: SplitTask) -> Iterator[Made]:
        """Yields the task with its bytes."""
        file = payload.footer.file
        with reading(self._operator, file, payload.split.index):
            store = payload.store.fetch_ahead(file, payload.ranges)
        yield Made(payload._replace(store=store), None)


class SplitReader(ReaderKernel):
    """Decodes splits."""

    def __init__(self, node: Read, num_threads: int) -> None:
        self._node = node
        self._num_threads = num_threads
        self._format = node.file_format
        assert node.schema is not None
        self._names = node.schema.names

    def num_bytes(self, payload: SplitTask) -> int:
        """Returns output and scratch of the wanted columns."""
        output = self._format.column_bytes(payload.footer, payload.split, self._names)
        return output + self._format.scratch_bytes(payload.footer, payload.split, self._names)

    def read(self, payload: SplitTask) -> Iterator[Made]:
        """Yields the split's rows: one chunk, or a few where offsets would overflow."""
        node = self._node
        assert node.schema is not None
        row = payload.start
        for chunk in self._format.read(
            payload.store,
            payload.footer,
            payload.split,
            node.schema,
            payload.start,
            node.stored,
            self._num_threads,
        ):
            if row + chunk.num_rows > payload.stop:
                chunk = chunk.slice(0, payload.stop - row)
            row += chunk.num_rows
            yield Made(chunk, payload.position(row), row >= payload.stop)
            if row >= payload.stop:
                return


def total_bytes(footer: Footer, ranges: Iterable[Range]) -> int:
    """Returns the bytes of coalesced ranges; no more than the file has, whatever a corrupt footer says."""
    return min(footer.file.size, sum(end - start for start, end in ranges))


def permuted(count: int, order: SourceOrder, purpose: int, epoch: int, *more: int) -> Sequence[int]:
    """Returns a permutation of `range(count)` for one purpose of a source order."""
    places: list[int] = permutation(
        count, (order.seed, purpose, epoch if order.reshuffle else 0, *more)
    ).tolist()
    return places
