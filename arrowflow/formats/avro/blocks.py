"""The blocks of an Avro file: its header, where blocks lie, and their bytes decompressed.

A block is the number of its records, the number of its bytes, these bytes, and a mark of 16 bytes that each file chooses. So a walk
hops from block to block. No checksum tells of changed bytes, except in blocks that snappy compressed.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.errors import SourceError
from arrowflow.formats.text.blocks import Source
from arrowflow.formats.varints import signed, varint

MAX_BYTES: Final = 1 << 30
"""The most bytes of blocks that are decoded together, decompressed: with all offsets of 32 bits below their limit."""

MAGIC: Final = b"Obj\x01"
_MARK_BYTES: Final = 16
_MAX_HEADER_BYTES: Final = 64 << 20
_MAX_RATIO: Final = 1 << 12
"""The most records for each byte of a compressed block; an honest one has fewer."""

_NUMBER_BYTES: Final = 10
"""The most bytes of a number."""

Ints = npt.NDArray[np.int64]


class Header(NamedTuple):
    """The header of a file, in front of its first block.

    Attributes:
        schema: The schema, as JSON.
        codec: How blocks are compressed.
        mark: The mark behind each block.
        size: The bytes of the header.
    """

    schema: bytes
    codec: str
    mark: bytes
    size: int


class Blocks(NamedTuple):
    """The blocks of a file.

    Attributes:
        rows: The records of each.
        starts: The first byte of each one's records.
        stops: The byte after them.
    """

    rows: Ints
    starts: Ints
    stops: Ints


def header(source: Source) -> Header:
    """Reads the header of a file.

    Raises:
        SourceError: The file is none of Avro, is cut off, or has a codec that is not known.
    """
    data, found, at = _metadata(source)
    codec = found.get(b"avro.codec", b"null").decode("utf-8", "replace")
    if codec not in CODECS:
        known = ", ".join(map(repr, CODECS))
        raise SourceError(
            f"its blocks are compressed by {codec!r}, expected one of {known}; write the file anew"
        )
    if b"avro.schema" not in found:
        raise SourceError("its header has no schema; the file is corrupt: write it anew")
    return Header(found[b"avro.schema"], codec, data[at : at + _MARK_BYTES], at + _MARK_BYTES)


def _metadata(source: Source) -> tuple[bytes, dict[bytes, bytes], int]:
    """Returns the first bytes of a file, its metadata, and the place of its mark."""
    size = 1 << 16
    while True:
        data = source.window(0, size).tobytes()
        if not data.startswith(MAGIC):
            raise SourceError(
                f"expected {MAGIC!r} at its start, found {data[:4]!r}; the file is none of Avro"
            )
        try:
            return data, *_entries(data)
        except IndexError as error:
            if len(data) < size or size >= _MAX_HEADER_BYTES:
                raise SourceError(
                    "the file ends within its header; it is cut short: write it anew"
                ) from error
        size *= 8


def _entries(data: bytes) -> tuple[dict[bytes, bytes], int]:
    """Returns the metadata of a file, and the place of its mark; raises `IndexError` if more bytes are needed."""
    found, at = {}, len(MAGIC)
    while True:
        count, at = number(data, at)
        if count < 0:
            _, at = number(data, at)
        for _ in range(abs(count)):
            key, at = _text(data, at)
            found[key], at = _text(data, at)
        if count == 0:
            if at + _MARK_BYTES > len(data):
                raise IndexError
            return found, at


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = number(data, at)
    if size < 0:
        raise SourceError("its header has a text of a negative size; the file is corrupt: write it anew")
    if at + size > len(data):
        raise IndexError
    return data[at : at + size], at + size


def number(data: bytes, at: int) -> tuple[int, int]:
    """Returns a number of Avro, and the place after it.

    Raises:
        IndexError: The bytes end within the number.
        SourceError: It has more than 64 bits.
    """
    try:
        return signed(data, at)
    except ValueError as error:
        raise SourceError(f"at byte {at} stands no number; the file is corrupt: write it anew") from error


def walk(source: Source, head: Header, size: int) -> Blocks:
    """Returns the blocks of a file of so many bytes.

    Raises:
        SourceError: The file is cut short, or a block is damaged.
    """
    found, at, ratio = [], head.size, 1 if head.codec == "null" else _MAX_RATIO
    data = source.window(at, 2 * _NUMBER_BYTES).tobytes()
    while at < size:
        try:
            rows, place = number(data, 0)
            length, place = number(data, place)
        except IndexError as error:
            raise SourceError(_damaged(at, "the file ends within it")) from error
        start, stop = at + place, at + place + length
        if rows < 0 or length < 0 or rows > ratio * length or stop + _MARK_BYTES > size:
            text = f"it has {length:,} bytes of {rows:,} records, as it says, and {size - start:,} are left"
            raise SourceError(_damaged(at, text))
        data = source.window(stop, _MARK_BYTES + 2 * _NUMBER_BYTES).tobytes()
        if data[:_MARK_BYTES] != head.mark:
            raise SourceError(_damaged(at, "the file's mark is not behind it"))
        found.append((rows, start, stop))
        at, data = stop + _MARK_BYTES, data[_MARK_BYTES:]
    return Blocks(*np.array(found, np.int64).reshape(len(found), 3).T)


def decompressed(codec: str, blocks: Iterable[memoryview]) -> list[Any]:
    """Returns the bytes of each of some blocks. No more are ever made than the limit, and those of one block.

    Raises:
        SourceError: They are more than `MAX_BYTES` together, or the end of the compressed bytes is missing.
    """
    found: list[Any] = []
    room = MAX_BYTES
    for data in blocks:
        block, is_whole = CODECS[codec](data, room)
        if not is_whole or len(block) > room:
            raise SourceError(
                f"a block of {len(data):,} bytes is damaged, or has more than {room:,} bytes without its codec {codec!r}, after "
                f"{len(found):,} blocks that are decoded with it; write the file anew, in smaller blocks"
            )
        found.append(block)
        room -= len(block)
    return found


Decompress = Callable[[memoryview, int], tuple[Any, bool]]
"""Returns the bytes of a block, at most one more than the limit, and whether they are whole."""


def _python(decompressor: Callable[[], Any]) -> Decompress:
    """Returns the codec of one of Python's modules."""

    def decompress(data: memoryview, most: int) -> tuple[Any, bool]:
        stream = decompressor()
        return stream.decompress(data, most + 1), stream.eof

    return decompress


def _snappy(data: memoryview, most: int) -> tuple[Any, bool]:
    """Decompresses a block whose end is a checksum of what it holds."""
    size, _ = varint(data, 0)
    if size > most:
        return b"", False
    found = pa.Codec("snappy").decompress(pa.py_buffer(data[:-4]), size, asbytes=True)
    return found, zlib.crc32(found) == int.from_bytes(data[-4:], "big")


def _zstandard(data: memoryview, most: int) -> tuple[Any, bool]:
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), "zstd") as stream:
        return stream.read(most + 1), True


CODECS: Final[dict[str, Decompress]] = {
    "null": lambda data, _: (data, True),
    "deflate": _python(lambda: zlib.decompressobj(-zlib.MAX_WBITS)),
    "snappy": _snappy,
    "zstandard": _zstandard,
    "bzip2": _python(bz2.BZ2Decompressor),
    "xz": _python(lzma.LZMADecompressor),
}
"""The codecs of Avro."""


def _damaged(at: int, text: str) -> str:
    return f"the block at byte {at:,} is damaged: {text}; the file is cut short or corrupt: write it anew, or leave it out"
