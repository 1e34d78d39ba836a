"""What the names in the folder of an entry say: which chunks there are, and whether they are all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from arrowflow.caching.store.chunk import Name
from arrowflow.errors import SourceError


class Listing(NamedTuple):
    """What a folder held when it was looked at.

    Attributes:
        names: The chunk that begins at each row; the last one, or the longest, should there be several.
        num_rows: The rows of a complete entry, else None.
    """

    names: Mapping[int, Name]
    num_rows: int | None

    @property
    def chain(self) -> Sequence[Name]:
        """The chunks that follow each other from row 0, up to the last one or to the first gap."""
        found: list[Name] = []
        row = 0
        while (name := self.names.get(row)) is not None:
            found.append(name)
            row += name.num_rows
            if name.end or not name.num_rows:
                break
        return found


NOTHING: Final = Listing({}, None)


def listing_of(files: Iterable[str], left_out: Collection[Name] = ()) -> Listing:
    """Returns what the names of files say, but for some chunks."""
    names: dict[int, Name] = {}
    for file in files:
        name = Name.parse(file)
        if name is not None and name not in left_out and _better(name, names.get(name.first_row)):
            names[name.first_row] = name
    chain = Listing(names, None).chain
    return Listing(names, sum(name.num_rows for name in chain) if chain and chain[-1].end else None)


def listed(folder: Path, left_out: Collection[Name] = ()) -> Listing:
    """Returns what a folder holds now, but for some chunks."""
    try:
        files = [found.name for found in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):  # never begun, or cleared
        return NOTHING
    except OSError as error:
        raise SourceError(
            f"the folder of a cache cannot be listed ({error}); name one that can, or cache in memory with cache()"
        ).locate(operator="cache", file=str(folder)) from error
    return listing_of(files, left_out)


def _better(name: Name, other: Name | None) -> bool:
    """Whether one of two chunks that begin with the same row is to be used: the last one, or the longer one."""
    return other is None or (name.end, name.num_rows, name.checksum) > (
        other.end,
        other.num_rows,
        other.checksum,
    )
