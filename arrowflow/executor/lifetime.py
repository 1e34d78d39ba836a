"""Interpreter exit and forks: the two ends of a process that every run has to survive (rules 9 and 10)."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import TYPE_CHECKING

from arrowflow.errors import ForkError

if TYPE_CHECKING:
    from arrowflow.executor.engine import Engine

_live: weakref.WeakSet[Engine] = weakref.WeakSet()
_owner: int | None = None
"""Process that ran a pipeline first; inherited by forked children, which is how they are told."""


def register(engine: Engine) -> None:
    """Remembers a run that is about to start its threads.

    Raises:
        ForkError: This process was forked from one that had run a pipeline.
    """
    global _owner
    if _owner is None:
        _owner = os.getpid()
        # Workers are daemons, since Python joins other threads before exit handlers run; so the handler has to
        # end them while everything they use is still there.
        atexit.register(_close_all)
    check_process(_owner)
    _live.add(engine)


def check_process(owner: int) -> None:
    """Raises `ForkError` in any other process than `owner`."""
    if os.getpid() != owner:
        raise ForkError(
            "this process was forked from one that had already run a pipeline, and locks and the thread pools of "
            'Arrow and Polars do not survive that; use the "spawn" or "forkserver" start method of multiprocessing, '
            "or fork before the first pipeline runs"
        )


def _close_all() -> None:
    if os.getpid() == _owner:
        for engine in list(_live):
            engine.close()
