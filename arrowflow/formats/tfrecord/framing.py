"""The framing of TFRecord files: the places of records, and the check that records are intact.

A record is its length (8 bytes), the CRC of the length, its bytes, and the CRC of the bytes. The number of records is
stored nowhere. So a file is walked once, header by header: 0.25 µs a record. Of a file that is not mapped, the walk
reads every byte. The walk checks lengths; decoding checks bytes. CRCs come from `google_crc32c`: 0.15 µs a record.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from arrowflow.errors import SourceError
from arrowflow.formats.tfrecord.wire import Ints
from arrowflow.optional import optional
from arrowflow.storage import File, Store

SPLIT_BYTES: Final = 1 << 20
"""A block with `SPLIT_ROWS` records ends at this size, so that its intermediate results stay in the caches."""

SPLIT_ROWS: Final = 1 << 10
"""The least records of a block below `MAX_SPLIT_BYTES`: they share the block's cost, 20 to 80 µs a column."""

MAX_SPLIT_BYTES: Final = 4 << 20
MAX_SPLIT_ROWS: Final = 1 << 16
MAX_SPLIT_CELLS: Final = 1 << 20
"""The most rows times columns of a block beyond its first `SPLIT_ROWS`: a cell takes 16 bytes even if it is null."""

HEADER_BYTES: Final = 12
FRAME_BYTES: Final = 16
WINDOW_BYTES: Final = 4 << 20
INFLATED_BYTES: Final = 1 << 20
"""Bytes of a compressed file that are walked together."""

_MAX_LENGTH: Final = (1 << 31) - 1 - (1 << 10)
_MAX_KNOWN: Final = 1 << 16
_HEADER: Final = struct.Struct("<QI")
_LENGTH: Final = struct.Struct("<Q")
_WBITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "zlib": zlib.MAX_WBITS}

COMPRESSIONS: Final = ("none", *_WBITS)


class Fault(NamedTuple):
    """A place where a file is broken.

    Attributes:
        offset: The byte where the broken record starts, in the decompressed file.
        text: The expected and the found content.
    """

    offset: int
    text: str

    def error(self, record: int) -> SourceError:
        """Returns the error for this fault."""
        return SourceError(f"record {record} at byte {self.offset}: {self.text}")


class Walk:
    """Finds the records of a file, one window of bytes after the other, and divides them into blocks.

    Args:
        max_blocks: The number of blocks after which the walk stops; None for all.
        max_rows: The most rows of a block.

    Attributes:
        position: The start of the next record; the next window has to hold this byte.
        borders: Byte where each block starts; the last block may get further records, until `end` is called.
        rows: Records before each border.
        fault: The fault that ended the walk, or None.
    """

    def __init__(self, max_blocks: int | None = None, max_rows: int = MAX_SPLIT_ROWS) -> None:
        self._max_borders = None if max_blocks is None else max_blocks + 1
        self._max_rows = max_rows
        self.position = 0
        self.borders, self.rows = [0], [0]
        self.fault: Fault | None = None
        self._rows = self._last = 0
        self._known: dict[int, int] = {}

    def see(self, window: Any, base: int) -> None:
        """Walks the headers that lie in a window, whose first byte has the number `base`."""
        position, last, rows, start = self.position, self._last, self._rows, self.borders[-1]
        unpack, known, stop = _HEADER.unpack_from, self._known, base + len(window) - HEADER_BYTES
        while position <= stop:
            length, crc = unpack(window, position - base)
            if known.get(length) != crc and not self._is_length(length, crc, position):
                break
            end = position + FRAME_BYTES + length
            is_large = end - start > SPLIT_BYTES and (rows >= SPLIT_ROWS or end - start > MAX_SPLIT_BYTES)
            if rows and (is_large or rows == self._max_rows):
                self._end_block(position, rows)
                start, rows = position, 0
                if self.done:
                    break
            rows += 1
            last, position = position, end
        self.position, self._last, self._rows = position, last, rows

    @property
    def done(self) -> bool:
        """Whether the walk has found enough blocks, or a fault."""
        return self.fault is not None or len(self.borders) == self._max_borders

    def end(self, size: int, why: str | None = None) -> None:
        """Sets the size of the file, and the reason why the file ends there, in case the walk needs more bytes."""
        if len(self.borders) == self._max_borders:
            return
        if self.fault is None and (self.position != size or why is not None):
            if self.position > size:
                text = f"expected {self.position - self._last} bytes, found {size - self._last}"
                self.position, self._rows = self._last, self._rows - 1
            else:
                text = f"expected a header of {HEADER_BYTES} bytes, found {size - self.position}"
            self.fault = Fault(self.position, f"{text}; {why or 'the file is truncated'}")
        if self._rows:
            self._end_block(self.position, self._rows)

    def _end_block(self, position: int, rows: int) -> None:
        self.borders.append(position)
        self.rows.append(self.rows[-1] + rows)

    def _is_length(self, length: int, crc: int, position: int) -> bool:
        found = masked_crc(length.to_bytes(8, "little"))
        if found != crc:
            why = (
                "the file is corrupt"
                if position
                else "this is no TFRecord file, or its first record is corrupt"
            )
            text = f"expected the CRC {found:#010x} of its length, found {crc:#010x}: {why}"
            self.fault = Fault(position, text)
        elif length > _MAX_LENGTH:
            self.fault = Fault(position, f"it has {length} bytes; protobuf reads less than 2 GiB")
        else:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[length] = crc
        return found == crc and length <= _MAX_LENGTH


def crc_function() -> Callable[[bytes], int]:
    """Returns the function that computes a CRC32C.

    Raises:
        MissingPackageError: The package is not installed.
    """
    return optional("google_crc32c", user="TFRecord", extra="tfrecord").value


def masked_crc(data: bytes) -> int:
    """Returns the CRC of some bytes in the form that TFRecord files hold."""
    return _masked(crc_function()(data))


def framed(data: memoryview, base: int, num_rows: int) -> tuple[Ints, Ints, dict[int, Fault]]:
    """Returns starts and stops of records in a block, and those that are damaged.

    If the block is cut off, the first record that it does not hold is among the damaged ones, and has no start.

    Args:
        data: The block, and any bytes after it.
        base: Number of its first byte, for errors.
        num_rows: The number of records to look at.
    """
    crc32c, unpack, last = crc_function(), _LENGTH.unpack_from, len(data)
    borders, crcs, position = [0], [], 0
    for _ in range(num_rows):
        start = position + HEADER_BYTES
        position = start + unpack(data, position)[0] + 4 if start <= last else last + 1
        if position > last:
            break
        crcs.append(crc32c(data[start : position - 4].tobytes()))
        borders.append(position)
    found = np.array(borders, np.int64)
    starts, stops = found[:-1] + HEADER_BYTES, found[1:] - 4
    stored = np.ndarray(max(len(data) - 3, 0), "<u4", data, strides=(1,))[stops]
    wrong = np.flatnonzero(_masked(np.array(crcs, np.uint64)) != stored)
    faults = {
        row: Fault(
            base + borders[row],
            f"its {stops[row] - starts[row]} bytes do not have the CRC that it came with; the file is corrupt",
        )
        for row in wrong.tolist()
    }
    if len(crcs) < num_rows:
        faults[len(crcs)] = Fault(base + borders[-1], "it is cut off; the file changed while it was read")
    return starts, stops, faults


def _masked(crcs: Any) -> Any:
    """Returns CRCs, a number or an array, in the form of TFRecord files: rotated, with a constant added."""
    return (((crcs >> 15) | (crcs << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def compression_of(head: bytes) -> str:
    """Returns the compression of a file that starts with `head`. The CRC of the first length leaves no doubt.

    Examples:
        >>> import gzip, zlib
        >>> [compression_of(data) for data in (b"", gzip.compress(b"..."), zlib.compress(b"..."))]
        ['none', 'gzip', 'zlib']
    """
    if len(head) >= HEADER_BYTES and masked_crc(head[:8]) == int.from_bytes(head[8:HEADER_BYTES], "little"):
        return "none"
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    is_zlib = len(head) >= 2 and head[0] & 0x8F == 8 and int.from_bytes(head[:2], "big") % 31 == 0
    return "zlib" if is_zlib else "none"


def inflate(store: Store, file: File, compression: str) -> Iterator[bytes]:
    """Yields the bytes of a compressed file, window by window.

    Raises:
        EOFError: The file is cut off.
        zlib.error: The file is corrupt.
    """
    engine: Any = None
    for start in range(0, file.size, INFLATED_BYTES):
        stop = min(start + INFLATED_BYTES, file.size)
        data = store.fetch(file, [(start, stop)])[0].to_pybytes()
        while data := data if engine else data.lstrip(b"\0"):
            engine = engine or zlib.decompressobj(_WBITS[compression])
            yield engine.decompress(data, WINDOW_BYTES)
            data = engine.unconsumed_tail
            if engine.eof:
                data, engine = engine.unused_data, None
    while engine is not None and not engine.eof:
        data = engine.decompress(b"", WINDOW_BYTES)
        if not data:
            raise EOFError(f"its {compression} stream has no end; the file is truncated")
        yield data
