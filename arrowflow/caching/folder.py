"""The folder of an entry: what lies in it beside the chunks, and how it comes into being as a whole."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from arrowflow.storage import UNFINISHED, flush

LOCK: Final = "lock"
USED: Final = "used"
ABOUT: Final = "entry.json"
FILLING: Final = ".filling-"
NEW: Final = ".new-"
REMOVED: Final = ".removed-"


def make_folder(root: Path, folder: Path, about: Mapping[str, Any]) -> None:
    """Makes the folder of an entry, by a rename; it may be there when that is over, since another process has made it.

    One that has no description gets it: what was not a cache's has stayed in it when the entry was removed.

    Args:
        root: The folder of the cache.
        folder: That of the entry.
        about: What `entry.json` says.
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
