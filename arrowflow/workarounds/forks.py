"""Forks of a process in which Polars has threads: the child lacks these threads, and would wait for them for ever.

A question for a schema or a length starts the threads, and is noted. A user's own frames start them, too. So a forked
process looks for the threads by their name. Only systems with `/proc` tell; on other systems multiprocessing does not
fork by default.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from arrowflow.errors import ForkError

_THREADS: Final = Path("/proc/self/task")


class _Polars:
    """The process state of Polars.

    Attributes:
        process: The process that had Polars' threads when it was forked first; the child inherits the value.
    """

    process: int | None = None


def check_polars() -> None:
    """Called before each use of Polars that needs its threads.

    Raises:
        ForkError: This process was forked from a process that had Polars' threads.
    """
    if _Polars.process is not None and _Polars.process != os.getpid():
        raise ForkError(
            "this process was forked from one that had used Polars (to tell a schema or a length, or outside of "
            'arrowflow), whose threads do not survive that; use the "spawn" or "forkserver" start method of '
            "multiprocessing, as in DataLoader(…, multiprocessing_context='forkserver'), or fork before"
        )
    # Threads get their names some time after their start: a fork right after this use would not find them.
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
    except OSError:  # the thread has ended
        return False
    return name.startswith("polars-") and name[7:].isdigit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_look)
