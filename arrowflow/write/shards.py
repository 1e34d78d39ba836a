"""Rows into shards: the ends of row groups and shards depend on the rows alone, not on the batches of their arrival.

A row group ends after a number of rows, or after the row with which its values exceed a number of bytes. The bytes are
counted from types and offsets (`value_bits`), so neither slices nor absent bitmaps change them. A shard ends with a row
group. So the writer holds one row group, and a copy of the row group in one piece while it is encoded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from arrowflow.errors import ArrowflowError, WriteError
from arrowflow.formats.types import width_bits
from arrowflow.interchange.to_numpy import is_ragged, is_text
from arrowflow.write.encoders import Encoder
from arrowflow.write.targets import Target

SHARD_BYTES: Final = 256 << 20
"""Default size of a shard: few enough files to list, small enough to spread and to shuffle."""

GROUP_BYTES: Final = 64 << 20
"""Default bytes of a row group, if its rows are not given: a reader decodes, and holds, this much in one call."""

MAX_SHARDS: Final = 100_000
"""The number of names with five digits."""

_SHOWN_FILES: Final = 3
"""Paths in the text of `Written`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The files that a writer has written.

    Attributes:
        files: Paths of the shards in their order, as the file system names them.
        num_rows: Rows of all shards.
        num_bytes: Bytes of all shards.
    """

    files: tuple[str, ...]
    num_rows: int
    num_bytes: int

    def __repr__(self) -> str:
        more = f", … {len(self.files) - _SHOWN_FILES:,} more" if len(self.files) > _SHOWN_FILES else ""
        files = ", ".join(map(repr, self.files[:_SHOWN_FILES]))
        return f"Written(files=[{files}{more}], num_rows={self.num_rows}, num_bytes={self.num_bytes})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """The shards of one dataset: where they go, what they are, and where each ends.

    Attributes:
        target: The target.
        encoder: Makes the encoder of one file.
        suffix: Ending of the files.
        group_rows: Most rows of a row group.
        group_bytes: Bytes of values after which a row group ends, or None.
        shard_rows: Most rows of a shard, or None.
        shard_bytes: Bytes of a file after which the next file begins, or None.
    """

    target: Target
    encoder: Callable[[Any, pa.Schema], Encoder]
    suffix: str
    group_rows: int
    group_bytes: int | None
    shard_rows: int | None
    shard_bytes: int | None


@contextmanager
def explained(operator: str, target: Target) -> Iterator[None]:
    """Adds operator and target to errors, and turns errors of file systems and encoders into errors of this library."""
    try:
        yield
    except ArrowflowError as error:
        error.locate(operator=operator)
        raise
    except Exception as error:
        if (failure := target.failed(error)) is None:
            raise
        raise failure.locate(operator=operator) from error


class Held:
    """The rows of one row group, which is full at so many rows, or at so many bytes of values."""

    def __init__(self, max_rows: int, max_bytes: int | None) -> None:
        self.num_rows = self.num_bits = 0
        self._batches: list[pa.RecordBatch] = []
        self._max_rows = max_rows
        self._max_bits = None if max_bytes is None else 8 * max_bytes

    def take(self, batch: pa.RecordBatch, room: int | None = None) -> tuple[pa.RecordBatch, bool]:
        """Takes the first rows of a batch; returns the others, and whether the row group is full.

        With `room` it is full at this number of rows in any case.
        """
        most = self._max_rows if room is None else min(room, self._max_rows)
        fitting = batch.slice(0, most - self.num_rows)
        bits, rows = value_bits(fitting), fitting.num_rows
        is_full = self.num_rows + rows == most
        if self._max_bits is not None and self.num_bits + bits >= self._max_bits:
            limit = self._max_bits - self.num_bits
            rows = 1 + bisect_left(range(1, rows), limit, key=lambda count: value_bits(batch.slice(0, count)))
            bits, is_full = value_bits(batch.slice(0, rows)), True
        self._batches.append(batch.slice(0, rows))
        self.num_rows += rows
        self.num_bits += bits
        return batch.slice(rows), is_full

    def drain(self) -> list[pa.RecordBatch]:
        """Returns the rows, and holds none any more."""
        batches, self._batches = self._batches, []
        self.num_rows = self.num_bits = 0
        return batches


class ShardWriter:
    """Cuts rows into row groups, and row groups into shards. Used by one thread.

    Args:
        shards: The shards to write, and their target.
        schema: The columns.
        folder: The folder inside of the target, which ends with `/`; empty for the target itself.

    Attributes:
        names: The shards in their order, as names inside of the target.
        num_rows: Rows of all complete shards.
        num_bytes: Bytes of all complete shards.
        held: The rows that wait for their row group.
    """

    def __init__(self, shards: Shards, schema: pa.Schema, folder: str = "") -> None:
        self.names: list[str] = []
        self.num_rows = self.num_bytes = 0
        self._shards = shards
        self._schema = schema
        self._folder = folder
        self._sink: Any = None
        self._encoder: Encoder | None = None
        self._shard_rows = 0
        self.held = Held(shards.group_rows, shards.group_bytes)

    @property
    def is_open(self) -> bool:
        """Whether a file is open."""
        return self._sink is not None

    def open(self) -> None:
        """Begins the next shard. Called before the first row, too: this finds types that the format lacks.

        Raises:
            WriteError: There are too many shards: longer names would sort before others.
        """
        if len(self.names) == MAX_SHARDS:
            raise WriteError(
                f"expected at most {MAX_SHARDS:,} shards, whose names sort in the order of the rows, and there are "
                "more; pass a larger shard_rows= or shard_bytes="
            ).locate(file=self._shards.target.path)
        self.names.append(f"{self._folder}part-{len(self.names):05}{self._shards.suffix}")
        self._sink = self._shards.target.open(self.names[-1])
        self._encoder = self._shards.encoder(self._sink, self._schema)
        self._shard_rows = 0

    def push(self, batch: pa.RecordBatch) -> None:
        """Takes rows; writes the row groups that are now full."""
        while batch.num_rows:
            batch, is_full = self.held.take(batch, self._room())
            if is_full:
                self.flush()

    def finish(self) -> None:
        """Writes the remaining rows, and completes the last shard."""
        self.flush()
        self.complete()

    def flush(self) -> None:
        """Writes the rows that wait for their row group."""
        if not self.held.num_rows:
            return
        if self._is_full():
            self.complete()
        if not self.is_open:
            self.open()
        assert self._encoder is not None
        rows = self.held.num_rows
        self._encoder.write(in_one_piece(self.held.drain(), self._schema))
        self._shard_rows += rows

    def complete(self) -> None:
        """Completes the open shard, if there is one. The next rows go into another shard."""
        if self._encoder is None:
            return
        self._encoder.close()
        self.num_bytes += self._sink.tell()
        self.num_rows += self._shard_rows
        self._sink.close()
        self._encoder = self._sink = None
        self._shard_rows = 0
        self._shards.target.seal(self.names[-1])

    def abandon(self) -> None:
        """Closes the unfinished file. Raises nothing."""
        encoder, sink, self._encoder, self._sink = self._encoder, self._sink, None, None
        self.held.drain()
        if encoder is not None:
            encoder.abandon()
        if sink is not None:
            with suppress(Exception):
                sink.close()

    def _room(self) -> int | None:
        """Returns the rows of the row group at which the shard is full."""
        most = self._shards.shard_rows
        return None if most is None else most - (0 if self._is_full() else self._shard_rows)

    def _is_full(self) -> bool:
        """Whether the next row belongs to another shard; asked only when a row comes, so that no shard is empty."""
        rows, num_bytes = self._shards.shard_rows, self._shards.shard_bytes
        if not self._shard_rows:
            return False
        return (rows is not None and self._shard_rows >= rows) or (
            num_bytes is not None and self._sink.tell() >= num_bytes
        )


def in_one_piece(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Copies rows into one piece, so that the bytes of a file do not depend on the batches of their arrival."""
    columns = [[batch.column(index) for batch in batches] for index in range(len(schema))]
    try:
        return pa.Table.from_arrays([pa.concat_arrays(column) for column in columns], schema=schema)
    except pa.ArrowInvalid:
        # Such large row groups have offsets over 2 GiB: the rows go into as few pieces as possible.
        return pa.Table.from_batches(batches, schema).combine_chunks()


def value_bits(rows: pa.RecordBatch) -> int:
    """Returns the bits that the values of some rows take; two batches together take exactly the sum.

    Examples:
        >>> batch = pa.record_batch({"x": pa.array([1, 2], pa.int32()), "s": ["a", "bcd"]})
        >>> value_bits(batch), [value_bits(batch.slice(row, 1)) for row in (0, 1)]
        (164, [74, 90])
    """
    return sum(_bits(column) for column in rows.columns)


def _bits(array: pa.Array) -> int:
    type, length = array.type, len(array)
    fixed = width_bits(type)
    if fixed is not None:
        return length * fixed
    if isinstance(type, pa.BaseExtensionType):
        return _bits(array.storage)
    if pa.types.is_dictionary(type):
        return length * (int(type.index_type.bit_width) + 1)
    if pa.types.is_struct(type):
        return length + sum(_bits(array.field(index)) for index in range(type.num_fields))
    if pa.types.is_fixed_size_list(type):
        start, size = array.offset * type.list_size, length * type.list_size
        return length + _bits(array.values.slice(start, size))
    is_list = is_ragged(type) or pa.types.is_map(type)
    if not is_list and not is_text(type):
        return 8 * int(array.nbytes)
    if not length:
        return 0
    # A value ends where the next one starts.
    is_large = type in (pa.large_string(), pa.large_binary()) or pa.types.is_large_list(type)
    width = np.dtype(np.int64 if is_large else np.int32)
    offsets = np.frombuffer(array.buffers()[1], width, count=length + 1, offset=array.offset * width.itemsize)
    first, size = int(offsets[0]), int(offsets[-1] - offsets[0])
    own = length * (8 * width.itemsize + 1)
    return own + (_bits(array.values.slice(first, size)) if is_list else 8 * size)
