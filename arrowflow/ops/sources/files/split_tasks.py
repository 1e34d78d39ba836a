"""The items that travel between the kernels of `read.py`: files to open, open files, splits to read."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from arrowflow.formats.protocol import Footer, Split
from arrowflow.plan.position import Position
from arrowflow.storage import Range, Store


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
    """A split to read.

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

    @property
    def num_rows(self) -> int:
        """Rows that the split will deliver."""
        return self.stop - self.start

    @property
    def buffers(self) -> tuple[pa.Buffer, ...]:
        """Fetched bytes, which count as this chunk's memory."""
        return self.store.buffers

    def position(self, row: int) -> Position:
        """Returns the position after `row` rows of the split."""
        block, done, _, counted = self.base
        if row < self.stop:
            return ReadPosition(block, done, row, counted)
        return ReadPosition(block, done + 1, 0, counted + self.split.num_rows)
