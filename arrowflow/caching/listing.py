"""What the names in the folder of an entry say: which chunks there are, and whether they are all."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from arrowflow.caching.chunk import Name


class Listing(NamedTuple):
    """What a folder held when it was looked at.

    Attributes:
        names: The chunk that begins at each row; the longest, should there be several.
        num_rows: The rows of a complete entry, else None.
    """

    names: Mapping[int, Name]
    num_rows: int | None


NOTHING: Final = Listing({}, None)


def _num_rows(names: Mapping[int, Name]) -> int | None:
    row = 0
    while (name := names.get(row)) is not None:
        row += name.num_rows
        if name.end:
            return row
        if not name.num_rows:
            return None
    return None


def listed(folder: Path, left_out: set[Name]) -> Listing:
    """Returns what a folder holds now, but for some chunks."""
    names: dict[int, Name] = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # never begun, or cleared
        for found in folder.iterdir():
            name = Name.parse(found.name)
            if name is not None and name not in left_out and _better(name, names.get(name.first_row)):
                names[name.first_row] = name
    return Listing(names, _num_rows(names))


def _better(name: Name, other: Name | None) -> bool:
    """Whether one of two chunks that begin with the same row is to be used: the last one, or the longer one."""
    return other is None or (name.end, name.num_rows, name.checksum) > (
        other.end,
        other.num_rows,
        other.checksum,
    )
