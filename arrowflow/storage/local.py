"""Files on this machine: their paths, and the rules that all local writers share."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from arrowflow.errors import PlanError

UNFINISHED: Final = "_UNFINISHED"
"""Name of the file that a writer keeps in a folder as long as the folder is not a whole dataset."""

NO_ROOM: Final = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full to this user",
    errno.EFBIG: "a file may not be that large (see `ulimit -f`, and what the file system takes)",
}
"""Errors of the operating system for a file that cannot grow, with the meaning of each."""


def local_path(text: str, operator: str) -> str:
    """Returns the absolute path of a local file or folder; `~` is the home of the user, as in a shell.

    Raises:
        PlanError: No file can have such a name; or the working directory, or the home, is not known.
    """
    try:
        if b"\0" in text.encode():
            raise ValueError("names of files have no null bytes")
        return os.path.abspath(Path(text).expanduser() if text == "~" or text.startswith("~/") else text)
    except (OSError, ValueError, RuntimeError) as error:
        raise PlanError(f"{operator}: {text!r} is no path of a file ({error}); name another one") from error


def flush(path: str | os.PathLike[str]) -> None:
    """Waits until a local file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
