"""Lines of CSV: where they end, which of them are comments, and where their fields end."""

from __future__ import annotations

from typing import Final

import numpy as np

from arrowflow.errors import SourceError
from arrowflow.formats.text.scan import Bytes, Flags, Lack, Offsets, Scanner, line_stops, starts_of

_NEWLINE: Final = ord("\n")
_RETURN: Final = ord("\r")
_LETTER: Final = ord("x")
_NONE: Final = np.zeros(0, np.int64)


class CsvLines(Scanner):
    """Records of CSV: lines. An empty line is no row, nor is a comment; quoted texts may hold line ends.

    As in pyarrow a quote opens a text only at the start of a field, and a lone carriage return ends a line. The byte after an
    escape is a letter of the text, whatever it is.

    Attributes:
        is_sound: Whether the scanned bytes have no quote that `misplaced` returns: nobody has to look for one again.
    """

    def __init__(
        self, delimiter: str, quote: str | None, escape: str | None = None, comment: str | None = None
    ) -> None:
        self._delimiter = ord(delimiter)
        self._quote = None if quote is None else ord(quote)
        self._escape = None if escape is None else ord(escape)
        self._comment = b"" if comment is None else comment.encode()
        # The byte of the quote that opens a text, if the next scan goes on in this text.
        self._opened: int | None = None
        self.is_sound = True
        self._starts_field = np.zeros(256, np.bool_)
        self._starts_field[[ord(delimiter), _NEWLINE, _RETURN]] = True

    def scan(self, data: Bytes, is_last: bool, base: int = 0) -> tuple[Offsets, Flags]:
        if self._opened is None:
            return self._scan(data, is_last, base)
        ends, is_row = self._scan(self._in_text(data), is_last, base - 1)
        if ends.size:
            self._opened = None
        return ends - 1, is_row

    def _scan(self, data: Bytes, is_last: bool, base: int) -> tuple[Offsets, Flags]:
        comments = self._comments(data)
        data = self._unescaped(_with(data, comments, _LETTER))
        stops = line_stops(data, is_last)
        toggles = self._toggles(data)
        if toggles.size:
            self.is_sound = self.is_sound and not self._misplaced(data, toggles).size
            stops = _outside(stops, toggles)
            if is_last and toggles.size % 2:
                start = int(stops[-1]) + 1 if stops.size else 0
                place = self._open_quote(data[start:])
                place = int(toggles[-1]) if place is None else start + place
                raise SourceError(
                    f"a quote is opened at byte {self._place(place, base)} and never closed: the file is truncated, or "
                    "quote_char= is not what it uses"
                )
        ends = stops + 1
        if is_last and data.size and (not ends.size or ends[-1] < data.size):
            ends, stops = np.append(ends, data.size), np.append(stops, data.size)
        starts = starts_of(ends)
        is_blank = stops == starts
        short = np.flatnonzero(stops == starts + 1)
        is_blank[short] = data[starts[short]] == _RETURN
        if comments[0]:
            is_blank |= np.isin(starts, comments[0])
        return ends, ~is_blank

    def without_comments(self, data: Bytes) -> Bytes:
        """Returns the bytes with empty lines in place of comments, or the same bytes if there are none."""
        return _with(data, self._comments(data), _NEWLINE)

    def misplaced(self, data: Bytes) -> Offsets:
        """Returns the quotes that close a text in the middle of a field: neither a delimiter nor a line end follows."""
        data = self._unescaped(data)
        return self._misplaced(data, self._toggles(data))

    def _misplaced(self, data: Bytes, toggles: Offsets) -> Offsets:
        closing = toggles[1::2]
        following = data[np.minimum(closing + 1, data.size - 1)]
        ends = self._starts_field[following] | (following == self._quote) | (closing == data.size - 1)
        return closing[~ends]

    def lack(self, data: Bytes, base: int) -> Lack | None:
        """See `Scanner.lack`: a quoted text may hold line ends."""
        self.is_sound = False  # the parts of a record that is not held are not looked at together
        if self._opened is not None:
            data, base = self._in_text(data), base - 1
        data = self._unescaped(_with(data, self._comments(data), _LETTER))
        place = self._open_quote(data)
        if place is None:
            toggles = self._toggles(data[:-1])
            self._opened = self._place(int(toggles[-1]), base) if toggles.size % 2 else None
            return None
        text = f"nothing in them closes the quote that is opened at byte {self._place(place, base)}"
        return SourceError, f"{text}: close it, or give the quote_char= that the file uses"

    def delimiters(self, data: Bytes) -> Offsets:
        """Returns the delimiters that end fields: they are neither quoted nor escaped."""
        data = self._unescaped(data)
        return _outside(np.flatnonzero(data == self._delimiter), self._toggles(data))

    def fields(self, data: Bytes, word: bytes) -> Offsets:
        """Returns where fields begin that are a word and nothing else, unquoted."""
        found = np.flatnonzero(data[: max(0, data.size - len(word) + 1)] == word[0])
        for number, byte in enumerate(word):
            found = found[data[found + number] == byte]
        plain = self._unescaped(data)
        behind = found + len(word)
        is_field = self._starts_field[plain[np.maximum(found, 1) - 1]] | (found == 0)
        is_field &= self._starts_field[plain[np.minimum(behind, data.size - 1)]] | (behind == data.size)
        found = found[is_field]
        return _outside(found, self._toggles(plain)) if found.size else found

    def _in_text(self, data: Bytes) -> Bytes:
        """Returns bytes of a quoted text behind a quote that opens it."""
        return np.insert(data, 0, self._quote or 0)

    def _place(self, place: int, base: int) -> int:
        """Returns the byte of the file at which a quote stands, given its place behind byte `base`."""
        return self._opened if self._opened is not None and place == 0 else base + place

    def _open_quote(self, data: Bytes) -> int | None:
        toggles = self._toggles(data)
        inside = np.searchsorted(toggles, line_stops(data, True))
        inside = inside[inside % 2 == 1]
        return int(toggles[inside[0] - 1]) if inside.size else None

    def _unescaped(self, data: Bytes) -> Bytes:
        """Returns the bytes with letters in place of escapes and of what they escape."""
        if self._escape is None:
            return data
        places = escaped(data, self._escape)
        if places.size:
            data = data.copy()
            data[places] = data[places - 1] = _LETTER
        return data

    def _comments(self, data: Bytes) -> tuple[list[int], list[int]]:
        """Returns the first byte of each comment, and the byte after its line end."""
        begins: list[int] = []
        ends: list[int] = []
        places = np.flatnonzero(data == self._comment[0]) if self._comment else _NONE
        before = data[np.maximum(places, 1) - 1] if places.size else data[:0]
        places = places[(places == 0) | (before == _NEWLINE) | (before == _RETURN)]
        if not places.size:
            return begins, ends
        start, stops = 0, line_stops(data, True)
        is_plain = self._escape is None and (self._quote is None or not (data == self._quote).any())
        for place in places.tolist():
            if place < start or data[place : place + len(self._comment)].tobytes() != self._comment:
                continue
            start = place if is_plain else self._start_of(data, start, place)
            if start == place:
                number = int(np.searchsorted(stops, place))
                start = int(stops[number]) + 1 if number < stops.size else data.size
                begins.append(place)
                ends.append(start)
        return begins, ends

    def _start_of(self, data: Bytes, start: int, place: int) -> int:
        """Returns the start of the record in which a line starts, given the start of that or of an earlier record."""
        plain = self._unescaped(data[start:place])
        stops = _outside(line_stops(plain, True), self._toggles(plain))
        return start + int(stops[-1]) + 1 if stops.size else start

    def _toggles(self, data: Bytes) -> Offsets:
        """Returns the quotes that open or close a text. A field that does not start with a quote holds none of these."""
        if self._quote is None:
            return _NONE
        quotes = np.flatnonzero(data == self._quote)
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


def _outside(stops: Offsets, toggles: Offsets) -> Offsets:
    """Returns the places outside of quoted texts, given where these begin and end."""
    if toggles.size < stops.size and toggles.size % 2 == 0:
        before = np.searchsorted(stops, toggles)
        if (before[::2] == before[1::2]).all():
            return stops
    return stops[np.searchsorted(toggles, stops) % 2 == 0]


def _with(data: Bytes, comments: tuple[list[int], list[int]], byte: int) -> Bytes:
    """Returns the bytes with another byte in place of each of a comment; its line end stays."""
    if not comments[0]:
        return data
    data = data.copy()
    for begin, end in zip(*comments, strict=True):
        data[begin : end - (data[end - 1] in (_NEWLINE, _RETURN))] = byte
    return data


def escaped(data: Bytes, escape: int) -> Offsets:
    """Returns the bytes behind an escape that is not escaped itself."""
    slashes = np.flatnonzero(data == escape)
    is_first = np.diff(slashes, prepend=-2) > 1
    firsts = slashes[is_first][np.cumsum(is_first) - 1]
    behind = slashes[(slashes - firsts) % 2 == 0] + 1
    return behind[behind < data.size]
