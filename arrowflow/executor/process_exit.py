"""Interpreter exit and forks: the two ends of a process that every run has to survive (rules 11 and 12)."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref

from arrowflow.errors import ForkError
from arrowflow.executor.processes.pool import dismiss
from arrowflow.executor.stages.base import Run
from arrowflow.executor.workers.worker import RunThread


class _Process:
    """The state of the process.

    Attributes:
        owner: The process that ran a pipeline first; inherited by forked children, which is how they are told.
        exiting: Whether the interpreter exits.
    """

    owner: int | None = None
    exiting = False


_live: weakref.WeakSet[Run] = weakref.WeakSet()


def register(run: Run) -> None:
    """Remembers a run that is about to start its threads.

    Raises:
        ForkError: This process was forked from one that had run a pipeline.
    """
    rest_at_exit()
    if _Process.owner is None:
        _Process.owner = os.getpid()
        # Workers are daemons, since Python joins other threads before exit handlers run. So the handler has to end
        # the workers while everything that they use is still there.
        atexit.register(_close_all)
    check_not_forked()
    _live.add(run)


def is_forked() -> bool:
    """Whether this process was forked from one that had run a pipeline: no run of that process can go on here."""
    return _Process.owner is not None and os.getpid() != _Process.owner


def check_not_forked() -> None:
    """Raises `ForkError` where no pipeline can run, before anything is asked of pools that did not survive."""
    if is_forked():
        raise ForkError(
            "this process was forked from one that had already run a pipeline, and locks and the thread pools of "
            'Arrow and Polars do not survive that; use the "spawn" or "forkserver" start method of multiprocessing, '
            "or fork before the first pipeline runs"
        )


def rest_at_exit() -> None:
    """Holds a daemon thread that goes on consuming while the interpreter exits.

    A moment later Python would hold it anyway; until then it would find its run closed, and raise for nobody.
    """
    thread = threading.current_thread()
    if _Process.exiting and thread.daemon and not isinstance(thread, RunThread):
        forever = threading.Lock()
        forever.acquire()
        forever.acquire()


def _close_all() -> None:
    if os.getpid() == _Process.owner:
        _Process.exiting = True
        runs = list(_live)
        for run in runs:
            run.stop()
        # Nobody caught it, and Python has shown it: who wants out shall not wait for long.
        interrupted = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
        for run in runs:
            run.close(interrupted=interrupted)
        dismiss()
