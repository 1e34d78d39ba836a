"""Forks of a process in which Polars has threads: in the child they are not there, and it would wait for them for ever.

To be asked for a schema or a length is enough to start them, which is noted. A user's own frames are enough, too: so a
process that is forked looks for threads by their name. Only systems with `/proc` tell; elsewhere forks are not what
multiprocessing does.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from arrowflow.errors import ForkError

_THREADS: Final = Path("/proc/self/task")


class _Polars:
    """What is to be known of Polars.

    Attributes:
        process: The process that had its threads when it was forked first; inherited by the child.
    """

    process: int | None = None


def check_polars() -> None:
    """Asked before each use of Polars that needs its threads.

    Raises:
        ForkError: This process was forked from one that had them.
    """
    if _Polars.process is not None and _Polars.process != os.getpid():
        raise ForkError(
            "this process was forked from one that had used Polars (to tell a schema or a length, or outside of "
            'arrowflow), whose threads do not survive that; use the "spawn" or "forkserver" start method of '
            "multiprocessing, as in DataLoader(…, multiprocessing_context='forkserver'), or fork before"
        )
    # Its threads take their names some time after they are started: a fork right behind this use would not find them.
    _Polars.process = os.getpid()


def _look() -> None:
    if _Polars.process is None and any(_is_worker(thread) for thread in _threads()):
        _Polars.process = os.getpid()


def _threads() -> list[Path]:
    try:
        return list(_THREADS.iterdir())
    except OSError:
        return []


def _is_worker(thread: Path) -> bool:
    try:
        name = (thread / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # it has ended
        return False
    return name.startswith("polars-") and name[7:].isdigit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_look)
