"""Finds the ends of records in text, by whole windows of bytes in NumPy: a few GB/s for plain lines.

A scanner begins at the start of a record. Its only state concerns the whole file. A record that a window leaves
unfinished is scanned again with more bytes after it. Scanners agree with the lexers of pyarrow, byte by byte;
`blocks.py` compares the number of rows once a block is decoded.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from arrowflow.errors import ArrowflowError

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_NEWLINE: Final = ord("\n")

Lack = tuple[type[ArrowflowError], str]
"""The kind of an error about a record that does not end, and the words for what it lacks."""


class Scanner(Protocol):
    """Finds records."""

    def scan(self, data: Bytes, is_last: bool, base: int = 0) -> tuple[Offsets, Flags]:
        """Returns the ends of records, and flags of the records that are rows; others are blank.

        Args:
            data: Bytes from the start of a record on.
            is_last: Whether the file ends with these bytes; then the last record ends, too.
            base: Number of the first of these bytes in the file.

        Raises:
            SourceError: The file ends within a record.
        """

    def lack(self, data: Bytes, base: int) -> Lack | None:
        """Returns what is missing in bytes that do not end their first record; None, as by default, if the next line end ends it.

        After None the next scan goes on in the middle of the record, at the last of these bytes.

        Args:
            data: Bytes of the record.
            base: Number of the first of these bytes in the file.
        """
        return None


def line_ends(data: Bytes, is_last: bool) -> Offsets:
    """Returns the byte after each line, with its newline; the last line of a file needs none."""
    ends = np.flatnonzero(data == _NEWLINE) + 1
    if is_last and data.size and (not ends.size or ends[-1] < data.size):
        ends = np.append(ends, data.size)
    return ends


def line_stops(data: Bytes, is_last: bool) -> Offsets:
    """Returns the last byte of each line end; a carriage return is a line end if no newline follows."""
    stops = np.flatnonzero(data == _NEWLINE)
    is_return = data == ord("\r")
    if not is_return.any():
        return stops
    returns = np.flatnonzero(is_return)
    if returns[-1] == data.size - 1:
        alone = data[returns[:-1] + 1] != _NEWLINE
        returns = returns[np.append(alone, is_last)]
    else:
        returns = returns[data[returns + 1] != _NEWLINE]
    return np.sort(np.concatenate([stops, returns])) if returns.size else stops


def starts_of(ends: Offsets) -> Offsets:
    """Returns the starts of records."""
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    return starts
