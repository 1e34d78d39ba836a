"""Interpreter exit and forks: the two ends of a process that every run has to survive (rules 11 and 12)."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from typing import Protocol

from arrowflow.errors import ForkError
from arrowflow.executor.processes.pool import dismiss
from arrowflow.executor.workers.worker import RunThread


class Closable(Protocol):
    """A run, as the end of the process sees it."""

    def stop(self) -> None:
        """Tells everybody to stop. Takes no lock and never waits."""

    def close(self, *, interrupted: bool = False) -> None:
        """Stops the run, waits for its workers and drops what it holds."""


class _Process:
    """The state of the process.

    Attributes:
        owner: The process that ran a pipeline first; inherited by forked children, which is how they are told.
        exiting: Whether the interpreter exits.
    """

    owner: int | None = None
    exiting = False


_live: weakref.WeakSet[Closable] = weakref.WeakSet()


def register(run: Closable) -> None:
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
    check_process(_Process.owner)
    _live.add(run)


def check_not_forked() -> None:
    """Raises `ForkError` where no pipeline can run, before anything is asked of pools that did not survive."""
    if _Process.owner is not None:
        check_process(_Process.owner)


def check_process(owner: int) -> None:
    """Raises `ForkError` in any other process than `owner`."""
    if os.getpid() != owner:
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
