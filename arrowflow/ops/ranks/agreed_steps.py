"""Ranks agree where to end, if only a run tells how many rows they have, and that they are in the same epoch.

Before each 64 steps all ranks take part in one small reduction: how many steps has the rank that has the fewest? So all
make that many, and end where one of them has none. The first reductions come after 1, 4 and 16 steps, so that the first
batch comes soon. Each is made in `next()`, on the thread of the consumer, before the same step on all ranks. So ranks
that leave their loops at the same step leave no reduction behind. A number in it tells its epoch and place: ranks that
are out of step notice it.

Where the steps are known, there is one reduction, before the second step of a run: ranks compare their epochs. A look at
a first batch, on one rank alone, leaves the others out of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from arrowflow.errors import RankError, said
from arrowflow.kernels.items import PAUSE, Item
from arrowflow.kernels.kinds import SerialKernel
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.ops.ranks.coordinator import Coordinator
from arrowflow.ops.ranks.steps import no_step
from arrowflow.options import ResolvedOptions
from arrowflow.plan.position import Position, lanes_in, settled

MAX_STEPS = 64
GROWTH = 4
"""The most steps that ranks agree on at once, and the largest ratio to the steps before."""
HELD_IN_BUDGET = 8
"""The part of the byte budget that batches may take which are held back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreedSteps(RowOperator):
    """The batches of a rank, as many as all ranks have. It is the last operator, so that it runs in `next()`.

    Row order: its input's. Memory: batches of 64 steps, or an eighth of the byte budget. Deterministic. Resume: its
    input's position.

    Attributes:
        coordinator: What the ranks agree by.
        ends: Whether the ranks have to agree on their last step, or only on the epoch.
    """

    name: ClassVar[str] = "agreed_steps"

    coordinator: Coordinator = field(compare=False, repr=False)
    ends: bool = True

    def arguments(self) -> Mapping[str, Any]:
        """Returns nothing: it decides no row of a step."""
        return {}

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        """Returns one serial kernel."""
        most_bytes = options.ram_budget // HELD_IN_BUDGET
        steps = KernelSpec(
            operator=self.name,
            kind="serial",
            make=lambda context: AgreedStepsKernel(self.coordinator, most_bytes),
            splits=True,
            has_position=False,
            facts=lambda: (f"agrees with the other ranks where to end, by {self.coordinator}",),
        )
        epochs = KernelSpec(
            operator=self.name,
            kind="serial",
            make=lambda context: SameEpochKernel(self.coordinator),
            has_position=False,
            facts=lambda: (f"compares its epoch with the other ranks, by {self.coordinator}",),
        )
        return (steps if self.ends else epochs,)


class SameEpochKernel(SerialKernel):
    """Compares the epochs of all ranks before the second step of a run.

    Args:
        coordinator: What the ranks compare them by.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._epoch = 0
        self._steps = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Notes the epoch."""
        self._epoch = epoch
        return position

    def push(self, item: Item) -> Iterator[Item]:
        """Passes the batch on.

        Raises:
            RankError: Another rank failed, or is in another epoch.
        """
        if item.chunk.num_rows:
            self._steps += 1
            if self._steps == 2:
                yield PAUSE
                least, most = agreed(self._coordinator, [self._epoch, -self._epoch], "on the epoch")
                if least != -most:
                    other = -most if least == self._epoch else least
                    raise RankError(
                        f"this rank is in epoch {self._epoch}, another one in epoch {other}; all ranks have to run the same "
                        "epoch: call set_epoch on all of them, and load states of the same step"
                    )
        yield item


def agreed(coordinator: Coordinator, numbers: Sequence[int], on: str) -> Sequence[int]:
    """Returns the least of the numbers of all ranks.

    Raises:
        RankError: Another rank failed.
    """
    try:
        return coordinator.all_min(numbers)
    except Exception as error:
        raise RankError(
            f"the ranks could not agree {on} ({said(error)}): another rank failed, ended, or did not answer in time; look at "
            "its error, and start all ranks again from their last states"
        ) from error


class AgreedStepsKernel(SerialKernel):
    """Holds batches back until all ranks have them.

    Args:
        coordinator: What the ranks agree by.
        most_bytes: Bytes of batches to hold back.
    """

    def __init__(self, coordinator: Coordinator, most_bytes: int) -> None:
        self._coordinator = coordinator
        self._most_bytes = most_bytes
        self._epoch = 0
        self._number = 0  # of the next step
        self._wanted = 1
        self._held: deque[Item] = deque()
        self._num_bytes = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Restores the number of steps; all ranks resume at the same one."""
        lanes = lanes_in(settled(position))
        self._epoch, self._number = epoch, 0 if lanes is None else lanes.step
        return position

    def push(self, item: Item) -> Iterator[Item]:
        """Yields batches that all ranks have."""
        if not item.chunk.num_rows:  # the start of the lanes
            yield item
            return
        self._held.append(item)
        self._num_bytes += item.chunk.nbytes
        while len(self._held) >= self._wanted or (self._held and self._num_bytes > self._most_bytes):
            yield from self._agreed()

    def finish(self) -> Iterator[Item]:
        """Yields the rest that all ranks have."""
        while not self.done:
            yield from self._agreed()

    def _agreed(self) -> Iterator[Item]:
        yield PAUSE
        steps = self._fewest(min(self._wanted, len(self._held)))
        self._wanted = min(MAX_STEPS, GROWTH * self._wanted)
        if not steps:
            self.done = True
            self._held.clear()
        for _ in range(steps):
            item = self._held.popleft()
            self._num_bytes -= item.chunk.nbytes
            self._number += 1
            yield item

    def _fewest(self, steps: int) -> int:
        """Returns the steps of the rank that has the fewest.

        Raises:
            RankError: Another rank failed, or is at another place.
        """
        place = (self._epoch << 32) + self._number
        numbers = [place, -place, steps, -steps]
        least, most, fewest, longest = agreed(
            self._coordinator, numbers, f"on the steps after step {self._number:,}"
        )
        if least != -most:
            epoch, step = divmod(-most if least == place else least, 1 << 32)
            raise RankError(
                f"this rank is in epoch {self._epoch} at step {self._number:,}, another one in epoch {epoch} at step "
                f"{step:,}; all ranks have to make the same steps, and to load states of the same step"
            )
        if longest and not fewest and not self._number:
            raise no_step("another rank has no batch")
        return fewest
