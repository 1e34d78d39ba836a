"""Good rows of a block of text, told from bad ones.

A block is decoded as a whole first. Where that fails, a format may name bad rows by a quick look. The others are decoded
again, and if that fails, too, in ever smaller parts, down to single rows. So a row is bad if it cannot be decoded alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from arrowflow.bad_rows import BadRow, bad_among, first_bad
from arrowflow.errors import ArrowflowError, SourceError
from arrowflow.formats.text.blocks import as_bytes, owned
from arrowflow.formats.text.scan import Bytes, Flags, Offsets, starts_of

PART_ROWS: Final = 512
"""Rows that are tried together: few enough that one with a bad row costs little to search."""

Decode = Callable[[pa.Buffer, int, int], pa.RecordBatch]
"""Decodes text that holds so many rows, the first of which has this number in the file, counted from 0; or raises."""


class Records(NamedTuple):
    """The rows of a block of text.

    Attributes:
        data: The block.
        starts: The first byte of each.
        stops: The byte after each, with its line end.
        first: The number of the first one in the file, counted from 0.
    """

    data: Bytes
    starts: Offsets
    stops: Offsets
    first: int

    @classmethod
    def of(cls, text: Bytes, ends: Offsets, is_row: Flags, first: int) -> Records:
        """Returns the rows of a block, given the ends of its records and which of these are rows."""
        return cls(text, starts_of(ends)[is_row], ends[is_row], first)

    def __len__(self) -> int:
        return len(self.starts)

    def between(self, start: int, stop: int) -> pa.Buffer:
        """Returns the text of rows that follow each other."""
        return owned(self.data[self.starts[start] : self.stops[stop - 1]])

    def without(self, bad: Collection[int]) -> pa.Buffer:
        """Returns the text with blank lines in place of some rows."""
        text = self.between(0, len(self))
        view, first = as_bytes(text), int(self.starts[0])
        for start, stop in self._places(list(bad)):
            view[start - first : stop - first] = ord("\n")
        return text

    def rows(self, numbers: Sequence[int]) -> list[bytes]:
        """Returns the bytes of some rows without their line ends."""
        data = self.data.data
        return [bytes(data[start:stop]).rstrip(b"\r\n") for start, stop in self._places(numbers)]

    def _places(self, numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Returns the first byte of some rows, and the byte after each."""
        return zip(self.starts[numbers].tolist(), self.stops[numbers].tolist(), strict=True)


def rows_in_front(
    records: Records, decode: Decode, error: ArrowflowError
) -> tuple[pa.RecordBatch | None, ArrowflowError]:
    """Returns the rows in front of the first bad one of a block, and what is wrong with that row.

    Args:
        records: The rows of the block.
        decode: Decodes some of them.
        error: The error that it raised for all of them.
    """

    def check(start: int, stop: int) -> object:
        return decode(records.between(start, stop), stop - start, records.first + start)

    place, error = first_bad(len(records), check, error)
    if "row " not in str(error):
        located = type(error)(f"row {records.first + place + 1}: {error.args[0]}")
        located.__cause__ = error.__cause__
        error = located
    return (None if place == 0 else decode(records.between(0, place), place, records.first)), error


def good_rows(
    records: Records, decode: Decode, known: Mapping[int, str]
) -> tuple[pa.RecordBatch | None, dict[int, str]]:
    """Returns the good rows of a block; and the bad ones, by their numbers in the block, with what is wrong.

    Args:
        records: The rows of the block.
        decode: Decodes some of them.
        known: Rows that are bad, as is known already.
    """

    def without(bad: dict[int, str]) -> tuple[pa.RecordBatch | None, dict[int, str]]:
        rows = len(records) - len(bad)
        return decode(records.without(bad), rows, records.first) if rows else None, bad

    try:
        return without(dict(known))
    except ArrowflowError:
        bad = {**known, **_bad_rows(records, decode, known)}
    try:
        return without(bad)
    except ArrowflowError as error:
        raise SourceError(f"rows that are good alone cannot be decoded together: {error}") from error


def _bad_rows(records: Records, decode: Decode, known: Mapping[int, str]) -> dict[int, str]:
    """Returns the rows that cannot be decoded alone, but for those that are known."""
    numbers = np.setdiff1d(np.arange(len(records)), list(known))
    found: dict[int, str] = {}
    for begin in range(0, len(numbers), PART_ROWS):
        part = numbers[begin : begin + PART_ROWS]

        def check(start: int, stop: int, part: Offsets = part) -> None:
            tried = part[start:stop]
            for run in np.split(tried, np.flatnonzero(np.diff(tried) > 1) + 1):
                first, last = int(run[0]), int(run[-1]) + 1
                decode(records.between(first, last), last - first, records.first + first)

        found |= {int(part[place]): str(error.args[0]) for place, error in bad_among(len(part), check)}
    return found


def listed(records: Records, bad: Mapping[int, str], first: int, strip: Callable[[bytes], bytes]) -> Any:
    """Returns bad rows of a block, whose first row has this number in the split."""
    return tuple(
        BadRow(
            first + number,
            text if "row " in text else f"row {records.first + number + 1}: {text}",
            strip(row),
        )
        for (number, text), row in zip(sorted(bad.items()), records.rows(sorted(bad)), strict=True)
    )
