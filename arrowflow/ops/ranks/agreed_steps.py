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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from arrowflow.errors import RankError, said
from arrowflow.kernels.context import Context
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
        coordinator: The means by which ranks agree.
        ends: Whether the ranks have to agree on their last step, or only on the epoch.
    """

    name: ClassVar[str] = "agreed_steps"

    coordinator: Coordinator = field(compare=False, repr=False)
    ends: bool = True

    def arguments(self) -> Mapping[str, Any]:
        """Returns nothing: it decides no row of a step."""
        return {}

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        most_bytes = options.ram_budget // HELD_IN_BUDGET
        does = (
            "agrees with the other ranks where to end"
            if self.ends
            else "compares its epoch with the other ranks"
        )

        def make(context: Context) -> SerialKernel:
            return (
                AgreedStepsKernel(self.coordinator, most_bytes)
                if self.ends
                else SameEpochKernel(self.coordinator)
            )

        return (
            KernelSpec(
                operator=self.name,
                kind="serial",
                make=make,
                splits=self.ends,
                has_position=False,
                facts=lambda: (f"{does}, by {self.coordinator}",),
            ),
        )


class SameEpochKernel(SerialKernel):
    """Compares the epochs of all ranks before the second step of a run.

    Args:
        coordinator: The means by which ranks compare them.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._epoch = 0
        self._steps = 0

    def open(self, position: Position, epoch: int) -> Position:
        self._epoch = epoch
        return position

    def push(self, item: Item) -> Iterator[Item]:
        if item.chunk.num_rows:
            self._steps += 1
            if self._steps == 2:
                yield PAUSE
                agreed(self._coordinator, self._epoch, None, 0)
        yield item


def agreed(coordinator: Coordinator, epoch: int, step: int | None, steps: int) -> tuple[int, int]:
    """Returns the steps of the rank that has the fewest of all, and of the one that has the most.

    Args:
        coordinator: The means by which ranks agree.
        epoch: The epoch of this rank.
        step: Its next step; None to compare only the epoch.
        steps: How many steps it has.

    Raises:
        RankError: Another rank failed, or is at another place.
    """
    place = (epoch << 32) + (step or 0)
    try:
        least, most, fewest, longest = coordinator.all_min([place, -place, steps, -steps])
    except Exception as error:
        on = "on the epoch" if step is None else f"on the steps after step {step:,}"
        raise RankError(
            f"the ranks could not agree {on} ({said(error)}): another rank failed, ended, or did not answer in time; look at "
            "its error, and start all ranks again from their last states"
        ) from error
    if least != -most:
        here, there = (
            f"in epoch {place >> 32}" + ("" if step is None else f" at step {place % (1 << 32):,}")
            for place in (place, -most if least == place else least)
        )
        raise RankError(
            f"this rank is {here}, another one {there}; all ranks have to make the same steps of the same epoch: call set_epoch "
            "on all of them, and load states of the same step"
        )
    return fewest, -longest


class AgreedStepsKernel(SerialKernel):
    """Holds batches back until all ranks have them.

    Args:
        coordinator: The means by which ranks agree.
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
        while not self.done:
            yield from self._agreed()

    def _agreed(self) -> Iterator[Item]:
        yield PAUSE
        steps, most = agreed(self._coordinator, self._epoch, self._number, min(self._wanted, len(self._held)))
        if most and not steps and not self._number:
            raise no_step("another rank has no batch")
        self._wanted = min(MAX_STEPS, GROWTH * self._wanted)
        if not steps:
            self.done = True
            self._held.clear()
        for _ in range(steps):
            item = self._held.popleft()
            self._num_bytes -= item.chunk.nbytes
            self._number += 1
            yield item
