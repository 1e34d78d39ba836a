"""Finds the ends of records in CSV and JSON text, by whole windows of bytes in NumPy: a few GB/s for plain lines.

A scanner begins at the start of a record. Its only state concerns the whole file. A record that a window leaves
unfinished is scanned again with more bytes after it. Scanners agree with the lexers of pyarrow, byte by byte;
`blocks.py` compares the number of rows once a block is decoded.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from arrowflow.errors import SourceError

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_NEWLINE: Final = ord("\n")
_RETURN: Final = ord("\r")
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_COMMA: Final = ord(",")

_DEPTH: Final = np.zeros(256, np.int8)
_DEPTH[[ord("{"), ord("[")]] = 1
_DEPTH[[ord("}"), ord("]")]] = -1
_IS_MARK: Final = _DEPTH != 0
_IS_MARK[_COMMA] = True


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

    def open_quote(self, data: Bytes) -> int | None:
        """Returns the start of the text in which the first record's line ends, if quotes may hold line ends."""


class CsvLines:
    """Records of CSV: lines. An empty line is no row; quoted texts may hold line ends.

    As in pyarrow a quote opens a text only at the start of a field, and a lone carriage return ends a line.
    """

    def __init__(self, delimiter: str, quote: str | None) -> None:
        self._quote = None if quote is None else ord(quote)
        self._starts_field = np.zeros(256, np.bool_)
        self._starts_field[[ord(delimiter), _NEWLINE, _RETURN]] = True

    def scan(self, data: Bytes, is_last: bool, base: int = 0) -> tuple[Offsets, Flags]:
        """See `Scanner.scan`."""
        stops = _line_stops(data, is_last)
        if self._quote is not None:
            toggles = self._toggles(data, self._quote)
            if toggles.size:
                stops = stops[np.searchsorted(toggles, stops) % 2 == 0]
                if is_last and toggles.size % 2:
                    start = int(stops[-1]) + 1 if stops.size else 0
                    place = self.open_quote(data[start:])
                    place = int(toggles[-1]) if place is None else start + place
                    raise SourceError(
                        f"a quote is opened at byte {base + place} and never closed: the file is truncated, or "
                        "quote_char= is not what it uses"
                    )
        ends = stops + 1
        if is_last and data.size and (not ends.size or ends[-1] < data.size):
            ends, stops = np.append(ends, data.size), np.append(stops, data.size)
        starts = _starts(ends)
        is_blank = stops == starts
        is_blank |= (stops == starts + 1) & (data[np.minimum(starts, data.size - 1)] == _RETURN)
        return ends, ~is_blank

    def misplaced(self, data: Bytes) -> Offsets:
        """Returns the quotes that close a text in the middle of a field: neither a delimiter nor a line end follows."""
        if self._quote is None:
            return np.zeros(0, np.int64)
        closing = self._toggles(data, self._quote)[1::2]
        following = data[np.minimum(closing + 1, data.size - 1)]
        ends = self._starts_field[following] | (following == self._quote) | (closing == data.size - 1)
        return closing[~ends]

    def open_quote(self, data: Bytes) -> int | None:
        """See `Scanner.open_quote`."""
        if self._quote is None:
            return None
        toggles = self._toggles(data, self._quote)
        inside = np.searchsorted(toggles, _line_stops(data, True))
        inside = inside[inside % 2 == 1]
        return int(toggles[inside[0] - 1]) if inside.size else None

    def _toggles(self, data: Bytes, quote: int) -> Offsets:
        """Returns the quotes that open or close a text. A field that does not start with a quote holds none of these."""
        quotes = np.flatnonzero(data == quote)
        opening = quotes[::2]
        may_open = self._starts_field[data[np.maximum(opening, 1) - 1]] | (opening == 0)
        may_open[1:] |= opening[1:] == quotes[1:-1:2] + 1
        return quotes if may_open.all() else self._toggles_one_by_one(data, quotes)

    def _toggles_one_by_one(self, data: Bytes, quotes: Offsets) -> Offsets:
        at_start = self._starts_field[data[np.maximum(quotes, 1) - 1]] | (quotes == 0)
        toggles: list[int] = []
        is_open = False
        for place, starts_field in zip(quotes.tolist(), at_start.tolist(), strict=True):
            if is_open or starts_field or (toggles and toggles[-1] == place - 1):
                toggles.append(place)
                is_open = not is_open
        return np.array(toggles, np.int64)


class JsonLines:
    """Records of newline-delimited JSON: lines. A line of spaces alone is no row."""

    def scan(self, data: Bytes, is_last: bool, base: int = 0) -> tuple[Offsets, Flags]:
        """See `Scanner.scan`."""
        ends = np.flatnonzero(data == _NEWLINE) + 1
        if is_last and data.size and (not ends.size or ends[-1] < data.size):
            ends = np.append(ends, data.size)
        starts = _starts(ends)
        if not ends.size or (data[starts] > ord(" ")).all():
            return ends, np.ones(ends.size, np.bool_)
        return ends, np.logical_or.reduceat(data[: ends[-1]] > ord(" "), starts)

    def open_quote(self, data: Bytes) -> int | None:
        """See `Scanner.open_quote`."""
        return None


class JsonElements:
    """Records of a JSON array, after its bracket: its elements, each with the comma or the bracket after it."""

    def __init__(self) -> None:
        self._elements = 0
        self._is_closed = False

    def scan(self, data: Bytes, is_last: bool, base: int = 0) -> tuple[Offsets, Flags]:
        """See `Scanner.scan`."""
        ends, closes = (np.zeros(0, np.int64), False) if self._is_closed else _elements(data)
        stop = int(ends[-1]) if ends.size else 0
        if (self._is_closed or closes) and (data[stop:] > ord(" ")).any():
            raise SourceError("expected nothing behind the `]` that closes the array, found more text")
        is_row = np.zeros(0, np.bool_)
        if ends.size:
            shown = data[:stop] > ord(" ")
            shown[ends - 1] = False
            is_row = np.logical_or.reduceat(shown, _starts(ends))
            if not (is_row[:-1].all() and (is_row[-1] or (closes and self._elements + ends.size == 1))):
                raise SourceError(
                    "expected an object in front of each comma and bracket of the array, found none"
                )
        self._elements += ends.size
        self._is_closed |= closes
        if is_last and not self._is_closed:
            raise SourceError("the array has no `]` that closes it; the file is truncated")
        if self._is_closed and stop < data.size:
            ends, is_row = np.append(ends, data.size), np.append(is_row, False)
        return ends, is_row

    def open_quote(self, data: Bytes) -> int | None:
        """See `Scanner.open_quote`: line ends do not end elements."""
        return None


def element_ends(data: Bytes) -> Offsets:
    """Returns the ends of the elements of an array, each with the comma or the bracket after it."""
    return _elements(data)[0]


def nesting(data: Bytes) -> int:
    """Returns how deep the values of some records are nested; 1 for an object without others inside."""
    marks = _outside(np.flatnonzero(_DEPTH[data]), _json_quotes(data))
    return int(np.cumsum(_DEPTH[data[marks]], dtype=np.int64).max(initial=0))


def _elements(data: Bytes) -> tuple[Offsets, bool]:
    """Returns the ends of elements, and whether the array ends with the last element."""
    quotes = _json_quotes(data)
    folded = data | 0x20  # this makes brackets braces
    brackets = _outside(np.flatnonzero((folded == ord("{")) | (folded == ord("}"))), quotes)
    depths = np.cumsum(_DEPTH[data[brackets]], dtype=np.int64)
    behind = brackets[(depths == 0) & (_DEPTH[data[brackets]] < 0)] + 1
    if behind.size and behind[-1] == data.size:
        behind = behind[:-1]
    if (depths >= 0).all() and (data[behind] == _COMMA).all():
        return behind + 1, False
    return _elements_by_commas(data, quotes)


def _elements_by_commas(data: Bytes, quotes: Offsets) -> tuple[Offsets, bool]:
    """As `_elements`, with blanks before commas, and for the end of the array: half as fast."""
    marks = _outside(np.flatnonzero(_IS_MARK[data]), quotes)
    depths = np.cumsum(_DEPTH[data[marks]], dtype=np.int64)
    closing = np.flatnonzero(depths < 0)
    if closing.size:
        marks, depths = marks[: closing[0] + 1], depths[: closing[0] + 1]
    is_end = (data[marks] == _COMMA) & (depths == 0)
    is_end |= depths < 0
    return marks[is_end] + 1, bool(closing.size)


def _outside(places: Offsets, quotes: Offsets) -> Offsets:
    """Returns the places outside of texts."""
    return places[np.searchsorted(quotes, places) % 2 == 0] if quotes.size else places


def _json_quotes(data: Bytes) -> Offsets:
    """Returns the quotes that no backslash escapes: quotes after an even number of backslashes."""
    quotes = np.flatnonzero(data == _QUOTE)
    is_behind = data[np.maximum(quotes, 1) - 1] == _BACKSLASH
    if not is_behind.any():
        return quotes
    slashes = np.flatnonzero(data == _BACKSLASH)
    firsts = slashes[np.diff(slashes, prepend=-2) > 1]
    behind = quotes[is_behind]
    run = behind - firsts[np.searchsorted(firsts, behind) - 1]
    is_behind[is_behind] = run % 2 == 1
    return quotes[~is_behind]


def _line_stops(data: Bytes, is_last: bool) -> Offsets:
    """Returns the last byte of each line end; a carriage return is a line end if no newline follows."""
    stops = np.flatnonzero(data == _NEWLINE)
    is_return = data == _RETURN
    if not is_return.any():
        return stops
    returns = np.flatnonzero(is_return)
    if returns[-1] == data.size - 1:
        alone = data[returns[:-1] + 1] != _NEWLINE
        returns = returns[np.append(alone, is_last)]
    else:
        returns = returns[data[returns + 1] != _NEWLINE]
    return np.sort(np.concatenate([stops, returns])) if returns.size else stops


def _starts(ends: Offsets) -> Offsets:
    """Returns the starts of records."""
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    return starts
