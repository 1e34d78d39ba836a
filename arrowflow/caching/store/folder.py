"""The folder of an entry: the listing of its chunks, its files beside them, and its creation as a whole."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from arrowflow.caching.store.chunk import Name
from arrowflow.errors import SourceError
from arrowflow.storage import UNFINISHED, flush

LOCK: Final = "lock"
USED: Final = "used"
ABOUT: Final = "entry.json"
FILLING: Final = ".filling-"
NEW: Final = ".new-"
REMOVED: Final = ".removed-"

UNWRITABLE: Final = {
    errno.EACCES: "this user may not write there",
    errno.EPERM: "the system does not let this user write there",
    errno.EROFS: "the file system can only be read",
}
"""Errors of the operating system for a place where nothing can be written, with the meaning of each."""

MAX_TRIES: Final = 5
"""The limit of tries: somebody may clear the cache at any moment, and again."""


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


def make_folder(root: Path, folder: Path, about: Mapping[str, Any]) -> None:
    """Makes the folder of an entry, by a rename. Another process may make the folder first; then that folder stays.

    A folder without a description gets one: files that are not a cache's stayed in it when the entry was removed.

    Args:
        root: The folder of the cache.
        folder: The folder of the entry.
        about: The content of `entry.json`.
    """
    root.mkdir(parents=True, exist_ok=True)
    new = root / f"{NEW}{os.urandom(8).hex()}"
    new.mkdir()
    try:
        (new / UNFINISHED).touch()
        (new / USED).touch()
        with (new / ABOUT).open("x", encoding="utf-8") as file:
            json.dump(dict(about), file, indent=1)
        flush(new / ABOUT)
        new.rename(folder)
    except OSError:
        with suppress(OSError):
            if not (folder / ABOUT).exists():
                (new / ABOUT).rename(folder / ABOUT)
        shutil.rmtree(new, ignore_errors=True)
        if not folder.is_dir():
            raise
    flush(root)


def take_name(folder: Path, final: Path) -> bool:
    """Renames a complete folder. False if another folder has the name; then this folder stays while it is read."""
    for _ in range(MAX_TRIES):
        with suppress(OSError):
            folder.rename(final)
            return True
        if listed(final).num_rows is not None:
            return False
        # A folder that has lost a chunk makes way.
        removed = final.with_name(f"{REMOVED}{os.urandom(8).hex()}")
        with suppress(OSError):
            final.rename(removed)
            if listed(removed).num_rows is not None:  # whole: another process took the name meanwhile
                removed.rename(final)
        shutil.rmtree(removed, ignore_errors=True)
    return False
