"""The folder of an entry: its files beside the chunks, and its creation as a whole."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from arrowflow.caching.store.listing import listed
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
