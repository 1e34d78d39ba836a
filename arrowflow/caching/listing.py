"""What the names in the folder of an entry say: which chunks there are, and whether they are all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from arrowflow.caching.chunk import Name


class Listing(NamedTuple):
    """What a folder held when it was looked at.

    Attributes:
        names: The chunk that begins at each row; the last one, or the longest, should there be several.
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


def listing_of(files: Iterable[str], left_out: Collection[Name] = ()) -> Listing:
    """Returns what the names of files say, but for some chunks."""
    names: dict[int, Name] = {}
    for file in files:
        name = Name.parse(file)
        if name is not None and name not in left_out and _better(name, names.get(name.first_row)):
            names[name.first_row] = name
    return Listing(names, _num_rows(names))


def listed(folder: Path, left_out: Collection[Name] = ()) -> Listing:
    """Returns what a folder holds now, but for some chunks."""
    try:
        files = [found.name for found in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):  # never begun, or cleared
        return NOTHING
    return listing_of(files, left_out)


def _better(name: Name, other: Name | None) -> bool:
    """Whether one of two chunks that begin with the same row is to be used: the last one, or the longer one."""
    return other is None or (name.end, name.num_rows, name.checksum) > (
        other.end,
        other.num_rows,
        other.checksum,
    )
