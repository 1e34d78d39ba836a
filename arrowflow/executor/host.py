"""`Run`: the part of a run that its workers and its consumer see. Stages see less: `Host` of `stages.base`."""

from __future__ import annotations

import threading
from enum import Enum, auto
from typing import NoReturn, Protocol

from arrowflow.executor.stages.base import Host, Stage


class ConsumerState(Enum):
    """Where the consumer is. The package's docstring has the diagram."""

    AWAY = auto()
    """In its own code. Workers run all calls."""
    NEAR = auto()
    """In its own code, and expected back so soon that workers rest."""
    TAKING = auto()
    """In `next()`, with an eye on what there is to take or to do."""
    COMPUTING = auto()
    """In a call that it runs itself. Workers rest."""
    STUCK = auto()
    """In a call of its own that took so long that workers took over."""
    WAITING = auto()
    """In `next()`, waiting for the bell."""


class ConsumerView(Protocol):
    """The part of the consumer that workers see. `Consumer` documents the members."""

    state: ConsumerState
    hurries: bool
    turns: int

    def tell(self) -> None:
        """Wakes it if its item, or the end, is there."""

    def hand_over(self) -> None:
        """Leaves all calls to it."""

    def take_over(self) -> None:
        """Lets workers work again, since it made nothing for a while."""


class Run(Host, Protocol):
    """The part of a run that its workers and its consumer see.

    Attributes:
        lock: Guards everything that has no other guard.
        root_out: The stage whose items the consumer takes.
        on_demand: Whether workers work only while the consumer waits.
    """

    lock: threading.RLock
    root_out: Stage
    on_demand: bool

    @property
    def tokens(self) -> float:
        """Cores that the running calls take, except for calls that wait."""

    @property
    def consumer(self) -> ConsumerView:
        """The thread that calls `next()`."""

    def tune(self, now: float) -> None:
        """Lets the tuner look, if it is time. Under the lock."""

    def fail(self, error: BaseException) -> None:
        """Stops the run because the executor itself failed."""

    def refuse(self) -> NoReturn:
        """Raises the error of a run that was stopped."""

    def drop(self) -> None:
        """Lets go of everything that no call is in the middle of."""
