"""Interpreter exit and forks: the two ends of a process that every run has to survive (rules 11 and 12)."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from arrowflow.errors import ForkError
from arrowflow.executor.children import dismiss
from arrowflow.interrupts import interruption

if TYPE_CHECKING:
    from arrowflow.executor.engine import Engine


class _Process:
    """What is to be known of the process.

    Attributes:
        owner: The process that ran a pipeline first; inherited by forked children, which is how they are told.
        exiting: Whether the interpreter exits.
    """

    owner: int | None = None
    exiting = False


_live: weakref.WeakSet[Engine] = weakref.WeakSet()


def register(engine: Engine) -> None:
    """Remembers a run that is about to start its threads.

    Raises:
        ForkError: This process was forked from one that had run a pipeline.
    """
    rest_at_exit()
    if _Process.owner is None:
        _Process.owner = os.getpid()
        # Workers are daemons, since Python joins other threads before exit handlers run; so the handler has to
        # end them while everything they use is still there.
        atexit.register(_close_all)
    check_process(_Process.owner)
    _live.add(engine)


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


class Caller:
    """Whoever runs calls: a worker, or the consumer that does not wait for one.

    Attributes:
        stage: What it is in the middle of, if anything.
        weight: Cores that its call takes.
        beside: Calls of its stage that were in flight when its own began, itself included.
        seen: When it was last looked at, with its CPU time and the time that it had waited for a core; None until
            its call has begun.
        meter: What it uses of the CPU; None before it runs.
        closing: Operators whose abandoned iterator it closes.
    """

    def __init__(self) -> None:
        self.stage: Any = None
        self.weight = 0.0
        self.beside = 0
        self.seen: tuple[float, float, float] | None = None
        self.meter: Any = None
        self.closing: tuple[str, ...] = ()

    def give_up(self) -> None:
        """Forgets its call, which will not come to an end."""
        stage, self.stage = self.stage, None
        if stage is not None:
            stage.running = 0

    @property
    def operators(self) -> tuple[str, ...]:
        """What it is in the middle of."""
        stage = self.stage
        return self.closing if stage is None else stage.plan_operators


class Worker(Caller, threading.Thread):
    """A thread of a run: a type of its own, by which finalizers know where they run.

    Attributes:
        parking: What it waits for when it has nothing to do; released to wake it.
        called: Whether it was woken or started and has not looked for work since.
    """

    def __init__(self, target: Callable[[], None], name: str) -> None:
        Caller.__init__(self)
        threading.Thread.__init__(self, target=target, name=name, daemon=True)
        self.parking = threading.Lock()
        self.parking.acquire()
        self.called = False


def wake(parking: threading.Lock) -> None:
    """Ends a wait, or the next one."""
    try:
        parking.release()
    except RuntimeError as error:  # it was woken and did not wait again yet
        if interruption(error) is not None:
            raise


def rest_at_exit() -> None:
    """Holds a daemon thread that goes on consuming while the interpreter exits.

    A moment later Python would hold it anyway; until then it would find its run closed, and raise for nobody.
    """
    thread = threading.current_thread()
    if _Process.exiting and thread.daemon and not isinstance(thread, Worker):
        forever = threading.Lock()
        forever.acquire()
        forever.acquire()


def _close_all() -> None:
    if os.getpid() == _Process.owner:
        _Process.exiting = True
        engines = list(_live)
        for engine in engines:
            engine.stop()
        # Nobody caught it, and Python has shown it: who wants out shall not wait for long.
        interrupted = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
        for engine in engines:
            engine.close(interrupted=interrupted)
        dismiss()
