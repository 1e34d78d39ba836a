"""Ranks agree where to end, if only a run tells how many rows they have.

Before each 64 steps all ranks take part in one small reduction: how many steps has the rank that has the fewest? So all
make that many, and end where one of them has none. The first reductions come after 1, 4 and 16 steps, so that the first
batch comes soon. Each is made in `next()`, on the thread of the consumer, before the same step on all ranks. So ranks
that leave their loops at the same step leave no reduction behind. A number in it tells its epoch and place: ranks that
are out of step notice it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from arrowflow.errors import PlanError, RankError, said, shown
from arrowflow.kernels.cutting import CutPosition, CuttingKernel
from arrowflow.kernels.gather import joined_batch
from arrowflow.kernels.items import PAUSE, Item, Origin
from arrowflow.plan.position import Position

MAX_STEPS = 64
GROWTH = 4
"""The most steps that ranks agree on at once, and the largest ratio to the steps before."""


@runtime_checkable
class Coordinator(Protocol):
    """What ranks agree by. `torch.distributed`'s process groups need no class of their own."""

    def all_min(self, numbers: Sequence[int]) -> Sequence[int]:
        """Returns, for each place, the least of the numbers that all ranks give. Waits for all of them.

        Called in `next()`, on its thread, equally often on all ranks.
        """


def coordinator_of(given: Any) -> Coordinator | None:
    """Returns the coordinator that a user gave: one of their own, or for a process group of PyTorch.

    Raises:
        PlanError: It is neither.
    """
    if given is None or isinstance(given, Coordinator):
        return given
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and isinstance(given, distributed.ProcessGroup):
        return TorchCoordinator(given)
    raise PlanError(
        "split_by_rank: coordinator is a process group of torch.distributed, or an object with a method "
        f"all_min(numbers), got {shown(given)}"
    )


class TorchCoordinator:
    """Reductions in a process group of PyTorch, which nothing else may use at the same time."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def all_min(self, numbers: Sequence[int]) -> Sequence[int]:
        """See `Coordinator.all_min`."""
        import torch
        from torch import distributed

        device = torch.device("cuda" if distributed.get_backend(self._group) == "nccl" else "cpu")
        values = torch.tensor(numbers, dtype=torch.int64, device=device)
        distributed.all_reduce(values, distributed.ReduceOp.MIN, group=self._group)
        return [int(value) for value in values.tolist()]


class AgreedBatchKernel(CuttingKernel):
    """Slices the batches of a rank, as many as all ranks have.

    Args:
        size: Rows of a batch of this rank.
        most: The most steps to hold back.
        coordinator: What the ranks agree by.
    """

    def __init__(self, size: int, most: int, coordinator: Coordinator) -> None:
        super().__init__(size, drop_remainder=True)
        self._most = most
        self._coordinator = coordinator
        self._epoch = 0
        self._round = 0
        self._wanted = 1

    def open(self, position: Position, epoch: int) -> Position:
        """Restores the number of batches; all ranks resume at the same one."""
        self._epoch = epoch
        return super().open(position, epoch)

    def push(self, item: Item) -> Iterator[Item]:
        """Yields batches that all ranks have."""
        self._held.add(item)
        while not self.done and self._held.rows >= self._wanted * self._size:
            yield from self._agreed()

    def finish(self) -> Iterator[Item]:
        """Yields the rest that all ranks have."""
        while not self.done:
            yield from self._agreed()

    def _agreed(self) -> Iterator[Item]:
        yield PAUSE
        steps = self._fewest(min(self._wanted, self._held.rows // self._size))
        self.done = not steps
        self._wanted = min(self._most, GROWTH * self._wanted)
        for _ in range(steps):
            yield self._cut(self._size)

    def _cut(self, rows: int) -> Item:
        chunks, tickets = self._held.pop(rows)
        self._number += 1
        position = CutPosition(*self._held.mark(), self._number)
        chunk = joined_batch(chunks, "batch_size")
        return Item(chunk, position, tickets[0] if len(chunks) == 1 else None, Origin(self._number - 1))

    def _fewest(self, steps: int) -> int:
        """Returns the steps of the rank that has the fewest.

        Raises:
            RankError: Another rank failed, or is at another place.
        """
        place = (self._epoch << 32) + self._number
        try:
            least, most, fewest = self._coordinator.all_min([place, -place, steps])
        except Exception as error:
            raise RankError(
                f"the ranks could not agree on the steps after step {self._number:,} ({said(error)}): another rank failed, "
                "ended, or did not answer in time; look at its error, and start all ranks again from their last states"
            ) from error
        if least != -most:
            epoch, step = divmod(-most if least == place else least, 1 << 32)
            raise RankError(
                f"this rank is in epoch {self._epoch} at step {self._number:,}, another one in epoch {epoch} at step "
                f"{step:,}; all ranks have to make the same steps, and to load states of the same step"
            )
        return fewest
