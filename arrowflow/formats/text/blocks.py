"""Blocks of text files: bytes that are read in order, decompressed if need be, and cut where records end.

A block holds the records that start in one stretch of `block_bytes` bytes. The stretches are counted from the start of
the file. So borders depend only on the file and on `block_bytes`, and not on the size of the scanned windows.
"""

from __future__ import annotations

import codecs
import lzma
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from arrowflow.errors import BudgetError, SourceError
from arrowflow.formats.text.codings import UTF8, codec_of, is_stream
from arrowflow.formats.text.scan import Bytes, Flags, Offsets, Scanner, line_stops
from arrowflow.storage import File, Store

_WINDOW_BYTES: Final = 1 << 20
"""Bytes scanned at a time: a window and its temporaries fit the second cache, 1.5 times as fast as 4 MiB."""

_PIECE_BYTES: Final = 8 << 20
"""Bytes fetched at a time."""

_MAX_RECORD_BYTES: Final = 64 << 20
"""The most bytes of a record that are held in memory to find its end, or its types. A user who wants larger blocks, by
`block_bytes`, has the memory for larger records."""


class Blocks(NamedTuple):
    """The blocks of a file that hold rows.

    Attributes:
        starts: First byte of each block.
        stops: The byte after each block.
        rows: Rows of each block.
        rows_before: Rows before each block.
    """

    starts: Offsets
    stops: Offsets
    rows: Offsets
    rows_before: Offsets

    @property
    def num_rows(self) -> int:
        """Rows of all blocks."""
        return int(self.rows.sum())


class Source(Protocol):
    """The bytes of a file, decompressed."""

    def window(self, start: int, size: int) -> Bytes:
        """Returns `size` bytes, or fewer if the file ends. `start` never decreases."""


class _Plain:
    """A file whose bytes are the text."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file

    def window(self, start: int, size: int) -> Bytes:
        self._file.seek(start)
        return as_bytes(self._file.read_buffer(size))


class _Streamed:
    """Bytes that arrive in order; the bytes before the last window are freed."""

    def __init__(self, pieces: Iterator[pa.Buffer]) -> None:
        self._pieces = pieces
        self._held = np.zeros(0, np.uint8)
        self._start = 0

    def window(self, start: int, size: int) -> Bytes:
        parts = [self._held[start - self._start :]]
        self._start += self._held.size - parts[0].size
        stop = self._start + parts[0].size
        while stop < start + size and (piece := next(self._pieces, None)) is not None:
            if stop <= start:
                parts, self._start = [], stop
            parts.append(as_bytes(piece))
            stop += piece.size
        self._held = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return self._held[start - self._start :][:size]


def as_bytes(data: object) -> Bytes:
    """Returns a view of a buffer."""
    return np.frombuffer(data, np.uint8)  # type: ignore[call-overload]


def owned(data: Bytes, end: bytes = b"") -> pa.Buffer:
    """Copies into Arrow's memory, which any thread of Arrow's may free, whether it has the GIL or not."""
    buffer = pa.allocate_buffer(data.size + len(end))
    view = as_bytes(buffer)
    view[: data.size] = data
    view[data.size :] = as_bytes(end)
    return buffer


def opened_bytes(file: File, encoding: str = UTF8) -> int:
    """Returns the bytes of a file that are in memory at a time while it is open for one pass."""
    if is_stream(file, encoding):
        return 3 * _WINDOW_BYTES  # what is stored, decompressed, and looked at
    return min(file.size, _WINDOW_BYTES if file.is_local else _PIECE_BYTES + _WINDOW_BYTES)


@contextmanager
def opened(store: Store, file: File, encoding: str = UTF8) -> Iterator[Source]:
    """Opens a file for one pass. Of a file that is remote, compressed or no UTF-8, a few MiB are in memory at a time."""
    codec, store = codec_of(file), store.unmapped  # a copy takes 0.1 ms a MiB, decoding 3
    is_brief = codec is None and not store.is_local
    with store.open_briefly(file, _PIECE_BYTES) if is_brief else store.open(file) as stored:
        if codec is not None:
            with _decompressed(stored, codec) as stream:
                yield _Streamed(_recoded(_read(stream), encoding))
        else:
            yield _Plain(stored) if encoding == UTF8 else _Streamed(_recoded(_read(stored), encoding))


def streamed(store: Store, file: File, encoding: str) -> Source:
    """Returns the text of a file that is compressed, or no UTF-8; nothing of the file stays open."""
    stream, codec = store.unmapped.open_briefly(file, _WINDOW_BYTES), codec_of(file)
    if codec is not None:
        stream = _decompressed(stream, codec)
    return _Streamed(_recoded(_read(stream), encoding))


def _decompressed(stored: pa.NativeFile, codec: str) -> pa.NativeFile:
    if codec == "xz":
        return pa.PythonFile(lzma.open(stored), "r")
    return pa.CompressedInputStream(stored, codec)


def _read(stream: pa.NativeFile) -> Iterator[pa.Buffer]:
    while (piece := stream.read_buffer(_WINDOW_BYTES)).size:
        yield piece


def _recoded(pieces: Iterator[pa.Buffer], encoding: str) -> Iterator[pa.Buffer]:
    """Yields bytes of an encoding as UTF-8."""
    if encoding == UTF8:
        yield from pieces
        return
    decoder, place = codecs.getincrementaldecoder(encoding)(), 0
    for piece in chain(pieces, [None]):
        try:
            text = decoder.decode(b"" if piece is None else memoryview(piece), piece is None)
        except UnicodeDecodeError as error:
            raise SourceError(
                f"behind byte {place} the text is no {encoding}, as encoding= says: {error.reason}; give the encoding that "
                "the file has"
            ) from error
        place += 0 if piece is None else piece.size
        yield pa.py_buffer(text.encode())


def cut(
    source: Source, scanner: Scanner, start: int, block_bytes: int, *, only_first: bool = False
) -> Blocks:
    """Finds the blocks of the records from byte `start` on; or little more than the first block.

    Raises:
        SourceError: The file holds no records there.
    """
    none = np.zeros(0, np.int64)
    parts: list[_Parts] = [(none, none, none, none)]
    for window in windows(source, scanner, start, block_bytes):
        starts = np.concatenate([[window.start], window.stops[:-1]])
        parts.append(_joined(starts // block_bytes, starts, window.stops, window.is_row))
        if only_first and window.stops[-1] >= start + block_bytes:
            break
    _, starts, stops, rows = _joined(*map(np.concatenate, zip(*parts, strict=True)))
    full = rows > 0
    rows = rows[full]
    return Blocks(starts[full], stops[full], rows, np.cumsum(rows) - rows)


_Parts = tuple[Offsets, Offsets, Offsets, Offsets]


def _joined(numbers: Offsets, starts: Offsets, stops: Offsets, rows: Any) -> _Parts:
    """Returns number, start, stop and rows of blocks, given the same of their parts: records, or what windows hold of them."""
    firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
    if not firsts.size:
        return numbers, starts, stops, rows
    lasts = np.append(firsts[1:], numbers.size) - 1
    return numbers[firsts], starts[firsts], stops[lasts], np.add.reduceat(rows, firsts, dtype=np.int64)


class Window(NamedTuple):
    """Records that follow each other.

    Attributes:
        start: The first byte of the first one.
        data: Their bytes, without the first one where it is too large to be held.
        stops: The byte of the file after each.
        is_row: Whether each is a row.
    """

    start: int
    data: Bytes
    stops: Offsets
    is_row: Flags


def windows(source: Source, scanner: Scanner, start: int, block_bytes: int) -> Iterator[Window]:
    """Yields the records from byte `start` on, some at a time.

    Raises:
        SourceError: The file holds no records there.
        BudgetError: A record without an end in sight has more bytes than are held.
    """
    size, is_last, rows = _WINDOW_BYTES, False, 0
    most = max(_MAX_RECORD_BYTES, block_bytes)
    at = start  # behind the start of a record that is too large to be held
    while not is_last:
        data = source.window(at, size)
        is_last = data.size < size
        ends, is_row = scanner.scan(data, is_last, at)
        if is_last and at > start and not ends.size:
            ends, is_row = np.zeros(1, np.int64), np.ones(1, np.bool_)
        if ends.size:
            is_row[0] |= at > start
            held = data[0 if at == start else ends[0] : ends[-1]]
            yield Window(start, held, at + ends, is_row)
            start = at = at + int(ends[-1])
            size, rows = _WINDOW_BYTES, rows + int(np.count_nonzero(is_row))
        elif size < most:
            size = min(2 * size, most)
        else:
            _check_size(size, start, at, data, scanner, rows + 1)
            # The last byte may be a carriage return: whether that ends a line, the byte after it says.
            at, size = at + size - 1, _WINDOW_BYTES


def _check_size(
    size: int, start: int, at: int, data: Bytes, scanner: Scanner, row: int | None = None
) -> None:
    """Raises an error where `size` bytes from `at` on do not end a record, and the next line end may not end it either.

    Args:
        size: How many bytes.
        start: The first byte of the record.
        at: The first of the bytes, in the record.
        data: The bytes.
        scanner: Looked for its end in vain.
        row: The number of the record in the file, counted from 1, if it is known.
    """
    lack = scanner.lack(data, at)
    if lack is not None:
        kind, text = lack
        where = "" if row is None else f" (row {row:,})"
        more = "; schema= alone does not help here" if row is None else ""
        raise kind(
            f"the record at byte {start}{where} has more than {size:,} bytes, the most that are held to find its end, and "
            f"{text}; if the record is that large, {_ENLARGE}{more}"
        )


_ENLARGE: Final = (
    "raise block_bytes= to its size or more (at most 1 GiB), and ram_budget with it, or split the record"
)


def behind_lines(source: Source, start: int, lines: int) -> int:
    """Returns the first byte behind some lines, or the end of the file if it has fewer; quotes mean nothing in them."""
    while lines and (data := source.window(start, _WINDOW_BYTES)).size:
        ends = line_stops(data, data.size < _WINDOW_BYTES) + 1
        if ends.size >= lines:
            return start + int(ends[lines - 1])
        lines -= ends.size
        start += int(ends[-1]) if ends.size else data.size
    return start


def first_records(
    source: Source, scanner: Callable[[], Scanner], start: int, num_bytes: int, block_bytes: int
) -> tuple[Bytes, Flags]:
    """Returns the whole records within some bytes, or else the first row; and flags of the records that are rows.

    Raises:
        SourceError: The file holds no records there.
        BudgetError: The first row has more bytes than are held.
    """
    most = max(_MAX_RECORD_BYTES, block_bytes)
    while True:
        data = source.window(start, num_bytes)
        is_last = data.size < num_bytes
        fresh = scanner()
        ends, is_row = fresh.scan(data, is_last, start)
        if is_last or is_row.any():
            return data[: ends[-1] if ends.size else 0], is_row
        if num_bytes >= most:
            _check_size(num_bytes, start, start, data, fresh)
            raise BudgetError(
                f"the record at byte {start} has more than {num_bytes:,} bytes, too many to find columns and types in: "
                f"give schema=, or end lines where rows end; if the record is that large, {_ENLARGE}"
            )
        num_bytes = min(2 * num_bytes, most)
