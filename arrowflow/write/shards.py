"""Rows into shards: the ends of row groups and shards depend on the rows alone, not on the batches of their arrival.

A row group ends after a number of rows, or after the row with which its values exceed a number of bytes. The bytes are
counted from types and offsets (`value_bits`), so neither slices nor absent bitmaps change them. A shard ends with a row
group. So the writer holds one row group, and a copy of the row group in one piece while it is encoded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from arrowflow.errors import ArrowflowError, WriteError
from arrowflow.formats.types import width_bits
from arrowflow.write.encoders import Encoder
from arrowflow.write.targets import Target

SHARD_BYTES: Final = 256 << 20
"""Default size of a shard: few enough files to list, small enough to spread and to shuffle."""

GROUP_BYTES: Final = 64 << 20
"""Default bytes of a row group, if its rows are not given: a reader decodes, and holds, this much in one call."""


MAX_SHARDS: Final = 100_000
"""The number of names with five digits."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes at which row groups and shards end.

    Attributes:
        group_rows: Most rows of a row group.
        group_bytes: Bytes of values after which a row group ends, or None.
        shard_rows: Most rows of a shard, or None.
        shard_bytes: Bytes of a file after which the next file begins, or None.
    """

    group_rows: int
    group_bytes: int | None
    shard_rows: int | None
    shard_bytes: int | None


MakeEncoder = Callable[[Any, pa.Schema], Encoder]


def write_shards(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    target: Target,
    make: MakeEncoder,
    sizes: Sizes,
    *,
    suffix: str,
    operator: str,
) -> Written:
    """Writes all rows and makes them visible; after any error, no row is visible.

    Raises:
        WriteError: The target is taken, the disk full, a type has no place in the format.
    """
    shards = ShardWriter(target, make, schema, sizes, suffix)
    with explained(operator, target):
        try:
            target.begin()
            shards.open()  # before the first row is asked for: finds types that the format lacks
            for batch in batches:
                shards.push(batch)
            shards.finish()
            files = target.publish(shards.names)
        except BaseException:
            shards.abandon()
            target.discard()
            raise
    return Written(files=files, num_rows=shards.num_rows, num_bytes=shards.num_bytes)


@contextmanager
def explained(operator: str, target: Target) -> Iterator[None]:
    """Adds operator and target to errors, and turns errors of file systems and encoders into a `WriteError`."""
    try:
        yield
    except ArrowflowError as error:
        error.locate(operator=operator)
        raise
    except (OSError, pa.ArrowException) as error:
        text = f"cannot write: {type(error).__name__}: {str(error).strip()[:500]}; nothing of it is visible"
        raise WriteError(text).locate(operator=operator, file=target.path) from error


class ShardWriter:
    """Cuts rows into row groups, and row groups into shards."""

    def __init__(
        self, target: Target, make: MakeEncoder, schema: pa.Schema, sizes: Sizes, suffix: str
    ) -> None:
        self.names: list[str] = []
        self.num_rows = self.num_bytes = 0
        self._target = target
        self._make = make
        self._schema = schema
        self._sizes = sizes
        self._suffix = suffix
        self._sink: Any = None
        self._encoder: Encoder | None = None
        self._shard_rows = 0
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bits = 0

    def open(self) -> None:
        """Begins the next shard.

        Raises:
            WriteError: There are too many shards: longer names would sort before others.
        """
        if len(self.names) == MAX_SHARDS:
            raise WriteError(
                f"expected at most {MAX_SHARDS:,} shards, whose names sort in the order of the rows, and there are "
                "more; pass a larger shard_rows= or shard_bytes="
            ).locate(file=self._target.path)
        self.names.append(f"part-{len(self.names):05}{self._suffix}")
        self._sink = self._target.open(self.names[-1])
        self._encoder = self._make(self._sink, self._schema)
        self._shard_rows = 0

    def push(self, batch: pa.RecordBatch) -> None:
        """Takes rows; writes the row groups that are now full."""
        start = 0
        while start < batch.num_rows:
            rows, is_full = self._fitting(batch.slice(start))
            self._held.append(batch.slice(start, rows))
            self._held_rows += rows
            start += rows
            if is_full:
                self._write_group()

    def finish(self) -> None:
        """Writes the remaining rows, and completes the last shard."""
        if self._held_rows:
            self._write_group()
        self._complete()

    def abandon(self) -> None:
        """Closes the unfinished file. Raises nothing."""
        encoder, sink, self._encoder, self._sink = self._encoder, self._sink, None, None
        self._held.clear()
        if encoder is not None:
            encoder.abandon()
        if sink is not None:
            with suppress(Exception):
                sink.close()

    def _fitting(self, batch: pa.RecordBatch) -> tuple[int, bool]:
        """Returns the number of a batch's rows that belong to the row group, and whether the group is then full."""
        sizes, written = self._sizes, 0 if self._is_full() else self._shard_rows
        room = sizes.group_rows - self._held_rows
        if sizes.shard_rows is not None:
            room = min(room, sizes.shard_rows - written - self._held_rows)
        batch = batch.slice(0, room)
        if sizes.group_bytes is None:
            return batch.num_rows, batch.num_rows == room
        limit = 8 * sizes.group_bytes - self._held_bits
        bits = value_bits(batch)
        if bits < limit:
            self._held_bits += bits
            return batch.num_rows, batch.num_rows == room
        rows = bisect_left(
            range(1, batch.num_rows), limit, key=lambda count: value_bits(batch.slice(0, count))
        )
        return rows + 1, True

    def _write_group(self) -> None:
        if self._is_full():
            self._complete()
            self.open()
        assert self._encoder is not None
        self._encoder.write(_in_one_piece(self._held, self._schema))
        self._shard_rows += self._held_rows
        self._held.clear()
        self._held_rows = self._held_bits = 0

    def _is_full(self) -> bool:
        """Whether the next row belongs to another shard; asked only when a row comes, so that no shard is empty."""
        rows, num_bytes = self._sizes.shard_rows, self._sizes.shard_bytes
        if not self._shard_rows:
            return False
        return (rows is not None and self._shard_rows >= rows) or (
            num_bytes is not None and self._sink.tell() >= num_bytes
        )

    def _complete(self) -> None:
        assert self._encoder is not None
        self._encoder.close()
        self.num_bytes += self._sink.tell()
        self.num_rows += self._shard_rows
        self._sink.close()
        self._encoder = self._sink = None
        self._target.seal(self.names[-1])


def _in_one_piece(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
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
    width = _offset_width(type)
    if width is None:
        return 8 * int(array.nbytes)
    if not length:
        return 0
    offsets = np.frombuffer(array.buffers()[1], width, count=length + 1, offset=array.offset * width.itemsize)
    first, size = int(offsets[0]), int(offsets[-1] - offsets[0])
    own = length * (8 * width.itemsize + 1)
    is_list = pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_map(type)
    return own + (_bits(array.values.slice(first, size)) if is_list else 8 * size)


def _offset_width(type: pa.DataType) -> np.dtype[Any] | None:
    """Returns the type of the offsets of texts, bytes, lists and maps; a value ends where the next one starts."""
    small = (pa.types.is_string, pa.types.is_binary, pa.types.is_list, pa.types.is_map)
    large = (pa.types.is_large_string, pa.types.is_large_binary, pa.types.is_large_list)
    if any(test(type) for test in small):
        return np.dtype(np.int32)
    return np.dtype(np.int64) if any(test(type) for test in large) else None
