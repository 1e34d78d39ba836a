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

import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from arrowflow.errors import PlanError, RankError, said, shown
from arrowflow.kernels.items import PAUSE, Item
from arrowflow.kernels.kinds import SerialKernel
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.ops.ranks.steps import no_step
from arrowflow.options import ResolvedOptions
from arrowflow.plan.position import Position, lanes_in, settled

MAX_STEPS = 64
GROWTH = 4
"""The most steps that ranks agree on at once, and the largest ratio to the steps before."""
HELD_IN_BUDGET = 8
"""The part of the byte budget that batches may take which are held back."""


@runtime_checkable
class Coordinator(Protocol):
    """The means by which ranks agree. `torch.distributed`'s process groups need no class of their own."""

    def all_min(self, numbers: Sequence[int]) -> Sequence[int]:
        """Returns, for each place, the least of the numbers that all ranks give. Waits for all of them.

        Called in `next()`, on its thread, equally often on all ranks.
        """


def coordinator_of(given: Any, world_size: int) -> Coordinator | None:
    """Returns the coordinator that a user gave, one of their own or for a process group of PyTorch; else the default group.

    The default group is taken where it is initialised, and as large as the plan is split.

    Raises:
        PlanError: It is neither.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if given is None:
        ready = distributed is not None and distributed.is_available() and distributed.is_initialized()
        return TorchCoordinator() if ready and 1 < world_size == distributed.get_world_size() else None
    if isinstance(given, Coordinator):
        return given
    if distributed is not None and isinstance(given, distributed.ProcessGroup):
        return TorchCoordinator(given)
    raise PlanError(
        "split_by_rank: coordinator is a process group of torch.distributed, or an object with a method "
        f"all_min(numbers), got {shown(given)}"
    )


@dataclass(frozen=True, slots=True)
class TorchCoordinator(Coordinator):
    """Reductions in a process group of PyTorch, which nothing else may use at the same time.

    Without a group it is that of all processes, and pickles: the group is looked up when it is used.
    """

    group: Any = None

    def __str__(self) -> str:
        default = "the default process group of torch.distributed"
        return default if self.group is None else "the given process group"

    def all_min(self, numbers: Sequence[int]) -> Sequence[int]:
        import torch.distributed

        device = "cuda" if torch.distributed.get_backend(self.group) == "nccl" else "cpu"
        values = torch.tensor(numbers, dtype=torch.int64, device=device)
        torch.distributed.all_reduce(values, torch.distributed.ReduceOp.MIN, group=self.group)
        return [int(value) for value in values.tolist()]


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

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        agrees = "agrees with the other ranks where to end"
        does = agrees if self.ends else "compares its epoch with the other ranks"
        return KernelSpec(
            "serial",
            lambda context: AgreedStepsKernel(self, options.ram_budget // HELD_IN_BUDGET),
            splits=self.ends,
            has_position=False,
            facts=lambda: (f"{does}, by {self.coordinator}",),
        )


class AgreedStepsKernel(SerialKernel):
    """Holds batches back until all ranks have them; or passes them on, and compares epochs before the second one."""

    def __init__(self, node: AgreedSteps, most_bytes: int) -> None:
        self._node = node
        self._most_bytes = most_bytes
        self._epoch = 0
        self._number = 0  # of the next step, in this run where only epochs are compared
        self._wanted = 1
        self._held: deque[Item] = deque()
        self._num_bytes = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Restores the number of steps; all ranks resume at the same one."""
        lanes = lanes_in(settled(position)) if self._node.ends else None
        self._epoch, self._number = epoch, 0 if lanes is None else lanes.step
        return position

    def push(self, item: Item) -> Iterator[Item]:
        if not item.chunk.num_rows:  # the start of the lanes
            yield item
        elif self._node.ends:
            self._held.append(item)
            self._num_bytes += item.chunk.nbytes
            while len(self._held) >= self._wanted or (self._held and self._num_bytes > self._most_bytes):
                yield from self._agreed()
        else:
            if self._number == 1:
                yield PAUSE
                self._agree(0)
            self._number += 1
            yield item

    def finish(self) -> Iterator[Item]:
        while self._node.ends and not self.done:
            yield from self._agreed()

    def _agreed(self) -> Iterator[Item]:
        yield PAUSE
        steps, most = self._agree(min(self._wanted, len(self._held)))
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

    def _agree(self, steps: int) -> tuple[int, int]:
        """Returns the steps of the rank that has the fewest of all, and of the one that has the most.

        Raises:
            RankError: Another rank failed, or is at another place.
        """
        place = (self._epoch << 32) + self._number
        try:
            least, most, fewest, longest = self._node.coordinator.all_min([place, -place, steps, -steps])
        except Exception as error:
            raise RankError(
                f"the ranks could not agree after step {self._number:,} ({said(error)}): another rank failed, ended, or did not "
                "answer in time; look at its error, and start all ranks again from their last states"
            ) from error
        if least != -most:
            places = place, -most if least == place else least
            here, there = (f"in epoch {at >> 32} at step {at % (1 << 32):,}" for at in places)
            raise RankError(
                f"this rank is {here}, another one {there}; all ranks have to make the same steps of the same epoch: call "
                "set_epoch on all of them, and load states of the same step"
            )
        return fewest, -longest
