"""The listing of an entry's folder: which chunks exist, and whether they are all chunks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from arrowflow.caching.store.chunk import Name
from arrowflow.errors import SourceError


class Listing(NamedTuple):
    """The chunks that a folder held at one moment.

    Attributes:
        names: The chunk that begins at each row. Of several chunks, the last chunk of the entry, or else the
            longest.
        num_rows: The rows of a complete entry, else None.
    """

    names: Mapping[int, Name]
    num_rows: int | None

    @property
    def chain(self) -> Sequence[Name]:
        """The chunks that follow each other from row 0, up to the entry's last chunk or to the first gap."""
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
    """Returns the listing of files by their names, without the chunks `left_out`."""
    names: dict[int, Name] = {}
    for name in map(Name.parse, files):
        if name is not None and name not in left_out:
            other = names.setdefault(name.first_row, name)
            if other is not name and (name.end, name) > (other.end, other):
                names[name.first_row] = name
    chain = Listing(names, None).chain
    return Listing(names, sum(name.num_rows for name in chain) if chain and chain[-1].end else None)


def listed(folder: Path, left_out: Collection[Name] = ()) -> Listing:
    """Returns the current listing of a folder, without the chunks `left_out`."""
    try:
        files = [found.name for found in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):  # never begun, or cleared
        return NOTHING
    except OSError as error:
        raise SourceError(
            f"the folder of a cache cannot be listed ({error}); name one that can, or cache in memory with cache()"
        ).locate(operator="cache", file=str(folder)) from error
    return listing_of(files, left_out)
