"""The items that travel between the kernels of `read.py`: files to open, open files, splits to read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from arrowflow.bad_rows import BadRowPolicy, is_bad_data
from arrowflow.errors import ArrowflowError, SourceError
from arrowflow.formats.protocol import Footer, Split
from arrowflow.kernels.kept import KeptChunk, Key
from arrowflow.ops.order.source_order import permuted
from arrowflow.plan.access import SourceOrder
from arrowflow.plan.position import Position
from arrowflow.random import SPLIT_ORDER
from arrowflow.storage import Range, Store

OPEN_FILES: Final = 4
"""Files whose splits are mixed when a `shuffle` orders the source."""

_MAX_SPLITS: Final = 1 << 24
"""The most splits of a file."""


def split_key(number: int, index: int) -> int:
    """Returns the number of a split among those of all files, from its file's place in sorted order and its own number."""
    return number * _MAX_SPLITS + index


def of_split_key(key: int) -> tuple[int, int]:
    """Returns the file's place and the split's number of a `split_key`."""
    return divmod(key, _MAX_SPLITS)


class FileTask(NamedTuple):
    """A file to open, and its place: see `OpenFile`."""

    number: int
    block: int
    place: int
    block_files: int


class OpenFile(NamedTuple):
    """A file whose footer was read.

    Attributes:
        number: Its place in sorted order.
        footer: Its footer, or the error of reading it, which comes after all rows of the files before it.
        block: Number of the block of files that it belongs to.
        place: Its place in this block.
        block_files: Files of the block that are opened.
        held: All bytes of a small file, which came with its footer; None for other files.
    """

    number: int
    footer: Footer | ArrowflowError
    block: int = 0
    place: int = 0
    block_files: int = 1
    held: Store | None = None

    @property
    def buffers(self) -> tuple[pa.Buffer, ...]:
        """Bytes that came with the footer, which count as this chunk's memory."""
        return () if self.held is None else self.held.buffers

    @property
    def num_rows(self) -> int:
        """A number that is never 0, so that the file counts as a chunk even without rows."""
        return 1


class ReadPosition(NamedTuple):
    """Position of a `SplitPlanner`.

    Attributes:
        block: Number of the block of files.
        done: Splits of the block that are done.
        row: Rows of the next split that are done.
        counted: Rows of the epoch before that split.
    """

    block: int
    done: int
    row: int
    counted: int


def middle_of(start: int, stop: int) -> int:
    """Returns the row at which a chunk of these rows is cut, if it is passed on in halves."""
    return start - (start - stop) // 2


class SplitTask(NamedTuple):
    """A split to read, a piece of a large one, or a run of several.

    Attributes:
        store: The place to read from: the file system; once the split's bytes are fetched, these bytes.
        ranges: The bytes of the file to fetch; none for a local file.
        footer: Its file's footer.
        split: The split.
        start: First row to deliver.
        stop: Row to stop before.
        base: Position at the split's start.
        number: Its file's place in sorted order.
        output_bytes: Bytes of its columns, as far as the footer tells.
        scratch_bytes: Bytes that decoding takes on top of the columns.
        unsure: Columns that may take more.
        run: The tasks that one call reads, this one first; none if it reads only this one.
        run_rows: Their rows.
        is_piece: Whether it is a piece of a split.
        is_last: Whether no piece of its split comes after it.
        is_border: Whether a lane begins or ends in its split: at another row in another epoch, so that nothing is kept.
        kept: What is kept of it, which the call that reads it holds.
    """

    store: Store
    ranges: tuple[Range, ...]
    footer: Footer
    split: Split
    start: int
    stop: int
    base: ReadPosition
    number: int = 0
    output_bytes: int = 0
    scratch_bytes: int = 0
    unsure: tuple[str, ...] = ()
    run: tuple[SplitTask, ...] = ()
    run_rows: int = 0
    is_piece: bool = False
    is_last: bool = True
    is_border: bool = False
    kept: KeptChunk | None = None

    @property
    def num_rows(self) -> int:
        """Rows that it will deliver."""
        return self.run_rows or self.stop - self.start

    @property
    def key(self) -> int:
        """The number of the split in the key of everything random."""
        return split_key(self.number, self.split.index)

    def kept_key(self, start: int, stop: int, version: str | None) -> Key | None:
        """Returns the key by which some of its rows are kept; None at the border of a lane, and without a version."""
        return None if self.is_border or version is None else (self.key, start, stop, version)

    @classmethod
    def joined(cls, tasks: Sequence[SplitTask]) -> SplitTask:
        """Returns a task for all splits of some tasks."""
        if len(tasks) == 1:
            return tasks[0]
        return tasks[0]._replace(
            output_bytes=sum(task.output_bytes for task in tasks),
            scratch_bytes=sum(task.scratch_bytes for task in tasks),
            run=tuple(tasks),
            run_rows=sum(task.num_rows for task in tasks),
        )

    def holding(
        self, kept: Mapping[Key, KeptChunk], version_of: Callable[[SplitTask], str | None]
    ) -> SplitTask:
        """Returns the task with what is kept of its splits, if it is of the version that a file has."""
        found = [each for task in self.splits for each in task._holding(kept, version_of(task))]
        return found[0] if len(found) == 1 else self._replace(run=tuple(found))

    def _holding(self, kept: Mapping[Key, KeptChunk], version: str | None) -> list[SplitTask]:
        """Returns the task of one split with what is kept of it; two tasks where halves are kept."""
        if self.kept is not None or version is None:
            return [self]
        whole = kept.get((self.key, self.start, self.stop, version))
        middle = middle_of(self.start, self.stop)
        if whole is None and (self.key, self.start, middle, version) in kept:
            halves = list(self.pieces([middle]))
            found = [kept.get((each.key, each.start, each.stop, version)) for each in halves]
            if all(found):
                return [half._replace(kept=each) for half, each in zip(halves, found, strict=True)]
        return [self if whole is None else self._replace(kept=whole)]

    def pieces(self, cuts: Sequence[int]) -> Iterator[SplitTask]:
        """Yields the pieces between some rows of the split, at which it is cut."""
        ends = [*(cut for cut in cuts if self.start < cut < self.stop), self.stop]
        for start, stop in itertools.pairwise([self.start, *ends]):
            share = (stop - start) / self.split.num_rows
            yield self._replace(
                start=start,
                stop=stop,
                output_bytes=int(self.output_bytes * share),
                scratch_bytes=int(self.scratch_bytes * share),
                is_piece=True,
                is_last=self.is_last and stop == self.stop,
            )

    @property
    def splits(self) -> tuple[SplitTask, ...]:
        """The tasks of a run, one a split."""
        return self.run or (self,)

    def follows(self, last: SplitTask) -> bool:
        """Whether it is the whole split after another one, in a file or in the next, so that one call may decode both."""
        if self.footer is last.footer:
            is_next = self.split.index == last.split.index + 1
        else:
            is_next = self.split.index == 0 and last.split.index + 1 == len(last.footer.splits)
        return (
            is_next
            and (self.start, self.stop) == (0, self.split.num_rows)
            and last.stop == last.split.num_rows
            and not last.is_piece
            and self.kept is None
            and last.kept is None
        )

    @property
    def buffers(self) -> tuple[pa.Buffer, ...]:
        """Fetched bytes, which count as this chunk's memory."""
        return self.store.buffers

    def position(self, row: int) -> Position:
        """Returns the position after `row` rows of the split."""
        block, done, _, counted = self.base
        if row < self.split.num_rows:
            return ReadPosition(block, done, row, counted)
        return ReadPosition(block, done + 1, 0, counted + self.split.num_rows)


def drawn(
    counts: Sequence[tuple[int, int, int]], order: SourceOrder | None, epoch: int
) -> Iterator[tuple[int, int, int]]:
    """Yields the splits of a block of files in their order: (number in the block, number of the file, number there).

    Args:
        counts: Of each file its place in the block, its number, and how many splits it has.
        order: The order that a `shuffle` wants: one split of each file in turn.
        epoch: The epoch.
    """
    if order is None:
        ((_, number, splits),) = counts
        yield from ((index, number, index) for index in range(splits))
        return
    queues = [
        (place, number, permuted(splits, order, SPLIT_ORDER, epoch, number))
        for place, number, splits in counts
    ]
    for turn in range(max(splits for _, _, splits in counts)):
        for place, number, indices in queues:
            if turn < len(indices):
                yield turn * OPEN_FILES + place, number, indices[turn]


def is_no_file(error: ArrowflowError, policy: BadRowPolicy) -> bool:
    """Whether a file is left out whole since its footer cannot be read. A file of other columns can be read."""
    return policy.leaves_out and isinstance(error, SourceError) and is_bad_data(error)
