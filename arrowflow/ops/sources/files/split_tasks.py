"""The items that travel between the kernels of `read.py`: files to open, open files, splits to read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from arrowflow.formats.protocol import Footer, Split
from arrowflow.plan.position import Position
from arrowflow.storage import Range, Store

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
    """A file whose footer is known.

    Attributes:
        number: Its place in sorted order.
        footer: Its footer.
        block: Number of the block of files that it belongs to.
        place: Its place in this block.
        block_files: Files of the block that are opened.
    """

    number: int
    footer: Footer
    block: int = 0
    place: int = 0
    block_files: int = 1

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


class SplitTask(NamedTuple):
    """A split to read, a run of splits that follow each other in a file, or a piece of a large split.

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
        following: The tasks of the other splits of a run, whole.
        following_rows: Their rows.
        is_piece: Whether it is a piece of a split.
        is_last: Whether no piece of its split comes after it.
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
    following: tuple[SplitTask, ...] = ()
    following_rows: int = 0
    is_piece: bool = False
    is_last: bool = True

    @property
    def num_rows(self) -> int:
        """Rows that it will deliver."""
        return self.stop - self.start + self.following_rows

    @property
    def key(self) -> int:
        """The number of the split in the key of everything random."""
        return split_key(self.number, self.split.index)

    def joined(self, following: Sequence[SplitTask]) -> SplitTask:
        """Returns the run with splits that follow it in its file."""
        tasks = (self, *following)
        return self._replace(
            output_bytes=sum(task.output_bytes for task in tasks),
            scratch_bytes=sum(task.scratch_bytes for task in tasks),
            following=tuple(following),
            following_rows=sum(task.num_rows for task in following),
        )

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
                is_last=stop == self.stop,
            )

    def splits(self) -> tuple[SplitTask, ...]:
        """Returns a task for each split of the run."""
        return (self._replace(following=(), following_rows=0), *self.following)

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
