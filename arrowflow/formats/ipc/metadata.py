"""Fields of IPC metadata that pyarrow does not offer: places of batches and of their buffers, and numbers of rows.

`RecordBatchFileReader` has to decode a batch to tell its rows. The metadata are FlatBuffers. This module reads their
`Footer` and `RecordBatch` (see format/File.fbs and format/Message.fbs in apache/arrow). It trusts no offset, and raises
ValueError for an offset that points outside. It also finds the fields that `aligned` changes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.storage import Range

_VARIADIC: Final = (
    pa.types.is_string_view,
    pa.types.is_binary_view,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
    pa.types.is_run_end_encoded,
    pa.types.is_union,
)
CONTINUATION: Final = 0xFFFFFFFF
"""Each message starts with this mark, before the size of its metadata."""

DICTIONARY: Final = 2
RECORD_BATCH: Final = 3
_NAMES: Final = {DICTIONARY: "dictionary", RECORD_BATCH: "record batch"}
BLOCK: Final = struct.Struct("<qi4xq")
"""The layout of a `Block` in a footer."""


class Block(NamedTuple):
    """A message of the file: its metadata from `offset` on, then its body; sizes in bytes."""

    offset: int
    metadata_bytes: int
    body_bytes: int

    @property
    def range(self) -> Range:
        """The bytes of the whole message."""
        return Range(self.offset, self.offset + self.metadata_bytes + self.body_bytes)


@dataclass(frozen=True, slots=True)
class Batch:
    """The metadata of a record batch: of each buffer the start in the body, and the stored bytes.

    They fill the block if they end where its body starts, as they should.
    """

    num_rows: int
    is_compressed: bool
    fills_block: bool
    buffers: npt.NDArray[np.int64]


class Message(NamedTuple):
    """The places in a message's metadata that describe its body; positions in bytes.

    Attributes:
        kind: `DICTIONARY`, `RECORD_BATCH`, or another number.
        body_bytes: Size of the body.
        body_field: Position of that size; None if the size is 0 and was left out.
        buffers: Position of the list of buffers; each entry is the start in the body and the bytes, as two 64-bit
            numbers.
        num_buffers: The number of buffers.
    """

    kind: int
    body_bytes: int
    body_field: int | None
    buffers: int
    num_buffers: int


def locate_message(data: memoryview) -> Message:
    """Returns the places in the metadata of a message; `data` start after the size of the metadata."""
    message = _Table.root(data)
    kind = message.scalar(1, "<B")
    batch = message.table(2)
    if kind == DICTIONARY and batch is not None:
        batch = batch.table(1)
    is_batch = kind in (DICTIONARY, RECORD_BATCH)
    start, end = batch.vector_range(2, 16) if is_batch and batch is not None else (0, 0)
    return Message(kind, message.scalar(3, "<q"), message.field(3), start, (end - start) // 16)


def dictionary_of(data: memoryview) -> tuple[int, bool]:
    """Returns the number of the dictionary in a message, and whether its values come after those that are known."""
    batch = _Table.root(data).table(2)
    return (0, False) if batch is None else (batch.scalar(0, "<q"), batch.scalar(2, "<B") == 1)


def locate_blocks(data: memoryview) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns the ranges of a footer that list the blocks of the dictionaries, and the blocks of the record batches."""
    root = _Table.root(data)
    return root.vector_range(2, BLOCK.size), root.vector_range(3, BLOCK.size)


def parse_footer(data: memoryview) -> tuple[list[Block], list[Block]]:
    """Returns the blocks of the dictionaries and of the record batches that a file's footer lists."""
    dictionaries, batches = (
        [Block(*item) for item in BLOCK.iter_unpack(data[start:end])] for start, end in locate_blocks(data)
    )
    return dictionaries, batches


def parse_batch(data: memoryview, body_bytes: int, num_columns: int, kind: int = RECORD_BATCH) -> Batch:
    """Returns the parsed metadata of a block; `data` are its first `metadata_bytes`. A dictionary has one column."""
    start = 8 if _unpack("<I", data, 0) == CONTINUATION else 4
    fills_block = start + _unpack("<I", data, start - 4) == len(data)
    message = _Table.root(data[start:])
    batch = message.table(2)
    if kind == DICTIONARY and batch is not None:
        batch = batch.table(1)
    if message.scalar(1, "<B") != kind or batch is None:
        raise ValueError(f"expected the metadata of a {_NAMES[kind]}, found another message")
    if message.scalar(3, "<q") != body_bytes:
        raise ValueError(f"a body has {message.scalar(3, '<q')} bytes, and the footer says {body_bytes}")
    num_rows = batch.scalar(0, "<q")
    if not 0 <= num_rows <= 1 << 40:  # more than any batch has, and few enough for sums of their bytes
        raise ValueError(f"a record batch cannot have {num_rows} rows")
    nodes = np.frombuffer(batch.vector(1, 16), np.int64).reshape(-1, 2)
    if len(nodes) < num_columns or (num_columns and nodes[0, 0] != num_rows):  # that of the first column
        raise ValueError(f"a record batch of {num_rows} rows has columns of other lengths")
    buffers = np.frombuffer(batch.vector(2, 16), np.int64).reshape(-1, 2)
    if (buffers < 0).any() or (buffers > body_bytes).any() or (buffers.sum(axis=1) > body_bytes).any():
        raise ValueError(f"a buffer lies outside of the body of {body_bytes} bytes")
    return Batch(num_rows, batch.table(3) is not None, fills_block, buffers)


def first_buffers(schema: pa.Schema) -> tuple[int, ...]:
    """Returns the number of each column's first buffer, then the number of all; () if these depend on the data."""
    counts = [_num_buffers(type) for type in schema.types]
    if None in counts:
        return ()
    return (0, *accumulate(count or 0 for count in counts))


def _num_buffers(type: pa.DataType) -> int | None:
    """Returns the number of a column's buffers in a message, or None if that depends on the data."""
    if isinstance(type, pa.BaseExtensionType):
        return _num_buffers(type.storage_type)
    if pa.types.is_null(type):
        return 0
    if any(test(type) for test in _VARIADIC):
        return None
    fields = [_num_buffers(type.field(index).type) for index in range(type.num_fields)]
    return None if None in fields else int(type.num_buffers) + sum(count or 0 for count in fields)


@dataclass(frozen=True, slots=True)
class _Table:
    data: memoryview
    position: int

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        return cls(data, _unpack("<I", data, 0))

    def field(self, slot: int) -> int | None:
        vtable = self.position - _unpack("<i", self.data, self.position)
        if 4 + 2 * slot >= _unpack("<H", self.data, vtable):
            return None
        offset = _unpack("<H", self.data, vtable + 4 + 2 * slot)
        return self.position + offset if offset else None

    def scalar(self, slot: int, layout: str) -> int:
        position = self.field(slot)
        return 0 if position is None else _unpack(layout, self.data, position)

    def table(self, slot: int) -> _Table | None:
        position = self.field(slot)
        return None if position is None else _Table(self.data, position + _unpack("<I", self.data, position))

    def vector(self, slot: int, item_bytes: int) -> memoryview:
        start, end = self.vector_range(slot, item_bytes)
        return self.data[start:end]

    def vector_range(self, slot: int, item_bytes: int) -> tuple[int, int]:
        position = self.field(slot)
        if position is None:
            return 0, 0
        position += _unpack("<I", self.data, position)
        end = position + 4 + _unpack("<I", self.data, position) * item_bytes
        if end > len(self.data):
            raise ValueError(f"a vector ends at byte {end} of {len(self.data)}")
        return position + 4, end


def _unpack(layout: str, data: memoryview, position: int) -> int:
    if not 0 <= position <= len(data) - struct.calcsize(layout):
        raise ValueError(f"an offset points to byte {position} of {len(data)}")
    return int(struct.unpack_from(layout, data, position)[0])
