"""Where objects of JSON end: those of lines, those over several lines, and the elements of an array."""

from __future__ import annotations

from typing import Final

import numpy as np

from arrowflow.errors import BudgetError, SourceError
from arrowflow.formats.text.scan import Bytes, Flags, Lack, Offsets, Scanner, line_ends, starts_of

_BACKSLASH: Final = ord("\\")
_COMMA: Final = ord(",")

_DEPTH: Final = np.zeros(256, np.int8)
_DEPTH[[ord("{"), ord("[")]] = 1
_DEPTH[[ord("}"), ord("]")]] = -1
_IS_MARK: Final = _DEPTH != 0
_IS_MARK[_COMMA] = True
_IS_SHOWN: Final = np.ones(256, np.bool_)
_IS_SHOWN[list(b" \t\r\n")] = False


class JsonLines(Scanner):
    """Records of newline-delimited JSON: lines. A line of blanks alone is no row."""

    def scan(self, data: Bytes, is_last: bool, base: int = 0) -> tuple[Offsets, Flags]:
        ends = line_ends(data, is_last)
        starts = starts_of(ends)
        if not ends.size or (data[starts] > ord(" ")).all():
            return ends, np.ones(ends.size, np.bool_)
        return ends, np.logical_or.reduceat(_shown(data[: ends[-1]]), starts)


class JsonElements(Scanner):
    """Records of a JSON array, after its bracket: its elements, each with the comma or the bracket after it."""

    def __init__(self) -> None:
        self._elements = 0
        self._is_closed = False

    def scan(self, data: Bytes, is_last: bool, base: int = 0) -> tuple[Offsets, Flags]:
        ends, closes = (np.zeros(0, np.int64), False) if self._is_closed else elements(data)
        stop = int(ends[-1]) if ends.size else 0
        if (self._is_closed or closes) and _shown(data[stop:]).any():
            raise SourceError("expected nothing behind the `]` that closes the array, found more text")
        is_row = np.zeros(0, np.bool_)
        if ends.size:
            is_row = have_values(data, ends)
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

    def lack(self, data: Bytes, base: int) -> Lack | None:
        """See `Scanner.lack`: line ends do not end elements."""
        return _lack(data, "no comma and no `]` ends it in them")


class JsonObjects(Scanner):
    """Records of JSON that each take several lines: objects one after the other."""

    def scan(self, data: Bytes, is_last: bool, base: int = 0) -> tuple[Offsets, Flags]:
        brackets = _outside(_brackets(data), _json_quotes(data))
        depths = np.cumsum(_DEPTH[data[brackets]], dtype=np.int64)
        if (depths < 0).any():
            place = base + int(brackets[np.argmax(depths < 0)])
            raise SourceError(f"the bracket at byte {place} closes nothing; the file is malformed")
        ends = brackets[depths == 0] + 1
        is_row = np.ones(ends.size, np.bool_)
        stop = int(ends[-1]) if ends.size else 0
        if is_last and stop < data.size:
            if _shown(data[stop:]).any():
                raise SourceError("the last object has no `}` that closes it; the file is truncated")
            ends, is_row = np.append(ends, data.size), np.append(is_row, False)
        return ends, is_row

    def lack(self, data: Bytes, base: int) -> Lack | None:
        """See `Scanner.lack`: line ends do not end objects."""
        return _lack(data, "no `}` closes it in them")


def _shown(data: Bytes) -> Flags:
    """Returns which bytes are not blanks of JSON: space, tab and line ends. Zeros in place of a lost block are not blanks."""
    return _IS_SHOWN[data]


def _lack(data: Bytes, text: str) -> Lack | None:
    """Returns what JSON lacks that is not blank."""
    return (BudgetError, f"{text}: a bracket or a quote may be missing") if _shown(data).any() else None


def have_values(data: Bytes, ends: Offsets) -> Flags:
    """Returns which elements of an array are more than blanks and the comma or the bracket after them."""
    starts, shown = starts_of(ends), data[: ends[-1]] > ord(" ")
    shown[ends - 1] = False
    if not (found := np.logical_or.reduceat(shown, starts)).all():  # the exact look takes longer
        shown = _shown(data[: ends[-1]])
        shown[ends - 1] = False
        found = np.logical_or.reduceat(shown, starts)
    return found


def nesting(data: Bytes) -> int:
    """Returns how deep the values of some records are nested; 1 for an object without others inside."""
    marks = _outside(_brackets(data), _json_quotes(data))
    return int(np.cumsum(_DEPTH[data[marks]], dtype=np.int64).max(initial=0))


def first_end_within(data: Bytes) -> int | None:
    """Returns the place behind the first line end within a bracket, outside of texts; None if there is none."""
    quotes = _json_quotes(data)
    ends = _outside(np.flatnonzero(data == ord("\n")), quotes)
    marks = _outside(_brackets(data), quotes)
    depths = np.concatenate([[0], np.cumsum(_DEPTH[data[marks]], dtype=np.int64)])
    within = ends[depths[np.searchsorted(marks, ends)] > 0]
    return int(within[0]) + 1 if within.size else None


def elements(data: Bytes) -> tuple[Offsets, bool]:
    """Returns the ends of elements, each with the comma or the bracket after it; and whether the array ends with the last."""
    quotes = _json_quotes(data)
    brackets = _outside(_brackets(data), quotes)
    depths = np.cumsum(_DEPTH[data[brackets]], dtype=np.int64)
    behind = brackets[(depths == 0) & (_DEPTH[data[brackets]] < 0)] + 1
    if behind.size and behind[-1] == data.size:
        behind = behind[:-1]
    if (depths >= 0).all() and (data[behind] == _COMMA).all():
        return behind + 1, False
    return _elements_by_commas(data, quotes)


def _elements_by_commas(data: Bytes, quotes: Offsets) -> tuple[Offsets, bool]:
    """As `elements`, with blanks before commas, and for the end of the array: half as fast."""
    marks = _outside(np.flatnonzero(_IS_MARK[data]), quotes)
    depths = np.cumsum(_DEPTH[data[marks]], dtype=np.int64)
    closing = np.flatnonzero(depths < 0)
    if closing.size:
        marks, depths = marks[: closing[0] + 1], depths[: closing[0] + 1]
    is_end = (data[marks] == _COMMA) & (depths == 0)
    is_end |= depths < 0
    return marks[is_end] + 1, bool(closing.size)


def _brackets(data: Bytes) -> Offsets:
    """Returns the brackets and braces."""
    folded = data | 0x20  # this makes brackets braces
    return np.flatnonzero((folded == ord("{")) | (folded == ord("}")))


def _outside(places: Offsets, quotes: Offsets) -> Offsets:
    """Returns the places outside of texts."""
    return places[np.searchsorted(quotes, places) % 2 == 0] if quotes.size else places


def _json_quotes(data: Bytes) -> Offsets:
    """Returns the quotes that no backslash escapes: quotes after an even number of backslashes."""
    quotes = np.flatnonzero(data == ord('"'))
    is_behind = data[np.maximum(quotes, 1) - 1] == _BACKSLASH
    if not is_behind.any():
        return quotes
    slashes = np.flatnonzero(data == _BACKSLASH)
    firsts = slashes[np.diff(slashes, prepend=-2) > 1]
    behind = quotes[is_behind]
    run = behind - firsts[np.searchsorted(firsts, behind) - 1]
    is_behind[is_behind] = run % 2 == 1
    return quotes[~is_behind]
