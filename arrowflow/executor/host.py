"""`Run`: the part of a run that its workers and its consumer see. Stages see less: `Host` of `stages.base`."""

from __future__ import annotations

import threading
from typing import NoReturn, Protocol

from arrowflow.executor.stages.base import Host, Stage


class ConsumerView(Protocol):
    """The part of the consumer that workers see. `Consumer` documents the members."""

    inline: bool
    waiting: bool
    turns: int

    @property
    def hurries(self) -> bool:
        """Whether it is here for an item, and runs cheap calls itself."""

    @property
    def looks_soon(self) -> bool:
        """Whether it is here, and will look for work by itself before long."""

    @property
    def stuck(self) -> bool:
        """Whether it is in a call that takes so long that workers have taken over."""

    @property
    def waits_long(self) -> bool:
        """Whether it has waited for a while."""

    def tell(self) -> None:
        """Wakes it if its item, or the end, is there."""

    def ring(self) -> None:
        """Wakes it."""

    def hand_over(self) -> None:
        """Leaves all calls to it."""

    def leave_to_workers(self) -> None:
        """Lets workers work again, since it made nothing for a while."""


class Run(Host, Protocol):
    """The part of a run that its workers and its consumer see.

    Attributes:
        lock: Guards everything that has no other guard.
        order: All stages, the most downstream first.
        root_out: The stage whose items the consumer takes.
        on_demand: Whether workers work only while the consumer waits.
    """

    lock: threading.RLock
    order: list[Stage]
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
