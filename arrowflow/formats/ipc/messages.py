"""The messages of Arrow IPC: the footer of a file lists them, and a walk from header to header finds those of a stream."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from arrowflow.errors import SourceError
from arrowflow.formats.ipc.checks import check_blocks
from arrowflow.formats.ipc.metadata import (
    CONTINUATION,
    DICTIONARY,
    RECORD_BATCH,
    Block,
    dictionary_of,
    locate_message,
    parse_footer,
)
from arrowflow.storage import File, Store

_WINDOW_BYTES: Final = 256 << 10
"""Bytes read at a time: they hold many headers of small batches, and take 25 µs where batches are large."""

TRAILER_BYTES: Final = 10
"""The bytes after the footer of a file: its length, and `ARROW1`."""

_HEAD_OFFSET: Final = 8
PREFIX: Final = struct.Struct("<II")
"""`CONTINUATION`, and the bytes of a message's metadata."""


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """The messages of a file or stream; the head is the schema message, with which a stream starts.

    Each record batch has its `needed` dictionaries, in their order: a stream may replace them and add to them.
    """

    head: pa.Buffer
    dictionaries: tuple[Block, ...]
    batches: tuple[Block, ...]
    needed: tuple[tuple[Block, ...], ...]


def listed(store: Store, file: File, start: int, tail: pa.Buffer) -> Messages:
    """Returns the messages that the footer of a file lists, which starts at a byte."""
    dictionaries, blocks = parse_footer(memoryview(tail)[:-TRAILER_BYTES])
    check_blocks([*dictionaries, *blocks], file)
    first = min([start, *(block.offset for block in (*dictionaries, *blocks))])
    head = store.fetch(file, [(_HEAD_OFFSET, max(first, _HEAD_OFFSET))])[0]
    needed = (tuple(dictionaries),) * len(blocks)
    return Messages(head, tuple(dictionaries), tuple(blocks), needed)


def walk(store: Store, file: File) -> Messages:
    """Returns the messages of a stream.

    Raises:
        SourceError: The file is truncated, or no stream.
    """
    head: pa.Buffer | None = None
    known: dict[int, tuple[Block, ...]] = {}  # those of each dictionary that count from here on
    dictionaries: list[Block] = []
    batches: list[Block] = []
    needed: list[tuple[Block, ...]] = []
    latest: tuple[Block, ...] = ()
    for kind, block, metadata in _messages(store, file):
        if head is None:
            if kind != 1:  # a schema
                raise SourceError(_no_stream(store, file))
            head = store.fetch(file, [(0, block.range[1])])[0]
        elif kind == DICTIONARY:
            number, is_delta = dictionary_of(metadata)
            known[number] = (*known.get(number, ()), block) if is_delta else (block,)
            dictionaries.append(block)
            latest = tuple(sorted(each for blocks in known.values() for each in blocks))
        elif kind == RECORD_BATCH:
            batches.append(block)
            needed.append(latest)
        else:
            raise SourceError(
                f"the stream has a message of kind {kind} at byte {block.offset}, which is no batch"
            )
    if head is None:
        raise SourceError(_no_stream(store, file))
    check_blocks([*dictionaries, *batches], file)
    return Messages(head, tuple(dictionaries), tuple(batches), tuple(needed))


def _messages(store: Store, file: File) -> Iterator[tuple[int, Block, memoryview]]:
    source, place = store.open_briefly(file, _WINDOW_BYTES), 0
    while place + PREFIX.size <= file.size:
        mark, length = PREFIX.unpack(source.read_at(PREFIX.size, place))
        start = place + PREFIX.size
        if mark != CONTINUATION:  # as before Arrow 0.15
            start, length = place + 4, mark
        if length == 0:
            return
        if start + length > file.size:
            raise SourceError(_cut(place, start + length, file) if place else _no_stream(store, file))
        metadata = memoryview(source.read_at(length, start))
        try:
            message = locate_message(metadata)
        except ValueError as error:
            raise SourceError(
                f"the message at byte {place} is corrupt: {error}; write the file anew"
            ) from error
        block = Block(place, start + length - place, message.body_bytes)
        if message.body_bytes < 0 or block.range[1] > file.size:
            raise SourceError(_cut(place, block.range[1], file))
        yield message.kind, block, metadata
        place = block.range[1]


def _cut(place: int, end: int, file: File) -> str:
    return f"the message at byte {place} ends at byte {end}, and the stream has {file.size}: it is truncated; write it anew"


def _no_stream(store: Store, file: File) -> str:
    start = store.fetch(file, [(0, min(file.size, 8))])[0].to_pybytes() if file.size else b""
    return (
        "expected an Arrow IPC file, which ends with b'ARROW1', or a stream, which starts with a schema; found "
        f"{file.size} bytes that start with {start!r}"
    )
