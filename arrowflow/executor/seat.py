"""`Seat`: where the consumer is, as workers see it. `Consumer` is the thread itself."""

from __future__ import annotations

import threading
from enum import Enum, auto

from arrowflow.executor.workers.worker import Runner, wake


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


class Seat(Runner):
    """The consumer's place in a run. Guarded by the run's lock, except where it says otherwise.

    Attributes:
        state: Where it is.
        hurries: It is in `next()`, and runs cheap calls itself.
        turns: Calls that it ran, and times that it took something.
        trusts: No call of its own was stuck so far. Its own.
        in_charge: It runs all calls.
        bell: Released to wake it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state = ConsumerState.AWAY
        self.hurries = self.in_charge = False
        self.turns = 0
        self.trusts = True
        self.bell = threading.Lock()
        self.bell.acquire()

    @property
    def waits_for_run(self) -> bool:
        """Whether it is in `next()`, and has nothing left of what it took before."""
        return self.state in (ConsumerState.TAKING, ConsumerState.WAITING)

    @property
    def rests_workers(self) -> bool:
        """Whether it runs all calls itself."""
        return self.state in (ConsumerState.NEAR, ConsumerState.COMPUTING)

    def hand_over(self) -> None:
        """Leaves all calls to it."""
        self.in_charge = True
        self.ring()

    def take_over(self) -> bool:
        """Lets workers work again, since it made nothing for a while: it is busy elsewhere, or stuck.

        The call that it is stuck in may wait for other calls; then it does not run any more of them.

        Returns:
            Whether it is stuck in a call.
        """
        stuck = self.state is ConsumerState.COMPUTING
        if stuck:
            self.state = ConsumerState.STUCK
            self.trusts = False
        elif self.state is ConsumerState.NEAR:
            self.state = ConsumerState.AWAY
        self.hurries = self.in_charge = False
        return stuck

    def ring(self) -> None:
        """Wakes it, to look what there is to do. Takes no lock."""
        if self.state is ConsumerState.WAITING:
            self.state = ConsumerState.TAKING
        wake(self.bell)
